"""A stream on the serving thread lets go of everything, however its end and its last requests come together."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pd_handoff_server.handlers.send_budget import Unread
from pd_handoff_server.transport.serving_thread import grpc_internals
from pd_handoff_server.transport.serving_thread.stream import Stream


class Session:
    """Answers at once, or not at all."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer

    def receive(self, data: bytes) -> bytes | None:
        """See `rpc.session.Session`."""
        del data
        return self._answer

    def finish(self, finished: Callable[[], None]) -> None:
        """See `rpc.session.Session`."""
        finished()

    def close(self) -> None:
        """See `rpc.session.Session`."""


class Entered(Stream):
    """Has let its caller in."""

    session: Session

    def _enter(self) -> Any:
        return self.session


def message(data: bytes | None) -> Any:
    """The completed batch that received it."""
    return SimpleNamespace(batch_operations=(SimpleNamespace(message=lambda: data),))


GONE = SimpleNamespace(batch_operations=(SimpleNamespace(cancelled=lambda: True),))


@pytest.mark.parametrize("answer", [b"x", b"x" * 5000, None], ids=("small", "large", "none"))
@pytest.mark.parametrize("order", ["one end gone", "one gone end", "gone one end"])
def test_a_stream_that_is_cut_off_while_its_requests_wait_is_let_go(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, order: str
) -> None:
    started: list[Any] = []
    for name in ("initial_and_receive", "receive", "send", "send_and_receive", "watch"):
        monkeypatch.setattr(grpc_internals, f"start_{name}", lambda *_, name=name: started.append(name))
    monkeypatch.setattr(grpc_internals, "start_status", lambda *_, **__: started.append("status"))
    unread, streams = Unread(), set[Any]()
    front = SimpleNamespace(lock=unread.lock, unread=unread, streams=streams, refused=None)
    stream = Entered(front, SimpleNamespace(call=None))  # type: ignore[arg-type]
    stream.session = Session(answer)
    stream.begin()
    # Both the request and the caller's end are here before either is carried out.
    stream.look_ahead(message(b"request"))
    stream._small = True  # as after an answer before
    stream.look_ahead(message(b"request"))
    assert started.count("receive") == 1
    over = []
    group = []
    for what in order.split():
        if what == "gone":
            over.append(stream._over(GONE))
        else:
            group.append(message(b"request" if what == "one" else None))
    for event in group:
        stream.carry_out(event)
    over += [stream.send_off() for _ in group]
    while ends := [step for step in started if step in {"send", "status"}]:
        started.remove(ends[0])
        over.append(stream._sent(None) if ends[0] == "send" else stream._status_sent(None))
    assert [one for one in over if one is not None] == [stream]
    assert not streams
    assert unread.held == 0
