"""Start a store, a prefill and a decode process, send requests through them, and check each against an undivided run.

Exit status 0 only if everything held.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pd_handoff import DecodeClient, HandoffError

from examples.demo import verdicts
from examples.demo.pipes import Child
from examples.demo.store import Store
from examples.demo.workload import GREEDY, PLAIN, STUBBORN, TOO_LONG, Request

PATIENCE = 120.0
"""Seconds for any one step, on a slow machine too."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # nothing is downloaded
    "TRANSFORMERS_VERBOSITY": "error",
    "OMP_NUM_THREADS": "1",  # the order of additions is the same in every process
}


INTRODUCTION = """\
One request, two processes: prefill computes the prompt and the first token, decode generates the other 15. The first
token, its logprobs and a hidden state go through the store; the KV cache goes by a file.

The model is a Llama of 4 layers, hidden size 256, with seeded random weights: real arithmetic, meaningless text.
Nothing is downloaded. A token is a number from 0 to 511.
"""

EXPLANATION = """
How to read it: 'held' says whether a row did what it must. Rows 0 to 50 were handed over, and every token, logprob and
hidden state equals, bit for bit, what one undivided process computes. Row 50 asked for 200 top logprobs; its gateway
clamped them to the store's limit. Row 51 did not clamp: it was refused before its prefill was computed. Row 52 was
aborted by prefill, and decode, which was waiting, got the reason at once. The last row: no slot is left in use.
"""

NEXT = """
Next: run `.venv/bin/pd-handoff serve`, and in a second terminal `.venv/bin/pd-handoff doctor`, then `... top`.
docs/tutorial.md hands a record over by hand; examples/demo/prefill.py and decode.py are the two sides of this demo.
"""


def step(number: int, text: str) -> None:
    """Says how far it is."""
    print(f"[{number}/4] {text}", flush=True)


def main() -> int:
    """Run it all; returns the exit status."""
    started = time.monotonic()
    print(INTRODUCTION, flush=True)
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
    step(1, "starting four processes: store, prefill, decode, and the undivided reference (each loads torch)")
    store = Store(directory, "--slots", "4", "--max-top-logprobs", "128")
    stack.callback(store.stop)
    undivided, prefill, decode = (start(stack, role, store, directory) for role in ("undivided", "prefill", "decode"))
    store.wait_until_serving(PATIENCE)
    pids = ", ".join(str(each.process.pid) for each in (store, prefill, decode))
    step(2, f"the store serves; store, prefill and decode are processes {pids}; the models are loading")
    weights = [child.expect("ready", PATIENCE)["weights"] for child in (undivided, prefill, decode)]

    with DecodeClient(store.target) as client:
        before = client.capabilities()
        # What a gateway does with a request before it submits it.
        greedy = replace(GREEDY, top_logprobs=before.clamp_top_logprobs(GREEDY.top_logprobs))
        whole = [*PLAIN, greedy]
        requests = [request.to_json() for request in (*whole, STUBBORN, TOO_LONG)]
        step(3, f"the reference computes {len(whole)} requests undivided")
        undivided.tell(requests=requests[: len(whole)])
        expected = [undivided.expect("generated", PATIENCE) for _ in whole]
        step(4, f"decode asks for {len(requests)} rooms and waits; prefill computes them one by one")
        decode.tell(requests=requests)
        decode.expect("waiting", PATIENCE)
        prefill.tell(requests=requests)
        served = [prefill.expect("served", PATIENCE) for _ in requests]
        received = [decode.expect("served", PATIENCE) for _ in requests]
        show_tokens(whole, received)
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


def show_tokens(requests: Sequence[Request], received: Sequence[dict[str, Any]]) -> None:
    """The tokens of each request: who sampled which."""
    for request, answer in zip(requests, received, strict=False):
        if answer["outcome"] == "generated":
            first, *rest = (token["token_id"] for token in answer["sampled"])
            shown = " ".join(f"{token_id:>3}" for token_id in rest)
            print(f"      room {request.room:<20} prefill {first:>3} | decode {shown}")
    print(flush=True)


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
    print(EXPLANATION)
    print(f"{len(rows) - failed} of {len(rows)} held, in {seconds:.1f} s")
    print(NEXT)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
