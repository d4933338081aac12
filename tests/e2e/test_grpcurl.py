"""The genuine grpcurl, which knows nothing of the schema but what the store's reflection tells it."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.process import ProcessStore, command
from tests.support.waits import patient

STORE = "pd_handoff.v1.MetadataStore"
RESOURCE_EXHAUSTED = 8


@pytest.fixture(scope="module", params=["fast", "aio"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A store on a port of its own, on each transport."""
    with ProcessStore("127.0.0.1:0", transport=request.param, slots=8) as store:
        yield store.wait().target


def grpcurl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Its output and exit status, which is 64 plus the status code of a failed call."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            [command("grpcurl"), "-plaintext", *arguments],
            env={"HOME": home, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=patient(60),
            check=False,
        )


def told(*arguments: str) -> str:
    """Its output."""
    done = grpcurl(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def call(address: str, method: str, request: dict[str, Any]) -> Any:
    """The answer to one call."""
    return json.loads(told("-d", json.dumps(request), address, method))


def test_lists_the_services(address: str) -> None:
    assert {
        "grpc.health.v1.Health",
        "pd_handoff.v1.MetadataStore",
        "pd_handoff.v1.MetadataStoreAdmin",
    } <= set(told(address, "list").split())
    methods = {f"{STORE}.{name}" for name in ("Reserve", "Put", "Get", "Release", "Abort", "Capabilities", "Session")}
    assert methods <= set(told(address, "list", STORE).split())


def test_describes_messages_and_reasons(address: str) -> None:
    assert "repeated float values" in told(address, "describe", "pd_handoff.v1.Logprobs")
    assert "ERROR_REASON_TOP_LOGPROBS_OVERFLOW" in told(address, "describe", "pd_handoff.v1.ErrorReason")


def test_hands_off_and_looks_on(address: str) -> None:
    capabilities = call(address, f"{STORE}/Capabilities", {})
    assert (capabilities["limits"]["top_logprobs"], capabilities["slots_free"]) == (128, 8)
    key = {"namespace": "grpcurl", "room": str(2**64 - 1), "sample": 1}
    record = {
        "tokens": [
            {"token_id": 42, "logprob": -0.5, "top_logprobs": {"values": [-0.5, "-Infinity"], "token_ids": [42, 7]}}
        ]
    }
    call(address, f"{STORE}/Put", {"key": key, "record": record, "reserve": {"owner": "a person"}})
    got = call(address, f"{STORE}/Get", {"key": key, "max_wait": "5s"})
    assert got["record"] == record
    listed = call(address, "pd_handoff.v1.MetadataStoreAdmin/ListHandoffs", {"namespace": "grpcurl"})
    (handoff,) = listed["handoffs"]
    assert (handoff["key"], handoff["state"], handoff["owner"]) == (key, "HANDOFF_STATE_PUBLISHED", "a person")
    assert "record" not in handoff


def test_shows_a_refusal_with_its_details(address: str) -> None:
    request = {"key": {"room": 1}, "owner": "a person", "widths": {"top_logprobs": 129}}
    refused = grpcurl("-d", json.dumps(request), address, f"{STORE}/Reserve")
    assert refused.returncode == 64 + RESOURCE_EXHAUSTED
    assert "129 exceeds disaggregation metadata capacity 128" in refused.stderr
    assert "TOP_LOGPROBS_OVERFLOW" in refused.stderr
