"""What cannot be handed over is refused, or cut down, before a request is scheduled."""

from __future__ import annotations

import json
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from pd_handoff.engines.sglang import Admission, RequestRefused, admit, environment
from pd_handoff.model import Widths

from examples.sglang.engine import load

LIMITS = Widths(top_logprobs=128, token_ids_logprobs=4, sampling_mask_tokens=64, customized_info_bytes=4096)
reject, clamp = Admission(LIMITS), Admission(LIMITS, "clamp")


def request(**params: Any) -> Any:
    """What SGLang's HTTP server makes of a body of /generate."""
    made = load("srt.managers.io_struct").GenerateReqInput(**params)
    made.normalize_batch_and_arguments()
    return made


def test_what_fits_is_left_alone() -> None:
    for params in (
        {"input_ids": [1]},
        {"input_ids": [1], "return_logprob": True, "top_logprobs_num": 128, "token_ids_logprob": [1, 2, 3, 4]},
        {"input_ids": [[1], [2]], "return_logprob": [True, False], "top_logprobs_num": [128, 500]},
        {"input_ids": [1], "top_logprobs_num": 500},  # without return_logprob there are none
    ):
        for admission in (reject, clamp):
            assert admission.check(request(**params)).changes == {}
            assert admission.check(params).changes == {}


def test_129_top_logprobs_are_rejected_with_status_and_text() -> None:
    for params in (
        request(input_ids=[1], return_logprob=True, top_logprobs_num=129),
        {"return_logprob": True, "top_logprobs_num": 129},
    ):
        with pytest.raises(RequestRefused) as raised:
            reject.check(params)
        assert raised.value.http_status == 400
        assert str(raised.value) == "top_logprobs_num 129 exceeds disaggregation metadata capacity 128"
        assert (raised.value.field, raised.value.requested, raised.value.limit, raised.value.index) == (
            "top_logprobs_num",
            129,
            128,
            None,
        )


def test_or_clamped_and_it_is_said() -> None:
    params = request(input_ids=[1], return_logprob=True, top_logprobs_num=129)
    admitted = clamp.check(params)
    admitted.apply(params)
    assert params.top_logprobs_num == 128
    assert admitted.notes == ("top_logprobs_num clamped from 129 to 128",)


def test_a_list_names_the_request_of_the_batch() -> None:
    body = {"return_logprob": True, "top_logprobs_num": [5, 129, 128, 200]}
    with pytest.raises(RequestRefused, match=r"129 exceeds .* 128 \(request 1 of the batch\)") as raised:
        reject.check(body)
    assert raised.value.index == 1
    admitted = clamp.check(body)
    admitted.apply(body)
    assert body["top_logprobs_num"] == [5, 128, 128, 128]
    assert len(admitted.notes) == 2


def test_only_requests_that_want_logprobs_count() -> None:
    body = {"return_logprob": [False, True], "top_logprobs_num": [500, 500]}
    assert clamp.check(body).changes == {"top_logprobs_num": [500, 128]}
    with pytest.raises(RequestRefused, match="request 1 of the batch"):
        reject.check(body)


@pytest.mark.parametrize("number", [-1, True, "5", 2.0])
def test_a_malformed_number_is_rejected_in_either_case(number: Any) -> None:
    for admission in (reject, clamp):
        with pytest.raises(RequestRefused, match="must be a whole number from 0"):
            admission.check({"return_logprob": True, "top_logprobs_num": number})


def test_listed_token_ids_are_never_cut() -> None:
    for admission in (reject, clamp):
        with pytest.raises(RequestRefused, match="token_ids_logprob 5 exceeds disaggregation metadata capacity 4"):
            admission.check(request(input_ids=[1], return_logprob=True, token_ids_logprob=[1, 2, 3, 4, 5]))
        with pytest.raises(RequestRefused, match=r"\(request 1 of the batch\)"):
            admission.check({"return_logprob": True, "token_ids_logprob": [[1], [1, 2, 3, 4, 5]]})
        with pytest.raises(RequestRefused, match="token_ids_logprob 5 exceeds"):
            admission.check({"return_logprob": True, "token_ids_logprob": np.arange(5)})


@pytest.mark.parametrize("mode", [True, "last"])
def test_hidden_states_for_the_user(mode: Any) -> None:
    params = request(input_ids=[1], return_hidden_states=mode)
    with pytest.raises(RequestRefused, match="return_hidden_states: the prefill's hidden states are not handed over"):
        reject.check(params)
    assert clamp.check(params).changes == {"return_hidden_states": False}
    assert clamp.check({"return_hidden_states": [False, mode]}).changes == {"return_hidden_states": [False, False]}
    assert Admission(LIMITS, hidden_states=True).check(params).changes == {}


def test_sampling_masks() -> None:
    wide = {"return_sampling_mask": True, "sampling_params": {"top_k": 65}}
    with pytest.raises(RequestRefused, match="top_k 65 exceeds disaggregation metadata capacity 64"):
        reject.check(wide)
    fits = {"return_sampling_mask": True, "sampling_params": {"top_k": 64}}
    assert reject.check(fits).changes == {}
    with pytest.raises(RequestRefused, match="hands no sampling masks over"):
        Admission(Widths(customized_info_bytes=64)).check(fits)
    without_info = Admission(Widths(sampling_mask_tokens=64))
    with pytest.raises(RequestRefused, match='mode "support"'):
        without_info.check(fits)
    assert without_info.check({**fits, "sampling_logprobs_mode": "support"}).changes == {}


def test_a_refusal_crosses_processes() -> None:
    with pytest.raises(RequestRefused) as raised:
        reject.check({"return_logprob": True, "top_logprobs_num": [129]})
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.index, copy.limit) == (str(raised.value), 0, 128)
    assert json.dumps(vars(copy))


def test_another_policy_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="policy"):
        Admission(LIMITS, "ignore")  # type: ignore[arg-type]


def test_the_tokenizers_line(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"return_logprob": True, "top_logprobs_num": 129}
    monkeypatch.setattr(environment, "_limits", environment._Limits())
    monkeypatch.delenv("PD_HANDOFF_TARGET", raising=False)
    admit(body)  # no store, no limits

    monkeypatch.setenv("PD_HANDOFF_TARGET", target)
    admit(body)  # nobody waits for the store: its limits are asked for, and hold from the answer on
    assert body["top_logprobs_num"] == 129
    answered()
    with pytest.raises(ValueError, match="129 exceeds disaggregation metadata capacity 128"):
        admit(body)

    monkeypatch.setattr(environment, "_limits", environment._Limits())
    monkeypatch.setenv("PD_HANDOFF_ADMISSION", "clamp")
    admit(body)
    answered()
    admit(body)
    assert body["top_logprobs_num"] == 128


def answered() -> None:
    """Waits until nobody asks the store for its limits any more."""
    for thread in threading.enumerate():
        if thread.name == "pd-handoff-limits":
            thread.join(30.0)
            assert not thread.is_alive()


def test_a_store_that_is_away_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(environment, "_limits", environment._Limits())
    monkeypatch.setenv("PD_HANDOFF_TARGET", f"unix:{tmp_path}/nobody.sock")
    body = {"return_logprob": True, "top_logprobs_num": 129}
    admit(body)
    assert body["top_logprobs_num"] == 129
