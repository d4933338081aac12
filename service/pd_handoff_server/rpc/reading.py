"""The reader of this process."""

from __future__ import annotations

from typing import Final

from pd_handoff_server import native

from .capabilities import SCHEMA_FINGERPRINT

READER: Final = native.load(SCHEMA_FINGERPRINT)
"""Sees each request before protobuf does, and frames answers."""
