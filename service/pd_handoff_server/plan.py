"""`pd-handoff plan`: bytes a row and in total, from the code that allocates."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields

from . import config
from .arena.layout import HEADER, HeapShape, Layout, Limits
from .config import ConfigError
from .process.memory import available, human

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1}
# Resident memory beside the rows, as measured of a store in use (docs/startup.md).
# Python, torch, gRPC, what its connections hold, and what differs between machines: up to 10 MiB of the libraries'
# files, and what the C library's allocator makes of calls from many sides at once.
PROCESS_BYTES = 280 << 20
HANDOFF_BYTES = 1_700  # what is known of a live hand-off
OUTCOME_BYTES = 1_300  # and of one that has ended
_HEADROOM = 2  # slots a running request: reserved ones overlap with published ones not yet read


def _refuse(message: str) -> int:
    print(f"pd-handoff plan: {message}", file=sys.stderr)
    return 2


def plan_main(argv: Sequence[str], refuse: Callable[[str], int] = _refuse) -> int:
    """Print the plan; returns an exit code. `refuse` tells what is wrong with the arguments and gives the exit code."""
    parser = make_parser()
    try:
        given = vars(parser.parse_args(list(argv)))
        _derive(given)
        settings = config.load(given)
    except ConfigError as error:
        return refuse(str(error))
    layout = Layout(settings.limits())
    beside = PROCESS_BYTES + settings.slots * HANDOFF_BYTES + settings.tombstones * OUTCOME_BYTES
    if given["json"]:
        print(json.dumps(_as_dict(layout, settings.slots, beside, settings.heap()), indent=2))
    else:
        _print(layout, settings.slots, settings.tombstones, beside, settings.heap())
    room = available()
    total = layout.row_bytes * settings.slots + settings.heap().total + beside
    return 1 if room is not None and total > room else 0


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = config.Parser(
        prog="pd-handoff plan",
        allow_abbrev=False,
        description="Reckon the arena before you allocate it, with the flags of serve.",
        epilog="Exit codes: 0 it fits this machine; 1 it does not; 2 a bad setting.",
    )
    parser.add_argument(
        "--max-running-requests",
        type=int,
        help=f"requests in flight over all prefill nodes; plans {_HEADROOM} slots each, unless --slots is given",
    )
    parser.add_argument("--hidden-size", type=int, help="elements of a hidden state to hand over, 0 for none")
    parser.add_argument("--hidden-dtype", choices=sorted(_BYTES), default="bfloat16", help="default bfloat16")
    parser.add_argument("--json", action="store_true", help="JSON on stdout; errors as JSON on stderr")
    names = ["slots", "tombstones", "attachment_heap", *("max_" + limit.name for limit in fields(Limits))]
    config.add_arguments(parser, names)
    return parser


def _derive(given: dict[str, object]) -> None:
    """Turn what a capacity planner knows into settings of the store."""
    running, hidden = given["max_running_requests"], given["hidden_size"]
    if isinstance(running, int):
        if running < 1:
            raise ConfigError("--max-running-requests must be at least 1")
        if given["slots"] is None:
            given["slots"] = str(running * _HEADROOM)
    if isinstance(hidden, int):
        if hidden < 0:
            raise ConfigError("--hidden-size must be at least 0")
        if given["max_hidden_state_bytes"] is not None:
            raise ConfigError("--hidden-size and --max-hidden-state-bytes say the same thing; give one")
        given["max_hidden_state_bytes"] = str(hidden * _BYTES[str(given["hidden_dtype"])])


def _as_dict(layout: Layout, slots: int, beside: int, heap: HeapShape) -> dict[str, object]:
    return {
        "slots": slots,
        "row_bytes": layout.row_bytes,
        "arena_bytes": layout.row_bytes * slots,
        "beside_bytes": beside,
        "attachment_heap_bytes": heap.total,
        "attachment_page_bytes": heap.page_bytes if heap.pages else 0,
        "available_bytes": available(),
        "limits": {field.name: getattr(layout.limits, field.name) for field in fields(Limits)},
        "columns": [
            {"name": column.name, "dtype": column.dtype, "elements": column.elements, "bytes": column.bytes}
            for column in layout.columns
        ],
    }


def _print(layout: Layout, slots: int, tombstones: int, beside: int, heap: HeapShape) -> None:
    print(f"{'column':<36}{'dtype':<10}{'elements':>10}{'bytes':>12}")
    print(f"{'header':<36}{'':<10}{'':>10}{HEADER.size:>12,}")
    for column in layout.columns:
        print(f"{column.name:<36}{column.dtype:<10}{column.elements:>10,}{column.bytes:>12,}")
    total = layout.row_bytes * slots
    print(f"{'row, rounded up to 64':<56}{layout.row_bytes:>12,}")
    print(f"\narena: {slots:,} slots x {layout.row_bytes:,} bytes = {total:,} bytes ({human(total)})")
    if heap.pages:
        print(
            f"attachments: {heap.pages:,} pages x {heap.page_bytes:,} bytes = {heap.total:,} bytes "
            f"({human(heap.total)}), up to {layout.limits.attachment_bytes:,} bytes a record"
        )
        total += heap.total
    print(
        f"beside the arena: about {human(beside)} when all slots are in use: the process, hand-offs and {tombstones:,} "
        "outcomes; what waiting calls hold (--max-waiting-bytes) comes on top"
    )
    room = available()
    if room is not None:
        print(f"available here: {human(room)}; {'fits' if total + beside <= room else 'does NOT fit'}")
