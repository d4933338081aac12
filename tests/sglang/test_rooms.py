"""Rooms: those that are none, those that need no store, and those of n samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pd_handoff import InvalidRequest
from pd_handoff.engines.sglang import (
    give_sample_room,
    is_fake_transfer,
    key_of,
    report_abort,
    sample_room,
)

from examples.sglang.engine import load
from examples.sglang.samples import sample_rooms
from tests.sglang import patching
from tests.sglang.making import Made
from tests.sglang.sides import Sides, decode_entry

NO_ROOMS = (None, -1, 2**64, "7", 7.5, True)


def with_room(room: Any, **more: Any) -> Any:
    """A request in it."""
    return Made(room=room).request(**more)


@pytest.mark.parametrize("room", NO_ROOMS)
def test_what_is_no_room_fails_its_request_on_prefill(sides: Sides, room: Any) -> None:
    for refuses in (sides.prefill.reserve, sides.publish):
        source = with_room(room)
        assert not refuses(source)
        assert source.finished_reason.status_code == 400
        assert "bootstrap_room" in source.finished_reason.message
    with pytest.raises(InvalidRequest, match="bootstrap_room"):
        key_of(with_room(room))
    report_abort(with_room(room), "raises nothing", 400)


@pytest.mark.parametrize(("number", "room"), list(enumerate(NO_ROOMS)))
def test_what_is_no_room_fails_its_request_on_decode(sides: Sides, number: int, room: Any) -> None:
    # The other's room is its own each time: when it is dropped, the store remembers that for a while.
    request, other = with_room(room, computed=False), with_room((1 << 49) + number, rid="other", computed=False)
    sides.decode.bind(0, request)
    sides.decode.bind(1, other)
    polls = [4, 4]
    sides.decode.gate(polls, [decode_entry(request, 0), decode_entry(other, 1)])
    assert polls == [0, 3]
    assert sides.decode.fail(decode_entry(request, 0))
    assert request.finished_reason.status_code == 400
    assert "bootstrap_room" in request.finished_reason.message
    assert sides.decode.get_buf(0)[0][0].item() == 0
    sides.decode.clear_slot(0)
    sides.decode.clear_slot(1)


def test_a_sample_that_is_none_fails_its_request(sides: Sides) -> None:
    source = with_room(421)
    source.handoff_sample = -1
    assert not sides.publish(source)
    assert "handoff_sample: must be a whole number" in source.finished_reason.message


def test_requests_without_a_bootstrap_host_are_fake_with_the_backend_of_that_name(upstream: Any, sides: Sides) -> None:
    request = with_room(None, computed=False)
    request.bootstrap_host = None
    assert not is_fake_transfer(request)
    context = load("srt.runtime_context")
    disagg = type("Disagg", (), {"disaggregation_transfer_backend": "fake"})()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "get_disagg", lambda: disagg)
        patch.setattr(upstream, "get_disagg", lambda: disagg)
        assert upstream._is_fake_transfer(request)
        assert is_fake_transfer(request)
        sides.decode.bind(0, request)
        assert sides.decode.ready(0)
        disagg.disaggregation_transfer_backend = "mooncake"
        assert not upstream._is_fake_transfer(request)
        assert not is_fake_transfer(request)
    sides.decode.clear_slot(0)


def test_n_samples_of_one_request_share_a_room_and_it_is_the_prompts_own(patched: Path) -> None:
    assert sample_rooms(5, 3) == [5, 5, 5, 5]  # SGLang's own tokenizer; by room its KV cache is sent, too

    code = "from examples.sglang.samples import sample_rooms; print(sample_rooms(5, 3) + sample_rooms(6, 3))"
    rooms = [int(room) for room in patching.run(patched, "-c", code).strip("[]\n ").split(",")]
    assert rooms[0] == 5
    assert rooms[4] == 6
    assert len(set(rooms)) == 8
    assert rooms[1:4] == [sample_room(5, sample) for sample in range(3)]


def test_rooms_of_samples_keep_to_their_data_parallel_rank_and_their_bounds() -> None:
    for ranks in (*range(1, 17), 24, 32, 48, 64, 72, 128):
        assert {sample_room(1000, sample) % ranks for sample in range(8)} == {1000 % ranks}
    assert 0 <= sample_room(2**64 - 1, 127) < 2**64
    with pytest.raises(InvalidRequest, match="bootstrap_room"):
        sample_room(-1, 0)


def test_the_page_gives_the_formula() -> None:
    page = (patching.ROOT / "docs/engines/sglang.md").read_text(encoding="utf-8")
    assert f"`room + (i + 1) * {sample_room(0, 0)}`" in page


def test_a_request_that_is_not_handed_over_keeps_its_room() -> None:
    request = with_room(None)
    give_sample_room(request, 1)
    assert request.bootstrap_room is None
