"""Which reader a store takes, and what it says where the one in C cannot be had."""

from __future__ import annotations

import sys

import pytest
from pd_handoff_server import native
from pd_handoff_server.native import NativeError
from pd_handoff_server.rpc.capabilities import SCHEMA_FINGERPRINT

NAME = "pd_handoff_server.native._scan"


def test_the_one_in_c_where_it_is() -> None:
    for wish in ("auto", "required"):
        assert native.why_not(native.load(SCHEMA_FINGERPRINT, wish)) is None


def test_switched_off() -> None:
    reader = native.load(SCHEMA_FINGERPRINT, "off")
    assert native.why_not(reader) == "switched off"
    assert reader.get(b"") is None


def test_built_for_another_schema() -> None:
    why = native.why_not(native.load("0123456789abcdef"))
    assert why == f"built for schema {SCHEMA_FINGERPRINT}, while this is 0123456789abcdef"
    with pytest.raises(NativeError, match="install pd-handoff anew where a C compiler is"):
        native.load("0123456789abcdef", "required")


def test_one_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(native, "_scan", raising=False)
    monkeypatch.setitem(sys.modules, NAME, None)  # as if its import failed
    why = native.why_not(native.load(SCHEMA_FINGERPRINT))
    assert why is not None
    with pytest.raises(NativeError, match=r"^the reader in C is "):
        native.load(SCHEMA_FINGERPRINT, "required")
