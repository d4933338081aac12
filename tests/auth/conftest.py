"""Stores that ask who calls: access files, certificates, and callers with either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tests.support.caller import Caller
from tests.support.credentials import Authority, access_file, bearing, secure_channel
from tests.support.fixtures import each_transport, failures, kind, launch, loop_thread, sockets, start, transport
from tests.support.local import LocalStore

__all__ = ["each_transport", "failures", "kind", "launch", "loop_thread", "sockets", "start", "transport"]

TOKENS = {
    "prefill": "prefill-token-0123456789",
    "decode": "decode-token-0123456789",
    "observer": "observer-token-0123456789",
    "admin": "admin-token-0123456789",
}
LLAMA = "llama-token-0123456789"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A token of each role for all namespaces, and one of prefill and decode for `llama` alone."""
    path = tmp_path / "tokens"
    lines = [f"{role}-0 {role} * {token}" for role, token in TOKENS.items()]
    return access_file(path, *lines, f"llama-0 prefill,decode,observer llama {LLAMA}")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority whose certificates the store takes."""
    return Authority(tmp_path)


Connect = Callable[..., Caller]


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Connect:
    """Connects to a store: over TLS with an authority, with a client's certificate, with a token."""
    from tests.support.caller import CALLERS  # noqa: PLC0415

    def make(
        store: LocalStore,
        token: str | None = None,
        *,
        kind: str = "unary",
        authority: Authority | None = None,
        name: str | None = None,
    ) -> Caller:
        channel: grpc.Channel
        if authority is None:
            channel = store.channel()
        else:
            channel = secure_channel(store.target, authority, authority.issue(name) if name else None)
            request.addfinalizer(channel.close)
        caller = CALLERS[kind](bearing(channel, token) if token else channel)
        request.addfinalizer(caller.close)
        return caller

    return make
