"""Settings that differ between the two sides, or are misspelt, are said and not worked around."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from pd_handoff import Failure
from pd_handoff.engines.sglang import RowShape, StoreLink, runtime

from examples.sglang.engine import load
from tests.sglang.making import Made
from tests.sglang.sides import SHAPE, Row, Settled, Sides, bits, commit, decode_entry, real_buffers

HIDDEN = torch.ones(16, dtype=torch.bfloat16)


def drafted(room: int, topk: int = 4, sparse: int = 0) -> Made:
    """A request with the state of a draft model."""
    made = Made(room=room, hidden=HIDDEN, topk_p=torch.ones(topk), topk_index=torch.arange(topk))
    made.sparse = torch.arange(sparse, dtype=torch.int32) if sparse else None
    return made


def ends(target: str, sides: Sides, made: Made, request: Any | None = None, **settings: Any) -> str:
    """What decode says to the record, with these settings; "" when nothing."""
    sizes = {"max_sampling_mask_tokens": 64, "output_dsa_topk_indices_dim": 8, **settings}
    buffers = Settled(1, 16, torch.bfloat16, **sizes, link=StoreLink(target, wait=20.0))
    assert sides.publish(made.request())
    request = request or made.request(computed=False)
    buffers.bind(0, request)
    buffers.get_buf(0)
    failure = buffers.failure(0)
    buffers.close()
    if failure is None:
        assert request.finished_reason is None
        return ""
    assert failure.http_status == 500
    assert (request.finished_reason.status_code, request.finished_reason.message) == (500, failure.message)
    return failure.message


def test_decode_speculates_and_prefill_does_not(target: str, sides: Sides) -> None:
    text = ends(target, sides, Made(room=301), draft_candidates=4)
    assert text == "prefill did not hand over the state of a draft model, which decode goes on from"
    assert ends(target, sides, drafted(302), draft_candidates=4) == ""
    assert ends(target, sides, drafted(303), draft_candidates=0) == ""


def test_prefill_has_fewer_candidates_than_decode(target: str, sides: Sides) -> None:
    text = ends(target, sides, drafted(304, topk=2), draft_candidates=4)
    assert "it has 2 candidates of the draft model, decode goes on from 4" in text


def test_sparse_indices_of_another_width_or_where_decode_has_none(target: str, sides: Sides) -> None:
    assert ends(target, sides, drafted(305, sparse=8)) == ""
    text = ends(target, sides, drafted(306, sparse=8), output_dsa_topk_indices_dim=24)
    assert "8 sparse attention indices, this engine's rows have 24" in text
    text = ends(target, sides, drafted(307, sparse=8), output_dsa_topk_indices_dim=0)
    assert "8 sparse attention indices, this engine's rows have 0" in text
    assert ends(target, sides, drafted(308), output_dsa_topk_indices_dim=24) == ""  # SGLang's own "no seed"


def test_a_mask_of_another_mode_than_decode_reads(target: str, sides: Sides) -> None:
    selected = Made(room=309, mask=[1, 2, 3], mask_logprobs=[-1.0])
    support = Made(room=310, mask=[1, 2, 3], mask_logprobs=[-1.0, -2.0, -3.0], mask_mode="support")
    other = {"selected": "support", "support": "selected"}
    for made in (selected, support):
        request = Made(room=made.room, mask=[], mask_mode=other[made.mask_mode]).request(computed=False)
        text = ends(target, sides, made, request)
        assert f"logprobs for 3 token ids; decode reads mode {other[made.mask_mode]!r}" in text


def test_an_empty_mask_of_mode_selected_is_a_row_as_with_sglang(target: str, sides: Sides) -> None:
    made = Made(room=314, mask=[], mask_mode="selected")
    real = real_buffers()
    real.set_buf(made.request())
    theirs = commit(real, made.request(computed=False)).sampling_mask_rows.view()
    source, request = made.request(), made.request(computed=False)
    row = sides.hand_over(source, request)
    assert request.finished_reason is None
    assert list(map(bits, row)) == list(map(bits, real.get_buf(0)))
    ours = commit(Row(row), made.request(computed=False)).sampling_mask_rows.view()
    assert (list(ours.lengths), list(ours.token_ids)) == (list(theirs.lengths), list(theirs.token_ids)) == ([0], [])


def test_a_mask_where_decode_has_no_rows_for_one(target: str, sides: Sides) -> None:
    made = Made(room=311, mask=[1], mask_logprobs=[-1.0])
    assert "constructed without rows for sampling masks" in ends(target, sides, made, sampling_mask=False)


def test_a_record_that_prefills_own_rows_do_not_fit_is_nobodys_fault_but_the_servers(sides: Sides) -> None:
    assert RowShape(16, torch.bfloat16, 64, output_dsa_topk_indices_dim=8) == SHAPE
    source = Made(room=312, hidden=torch.ones(16)).request()
    assert not sides.publish(source)
    assert source.finished_reason.status_code == 500
    source = Made(room=313, mask=[1, 2], mask_logprobs=[-1.0]).request()
    source.sampling_mask_rows.append(np.array([3, 4, 5], dtype=np.int32), np.array([-1.0, -2.0], dtype=np.float32))
    assert not sides.publish(source)
    assert source.finished_reason.status_code == 500
    assert "3 logprobs for 5 token ids of 2 rows" in source.finished_reason.message


@pytest.mark.parametrize(
    ("algorithm", "multi_layer", "candidates"),
    [(None, False, 0), ("EAGLE", False, 4), ("eagle3", False, 4), ("EAGLE", True, 12), ("NGRAM", False, 0)],
)
def test_decode_knows_its_candidates_from_sglangs_settings(
    algorithm: str | None, multi_layer: bool, candidates: int
) -> None:
    load("srt.speculative.spec_info")
    spec = type("Spec", (), {})()
    spec.speculative_algorithm, spec.enable_multi_layer_eagle = algorithm, multi_layer
    spec.speculative_eagle_topk, spec.speculative_num_steps = 4, 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load("srt.runtime_context"), "get_spec", lambda: spec)
        assert runtime.draft_candidates() == candidates


@pytest.mark.parametrize(("status", "older"), [(400, 400), (409, 400), (429, 503), (500, 500), (503, 503), (504, 503)])
def test_an_older_sglang_is_given_a_status_that_it_answers(
    status: int, older: int, sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Made(room=330 + status).request(computed=False)
    for release, expected in (("0.5.23", status), ("0.5.22", older), ("0.5.21+cpu", older)):
        monkeypatch.setattr("importlib.metadata.version", lambda _, release=release: release)
        runtime._answers_few.cache_clear()
        sides.decode._tell(request, Failure(status, "REASON", "words"))
        assert (request.finished_reason.status_code, request.finished_reason.message) == (expected, "words")
    monkeypatch.undo()
    runtime._answers_few.cache_clear()


def test_outside_of_a_scheduler_the_answers_are_those_of_one_rank() -> None:
    assert runtime.speaks_for_its_ranks()
    assert runtime.speaks_for_its_group()
    assert not runtime.in_pipeline()
    assert not runtime.prefills()
    assert not runtime.transfers_are_fake()
    assert runtime.draft_candidates() == 0


def test_a_mixture_of_changed_and_unchanged_nodes_hands_over_nothing_wrong(
    upstream: Any, target: str, sides: Sides
) -> None:
    made = Made(token=7, room=320)
    # Prefill has changed, decode has not: one row of 64 unused bytes arrives where SGLang has the token.
    real, request = real_buffers(), made.request(computed=False)
    addresses, _, rows = sides.prefill.get_buf_infos()
    assert rows == real.get_buf_infos()[2][:1]
    real.output_ids.zero_()
    ctypes.memmove(real.get_buf_infos()[0][0], addresses[0], rows[0])
    polls = [4]
    upstream._apply_metadata_gate(polls, [decode_entry(request)], real)
    assert polls == [3]  # until SGLang's own timeout
    # And the reverse: nothing comes to the store.
    buffers = Settled(1, 16, torch.bfloat16, 64, link=StoreLink(target, wait=0.2))
    buffers.bind(0, request)
    buffers.get_buf(0)
    assert request.finished_reason.status_code == 504
    buffers.close()
