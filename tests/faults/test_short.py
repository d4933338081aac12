"""Every scenario in its short form."""

from __future__ import annotations

import pytest

# By their full names: to pytest this file is of a package "faults", whose modules would be others than the scenarios'.
from tests.faults.__main__ import run
from tests.faults.common import differences, record_of, scenarios

KNOWN = scenarios()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", KNOWN)
def test_short_form(name: str) -> None:
    report = run(KNOWN[name], short=True, seed=1)
    assert not report.faults, report.faults[:5]
    assert report.figures


def test_every_scenario_is_found() -> None:
    assert {
        "auth-matrix",
        "clock",
        "descriptors",
        "forks",
        "guards",
        "history",
        "hostile",
        "isolation",
        "kill",
        "names",
        "network",
        "pause",
        "soak",
        "web-proxies",
    } == KNOWN.keys()


def test_a_record_is_told_from_every_other() -> None:
    keys = [("", room, sample) for room in range(40) for sample in range(2)]
    for key in keys:
        for attempt in range(3):
            record = record_of(key, attempt)
            assert not differences(record, key, attempt)
            assert differences(record, key, attempt + 1)
            assert differences(record, (key[0], key[1] + 1, key[2]), attempt)
            assert differences(record, ("other", *key[1:]), attempt)


def test_each_field_that_differs_is_named() -> None:
    key = next(("", room, 0) for room in range(1000) if record_of(("", room, 0), 0).speculative.hidden_states.data)
    record = record_of(key, 0)
    data = bytearray(record.speculative.hidden_states.data)
    data[0] ^= 1
    record.speculative.hidden_states.data = bytes(data)
    record.tokens[0].token_id ^= 1
    record.reasoning_tokens ^= 1
    found = differences(record, key, 0)
    assert {"tokens[0].token_id", "speculative.hidden_states.data"} <= set(found)
    assert any(name.startswith("reasoning_tokens") for name in found)
