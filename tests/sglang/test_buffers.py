"""The adapter's own rules: attempts, ranks, fake transfers, a store that is away, and what it imports."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pd_handoff import HandoffExists, Key
from pd_handoff.engines.sglang import (
    Slot,
    SlotAllocator,
    StoreLink,
    key_of,
    link_from_environment,
    report_abort,
)
from pd_handoff.engines.sglang.decode_side import POLL_FAILED, POLL_SUCCESS, POLL_TRANSFERRING
from pd_handoff.retries import NO_RETRIES

from examples.demo.store import Store
from examples.sglang.engine import load
from tests.sglang.making import Made
from tests.sglang.sides import Settled, Sides, commit, decode_entry


def test_nothing_is_imported_that_is_not_used() -> None:
    code = "import sys, pd_handoff.engines.sglang; print([n for n in ('sglang', 'torch', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_numbers_of_kv_poll_are_sglangs() -> None:
    polls = load("srt.disaggregation.base").KVPoll
    assert (polls.Failed, polls.Transferring, polls.Success) == (POLL_FAILED, POLL_TRANSFERRING, POLL_SUCCESS)


def test_sglangs_own_gate_reads_rooms_that_are_not_0(upstream: Any, sides: Sides) -> None:
    made = Made(room=101)
    request = made.request(computed=False)
    sides.decode.bind(0, request)
    polls = [4]
    upstream._apply_metadata_gate(polls, [decode_entry(request)], sides.decode)
    assert polls == [3]
    assert sides.publish(made.request())
    sides.decode.get_buf(0)
    polls = [4]
    upstream._apply_metadata_gate(polls, [decode_entry(request)], sides.decode)
    assert polls == [4]


def test_a_reservation_before_the_prefill_is_what_the_record_goes_into(sides: Sides) -> None:
    made = Made(token=5, room=102)
    source, request = made.request(), made.request(computed=False)
    assert sides.prefill.reserve(source)
    with pytest.raises(HandoffExists):
        sides.prefill.link.prefill.reserve(Key(102), owner="another prefill")
    assert sides.prefill.reserve(source)  # once more: the same
    assert sides.publish(source)
    sides.decode.bind(0, request)
    assert commit(sides.decode, request).output_ids.tolist() == [5]


def test_a_store_that_came_back_empty_costs_no_request_that_was_under_way(tmp_path: Path) -> None:
    store = Store(tmp_path, "--slots", "4")
    store.wait_until_serving(60)
    both = Sides(store.target)
    source, request = Made(token=8, room=1).request(), Made(room=1).request(computed=False)
    assert both.prefill.reserve(source)
    both.decode.bind(0, request)
    store.stop()
    assert not both.decode.ready(0)
    store = Store(tmp_path, "--slots", "4")
    store.wait_until_serving(60)

    assert both.publish(source)
    assert both.decode.get_buf(0)[0][0].item() == 8

    both.close()
    store.stop()


def test_a_retracted_request_gets_its_second_prefill(sides: Sides) -> None:
    made = Made(token=5, room=103)
    assert sides.hand_over(made.request(), made.request(computed=False))[0][0].item() == 5
    # Retracted: decode asks for the same room again, within the grace in which the first record can still be read.
    request = made.request(computed=False)
    sides.decode.bind(0, request)
    assert not sides.decode.ready(0)
    assert sides.publish(Made(token=6, room=103).request())
    assert sides.decode.get_buf(0)[0][0].item() == 6


def test_a_number_of_the_engines_own_counts_for_more(sides: Sides) -> None:
    made = Made(token=7, room=104)
    source, request = made.request(), made.request(computed=False)
    source.handoff_attempt = request.handoff_attempt = 5
    assert sides.hand_over(source, request)[0][0].item() == 7
    second = made.request()
    second.handoff_attempt = 4  # a prefill that was overtaken
    assert not sides.publish(second)
    assert second.finished_reason.status_code == 409


def test_two_requests_in_one_room_are_told_apart(sides: Sides) -> None:
    first, second = Made(token=1, room=105).request(rid="first"), Made(token=2, room=105).request(rid="second")
    assert sides.prefill.reserve(first)
    assert not sides.prefill.reserve(second)
    assert second.finished_reason.status_code == 409


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("malformed", [False, True])
def test_a_stranger_in_the_room_ends_nothing_of_its_owners(
    target: str, sides: Sides, published: bool, malformed: bool
) -> None:
    room = 120 + 2 * published + malformed
    owner = Made(token=1, room=room).request(rid="owner")
    stranger = Made(token=2, room=room, top_val=[[-1.0]], logprob=-1.0).request(rid="stranger")
    other = Sides(target)
    assert sides.prefill.reserve(owner)
    if published:
        assert sides.publish(owner)
    assert not (other.publish(stranger) if malformed else other.prefill.reserve(stranger))
    assert stranger.finished_reason.status_code == (500 if malformed else 409)
    other.prefill.abort(stranger, "once more", 400)  # as the engine does of whatever it aborts
    other.prefill.link.settle()
    if not published:
        assert sides.publish(owner)
    sides.decode.bind(0, Made(room=room).request(computed=False))
    assert sides.decode.get_buf(0)[0][0].item() == 1
    assert sides.decode.failure(0) is None
    other.close()


def test_two_live_requests_of_one_room_on_decode(sides: Sides) -> None:
    first, second = (Made(room=130).request(rid=rid, computed=False) for rid in ("first", "second"))
    sides.decode.bind(0, first)
    sides.decode.bind(1, second)
    failure = sides.decode.failure(1)
    assert failure is not None
    assert failure.http_status == 409
    assert "room 130, sample 0 belongs to another request" in failure.message
    assert sides.decode.abort(second, "gone") is None
    assert sides.decode.fail(decode_entry(second, 1))
    assert second.finished_reason.status_code == 409
    sides.decode.clear_slot(1)

    assert sides.publish(Made(token=4, room=130).request(rid="first"))
    assert sides.decode.get_buf(0)[0][0].item() == 4
    sides.decode.clear_slot(0)


@pytest.mark.parametrize("published", [False, True])
def test_two_live_requests_of_one_room_on_prefill(sides: Sides, published: bool) -> None:
    room = 131 + published
    first, second = (Made(token=token, room=room).request(rid=str(token)) for token in (1, 2))
    assert sides.prefill.reserve(first)
    if published:
        assert sides.publish(first)
    assert sides.prefill.abort(second, "gone before it began") is None
    assert not sides.publish(second)
    assert second.finished_reason.status_code == 409
    if not published:
        assert sides.publish(first)
    sides.decode.bind(0, Made(room=room).request(computed=False))
    assert sides.decode.get_buf(0)[0][0].item() == 1
    sides.decode.clear_slot(0)

    first.finished_reason = load("srt.managers.schedule_batch").FINISH_LENGTH(length=0)
    third = Made(token=3, room=room).request(rid="3")  # of the same room, after the first was over
    assert sides.prefill.reserve(third)
    assert sides.publish(third)
    sides.decode.bind(0, Made(room=room).request(computed=False))
    assert sides.decode.get_buf(0)[0][0].item() == 3


def test_a_record_that_does_not_fit_decodes_rows_fails_its_request(target: str, sides: Sides) -> None:
    buffers = Settled(1, 32, torch.bfloat16, 16, link=StoreLink(target))
    assert sides.publish(Made(room=133, hidden=torch.ones(16, dtype=torch.bfloat16)).request())
    request = Made(room=133).request(computed=False)
    buffers.bind(0, request)
    assert buffers.get_buf(0)[0][0].item() == 0
    assert not buffers.ready(0)
    assert request.finished_reason.status_code == 500
    assert "bfloat16 of shape [16], this engine's rows are bfloat16 of shape [32]" in request.finished_reason.message
    buffers.close()


def test_half_a_state_fails_its_request(sides: Sides) -> None:
    source = Made(room=134, hidden=torch.ones(16, dtype=torch.bfloat16), topk_p=torch.ones(4)).request()
    assert not sides.publish(source)
    assert "speculative.topk_index" in source.finished_reason.message
    source = Made(room=135).request()
    source.return_sampling_mask, source.sampling_mask_rows = True, None
    assert not sides.publish(source)
    assert "no rows of it are queued" in source.finished_reason.message


def test_a_token_that_cannot_be_read_fails_its_request(
    target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PD_HANDOFF_TARGET", target)
    token = tmp_path / "token"
    token.write_text("secret", encoding="ascii")
    monkeypatch.setenv("PD_HANDOFF_BEARER_FILE", str(token))
    buffers = Settled(2, 16, torch.float32, 16)
    token.unlink()
    source, request = Made(room=136).request(), Made(room=136).request(computed=False)
    assert not buffers.reserve(source)
    assert "PD_HANDOFF_BEARER_FILE cannot be read" in source.finished_reason.message
    buffers.bind(0, request)
    buffers.get_buf(0)
    assert "PD_HANDOFF_BEARER_FILE cannot be read" in request.finished_reason.message
    buffers.close()


def test_a_misspelt_policy_is_found_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PD_HANDOFF_ADMISSION", "Clamp")
    with pytest.raises(ValueError, match='PD_HANDOFF_ADMISSION must be "reject" or "clamp"'):
        link_from_environment()


def test_fake_transfers_touch_no_store(tmp_path: Path) -> None:
    buffers = Settled(1, 16, torch.float32, 16, link=StoreLink(f"unix:{tmp_path}/nobody.sock"))
    source, request = Made(room=0).request(), Made(room=0).request(computed=False)
    source.bootstrap_host = request.bootstrap_host = "2.2.2.2"
    assert buffers.reserve(source)
    assert buffers.set_buf(source)
    assert buffers.abort(source, "stop") is None
    buffers.bind(0, request)
    assert buffers.ready(0)
    assert buffers.failure(0) is None
    assert [tensor.any().item() for tensor in buffers.get_buf(0) if tensor is not None] == [False] * 13
    buffers.clear_slot(0)
    buffers.close()


def test_only_one_rank_publishes_and_all_read(target: str) -> None:
    speaker, silent = (
        Settled(1, 16, torch.float32, 16, link=StoreLink(target, publishes=speaks, expected_readers=2))
        for speaks in (True, False)
    )
    readers = [Settled(1, 16, torch.float32, 16, link=StoreLink(target)) for _ in range(2)]
    for buffers in (silent, speaker):
        assert buffers.reserve(Made(room=106).request())
        assert buffers.set_buf(Made(token=3, room=106).request())
    for reader in readers:
        reader.bind(0, Made(room=106).request(computed=False))
        assert reader.get_buf(0)[0][0].item() == 3
    for buffers in (speaker, silent, *readers):
        buffers.close()


def test_without_a_store_the_request_fails_and_the_scheduler_goes_on(tmp_path: Path) -> None:
    away = StoreLink(f"unix:{tmp_path}/nobody.sock", timeout=0.5, wait=0.5, retries=NO_RETRIES)
    buffers = Settled(1, 16, torch.float32, 16, link=away)
    source = Made(room=107).request()
    assert not buffers.reserve(source)
    assert not source.finished()  # set_buf asks again
    assert not buffers.set_buf(source)
    assert source.finished_reason.status_code == 503
    request = Made(room=107).request(computed=False)
    buffers.bind(0, request)
    buffers.get_buf(0)
    assert request.finished_reason.status_code == 503
    assert "the hand-off from prefill failed" in request.finished_reason.message
    buffers.close()


def test_a_wait_longer_than_the_stores_longest_ends_in_time(target: str) -> None:
    buffers = Settled(1, 16, torch.float32, 16, link=StoreLink(target, wait=0.2))
    request = Made(room=108).request(computed=False)
    buffers.bind(0, request)
    buffers.get_buf(0)
    failure = buffers.failure(0)
    assert failure is not None
    assert (failure.http_status, failure.reason) == (504, "RECORD_NOT_READY")
    buffers.close()


def test_a_request_without_a_room_is_refused(sides: Sides) -> None:
    source = Made(room=None).request()
    assert not sides.prefill.reserve(source)
    assert not sides.publish(source)
    assert source.finished_reason.status_code == 400
    with pytest.raises(ValueError, match="bootstrap_room"):
        key_of(source)


def test_rows_that_are_bound_to_nothing_say_so(sides: Sides) -> None:
    with pytest.raises(LookupError, match="row 3 is bound to no request"):
        sides.decode.get_buf(3)
    first = sides.decode_slots.alloc()
    assert first is not None
    sides.decode.bind(first, Made(room=109).request(computed=False))
    sides.decode_slots.free(first)
    second = sides.decode_slots.alloc(), *(sides.decode_slots.alloc() for _ in range(3))
    again = next(slot for slot in second if slot == first)
    assert again is not None
    sides.decode.bind(again, Made(room=110).request(computed=False))
    with pytest.raises(LookupError, match="another one by now"):
        sides.decode.ready(first)
    assert not sides.decode.ready(again)


def test_report_abort_reaches_every_side_of_the_process(sides: Sides) -> None:
    source, request = Made(room=111).request(), Made(room=111).request(computed=False)
    sides.decode.bind(0, request)
    report_abort(source, "the user left", None)
    sides.decode.get_buf(0)
    assert (request.finished_reason.status_code, request.finished_reason.message) == (500, "the user left")
    assert sides.decode.fail(decode_entry(request))


def test_a_slot_is_an_int_wherever_it_goes() -> None:
    slots = SlotAllocator(3)
    slot = slots.alloc()
    assert isinstance(slot, Slot)
    assert str(slot).encode("ascii") == b"0"
    assert [10, 20][slot] == 10
    copy = pickle.loads(pickle.dumps(slot))
    assert (copy, copy.generation) == (0, 1)
    assert slots.free(int(slot))  # a plain int, as an engine may have kept it
    with pytest.raises(ValueError, match="at least one row"):
        SlotAllocator(0)


def test_the_environment_describes_a_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n", encoding="ascii")
    monkeypatch.setenv("PD_HANDOFF_TARGET", "10.0.0.1:7")
    monkeypatch.setenv("PD_HANDOFF_NAMESPACE", "big-model")
    monkeypatch.setenv("PD_HANDOFF_BEARER_FILE", str(token))
    monkeypatch.setenv("PD_HANDOFF_EXPECTED_READERS", "4")
    with pytest.raises(ValueError, match="PD_HANDOFF_INSECURE_TOKEN=yes"):
        link_from_environment(wait=5.0)
    monkeypatch.setenv("PD_HANDOFF_INSECURE_TOKEN", "yes")
    link = link_from_environment(wait=5.0)
    assert (link.target, link.expected_readers, link.publishes, link.wait) == ("10.0.0.1:7", 4, True, 5.0)
    assert link._settings["namespace"] == "big-model"
    assert link._settings["token"]() == "secret"
    monkeypatch.setenv("PD_HANDOFF_EXPECTED_READERS", "four")
    with pytest.raises(ValueError, match="PD_HANDOFF_EXPECTED_READERS must be a whole number from 1"):
        link_from_environment()


def test_a_rank_of_a_scheduler_knows_whether_it_speaks() -> None:
    parallel = load("srt.runtime_context").get_parallel()
    first = {"attn_tp_rank": 0, "attn_cp_rank": 0, "pp_rank": 1, "pp_size": 2}
    for ranks, speaks in ((first, True), ({**first, "attn_tp_rank": 1}, False), ({**first, "pp_rank": 0}, False)):
        with parallel.override(**ranks):
            assert link_from_environment().publishes is speaks
