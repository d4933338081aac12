"""Whatever is in a request's name or in the words of its abort, decode learns of its end at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pd_handoff import Failure, Key
from pd_handoff._values.failure_text import text_of
from pd_handoff.engines.sglang import StoreLink, report_abort, report_finish
from pd_handoff.engines.sglang.failures import failure_from_sglang
from pd_handoff.engines.sglang.link import PLAIN
from pd_handoff.engines.sglang.texts import LONGEST_NAME, owner_of

from tests.sglang.making import Made
from tests.sglang.sides import Settled, Sides

NAMES = ("漢" * 73, "é" * 5000, "\ud800x", "x" * 5000, "a\nb\x00c", "", "😀" * 40)

KINDS = ("73-ideographs", "10000-bytes", "surrogate", "5000-letters", "controls", "empty", "emoji")


def wait_for(sides: Sides, made: Made, end: Any) -> tuple[int, str]:
    """What decode's user gets when `end` has ended the request on prefill."""
    request = made.request(computed=False)
    sides.decode.bind(0, request)
    end()
    sides.decode.get_buf(0)  # waits 20 s at most, which would be another status
    sides.decode.clear_slot(0)
    return request.finished_reason.status_code, request.finished_reason.message


@pytest.mark.parametrize(("number", "rid"), list(enumerate(NAMES)), ids=KINDS)
def test_a_request_of_any_name_is_handed_over(sides: Sides, number: int, rid: str) -> None:
    made = Made(token=5, room=(1 << 50) + number)
    source, request = made.request(rid=rid), made.request(computed=False)
    assert sides.prefill.reserve(source)
    assert sides.hand_over(source, request)[0][0].item() == 5
    assert request.finished_reason is None


@pytest.mark.parametrize(("number", "rid"), list(enumerate(NAMES)), ids=KINDS)
@pytest.mark.parametrize("held", [True, False])
def test_an_abort_of_a_request_of_any_name_is_heard(sides: Sides, number: int, rid: str, held: bool) -> None:
    made = Made(room=(1 << 51) + 2 * number + held)
    source = made.request(rid=rid)
    if held:
        assert sides.prefill.reserve(source)
    assert wait_for(sides, made, lambda: sides.prefill.abort(source, "too long", 400)) == (400, "too long")


def test_long_names_of_an_equal_start_are_two_owners(sides: Sides) -> None:
    start = "r" * 200
    first, second = (Made(room=1 << 52).request(rid=start + end) for end in "AB")
    assert sides.prefill.reserve(first)
    del first  # gone without a word: the process no longer knows it, the store does
    assert not sides.prefill.reserve(second)
    assert second.finished_reason.status_code == 409


def test_an_owners_name_is_short_and_says_who_as_long_as_it_can() -> None:
    assert owner_of("node", "request") == "node/request"
    names = [owner_of("node", rid) for rid in (*NAMES, "x" * 5001, "\ud801x", "?x")]
    assert len(set(names)) == len(names)
    assert all(len(name.encode()) <= LONGEST_NAME for name in names)


class UnspeakableError(Exception):
    """Without words."""

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("number", "message", "heard"),
    [
        (0, "no \ud800 here", "no ? here"),
        (1, ValueError("bad grammar"), "bad grammar"),
        (2, None, "None"),
        (3, UnspeakableError(), "UnspeakableError without a text"),
    ],
    ids=("surrogate", "exception", "none", "unspeakable"),
)
@pytest.mark.parametrize("held", [True, False])
def test_an_abort_in_any_words_is_heard(sides: Sides, number: int, message: Any, heard: str, held: bool) -> None:
    made = Made(room=(1 << 53) + 2 * number + held)
    source = made.request()
    if held:
        assert sides.prefill.reserve(source)
    assert wait_for(sides, made, lambda: sides.prefill.abort(source, message, 400)) == (400, heard)


def test_a_status_that_is_none_is_500(sides: Sides) -> None:
    made = Made(room=(1 << 53) + 100)
    assert wait_for(sides, made, lambda: sides.prefill.abort(made.request(), "left", "soon")) == (500, "left")  # type: ignore[arg-type]


def test_an_abort_in_too_many_words_is_cut() -> None:
    assert len(text_of("漢" * 5000).encode()) <= 4096
    assert set(text_of("漢" * 5000)) == {"漢"}
    assert failure_from_sglang("\ud800", 400) == Failure(400, "BAD_REQUEST", "?")


def test_an_abort_whose_claim_is_refused_goes_by_its_key(target: str, sides: Sides) -> None:
    made = Made(room=(1 << 53) + 101)
    terms = {"owner": "x" * 257, "lease": 600.0, "expected_readers": 1}
    end = Failure(413, "TOO_LONG", "too long")
    link = sides.prefill.link
    assert wait_for(
        sides, made, lambda: link.abort_own(Key(made.room or 0), end, 0, None, terms)
    ) == (413, "too long")  # fmt: skip


def test_an_abort_whose_words_are_refused_goes_without_them(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pd_handoff.engines.sglang.link.sendable", lambda failure: failure)
    link, wrong = sides.prefill.link, Failure(400, "no reason", "left")
    terms = {"owner": "me", "lease": 600.0, "expected_readers": 1}
    for number, end in enumerate(
        (lambda key: link.abort(key, wrong, 0), lambda key: link.abort_own(key, wrong, 0, None, terms))
    ):
        room = (1 << 53) + 102 + number
        assert wait_for(sides, Made(room=room), lambda end=end, room=room: end(Key(room))) == (500, PLAIN.message)


def test_more_readers_than_a_store_takes_are_refused_at_the_start(target: str) -> None:
    for count in (0, 1025, 5_000_000_000):
        with pytest.raises(ValueError, match="expected_readers must be from 1 to 1024"):
            StoreLink(target, expected_readers=count)
    assert StoreLink(target, expected_readers=1024).expected_readers == 1024


def test_of_an_end_that_is_no_abort_nothing_is_told(target: str) -> None:
    made = Made(room=(1 << 53) + 110)
    told: list[Any] = []
    buffers = Settled(1, 16, torch.float32, 16, link=StoreLink(target))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers.link, "abort", lambda *given: told.append(given))
        for finished in ({"type": "length", "length": 5}, {"type": "stop", "matched": 2}, object()):
            report_finish(made.request(), finished)
        assert told == []
        report_finish(made.request(), {"type": "abort", "message": "gone", "status_code": 400})
        report_abort(made.request(), "gone", 400)
        assert len(told) == 2
    buffers.close()
