"""Many threads on one stream, without gRPC: who reads, who is handed what, and what is left behind."""

from __future__ import annotations

import gc
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from google.rpc import status_pb2
from pd_handoff import errors
from pd_handoff._transport import session_frames
from pd_handoff._transport.grpc_internals import Status
from pd_handoff._transport.multiplexer import Mux, MuxEnded
from pd_handoff._transport.stream import WireEnded
from pd_handoff._transport.watchdog import Alarm
from pd_handoff.v1 import metadata_store_pb2 as pb

BODY = (session_frames.TAGS["Abort"], pb.AbortRequest().SerializeToString())
PATIENCE = 30.0


class ScriptedWire:
    """What is sent arrives at the test, which answers when it likes."""

    def __init__(self) -> None:
        self.sent: queue.Queue[pb.SessionRequest] = queue.Queue()
        self.readers: set[int] = set()
        self._coming: queue.Queue[Any] = queue.Queue()

    def send(self, frame: bytes) -> None:
        self.sent.put(pb.SessionRequest.FromString(frame))

    def receive(self) -> bytes | None:
        self.readers.add(threading.get_ident())
        found = self._coming.get(timeout=PATIENCE)
        if isinstance(found, BaseException):
            raise found
        return found  # type: ignore[no-any-return]

    def exchange(self, frame: bytes) -> bytes | None:
        self.send(frame)
        return self.receive()

    def wake(self) -> None:
        self._coming.put(None)

    def cancel(self) -> None:
        self._coming.put(WireEnded(Status(1, "cancelled", ())))

    # the store's side

    def next(self) -> int:
        return self.sent.get(timeout=PATIENCE).call_id

    def answer(self, call_id: int, **result: Any) -> None:
        result = result or {"abort": pb.AbortResponse(ended=True)}
        self._coming.put(pb.SessionResponse(call_id=call_id, **result).SerializeToString())

    def end(self, code: int = 14) -> None:
        self._coming.put(WireEnded(Status(code, "gone", ())))


class Caller(threading.Thread):
    """One call in a thread of its own."""

    def __init__(self, mux: Mux, timeout: float = PATIENCE) -> None:
        super().__init__(daemon=True)
        self._mux = mux
        self._timeout = timeout
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._mux.call(*BODY, time.monotonic() + self._timeout)
        except BaseException as error:
            self.outcome = error

    def ended(self) -> Any:
        self.join(PATIENCE)
        assert not self.is_alive()
        return self.outcome


@pytest.fixture
def wire() -> ScriptedWire:
    return ScriptedWire()


@pytest.fixture
def mux(wire: ScriptedWire) -> Mux:
    return Mux(wire, Alarm())


def test_one_caller_reads_for_itself(mux: Mux, wire: ScriptedWire) -> None:
    for _ in range(3):
        wire.answer(mux._last + 1)
        assert mux.call(*BODY, time.monotonic() + PATIENCE) == pb.AbortResponse(ended=True)
    assert wire.readers == {threading.get_ident()}


def test_answers_in_any_order(mux: Mux, wire: ScriptedWire) -> None:
    callers: dict[int, Caller] = {}
    for _ in range(20):
        caller = Caller(mux)
        callers[wire.next()] = caller
    assert len(callers) == 20
    for call_id in (7, *(one for one in reversed(callers) if one != 7)):
        refused = status_pb2.Status(code=10, message=str(call_id))
        wire.answer(call_id, error=refused)
        assert callers[call_id].ended().message == str(call_id)


def test_the_lead_is_passed_on(mux: Mux, wire: ScriptedWire) -> None:
    callers: list[Caller] = []
    for _ in range(5):
        callers.append(Caller(mux))
        assert wire.next() == len(callers)
    for call_id, caller in enumerate(callers, 1):
        wire.answer(call_id)  # each time to the one that reads
        assert caller.ended() == pb.AbortResponse(ended=True)
    assert len(wire.readers) == 5


def test_a_late_answer_is_nobodys(mux: Mux, wire: ScriptedWire) -> None:
    assert isinstance(Caller(mux, 0.01).ended(), TimeoutError)
    late = wire.next()
    caller = Caller(mux)
    wire.answer(late, error=status_pb2.Status(code=13, message="late"))
    wire.answer(wire.next())
    assert caller.ended() == pb.AbortResponse(ended=True)


def test_each_gives_up_at_its_own_time(mux: Mux, wire: ScriptedWire) -> None:
    patient = Caller(mux)
    first = wire.next()
    assert isinstance(Caller(mux, 0.01).ended(), TimeoutError)  # while the other reads
    wire.next()
    wire.answer(first)
    assert patient.ended() == pb.AbortResponse(ended=True)
    hasty = Caller(mux, 0.01)  # reads itself
    wire.next()
    assert isinstance(hasty.ended(), TimeoutError)
    assert mux.usable


def test_the_end_reaches_all(mux: Mux, wire: ScriptedWire) -> None:
    callers = []
    for _ in range(5):
        callers.append(Caller(mux))
        wire.next()
    wire.end()
    for caller in callers:
        ended = caller.ended()
        assert isinstance(ended, MuxEnded)
        assert ended.idle
        assert isinstance(ended.ended.error("here"), errors.StoreUnavailable)
    assert not mux.usable
    with pytest.raises(MuxEnded):
        mux.call(*BODY, time.monotonic() + PATIENCE)


def test_an_end_after_other_answers_is_no_dead_stream(mux: Mux, wire: ScriptedWire) -> None:
    caller, other = Caller(mux), None
    first = wire.next()
    other = Caller(mux)
    second = wire.next()
    wire.answer(second)
    other.ended()
    wire.end()
    ended = caller.ended()
    assert isinstance(ended, MuxEnded)
    assert not ended.idle
    assert first != second


def test_what_cannot_be_read_ends_the_stream(mux: Mux, wire: ScriptedWire) -> None:
    caller = Caller(mux)
    wire.next()
    wire._coming.put(b"\xff\xff")
    assert isinstance(caller.ended(), MuxEnded)


def test_an_answer_that_cannot_be_parsed_ends_the_stream_for_all(mux: Mux, wire: ScriptedWire) -> None:
    caller, other = Caller(mux), None
    first = wire.next()
    other = Caller(mux)
    wire.next()
    wire._coming.put(session_frames.frame_of(session_frames.head_of(first, BODY[0]), b"\x08"))
    for one in (caller, other):
        ended = one.ended()
        assert isinstance(ended, MuxEnded)
        assert not ended.idle


def test_who_is_interrupted_passes_on_the_lead(mux: Mux, wire: ScriptedWire) -> None:
    alone = Caller(mux)
    late = wire.next()
    wire._coming.put(KeyboardInterrupt())
    assert isinstance(alone.ended(), KeyboardInterrupt)
    first = Caller(mux)
    leading = wire.next()
    second = Caller(mux)
    following = wire.next()
    wire._coming.put(KeyboardInterrupt())
    assert isinstance(first.ended(), KeyboardInterrupt)
    for call_id in (late, leading, following):
        wire.answer(call_id)
    assert second.ended() == pb.AbortResponse(ended=True)
    assert mux.usable
    assert not mux._waiting


def test_who_is_interrupted_when_it_is_given_the_lead_passes_it_on(
    mux: Mux, wire: ScriptedWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = Mux._follow

    def interrupted(self: Mux, *arguments: Any) -> Any:
        follow(self, *arguments)
        raise KeyboardInterrupt

    first = Caller(mux)
    wire.next()
    monkeypatch.setattr(Mux, "_follow", interrupted)
    second = Caller(mux)
    wire.next()
    monkeypatch.setattr(Mux, "_follow", follow)
    third = Caller(mux)
    wire.next()
    wire.answer(1)
    assert first.ended() == pb.AbortResponse(ended=True)
    assert isinstance(second.ended(), KeyboardInterrupt)
    wire.answer(3)
    assert third.ended() == pb.AbortResponse(ended=True)


def test_the_oldest_takes_the_lead(mux: Mux, wire: ScriptedWire) -> None:
    callers = []
    for _ in range(3):
        callers.append(Caller(mux))
        wire.next()
    wire.answer(1)
    callers[0].ended()
    wire.answer(2)
    assert callers[1].ended() == pb.AbortResponse(ended=True)
    wire.answer(3)
    callers[2].ended()
    assert wire.readers == {caller.ident for caller in callers}


def test_an_alarm_keeps_no_stream(wire: ScriptedWire) -> None:
    alarm = Alarm()
    mux = Mux(wire, alarm)
    gone = weakref.ref(mux)
    wire.answer(1)
    mux.call(*BODY, time.monotonic() + PATIENCE)
    del mux
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("end", [Mux.retire, Mux.close])
def test_an_idle_stream_ends_at_once(end: Callable[[Mux], None], mux: Mux, wire: ScriptedWire) -> None:
    wire.answer(1)
    mux.call(*BODY, time.monotonic() + PATIENCE)
    end(mux)
    assert not mux.usable
    with pytest.raises(MuxEnded):
        mux.call(*BODY, time.monotonic() + PATIENCE)


def test_a_retired_stream_ends_with_its_calls(mux: Mux, wire: ScriptedWire) -> None:
    callers = []
    for _ in range(3):
        callers.append(Caller(mux))
        wire.next()
    mux.retire()
    for call_id in (2, 1, 3):
        wire.answer(call_id)
        assert callers[call_id - 1].ended() == pb.AbortResponse(ended=True)
    with pytest.raises(MuxEnded):
        mux.call(*BODY, time.monotonic() + PATIENCE)


def test_codes_of_the_end() -> None:
    kinds = {7: errors.PermissionDenied, 12: errors.NotAStore, 16: errors.Unauthenticated}
    for code in range(18):
        error = WireEnded(Status(code, "x", ())).error("here")
        assert type(error) is kinds.get(code, errors.StoreUnavailable)
