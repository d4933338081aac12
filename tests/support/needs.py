"""What a test of the contract needs of a store, and how much of that a run could have.

Marks: `wire` needs a connection. `clock` turns the store's time as well. `internals` looks into a store in this
process, starts and ends stores, or judges the Python client. Of several marks the closest holds.
"""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from .given import ADDRESS, SETTINGS
from .local import transports

NEEDS: Final = ("wire", "clock", "internals")
_PROPERTY: Final = "needs"
_OWN: Final = ("start", "launch", "served", "serving")  # fixtures that make stores

unjudged: Counter[str] = Counter()
judged: Counter[str] = Counter()


def add_options(parser: pytest.Parser) -> None:
    """The options that give a store."""
    group = parser.getgroup("contract", "a store to be held to the contract")
    group.addoption("--store", metavar="ADDRESS", help="address of a running store, as gRPC takes it")
    group.addoption(
        "--store-command",
        metavar="COMMAND",
        help=f"command that starts a store on {ADDRESS}; {SETTINGS}, when it is in there, stands for flags",
    )


def check_options(config: pytest.Config) -> None:
    """Register the marks, and refuse options that contradict each other."""
    for mark, what in zip(NEEDS, ("a connection", "the store's time", "a store in this process"), strict=True):
        config.addinivalue_line("markers", f"{mark}: the test needs {what}")
    address, command = config.getoption("--store"), config.getoption("--store-command")
    if address and command:
        raise pytest.UsageError("--store or --store-command, not both")
    if command and ADDRESS not in command:
        raise pytest.UsageError(f"--store-command has no {ADDRESS}: where would the store listen?")


def is_given(config: pytest.Config) -> bool:
    """Whether this run judges a store that runs elsewhere."""
    return bool(config.getoption("--store") or config.getoption("--store-command"))


def spread(metafunc: pytest.Metafunc) -> None:
    """Run a test on each transport in turn; a given store has the one that it has."""
    if "each_transport" in metafunc.fixturenames:
        which = ["given"] if is_given(metafunc.config) else transports()
        metafunc.parametrize("each_transport", which, scope="session", indirect=True)


def mark_of(item: pytest.Item) -> str | None:
    """The closest of the marks, None without one."""
    return next((mark.name for mark in item.iter_markers() if mark.name in NEEDS), None)


def need_of(item: pytest.Item) -> str:
    """The closest of the marks. Raises UsageError without one, or where it promises too much."""
    need = mark_of(item)
    if need is None:
        raise pytest.UsageError(f"{item.nodeid} has none of the marks {', '.join(NEEDS)}")
    makes = [name for name in _OWN if name in getattr(item, "fixturenames", ())]
    if makes and need != "internals":
        raise pytest.UsageError(f"{item.nodeid} is marked {need}, but makes stores by {', '.join(makes)}")
    return need


def select(config: pytest.Config, items: list[pytest.Item], room: Path) -> None:
    """Look at the marks of all tests of the contract, and leave out those that the given store cannot be judged by."""
    command = config.getoption("--store-command") or ""
    settable = SETTINGS in shlex.split(command)
    kept, left = [], []
    for item in items:
        if not item.path.is_relative_to(room) and mark_of(item) is None:
            kept.append(item)
            continue
        need = need_of(item)
        item.user_properties.append((_PROPERTY, need))
        own = item.get_closest_marker("settings") is not None
        if not is_given(config) or (need == "wire" and (settable or not own)):
            kept.append(item)
        else:
            unjudged[need if need != "wire" else "wire, with settings of its own"] += 1
            left.append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def count(report: pytest.TestReport) -> None:
    """Take note of a test that has been judged."""
    if report.when == "call":
        judged.update(str(value) for name, value in report.user_properties if name == _PROPERTY)


def summary(reporter: Any) -> None:
    """How many of each kind were judged, and how many could not be."""
    names = [*NEEDS, "wire, with settings of its own"]
    lines = [f"{name}: {judged[name]} judged, {unjudged[name]} not" for name in names if judged[name] or unjudged[name]]
    if lines:
        reporter.section("what the tests of the contract needed")
        for line in lines:
            reporter.line(line)
