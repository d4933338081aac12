"""The wall clock jumps, years ahead and years back: no lease, retention or memory of an outcome moves with it.

In this process with a clock of the test's own, and in a real store under libfaketime, which changes the wall clock of
one process and leaves its monotonic clock alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.build import build_store
from pd_handoff_server.config import Settings
from pd_handoff_server.lifecycle import Spec

from tests.support.clock import FakeClock
from tests.support.failures import CallFailed
from tests.support.process import ProcessStore
from tests.support.steps import Steps
from tests.support.waits import at_once

from .common import WIDTHS, Options, Report, Scenario, differences, on_each_transport, record_of
from .outside import QUIET, metrics

YEAR = 365 * 86400
JUMPS = (10 * YEAR, -20 * YEAR, 3600, -3600, 0, 10 * YEAR)
"""Seconds ahead of the true time, one after the other."""
LEASE, WAIT = 0.3, 60.0
LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")


def run(options: Options) -> Report:
    """Both; the second where libfaketime is installed, on each transport."""
    report = Report()
    _injected(report)
    library = next(_libraries(), None)
    if library is None:
        report.count("a real process under faketime: unavailable because libfaketime is not installed")
    else:
        on_each_transport(options, report, partial(_faked, library))
    return report


def _libraries() -> Iterator[str]:
    for pattern in LIBRARIES:
        yield from map(str, Path("/").glob(pattern.lstrip("/")))


# -- the injected clock ------------------------------------------------------------------------------------------------


def _injected(report: Report) -> None:
    """Exactly: one nanosecond before its time is over it lives, then it does not, whatever the wall clock says."""
    for ahead in JUMPS:
        clock = FakeClock()
        store, _ = build_store(Settings(slots=4, lease_min=0.001, retention=30.0, tombstone_time=60.0), clock, ())
        try:
            specs = [Spec(("", room, 0), "owner", lease=10 * 10**9) for room in (1, 2)]
            _, kept = store.reserve_all(specs, 0, lambda result: None)  # type: ignore[misc] # it does not wait
            store.put(("", 2, 0), kept.token, record_of(("", 2, 0), 0), at_once)
            clock.shift_wall(ahead)
            clock.advance(10 - 1e-9)
            store.tick()
            report.expect(store.facts().slots_free == 2, f"a jump of {ahead} s ended a lease early")
            clock.advance(1e-9)
            store.tick()
            report.expect(store.facts().slots_free == 3, f"a jump of {ahead} s kept a lease alive")
            clock.shift_wall(-2 * ahead)
            clock.advance(20 - 1e-9)
            store.tick()
            report.expect(store.facts().slots_free == 3, f"a jump of {ahead} s ended a retention early")
            clock.advance(1e-9)
            store.tick()
            report.expect(store.facts().slots_free == 4, f"a jump of {ahead} s kept a record alive")
            report.count("jumps of an injected clock", 2)
        finally:
            store.close()


# -- a real process ----------------------------------------------------------------------------------------------------


class FakedWall:
    """The wall clock of a store process, as a file that libfaketime reads at every look at the clock."""

    def __init__(self, library: str, directory: Path) -> None:
        self._file = directory / "wall"
        self.set(0)
        self.environment = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, ahead: int) -> None:
        """So many seconds ahead of the true time; the file is replaced whole."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{ahead:+d}")
        fresh.rename(self._file)


def _faked(library: str, options: Options, report: Report, transport: str) -> None:
    wall = FakedWall(library, options.directory)
    arena = options.directory / "arena"
    settings: dict[str, Any] = {**WIDTHS, **QUIET, "slots": 16, "lease_min": 0.05, "arena_file": arena}
    settings["transport"] = transport
    listen, environment = f"unix:{options.directory / 's'}", wall.environment
    rooms = list(range(len(JUMPS) * options.times(short=1, long=10)))
    with ProcessStore(listen, environment=environment, **settings).wait() as store:
        steps = store.steps()
        held = steps.reserve(10**6, lease=3600).token
        steps.publish(10**6 + 1, record_of(("", 10**6 + 1, 0), 0))
        true = _seconds(steps.get(10**6 + 1))
        for room in rooms:
            ahead = JUMPS[room % len(JUMPS)]
            try:
                _jump(steps, room, wall, ahead, true, report)
            except (CallFailed, AssertionError) as error:
                report.fault(f"after a jump of {ahead} s: {error}")
        report.expect(steps.free == 16 - 2, f"{14 - steps.free} slots lost to jumps")
        wall.set(JUMPS[0])
        store.process.kill()
    if options.short:
        return
    wall.set(JUMPS[1])
    with ProcessStore(listen, environment=environment, **settings).wait() as store:
        steps = store.steps()  # its leases go on over a restart under another wall clock, too
        found = steps.record(10**6 + 1, reader="r")
        report.expect(not differences(found, ("", 10**6 + 1, 0), 0), "a restart years back changed a record")
        steps.put(10**6, held, record_of(("", 10**6, 0), 0))
        report.expect(not differences(steps.record(10**6, reader="r"), ("", 10**6, 0), 0), "another record was read")
        expired = metrics(store).get('pd_handoff_ended_total{outcome="EXPIRED",state="RESERVED"}', 0.0)
        report.expect(expired == 0, f"{expired:g} leases ended by a restart years back")
        report.count("restarts under another wall clock")


def _seconds(found: pb.GetResponse) -> float:
    return found.published_at.ToNanoseconds() / 1e9


def _jump(steps: Steps, room: int, wall: FakedWall, ahead: int, true: float, report: Report) -> None:
    """A long lease and a waiting reader live through it; a short lease ends by itself, and none sooner than all do."""
    record = record_of(("", room, 0), 0)
    token = steps.reserve(room, lease=3600).token
    waiting = steps.start_get(room, WAIT, reader="r")
    wall.set(ahead)
    short = steps.start_get(10**7 + room, WAIT, reader="r")
    late = steps.reserve(10**7 + room, lease=LEASE).token
    _expect_refused("HANDOFF_EXPIRED", lambda: short.result(WAIT), report, ahead)
    _expect_refused("RESERVATION_EXPIRED", lambda: steps.put(10**7 + room, late), report, ahead)
    report.expect(steps.reserve(room, lease=3600).token == token, f"a jump of {ahead} s ended a long lease")
    steps.put(room, token, record)
    found = waiting.result(WAIT)
    report.expect(not differences(found.record, ("", room, 0), 0), f"another record after a jump of {ahead} s")
    # The store's own word that the jump reached it: half an hour is more than a run takes, less than any jump.
    moved = _seconds(found) - true
    report.expect(abs(moved - ahead) < 1800, f"told to jump {ahead} s, the wall clock moved {moved:.0f} s")
    report.count("jumps of a process's wall clock")


def _expect_refused(reason: str, call: Any, report: Report, ahead: int) -> None:
    try:
        call()
    except CallFailed as refused:
        report.expect(refused.reason == reason, f"after a jump of {ahead} s: {refused.reason}, not {reason}")
        report.count("leases that ended in time")
    else:
        report.fault(f"after a jump of {ahead} s: no {reason}")


SCENARIO = Scenario("clock", "wall-clock jumps both ways, in process and of a real store under faketime", run)
