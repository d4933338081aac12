"""Which hand-off an engine request of vLLM's is a part of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pd_handoff import Key
from pd_handoff.engines.vllm.engine_request import Place, digest_of, leg_of, place_of
from pd_handoff.gateway.topology import room_of
from pd_handoff.model import digest_of_prompt


@pytest.mark.parametrize(
    ("request_id", "place"),
    [
        ("cmpl-abc-0-0123abcd", Place("abc", 0, 0)),
        ("cmpl-abc-7-0123abcd", Place("abc", 7, 0)),
        ("2_cmpl-abc-0-0123abcd", Place("abc", 0, 2)),
        ("chatcmpl-abc-0123abcd", Place("abc", 0, 0)),
        ("chatcmpl-a_b-0123abcd", Place("a_b", 0, 0)),
        ("chatcmpl-abc_3-0123abcd", Place("abc", 3, 0)),
        ("1_chatcmpl-abc-0123abcd", Place("abc", 0, 1)),
        ("resp_abc_1-0123abcd", Place("abc", 1, 0)),
        ("generate-tokens-abc-0123abcd", Place("abc", 0, 0)),
        ("cmpl-2_cmpl-x-0-0-0123abcd", Place("2_cmpl-x-0", 0, 0)),
        ("something-else-0123abcd", Place("something-else", 0, 0)),
    ],
)
def test_places(request_id: str, place: Place) -> None:
    assert place_of(request_id) == place


def test_an_id_that_vllm_does_not_make_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "1")
    assert place_of("cmpl-deadbeef-0") == Place("deadbeef", 0, 0)
    assert place_of("chatcmpl-x-deadbeef") == Place("x-deadbeef", 0, 0)


def test_a_room_as_number_and_as_string() -> None:
    for given in (7, "7"):
        leg = leg_of({"do_remote_decode": True, "handoff": {"room": given}}, "cmpl-a-0-0123abcd", None, False)
        assert leg is not None
        assert (leg.side, leg.key, leg.attempt, leg.fetches) == ("prefill", Key(7), 0, True)


def test_sample_and_attempt() -> None:
    handoff = {"room": str(2**64 - 1), "sample": 3, "attempt": "9"}
    leg = leg_of({"do_remote_prefill": True, "handoff": handoff}, "cmpl-a-2-0123abcd", None, False)
    assert leg is not None
    assert (leg.side, leg.key, leg.attempt) == ("decode", Key(2**64 - 1, 5), 9)


def test_only_the_first_of_n_samples_fetches() -> None:
    params = {"do_remote_prefill": True, "handoff": {"room": 1}}
    fetching = [leg_of(params, f"{n}_cmpl-a-0-0123abcd", None, False) for n in range(3)]
    assert [leg is not None and leg.fetches for leg in fetching] == [True, False, False]


@pytest.mark.parametrize("room", [-1, 2**64, True, 1.5, "x", "", [1]])
def test_what_is_no_room_is_no_handoff(room: Any) -> None:
    assert leg_of({"do_remote_decode": True, "handoff": {"room": room}}, "cmpl-a-0-0123abcd", None, False) is None


def test_the_side_of_the_engine_where_the_request_names_none() -> None:
    params = {"handoff": {"room": 1}}
    leg = leg_of(params, "cmpl-a-0-0123abcd", "decode", False)
    assert leg is not None
    assert leg.side == "decode"
    assert leg_of(params, "cmpl-a-0-0123abcd", None, False) is None


def test_a_request_id_makes_a_room_only_where_that_is_wanted() -> None:
    params = {"do_remote_decode": True}
    assert leg_of(params, "chatcmpl-abc-0123abcd", "prefill", False) is None
    leg = leg_of(params, "chatcmpl-abc-0123abcd", "prefill", True)
    assert leg is not None
    assert leg.key == Key(room_of("abc"))
    assert leg_of({}, "chatcmpl-abc-0123abcd", "prefill", True) is None  # not asked for


def request(**fields: Any) -> Any:
    return SimpleNamespace(**{"prompt_token_ids": [1, 2, 3], **fields})


def test_the_digest_of_a_prompt() -> None:
    plain = digest_of(request())
    assert plain == digest_of_prompt([1, 2, 3])
    image = SimpleNamespace(identifier="image-1")
    other = SimpleNamespace(identifier="image-2")
    adapter = SimpleNamespace(lora_name="a")
    digests = {
        plain,
        digest_of(request(prompt_token_ids=[1, 2, 4])),
        digest_of(request(mm_features=[image])),
        digest_of(request(mm_features=[other])),
        digest_of(request(cache_salt="s")),
        digest_of(request(lora_request=adapter)),
    }
    assert len(digests) == 6
    assert digest_of(request(prompt_token_ids=None)) is None
