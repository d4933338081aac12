"""What each part of the core may bring along, seen in a process that imports it alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.waits import patient

WATCHED = ("torch", "numpy", "grpc", "google.protobuf", "pd_handoff.v1", "asyncio", "structlog")

_PROGRAM = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
json.dump([name for name in sys.argv[2:] if name in sys.modules], sys.stdout)
"""


def brought_along(module: str) -> list[str]:
    """Which of WATCHED a fresh interpreter has loaded after importing this module."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, module, *WATCHED],
        capture_output=True,
        text=True,
        timeout=patient(100),
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("pd_handoff_server.lifecycle", set()),
        ("pd_handoff_server.lifecycle.machine", set()),
        ("pd_handoff_server.refusal", set()),
        ("pd_handoff_server.arena.layout", set()),
        ("pd_handoff_server.process.memory", set()),
        ("pd_handoff_server.config", set()),
        ("pd_handoff_server.plan", set()),
        ("pd_handoff_server.arena.packed_record", {"google.protobuf", "pd_handoff.v1"}),
    ],
)
def test_imports(module: str, allowed: set[str]) -> None:
    assert set(brought_along(module)) <= allowed


@pytest.mark.parametrize("module", ["pd_handoff_server.arena.arena", "pd_handoff_server.store.embedded"])
def test_the_core_has_no_transport(module: str) -> None:
    assert "grpc" not in brought_along(module)
