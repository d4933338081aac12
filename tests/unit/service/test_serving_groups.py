"""The serving thread: messages that are there together are carried out together, and none waits for long."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]
from pd_handoff_server.transport.serving_thread import grpc_internals
from pd_handoff_server.transport.serving_thread.grpc_internals import Loop, Tag

MOST = grpc_internals._MOST
NOTHING = SimpleNamespace(tag=None, completion_type=cygrpc.CompletionType.queue_timeout, success=False)


class Message(Tag):
    """A call whose message is here; notes what is done with it."""

    brings = True

    def __init__(self, name: Any, noted: list[Any], *, fails: bool = False, lasts: bool = False) -> None:
        self._name = name
        self._noted = noted
        self._fails = fails
        self.lasts = lasts

    def look_ahead(self, event: Any) -> None:
        if self.lasts:
            self._noted.append(("look", self._name))

    def carry_out(self, event: Any) -> None:
        self._noted.append(("carry out", self._name))
        if self._fails:
            raise KeyError(self._name)

    def send_off(self) -> None:
        self._noted.append(("send", self._name))


class Other(Tag):
    """A batch that brings nothing."""

    def __init__(self, noted: list[Any]) -> None:
        self._noted = noted

    def complete(self, event: Any) -> None:
        self._noted.append("other")


class Queue:
    """Events in the order in which they come; a late one is not there when it is looked for."""

    def __init__(self, tags: list[Any]) -> None:
        self._tags = deque(tags)
        self.looks = 0

    def poll(self, deadline: float | None = None) -> Any:
        late = not self._tags or self._tags[0] == "late"
        if deadline is not None:
            self.looks += 1
            if late:
                return NOTHING
        elif late and self._tags:
            self._tags.popleft()
        tag = self._tags.popleft() if self._tags else "end"
        return SimpleNamespace(tag=tag, completion_type=cygrpc.CompletionType.operation_complete, success=True)


def serve(tags: list[Any], monkeypatch: pytest.MonkeyPatch, live: int = 2) -> tuple[Queue, list[Any]]:
    """Let a serving thread take these; returns the queue and the errors that it told of."""
    queue = Queue(tags)
    errors: list[Any] = []
    state = SimpleNamespace(completion_queue=queue, lock=threading.Lock(), rpc_states=set(range(live)), stage=None)
    loop = Loop(SimpleNamespace(_state=state), {}, errors.append)  # type: ignore[arg-type]
    monkeypatch.setattr(loop, "_others", lambda event: event.tag != "end")
    loop._serve()
    return queue, errors


def order(noted: list[Any]) -> list[Any]:
    """What was done, without what has no say in it."""
    return [what for what in noted if what != "other"]


def test_what_is_there_together_is_carried_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []
    serve([Message(1, noted), Other(noted), Message(2, noted), Message(3, noted)], monkeypatch)
    assert order(noted) == [("carry out", name) for name in (1, 2, 3)] + [("send", name) for name in (1, 2, 3)]
    assert noted[0] == "other"


def test_it_is_seldom_looked_for_others_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []
    alone = [tag for number in range(1000) for tag in ("late", Message(number, noted))]
    queue, _ = serve(alone, monkeypatch)
    assert noted == [(what, number) for number in range(1000) for what in ("carry out", "send")]
    assert queue.looks < 60
    noted.clear()
    serve([*alone, *(Message("together", noted) for _ in range(3 * MOST))], monkeypatch)
    sends = "".join(what[0][0] for what in noted)
    assert "c" * MOST + "s" * MOST in sends  # soon after they do come together again


def test_the_only_call_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []
    queue, _ = serve([Message(1, noted), Message(2, noted)], monkeypatch, live=1)
    assert noted == [("carry out", 1), ("send", 1), ("carry out", 2), ("send", 2)]
    assert queue.looks == 0


def test_the_only_stream_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []
    stream = Message(1, noted, lasts=True)
    serve([stream, stream], monkeypatch, live=1)
    assert noted == [("look", 1)] * 2 + [("carry out", 1)] * 2 + [("send", 1)] * 2


def test_a_group_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []
    serve([Message(number, noted) for number in range(MOST + 3)], monkeypatch)
    assert noted.index(("send", 0)) == MOST
    assert [what for what in noted if what[0] == "send"] == [("send", number) for number in range(MOST + 3)]


def test_other_events_do_not_keep_it_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []
    serve([Message(1, noted), *(Other(noted) for _ in range(3 * grpc_internals._LOOKS))], monkeypatch)
    assert noted.index(("send", 1)) <= grpc_internals._LOOKS + 1


def test_long_work_is_answered_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_internals, "_STRETCH", -1)
    noted: list[Any] = []
    serve([Message(number, noted) for number in range(3)], monkeypatch)
    assert noted == [(what, number) for number in range(3) for what in ("carry out", "send")]


def test_one_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []
    _, errors = serve([Message(1, noted, fails=True), Message(2, noted)], monkeypatch)
    assert [type(error) for error in errors] == [KeyError]
    assert noted == [("carry out", 1), ("carry out", 2), ("send", 1), ("send", 2)]
