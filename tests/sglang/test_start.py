"""A node that is set up wrongly does not start, and says by which variable; a fault beyond that costs one request."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from pd_handoff.engines.sglang import (
    StoreLink,
    admit,
    environment,
    link_from_environment,
    report_abort,
)
from pd_handoff.engines.sglang.courier import Claim
from pd_handoff.engines.sglang.failures import Unworkable
from pd_handoff.model import Key

from tests.sglang.making import Made
from tests.sglang.sides import Settled

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBhjCCASugAwIBAgIUAm0dhQQZAX1pCRf68/hlpbuF1OEwCgYIKoZIzj0EAwIw
FzEVMBMGA1UEAwwMYW4tYXV0aG9yaXR5MCAXDTI2MTEzMDE0MzUwMVoYDzIxMjYx
MTA2MTQzNTAxWjAXMRUwEwYDVQQDDAxhbi1hdXRob3JpdHkwWTATBgcqhkjOPQIB
BggqhkjOPQMBBwNCAARw2ihI1S4Kugw/thYxOElGte29Mn2Ky8D6emZ5s+gBGiM2
a1TOJczrmnJJBUZkT9dzCyPCexS5uvj7FOOJTsiuo1MwUTAdBgNVHQ4EFgQUkZlf
K9NJtwJ9hXT4ozTWfgIcll4wHwYDVR0jBBgwFoAUkZlfK9NJtwJ9hXT4ozTWfgIc
ll4wDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEAnLl+DVDOzJ2W
lYe9yoFzhc2lVWPgyZmLfLU238YbQsgCIQC7vbCiki7RtvyvdZOBnGno31RrxD8N
SNXsh3s3VuoNSg==
-----END CERTIFICATE-----
"""

WRONG = [
    ("PD_HANDOFF_TARGET", "http://127.0.0.1:50071", "give host:port"),
    ("PD_HANDOFF_TARGET", "127.0.0.1", "give host:port"),
    ("PD_HANDOFF_NAMESPACE", "a b\nc", "up to 128 of letters"),
    ("PD_HANDOFF_NAMESPACE", "x" * 129, "up to 128 of letters"),
    ("PD_HANDOFF_EXPECTED_READERS", "1025", "from 1 to 1024"),
    ("PD_HANDOFF_EXPECTED_READERS", "٣", "from 1 to 1024"),
    ("PD_HANDOFF_TLS_CA", "text", "holds no certificate in PEM"),
    ("PD_HANDOFF_TLS_CA", "absent", "No such file"),
    ("PD_HANDOFF_BEARER_FILE", "two words", "expected one bearer token"),
    ("PD_HANDOFF_BEARER_FILE", "absent", "No such file"),
]


@pytest.mark.parametrize(("name", "value", "text"), WRONG)
def test_an_operators_mistake_stops_a_node_and_names_the_variable(
    name: str, value: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("PD_HANDOFF_TLS_CA", "PD_HANDOFF_BEARER_FILE"):
        file = tmp_path / "file"
        if value != "absent":
            file.write_text(value, encoding="ascii")
        value = str(file)
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}.*{text}"):
        link_from_environment()


def test_a_certificate_in_pem_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(AUTHORITY, encoding="ascii")
    monkeypatch.setenv("PD_HANDOFF_TLS_CA", str(file))
    environment.check_environment()


def test_what_a_link_cannot_have_is_said_when_it_is_made(target: str) -> None:
    with pytest.raises(ValueError, match="give host:port"):
        StoreLink("nowhere")
    with pytest.raises(ValueError, match="namespace must be"):
        StoreLink(target, namespace="a b")


def test_admission_behind_a_broken_target_is_the_servers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_limits", environment._Limits())
    monkeypatch.setenv("PD_HANDOFF_TARGET", "http://10.1.2.3")
    for _ in range(2):
        with pytest.raises(RuntimeError) as raised:  # SGLang's server answers a ValueError with 400, this with 500
            admit({"return_logprob": True, "top_logprobs_num": 1})
        assert not isinstance(raised.value, ValueError)
        assert "10.1.2.3" not in str(raised.value)


def broken(*_: Any, **__: Any) -> Any:
    """What a client does with a setting that slipped through."""
    raise ValueError("http://10.1.2.3 is no address")


@pytest.mark.parametrize("calls", ["client", "thread"])
def test_no_error_of_a_setting_reaches_the_schedulers_loop(
    calls: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = Settled(1, 16, torch.float32, 16, link=StoreLink(target))
    monkeypatch.setattr(buffers.link._connections, "prefill", broken)
    monkeypatch.setattr(buffers.link.courier, "_client", broken)
    if calls == "thread":
        monkeypatch.setattr(buffers.link._connections, "start", broken)
    for claim in (buffers.reserve, buffers.set_buf):
        source = Made(room=1 << 54).request()
        assert not claim(source)
        assert source.finished_reason.status_code == 500
        assert "10.1.2.3" not in source.finished_reason.message
    buffers.abort(Made(room=1 << 54).request(), "gone", 400)
    if calls == "thread":
        request = Made(room=1 << 54).request(computed=False)
        buffers.bind(0, request)
        buffers.get_buf(0)
        assert request.finished_reason.status_code == 500
        assert "10.1.2.3" not in request.finished_reason.message
    buffers.close()


def test_a_call_ends_with_an_error_of_the_clients_and_no_other(target: str) -> None:
    link = StoreLink(target)
    terms = {"owner": "a", "lease": 60.0, "expected_readers": 1, "no such option": 1}
    claim = Claim(Key(1), 0, None, terms, counted=False)
    link.courier.send(claim)
    with pytest.raises(Unworkable) as raised:
        claim.future.result(30.0)
    assert (raised.value.http_status, str(raised.value)) == (
        500,
        "the hand-off between prefill and decode failed: TypeError",
    )
    link.close()


@pytest.mark.parametrize("name", ["widths_of", "record_from_request"])
def test_a_request_of_unknown_make_fails_alone(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    buffers = Settled(1, 16, torch.float32, 16, link=StoreLink(target, wait=20.0))
    made = Made(room=(1 << 54) + len(name))
    source, request = made.request(), made.request(computed=False)
    buffers.bind(0, request)
    monkeypatch.setattr(f"pd_handoff.engines.sglang.prefill_side.{name}", broken)
    assert not (buffers.reserve if name == "widths_of" else buffers.set_buf)(source)
    buffers.get_buf(0)
    for end in (source.finished_reason, request.finished_reason):
        assert (end.status_code, end.message) == (500, "the hand-off between prefill and decode failed: ValueError")
    assert [record.exc_info is not None for record in caplog.records if record.levelname == "ERROR"] == [True]
    buffers.close()


def test_what_goes_wrong_in_bind_fails_its_row(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = Settled(1, 16, torch.float32, 16, link=StoreLink(target))
    monkeypatch.setattr("pd_handoff.engines.sglang.decode_side.key_of", broken)
    request = Made(room=1).request(computed=False)
    buffers.bind(0, request)
    buffers.get_buf(0)
    assert request.finished_reason.status_code == 500
    buffers.close()


def test_an_error_on_the_way_to_an_abort_stays_in_the_log(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = Settled(1, 16, torch.float32, 16, link=StoreLink(target))
    monkeypatch.setattr("pd_handoff.engines.sglang.buffers.key_of", broken)
    report_abort(Made(room=1).request(), "gone", 400)
    buffers.close()


@pytest.mark.parametrize("collected", [False, True])
def test_buffers_that_are_dropped_end_their_thread(target: str, collected: bool) -> None:
    before = set(threading.enumerate())
    gc.collect()
    gc.disable()  # SGLang freezes what it has: then nothing is collected, and no cycle may keep the link
    try:
        buffers: Any = Settled(1, 16, torch.float32, 16, link=StoreLink(target))
        source = Made(room=(1 << 54) + 50 + collected).request()
        assert buffers.reserve(source)
        assert buffers.set_buf(source)
        buffers.bind(0, Made(room=(1 << 54) + 60 + collected).request(computed=False))
        threads = [one for one in set(threading.enumerate()) - before if one.name.startswith("pd-handoff-")]
        assert sorted(one.name for one in threads) == ["pd-handoff-bringer", "pd-handoff-courier", "pd-handoff-sglang"]
        if collected:
            buffers.itself = buffers  # a cycle after all
        del buffers  # as SGLang does when a node changes its role
        if collected:
            gc.collect()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    finally:
        gc.enable()
