"""The command against a real store, as a person would type it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pd_handoff import Record

from tests.support.process import ProcessStore, run_command

pytestmark = pytest.mark.internals


@pytest.fixture
def run(served: ProcessStore) -> Any:
    """run(arguments...) -> the finished command."""

    return partial(run_command, environment={"PD_HANDOFF_TARGET": served.target})


def test_a_hand_off_by_hand(run: Any, room: int, tmp_path: Path) -> None:
    record = {
        "tokens": [{"token_id": 5, "logprob": -0.5, "top_logprobs": {"values": ["NaN", -1.5], "token_ids": [1, 2]}}],
        "customized_info": "AAEC",
    }
    reserved = run("reserve", str(room), "--lease", "30", "--json")
    assert reserved.returncode == 0
    token = json.loads(reserved.stdout)["token"]
    assert run("get", str(room)).returncode == 5
    listed = json.loads(run("list", "--json").stdout)
    assert [one["state"] for one in listed if one["key"]["room"] == room] == ["RESERVED"]
    put = run("put", str(room), "--token", token, "--record", "-", stdin=json.dumps(record))
    assert (put.returncode, put.stderr) == (0, "")
    path = tmp_path / "out.json"
    got = run("get", str(room), "--consume", "--reader", "me", "--output", str(path))
    assert (got.returncode, got.stderr) == (0, "")
    assert "id 5, logprob -0.5, 2 top logprobs" in got.stdout
    assert Record.from_json(path.read_text()) == Record.from_json(json.dumps(record))
    assert run("release", str(room), "--token", token).stdout == "released\n"
    assert run("get", str(room)).returncode == 6


def test_refusals_by_hand(run: Any, room: int, tmp_path: Path) -> None:
    refused = run("reserve", str(room), "--top-logprobs", "129")
    assert refused.returncode == 3
    assert refused.stderr.startswith(
        "pd-handoff: TOP_LOGPROBS_OVERFLOW: top_logprobs_num 129 exceeds disaggregation metadata capacity 128"
    )
    path = tmp_path / "record.json"
    path.write_text('{"tokens": [{"token_id": 5}]}')
    assert run("put", str(room), "--record", str(path)).returncode == 0
    assert run("reserve", str(room)).returncode == 7
    aborted = run("abort", str(room), "--http-status", "400", "--reason", "TOO_LONG", "--message", "input too long")
    assert aborted.stdout == "ended\n"
    told = run("get", str(room), "--json")
    assert told.returncode == 6
    assert json.loads(told.stderr)["error"]["metadata"] == {"http_status": "400", "failure_reason": "TOO_LONG"}
    assert run("capabilities", "--target", f"unix:{tmp_path / 'nobody'}").returncode == 8


def test_capabilities_and_plan_agree(run: Any) -> None:
    shown = json.loads(run("capabilities", "--json").stdout)
    assert shown["row_bytes"] * shown["slots_total"] == shown["arena_bytes"]
    assert run("serve", "--help").returncode == 0
    assert run("plan", "--help").returncode == 0
