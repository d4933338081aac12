"""`python -m bench`: everything; `--quick`: a little of everything. Installs nothing; what is missing is named."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from . import bars, machine, servers
from .results import Report
from .scene import FULL, QUICK, Scene
from .sections import (
    batches,
    blocking,
    engine,
    floor,
    growth,
    h2load,
    handoff,
    load,
    many,
    memory,
    session,
    sizing,
    waiting,
)

WORDS = """\
"client" is this project's Python client, with all its checks; "stub" gRPC's public Python stub on ready-made bytes; a
"light client" sends ready-made bytes with a few microseconds of CPU a call and looks at nothing (HTTP/2 by hand; in the
section on the floor gRPC's C core without its stub). "As installed" leaves gRPC's settings alone; all other clients and
stubs have GRPC_EXPERIMENTS as the store sets it for itself. An "echo" is a server that only answers, with as many bytes
as the store: "fast" on the store's own transport, "aio" on a plain grpc.aio server. "store fast", "store aio": the
store on either of its transports. All speak over Unix sockets, unless a row says TCP; etcd and Mooncake know TCP alone.
"""

SECTIONS = {
    "load": load.run,
    "h2load": h2load.run,
    "session": session.run,
    "blocking": blocking.run,
    "batches": batches.run,
    "many": many.run,
    "waiting": waiting.run,
    "handoff": handoff.run,
    "growth": growth.run,
    "sizing": sizing.run,
    "floor": floor.run,
    "engine": engine.run,
    "memory": memory.run,
}


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="in under 90 seconds: to see that it runs, not to quote")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="this section; repeat for several")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where results go (%(default)s)")
    arguments = parser.parse_args()
    report = Report(machine.about())
    print("; ".join(f"{name} {value}" for name, value in report.about.items()), flush=True)
    print(f"\n{WORDS}", flush=True)
    began = time.monotonic()
    with servers.directory() as directory:
        scene = Scene(QUICK if arguments.quick else FULL, report, directory)
        with scene.stack:
            for name in arguments.only or SECTIONS:
                seen = set(report.sections())
                started = time.monotonic()
                SECTIONS[name](scene)
                report.about.setdefault("seconds by section", {})[name] = round(time.monotonic() - started)
                for section in report.sections():
                    if section not in seen:
                        print(f"\n## {section}\n\n{report.table(section)}", flush=True)
    print(f"\n## Bars\n\n{bars.judge(report)}")
    for what in report.missing:
        print(f"\nmissing: {what}")
    report.about["seconds"] = round(time.monotonic() - began)
    print(f"\nseconds by section: {report.about['seconds by section']}")
    report.save(arguments.json)
    print(f"\n{report.about['seconds']} s; all figures in {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
