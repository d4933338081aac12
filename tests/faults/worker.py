"""A prefill or decode process that hands over what it is told to: JSON lines in, JSON lines out, by the public client.

Each job runs in a thread of its own, so that many are in flight when the process is killed.

    {"job": 1, "room": 7, "attempt": 0, "pause": 0.01}                         to a prefill process
    {"job": 2, "room": 7, "attempt": 0, "wait": 60, "epoch": "00c0ffee..."}    to a decode process
    {"job": 1, "event": "published", "epoch": "00c0ffee..."}                   from either
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pd_handoff import DecodeClient, HandoffError, PrefillClient, Retries

from .common import differences, record_of

PATIENCE = 600.0
"""Seconds that a worker waits for a store that is away, time and again, on a busy machine."""

Job = dict[str, Any]
Answer = Callable[..., None]


def _prefill(client: PrefillClient, ending: threading.Event) -> Callable[[Job, Answer], None]:
    def work(job: Job, answer: Answer) -> None:
        room, attempt = job["room"], job["attempt"]
        record = record_of(("", room, 0), attempt)
        if job.get("once"):
            published = client.put_once(room, record, attempt=attempt)
        else:
            held = client.reserve(room, attempt=attempt, lease=600)
            answer("reserved", epoch=held.store_epoch)
            ending.wait(job["pause"])  # the prefill itself
            published = client.put(held, record)
        answer("published", epoch=published.store_epoch)

    return work


def _decode(client: DecodeClient) -> Callable[[Job, Answer], None]:
    def work(job: Job, answer: Answer) -> None:
        found = client.get(
            job["room"], attempt=job["attempt"], max_wait=job["wait"], expected_store_epoch=job.get("epoch")
        )
        wrong = differences(found.proto, ("", job["room"], 0), found.attempt)
        answer("read", epoch=found.store_epoch, attempt=found.attempt, wrong=wrong)

    return work


def main() -> int:
    """Work until the end of input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("prefill", "decode"))
    parser.add_argument("target")
    parser.add_argument("name")
    given = parser.parse_args()
    retries = Retries(total_seconds=PATIENCE, initial_backoff=0.02, max_backoff=0.25)
    options: list[tuple[str, Any]] = [("grpc.initial_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 100)]
    ending = threading.Event()
    if given.side == "prefill":
        prefill = PrefillClient(given.target, instance_id=given.name, retries=retries, timeout=20, options=options)
        work, close = _prefill(prefill, ending), prefill.close
    else:
        decode = DecodeClient(given.target, reader_id=given.name, retries=retries, timeout=20, options=options)
        work, close = _decode(decode), decode.close
    writing = threading.Lock()

    def run(job: Job) -> None:
        def answer(event: str, **more: object) -> None:
            line = json.dumps({"job": job["job"], "event": event, **more})
            with writing:
                print(line, flush=True)

        try:
            work(job, answer)
        except HandoffError as error:
            answer("failed", reason=error.reason)
        except Exception as error:  # a fault of the client: the conductor reports it
            answer("failed", reason=f"{type(error).__name__}: {error}")

    with ThreadPoolExecutor(64) as threads:
        for line in sys.stdin:
            threads.submit(run, json.loads(line))
        ending.set()
    close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
