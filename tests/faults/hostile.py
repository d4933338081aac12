"""Hostile input: bytes that are no messages into every RPC, and floods of HTTP/2 frames, each of bounded length.

Beside and after each attack the store must answer health and hand a record over exactly. It must stay
within bounds of memory, and leave none in use after the last; have all its slots back; never answer INTERNAL or
UNKNOWN; and never log a failure.
"""

from __future__ import annotations

from typing import Any

from tests.support.process import ProcessStore

from . import bad_messages, floods
from .common import WIDTHS, Options, Report, Scenario
from .target import Target

SLACK = 40 << 20
"""Bytes of the heap that may be in use beyond those before the first attack; from 32 MiB on garbage is looked for."""

SETTINGS: dict[str, Any] = {
    "slots": 32,
    "lease_default": 1,
    "lease_min": 0.5,
    "lease_max": 1,
    "retention": 2,
    "consumed_grace": 0.5,
    "tombstone_time": 5,
    "admin_contents": "yes",
    "metrics_listen": "127.0.0.1:0",
    **WIDTHS,
}
"""Whatever an attack gets hold of comes back within seconds."""


def attack(target: Target, options: Options) -> None:
    """One round of everything."""
    bad_messages.fuzz(target, options.seed, options.times(400, 20_000))
    bad_messages.sizes(target)
    bad_messages.misframed(target)
    floods.frames(target, options.times(3_000, 100_000))
    floods.headers(target, options.times(500, 20_000))
    floods.references(target, options.times(50, 300))
    floods.garbage(target)
    floods.abandoned(target, options.times(1_000, 4_000))
    floods.crowd(target, options.times(200, 1_000))
    floods.deaf(target, options.times(500, 20_000))
    bad_messages.unknown_keys(target, options.times(5_000, 100_000))


def run(options: Options) -> Report:
    """Everything, on each transport, and a second time: what is kept for good would show."""
    report = Report()
    for transport in options.transports:
        with ProcessStore("127.0.0.1:0", transport=transport, **SETTINGS).wait() as store:
            target = Target(store, report, transport, options.say)
            for number in range(1 if options.short else 3):
                attack(target, options)
                target.rest(number + 1, SLACK)
            target.close()
        floods.few_places(report, transport)
        floods.unread(report, transport, options.say)
    return report


SCENARIO = Scenario("hostile", "raw bytes into every RPC, and floods of HTTP/2 frames", run)
