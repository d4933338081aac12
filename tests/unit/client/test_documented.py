"""What an editor and `help` show: every public name, every attribute and every argument, and nothing private."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
import subprocess
import sys
from typing import Any

import pd_handoff
import pytest
from pd_handoff import aio

PUBLIC = {name: getattr(pd_handoff, name) for name in pd_handoff.__all__}
CLASSES = {name: value for name, value in PUBLIC.items() if isinstance(value, type)}
RECORDS = {name: kind for name, kind in CLASSES.items() if dataclasses.is_dataclass(kind)}
CLIENTS = [getattr(module, name) for module in (pd_handoff, aio) for name in CLASSES if name.endswith("Client")]


@pytest.mark.parametrize("name", RECORDS)
def test_every_attribute_is_described(name: str) -> None:
    kind = RECORDS[name]
    described = set(re.findall(r"^ {4,}(\w+): \S", inspect.getdoc(kind) or "", re.MULTILINE))
    assert {field.name for field in dataclasses.fields(kind)} <= described


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: f"{client.__module__}.{client.__name__}")
def test_every_argument_of_a_client_is_described(client: Any) -> None:
    described = set(re.findall(r"^ {4}(\w+): \S", inspect.getdoc(client.__init__) or "", re.MULTILINE))
    assert set(inspect.signature(client).parameters) <= described


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_class_and_method_says_something(name: str) -> None:
    assert inspect.getdoc(CLASSES[name])
    for method, value in vars(CLASSES[name]).items():
        if not method.startswith("_") and (inspect.isfunction(value) or isinstance(value, (property, classmethod))):
            assert inspect.getdoc(value), f"{name}.{method}"


def test_help_shows_public_names_only() -> None:
    text = pydoc.render_doc(pd_handoff, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    shown = set(re.findall(r"^    class (\w+)", text, re.MULTILINE))
    assert shown == set(CLASSES)
    functions = text.partition("\nFUNCTIONS\n")[2].partition("\nDATA\n")[0]
    named = re.findall(r"^    (\w+)\(", functions, re.MULTILINE)
    assert {name for name in named if not name.startswith("__")} == {
        name for name, value in PUBLIC.items() if inspect.isfunction(value)
    }
    data = text.partition("\nDATA\n")[2].partition("\nVERSION\n")[0]
    assert set(re.findall(r"^    (\w+) = ", data, re.MULTILINE)) <= {"__all__"}


def test_so_does_completion() -> None:
    command = [sys.executable, "-c", "import pd_handoff; print(*dir(pd_handoff))"]
    names = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert {name for name in names if not name.startswith("_")} == set(pd_handoff.__all__) - {"__version__"}
