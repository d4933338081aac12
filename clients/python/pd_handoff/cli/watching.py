"""`pd-handoff list`, once or again and again."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from pd_handoff.admin import HandoffInfo, HandoffState
from pd_handoff.cli import connect, handoffs, output, screen
from pd_handoff.client import AdminClient
from pd_handoff.errors import HandoffError

_LEAST = 0.5


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the command's own options."""
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        type=str.upper,
        choices=[state.name for state in HandoffState if state],
        help="only these; repeatable (default: all live ones)",
    )
    parser.add_argument("--limit", type=int, default=1000, metavar="N", help="at most (default 1000)")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=2.0,
        metavar="SECONDS",
        help="list again every so many seconds (default 2) until q or Ctrl-C",
    )


def run(args: argparse.Namespace) -> None:
    """Lists. Raises HandoffError; while it watches, only at the first look."""
    if args.watch is not None and args.watch < _LEAST:
        raise ValueError(f"--watch must be at least {_LEAST:g} seconds")
    if args.watch is not None and args.json:
        raise ValueError("--watch is for people; for scripts call `pd-handoff list --json` again")
    states = [HandoffState[name] for name in args.state]
    with connect.client(AdminClient, args) as client:

        def look() -> list[HandoffInfo]:
            return client.list_handoffs(namespace=args.namespace, states=states, limit=args.limit)

        found = look()
        if args.json:
            return output.show_json(found)
        if args.watch is None:
            print("\n".join([*handoffs.table(found), handoffs.summary(found, args.limit)]))
            return None
        with screen.opened() as shown:
            watch(look, found, shown, args.watch, args.limit)
    return None


def watch(
    look: Callable[[], list[HandoffInfo]], found: list[HandoffInfo], shown: screen.Screen, seconds: float, limit: int
) -> None:
    """Draws until `q`. A store that is away for a while is reported, and its last list stays."""
    trouble = ""
    while True:
        at = time.monotonic()
        width, height = shown.size()
        head, *rows = handoffs.table(found[: max(height - 3, 1)] if shown.live else found, width)
        lines = [screen.styled(f"every {seconds:g} s: {handoffs.summary(found, limit)}", "bold")]
        lines += [screen.styled(f"! {trouble}", "red")] if trouble else []
        shown.show([*lines, screen.styled(head, "dim"), *rows])
        while pressed := shown.key(at + seconds - time.monotonic()):
            if pressed == "q":
                return
        try:
            found, trouble = look(), ""
        except HandoffError as error:
            trouble = f"{error.reason}: {' '.join(error.message.split())}"
