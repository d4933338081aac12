"""Which reader a store takes, and what it says where the one in C cannot be had."""

from __future__ import annotations

import sys

import pytest
from pd_handoff_server import parser
from pd_handoff_server.handlers.capabilities import SCHEMA_FINGERPRINT
from pd_handoff_server.parser import NativeError

NAME = "pd_handoff_server.parser._scan"


def test_the_one_in_c_where_it_is() -> None:
    for wish in ("auto", "required"):
        assert parser.why_not(parser.load(SCHEMA_FINGERPRINT, wish)) is None


def test_switched_off() -> None:
    reader = parser.load(SCHEMA_FINGERPRINT, "off")
    assert parser.why_not(reader) == "switched off"
    assert reader.get(b"") is None


def test_built_for_another_schema() -> None:
    why = parser.why_not(parser.load("0123456789abcdef"))
    assert why == f"built for schema {SCHEMA_FINGERPRINT}, while this is 0123456789abcdef"
    with pytest.raises(NativeError, match="install pd-handoff anew where a C compiler is"):
        parser.load("0123456789abcdef", "required")


def test_one_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(parser, "_scan", raising=False)
    monkeypatch.setitem(sys.modules, NAME, None)  # as if its import failed
    why = parser.why_not(parser.load(SCHEMA_FINGERPRINT))
    assert why is not None
    with pytest.raises(NativeError, match=r"^the reader in C is "):
        parser.load(SCHEMA_FINGERPRINT, "required")
