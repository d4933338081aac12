"""Processes that fork with open clients and hand-offs under way, as engines do that start workers late.

The child must neither end, nor renew, nor publish what its parent has reserved, however it leaves. It can hand over by
the client it has inherited. The parent goes on as if nothing had happened.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from pd_handoff import DecodeClient, HandoffError, PrefillClient

from tests.support.process import ProcessStore

from .common import WIDTHS, Options, Report, Scenario, differences, per_transport, record_of
from .fleet import REPOSITORY
from .outside import QUIET

WAYS = ("leave", "exit", "raise", "put")
"""How a child leaves the block of its parent's hand-off: by its end, sys.exit, an exception, or a Put of its own."""
SECONDS = 300.0
CHILD = 60.0


def child(handoff: Any, prefill: PrefillClient, decode: DecodeClient, way: str, room: int) -> str:
    """What a child does with what it has inherited. Returns what was not as promised, or ""."""
    record = record_of(("", room, 0), 0)
    prefill.put_once(room, record, owner=f"child-{room}")
    if differences(decode.get(room, max_wait=CHILD).proto, ("", room, 0), 0):
        return "read another record"
    if way == "put":
        try:
            handoff.put(record)
        except RuntimeError:
            return ""
        return "published its parent's hand-off"
    return ""


def work(target: str, session: Any, first_room: int, count: int) -> None:
    """The parent, a process of its own: prints its report as JSON."""
    report = Report()
    with (
        PrefillClient(target, session=session, instance_id="parent") as prefill,
        DecodeClient(target, session=session, reader_id="reader") as decode,
    ):
        for number in range(count):
            room, way = first_room + number, WAYS[number % len(WAYS)]
            try:
                one_fork(prefill, decode, room, way, report)
            except HandoffError as error:
                report.fault(f"room {room}, {way}: {error.reason or type(error).__name__}: {error}")
    print(json.dumps({"figures": report.figures, "faults": report.faults}), flush=True)


def one_fork(prefill: PrefillClient, decode: DecodeClient, room: int, way: str, report: Report) -> None:
    """Forks in the block of a hand-off, and publishes once the child has left."""
    parent, record = os.getpid(), record_of(("", room, 0), 0)
    try:
        with prefill.prefill(room, owner=f"owner-{room}", lease=CHILD) as handoff:
            pid = os.fork()
            if not pid:
                wrong = child(handoff, prefill, decode, way, 10**6 + room)
                if wrong:
                    os._exit(3)
                if way == "exit":
                    sys.exit(0)
                if way == "raise":
                    raise KeyboardInterrupt
            else:
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                report.expect(status == 0, f"room {room}: a child that did {way} ended with {status}")
                handoff.put(record)
    except BaseException:
        if os.getpid() == parent:
            raise
        os._exit(0)
    if os.getpid() != parent:
        os._exit(0)
    found = decode.get(room, max_wait=CHILD)
    wrong_fields = differences(found.proto, ("", room, 0), 0)
    report.expect(not wrong_fields, f"room {room}: read another record, different in {wrong_fields[:5]}")
    report.count("forks within a hand-off")


def play(options: Options, report: Report, transport: str) -> None:
    """One transport."""
    settings: dict[str, Any] = {"slots": 256, "transport": transport, **WIDTHS, **QUIET}
    with ProcessStore(f"unix:{options.directory}/store", **settings).wait() as store:
        for turn, session in enumerate(("never", "always")):
            code = "import sys; from tests.faults import forks; forks.work(*sys.argv[1:3], *map(int, sys.argv[3:]))"
            command = [sys.executable, "-c", code, store.target, session, str(10**4 * turn)]
            done = subprocess.run(
                [*command, str(options.times(len(WAYS), 100))],
                capture_output=True,
                text=True,
                cwd=REPOSITORY,
                timeout=SECONDS,
                check=False,
            )
            if done.returncode:
                report.fault(f"the parent ended with {done.returncode}: {done.stderr.strip()[-300:]}")
                continue
            told = json.loads(done.stdout)
            for name, number in told["figures"].items():
                report.count(name, number)
            report.faults.extend(told["faults"])


SCENARIO = Scenario(
    "forks", "processes that fork amid a hand-off: the child must not end what is its parent's", per_transport(play)
)
