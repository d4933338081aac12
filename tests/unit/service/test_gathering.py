"""A batch's answers: whole, in order, and once, whichever threads bring them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server import refusal
from pd_handoff_server.handlers.batch import Gathering
from pd_handoff_server.handlers.call import Call, StatedCall
from pd_handoff_server.handlers.send_budget import Unread


class Parked:
    """A call that waits."""

    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> bool:
        """Counts."""
        self.cancelled += 1
        return True


def response(number: int) -> bytes:
    """An item's answer that can be told from others."""
    return pb.PutResponse(store_epoch=f"epoch {number}").SerializeToString()


def read(data: bytes) -> list[str]:
    """Epochs and reasons, in order."""
    results = pb.BatchPutResponse.FromString(data).results
    return [item.response.store_epoch if item.HasField("response") else "error" for item in results]


def gather(count: int, one: Callable[[int, Any], Any], done: Callable[[Any], None], **more: Any) -> tuple[Any, Any]:
    """Run so many items; returns the Gathering and what `run` answered."""
    gathering = Gathering(count, done, more.pop("refused", lambda refused, error: None), **more)
    return gathering, gathering.run(
        range(count), lambda item, call, slot, where: one(item, slot), StatedCall(), nullcontext()
    )


def never(result: Any) -> None:
    """Must not be called."""
    raise AssertionError(result)


def test_answers_at_once_are_one_answer_in_order() -> None:
    def one(item: int, slot: Any) -> bytes:
        if item == 1:
            raise refusal.record_immutable()
        return response(item)

    noted: list[str] = []
    told: list[Any] = []
    _, answer = gather(3, one, never, note=noted.append, refused=lambda refused, error: told.append(refused))
    assert [refused.reason for refused in told] == ["RECORD_IMMUTABLE"]
    assert read(answer) == ["epoch 0", "error", "epoch 2"]
    assert noted == ["OK", "RECORD_IMMUTABLE", "OK"]
    error = pb.BatchPutResponse.FromString(answer).results[1].error
    assert error.code == 6


def test_the_last_to_come_completes_the_batch() -> None:
    slots: list[Any] = []
    answers: list[bytes] = []

    def one(item: int, slot: Any) -> Any:
        slots.append(slot)
        return response(item) if item == 1 else Parked()

    gathering, answer = gather(3, one, answers.append)
    assert answer is gathering
    slots[2](response(2))
    assert not answers
    slots[0](refusal.draining())
    assert [read(each) for each in answers] == [["error", "epoch 1", "epoch 2"]]
    assert not gathering.cancel()


def test_an_item_that_is_completed_before_the_next_is_tried() -> None:
    """Its completion may come from another thread while the batch is still being worked through."""

    def one(item: int, slot: Any) -> Any:
        thread = threading.Thread(target=slot, args=(response(item),))
        thread.start()
        thread.join()
        return Parked()

    _, answer = gather(4, one, never)
    assert read(answer) == [f"epoch {n}" for n in range(4)]


def test_cancelling_drops_what_waits_and_nothing_is_answered_after() -> None:
    slots: list[Any] = []
    parked = [Parked(), Parked()]

    def one(item: int, slot: Any) -> Any:
        slots.append(slot)
        return parked[item]

    gathering, _ = gather(2, one, never)
    slots[0](response(0))
    assert gathering.cancel() is True
    assert [each.cancelled for each in parked] == [1, 1]
    slots[1](response(1))
    assert gathering.cancel() is False


def test_a_failure_of_the_whole_leaves_nothing_waiting() -> None:
    first = Parked()

    def one(item: int, slot: Any) -> Any:
        if item:
            raise RuntimeError("broken")
        return first

    with pytest.raises(RuntimeError, match="broken"):
        gather(2, one, never)
    assert first.cancelled == 1


@pytest.mark.parametrize("cancel", [False, True])
def test_races_between_completions_and_cancel(cancel: bool) -> None:
    """Four threads complete eight items while the batch is still being started; one may cancel it meanwhile."""
    for _ in range(150):
        ready = threading.Barrier(6 if cancel else 5)
        slots: list[Any] = []
        answers: list[bytes] = []
        outcome: list[bool] = []

        def complete(numbers: range, ready: threading.Barrier = ready, slots: list[Any] = slots) -> None:
            ready.wait()
            for number in numbers:
                slots[number](response(number))

        gathering = Gathering(8, answers.append, lambda refused, error: None)

        def give_up(gathering: Gathering = gathering, ready: threading.Barrier = ready) -> None:
            ready.wait()
            outcome.append(gathering.cancel())  # noqa: B023 - joined before the next turn

        def one(item: int, call: Any, slot: Any, where: Any) -> Any:
            slots.append(slot)  # noqa: B023 - as above
            if item == 7:
                ready.wait()  # noqa: B023 - as above
            return Parked()

        threads = [threading.Thread(target=complete, args=(range(n, 8, 4),)) for n in range(4)]
        if cancel:
            threads.append(threading.Thread(target=give_up))
        for thread in threads:
            thread.start()
        answer = gathering.run(range(8), one, StatedCall(), nullcontext())
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        whole = [f"epoch {n}" for n in range(8)]
        if isinstance(answer, bytes):
            answers.append(answer)
        if cancel and outcome == [True]:
            # Given up before it was whole, or while `run` was about to return it: at most that one answer.
            assert len(answers) <= 1
        else:
            assert len(answers) == 1
        assert all(read(each) == whole for each in answers)


def test_answers_kept_while_others_are_missing_count_as_unread() -> None:
    """Those that were there at once, and those that came later; no more once the batch is whole or given up."""
    unread, call = Unread(1 << 20), StatedCall()
    slots: list[Any] = []
    answers: list[bytes] = []

    def one(item: int, call: Call, slot: Any, where: Any) -> Any:
        slots.append(slot)
        return response(item) if item == 0 else Parked()

    gathering = Gathering(3, answers.append, lambda refused, error: None, unread=unread)
    assert gathering.run(range(3), one, call, nullcontext()) is gathering
    at_once = unread.held
    assert at_once >= len(response(0))
    slots[2](response(2))
    assert unread.held == at_once + len(response(2))
    slots[1](response(1))
    assert [read(each) for each in answers] == [["epoch 0", "epoch 1", "epoch 2"]]
