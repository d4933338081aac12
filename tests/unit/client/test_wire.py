"""A stream's end that is interrupted, without gRPC behind it."""

from __future__ import annotations

from typing import Any

import pytest
from pd_handoff import errors
from pd_handoff._transport import stream
from pd_handoff._transport.grpc_internals import cygrpc
from pd_handoff._transport.stream import RawWire, WireEnded


class Event:
    def __init__(self, tag: str, *operations: Any) -> None:
        self.tag = tag
        self.batch_operations = operations


class Operation:
    def __init__(self, message: bytes | None = None) -> None:
        self.message = lambda: message


class Call:
    """gRPC's call: what is scripted comes, in turn; nobody may ask for more."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.started: list[str] = []
        self.cancelled = 0

    def segregated_call(self, *_: Any) -> Call:
        return self

    def operate(self, _: Any, tag: str) -> bool:
        self.started.append(tag)
        return True

    def next_event(self) -> Any:
        event = self.script.pop(0)
        if isinstance(event, BaseException):
            raise event
        return event

    def cancel(self, *_: Any) -> None:
        self.cancelled += 1


class Channel:
    def __init__(self) -> None:
        self._channel = Call()


def test_messages_come_in_order() -> None:
    channel = Channel()
    call, wire = channel._channel, RawWire(channel, None)  # type: ignore[arg-type]
    call.script = [
        Event(stream._SENT),
        Event(stream._RECEIVED, Operation(b"a")),
        Event(stream._RECEIVED, Operation(b"b")),
    ]
    assert wire.exchange(b"1") == b"a"
    assert call.started == [stream._SENT, stream._RECEIVED]
    wire.send(b"2")
    wire.send(b"3")
    assert wire.receive() == b"b"
    assert call.started[2:] == [stream._SENT, stream._RECEIVED]
    call.script = [Event(stream._SENT), Event(stream._WOKEN)]
    wire.wake()
    assert wire.exchange(b"4") is None
    assert call.started[4:] == [stream._WOKEN, stream._RECEIVED, stream._SENT]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_the_stream_for_good(kind: type[BaseException]) -> None:
    channel = Channel()
    call, wire = channel._channel, RawWire(channel, None)  # type: ignore[arg-type]
    call.script = [kind()]
    with pytest.raises(kind):
        wire.exchange(b"1")
    started = list(call.started)
    for again in (wire.receive, lambda: wire.exchange(b"2")):
        with pytest.raises(WireEnded) as caught:
            again()
        assert isinstance(caught.value.error("here"), errors.StoreUnavailable)
    wire.send(b"3")
    wire.wake()
    wire.cancel()
    assert call.started == started
    assert call.cancelled == 1


def test_grpc_has_what_it_takes() -> None:
    assert all(hasattr(cygrpc, name) for name in stream._NAMES)
