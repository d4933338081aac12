"""A client process: takes jobs as lines of JSON, answers each with a line of JSON.

`python -m bench.worker KIND ADDRESS` with KIND one of `SUBJECTS`. A job is {"do": name of a method, ...its arguments}.
Times are in seconds; moments are of the monotonic clock, which is one for all processes of a machine.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

SUBJECTS = {
    "stub": "bench.clients.stub",
    "client": "bench.clients.ours",
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


def timed(calls: list[Callable[[], Any]]) -> dict[str, Any]:
    """Make calls one after the other: latency of each, CPU of this process, and the whole."""
    clock = time.perf_counter
    latencies = []
    before, began = resource.getrusage(resource.RUSAGE_SELF), clock()
    for call in calls:
        start = clock()
        call()
        latencies.append(clock() - start)
    whole, after = clock() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"latencies": latencies, "seconds": whole, "cpu": cpu / len(calls)}


if __name__ == "__main__":
    main()
