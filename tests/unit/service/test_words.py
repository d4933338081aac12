"""Settings of a store that are mistyped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pd_handoff.cli.usage import VARIABLES
from pd_handoff_server import app, config, plan

ROOT = Path(__file__).parents[3]


def test_a_variable_that_is_nearly_one() -> None:
    environment = {
        "PD_HANDOFF_SLOT": "12",
        "PD_HANDOFF_TARGET": "x",
        "PD_HANDOFF_LEASE": "3",
        "PATH": "",
        "PD_HANDOFF_X": "",
    }
    assert config.unknown_variables(environment) == ["PD_HANDOFF_SLOT has no effect; did you mean PD_HANDOFF_SLOTS?"]


def test_no_variable_of_this_package_is_taken_for_a_mistake() -> None:
    assert config.unknown_variables({f"PD_HANDOFF_{name}": "x" for name in VARIABLES}) == []
    read = set()
    for path in (ROOT / "clients/python/pd_handoff").rglob("*.py"):
        read |= set(re.findall(r"\bPD_HANDOFF_([A-Z][A-Z_]*[A-Z])\b", path.read_text()))
    servers = {config.variable(name).removeprefix("PD_HANDOFF_") for group in config.GROUPS.values() for name in group}
    assert read - servers - VARIABLES == set()


@pytest.mark.parametrize("command", ["serve", "plan"])
def test_a_flag_that_is_nearly_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = {"serve": app.serve_main, "plan": plan.plan_main}[command]
    assert run(["--max-toplogprobs", "5"]) == 2
    line = capsys.readouterr().err
    meant = "unrecognized arguments: --max-toplogprobs 5; did you mean --max-top-logprobs?"
    assert line == f"pd-handoff {command}: {meant}; see --help\n"
