"""A client process: takes jobs as lines of JSON, answers each with a line of JSON.

`python -m bench.worker KIND ADDRESS` with KIND one of `SUBJECTS`. A job is {"do": name of a method, ...its arguments}.
Times are in seconds; moments are of the monotonic clock, which is one for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SUBJECTS = {
    "stub": "bench.clients.stub",
    "stub-aio": "bench.clients.stub_aio",
    "core": "bench.clients.core",
    "client": "bench.clients.ours",
    "client-aio": "bench.clients.ours_aio",
    "redis": "bench.clients.redis_peer",
    "etcd": "bench.clients.etcd_peer",
    "mooncake": "bench.clients.mooncake_peer",
}


def main() -> None:
    """Serve jobs until standard input ends."""
    kind, address, *rest = sys.argv[1:]
    subject = importlib.import_module(SUBJECTS[kind]).connect(address, *rest)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            result = getattr(subject, job.pop("do"))(**job)
        except Exception as error:  # told to the parent, which decides
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), flush=True)


def timed(calls: list[Callable[[], Any]], well: Callable[[Any], bool] = lambda _: True) -> dict[str, Any]:
    """Make calls one after the other: latency of each, CPU of this process, and the whole.

    Raises RuntimeError for an answer that is not `well`, which is asked once all is measured.
    """
    clock = time.perf_counter
    latencies, answers = [], []
    before, began = resource.getrusage(resource.RUSAGE_SELF), clock()
    for call in calls:
        start = clock()
        answer = call()
        latencies.append(clock() - start)
        answers.append(answer)
    whole, after = clock() - began, resource.getrusage(resource.RUSAGE_SELF)
    for answer in answers:
        if not well(answer):
            raise RuntimeError(f"answered {str(answer)[:200]}")
    return {"latencies": latencies, "seconds": whole, "cpu": _cpu(before, after) / len(calls)}


async def timed_tasks(call: Callable[[int], Awaitable[Any]], count: int, in_flight: int) -> dict[str, float]:
    """Make `count` calls by `in_flight` tasks: seconds of the whole, and CPU of this process a call."""
    left = iter(range(count))

    async def task() -> None:
        for at in left:
            await call(at)

    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    await asyncio.gather(*(task() for _ in range(in_flight)))
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {"seconds": seconds, "cpu": _cpu(before, after) / count}


def timed_threads(call: Callable[[int], Any], count: int, in_flight: int) -> dict[str, float]:
    """The same by threads, which run before the clock does."""
    left = iter(range(count))

    def thread() -> None:
        for at in left:
            call(at)

    with ThreadPoolExecutor(in_flight) as pool:
        together = threading.Barrier(in_flight)
        list(pool.map(lambda _: together.wait(60), range(in_flight)))
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        for running in [pool.submit(thread) for _ in range(in_flight)]:
            running.result()
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {"seconds": seconds, "cpu": _cpu(before, after) / count}


def _cpu(before: resource.struct_rusage, after: resource.struct_rusage) -> float:
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
