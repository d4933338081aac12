"""Run scenarios, tell their figures, and fail when anything was not as promised."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from .common import TRANSPORTS, Options, Report, Scenario, scenarios


def run(
    scenario: Scenario,
    *,
    short: bool,
    seed: int,
    rounds: int | None = None,
    talk: bool = False,
    transports: tuple[str, ...] = TRANSPORTS,
) -> Report:
    """One scenario, in a directory of its own."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="pd-faults-", dir=base) as directory:
        say = (lambda text: print(f"  {text}", file=sys.stderr, flush=True)) if talk else (lambda text: None)
        return scenario.run(Options(short, seed, Path(directory), rounds, say, transports))


def main() -> int:
    """The command."""
    known = scenarios()
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--short", action="store_true", help="the short form, as in the tests")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices (default 1)")
    parser.add_argument("--rounds", type=int, help="how often something is broken, on each transport")
    parser.add_argument(
        "--transport", choices=("both", *TRANSPORTS), default="both", help="of the store (default both)"
    )
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    given = parser.parse_args()
    unknown = set(given.scenario) - known.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave by way of every `finally`
    transports = TRANSPORTS if given.transport == "both" else (given.transport,)
    reports = {}
    for name in given.scenario or known:
        print(f"{name}: {known[name].summary}", flush=True)
        began = time.monotonic()
        report = reports[name] = run(
            known[name], short=given.short, seed=given.seed, rounds=given.rounds, talk=True, transports=transports
        )
        figures = ", ".join(f"{figure} {count:,}" for figure, count in report.figures.items())
        print(f"{name}: {figures}; faults {len(report.faults):,} ({time.monotonic() - began:.0f} s)", flush=True)
        for fault in report.faults[:20]:
            print(f"  FAULT {fault}", flush=True)
    if given.json:
        given.json.write_text(json.dumps({name: vars(report) for name, report in reports.items()}, indent=2))
    return int(any(report.faults for report in reports.values()))


if __name__ == "__main__":
    sys.exit(main())
