"""The decode process: wait for each room's first token, then generate on from it."""

from __future__ import annotations

import argparse
import asyncio
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pd_handoff import HandoffAborted, Key
from pd_handoff.aio import DecodeClient
from pd_handoff.v1.record_pb2 import HandoffRecord

from examples.demo import kv
from examples.demo.model import Model, Sampled
from examples.demo.pipes import listen, say
from examples.demo.workload import NEW_TOKENS, Request

LONGEST_WAIT = 300.0
"""Seconds that decode would wait for a first token."""


async def main() -> None:
    """Ask for all rooms at once, and tell the orchestrator what came of each in the order given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--kv", type=Path, required=True)
    arguments = parser.parse_args()
    model = Model()
    with ThreadPoolExecutor(1) as engine:  # one model, one thread; the event loop stays free for answers
        async with DecodeClient(arguments.target, reader_id="decode-0") as store:
            say("ready", weights=model.weights_digest())
            requests = [Request.from_json(values) for values in listen()["requests"]]
            results = [asyncio.create_task(serve(request, model, store, arguments.kv, engine)) for request in requests]
            await asyncio.sleep(0)  # each asks
            say("waiting")
            for result in results:
                say("served", **await result)


async def serve(
    request: Request, model: Model, store: DecodeClient, kv_directory: Path, engine: Executor
) -> dict[str, Any]:
    """One request's result, as plain values."""
    asked = time.monotonic_ns()
    try:
        handoff = await store.get(Key(request.room), max_wait=LONGEST_WAIT, consume=True)
    except HandoffAborted as aborted:
        return {
            "room": request.room,
            "outcome": "aborted",
            "failure": asdict(aborted.failure),
            "asked": asked,
            "learned": time.monotonic_ns(),
        }
    path = kv_directory / f"{request.room}.safetensors"
    generated = await asyncio.get_running_loop().run_in_executor(
        engine, go_on, model, handoff.proto, path, request.top_logprobs
    )
    return {"room": request.room, "outcome": "generated", **generated}


def go_on(model: Model, record: HandoffRecord, path: Path, top_logprobs: int) -> dict[str, Any]:
    """Check what arrived, and generate the rest of the request."""
    cache = kv.read(path)
    if (record.kv_checksum.digest, record.kv_checksum.layout_signature) != kv.checksum(cache):
        raise RuntimeError("the KV cache that arrived is not the one that prefill wrote")
    token = record.tokens[0]
    if not token.HasField("logprob"):
        raise RuntimeError("prefill left the logprob out")
    first = Sampled(token.token_id, token.logprob, list(token.top_logprobs.values), list(token.top_logprobs.token_ids))
    rest = model.decode(cache, first.token_id, NEW_TOKENS - 1, top_logprobs)
    return {
        "hidden_state": record.speculative.hidden_states.data.hex(),
        "sampled": [asdict(sampled) for sampled in (first, *rest)],
    }


if __name__ == "__main__":
    asyncio.run(main())
