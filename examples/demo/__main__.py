"""Start a store, a prefill and a decode process, send requests through them, and check each against an undivided run.

Exit status 0 only if everything held.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from pd_handoff import DecodeClient, HandoffError

from examples.demo import verdicts
from examples.demo.pipes import Child
from examples.demo.store import Store
from examples.demo.workload import GREEDY, PLAIN, STUBBORN, TOO_LONG

PATIENCE = 120.0
"""Seconds for any one step, on a slow machine too."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # nothing is downloaded
    "TRANSFORMERS_VERBOSITY": "error",
    "OMP_NUM_THREADS": "1",  # the order of additions is the same in every process
}


def main() -> int:
    """Run it all; returns the exit status."""
    started = time.monotonic()
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="pd-handoff-demo-") as name, ExitStack() as stack:
        directory = Path(name)
        try:
            rows = run(directory, stack)
        except (RuntimeError, OSError, HandoffError) as error:
            print(f"the demo could not go on: {error}", file=sys.stderr)
            for log in sorted(directory.glob("*.log")):
                print(f"--- {log.name}, its end:\n{log.read_text(errors='replace')[-4000:]}", file=sys.stderr)
            return 1
    return report(rows, time.monotonic() - started)


def run(directory: Path, stack: ExitStack) -> list[verdicts.Row]:
    """Send the requests through; returns what became of them.

    Raises RuntimeError, OSError or HandoffError when a process does not do its part.
    """
    store = Store(directory, "--slots", "4", "--max-top-logprobs", "128")
    stack.callback(store.stop)
    undivided, prefill, decode = (start(stack, role, store, directory) for role in ("undivided", "prefill", "decode"))
    store.wait_until_serving(PATIENCE)
    pids = ", ".join(str(each.process.pid) for each in (store, prefill, decode))
    print(f"store, prefill and decode are processes {pids}", flush=True)
    weights = [child.expect("ready", PATIENCE)["weights"] for child in (undivided, prefill, decode)]

    with DecodeClient(store.target) as client:
        before = client.capabilities()
        # What a gateway does with a request before it submits it.
        greedy = replace(GREEDY, top_logprobs=before.clamp_top_logprobs(GREEDY.top_logprobs))
        whole = [*PLAIN, greedy]
        requests = [request.to_json() for request in (*whole, STUBBORN, TOO_LONG)]
        undivided.tell(requests=requests[: len(whole)])
        expected = [undivided.expect("generated", PATIENCE) for _ in whole]
        decode.tell(requests=requests)
        decode.expect("waiting", PATIENCE)
        prefill.tell(requests=requests)
        served = [prefill.expect("served", PATIENCE) for _ in requests]
        received = [decode.expect("served", PATIENCE) for _ in requests]
        after = client.capabilities()
    for child in (undivided, prefill, decode):
        child.end(PATIENCE)

    handed_over = zip(whole, [*PLAIN, GREEDY], expected, served[:-2], received[:-2], strict=True)
    return [
        *(verdicts.generated(*each) for each in handed_over),
        verdicts.refused(STUBBORN, served[-2], received[-2], before.limits.top_logprobs),
        verdicts.aborted(TOO_LONG, served[-1], received[-1]),
        verdicts.left_behind(before, after, store.stop(), weights),
    ]


def start(stack: ExitStack, role: str, store: Store, directory: Path) -> Child:
    """A child process, stopped when the stack unwinds."""
    arguments = [] if role == "undivided" else ["--target", store.target, "--kv", str(directory)]
    child = Child(role, [sys.executable, "-m", f"examples.demo.{role}", *arguments], directory / f"{role}.log")
    stack.callback(child.stop)
    return child


def report(rows: list[verdicts.Row], seconds: float) -> int:
    """Print the table; returns the exit status."""
    lines = [("room", "top logprobs", "held", "what happened")]
    lines += [(row.room, row.asked, "yes" if row.held else "NO", row.happened) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    for line in lines:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, [*widths, 0], strict=True)))
    failed = sum(not row.held for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} held, in {seconds:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
