"""The planner: from the code that allocates, and equal to what Capabilities then reports."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from pd_handoff_server import config
from pd_handoff_server.arena.layout import WIDTHS, Layout
from pd_handoff_server.build import build_store
from pd_handoff_server.handlers.capabilities import Describer
from pd_handoff_server.lifecycle import Spec
from pd_handoff_server.plan import HANDOFF_BYTES, OUTCOME_BYTES, PROCESS_BYTES, plan_main
from pd_handoff_server.process.memory import human

from tests.support.clock import FakeClock


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLOTS", *(f"MAX_{width.upper()}" for width in WIDTHS)):
        monkeypatch.delenv(f"PD_HANDOFF_{name}", raising=False)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The plan as JSON."""
    assert plan_main([*arguments, "--json"]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def test_the_planner_case_is_what_capabilities_reports(capsys: pytest.CaptureFixture[str]) -> None:
    """Handed case 22: 2 x 2,048 rows, 128 top logprobs, hidden 7,168 bf16."""
    asked = ["--max-running-requests", "2048", "--max-top-logprobs", "128", "--hidden-size", "7168"]
    plan = planned(capsys, *asked, "--hidden-dtype", "bfloat16")
    assert plan["slots"] == 2 * 2048
    assert plan["limits"]["hidden_state_bytes"] == 2 * 7168
    assert plan["limits"]["top_logprobs"] == 128
    assert plan["arena_bytes"] == plan["row_bytes"] * plan["slots"]

    settings = config.load({"slots": "4096", "max_hidden_state_bytes": "14336"}, {})
    store, _ = build_store(settings, FakeClock())
    told = Describer("1", settings.max_batch, 1 << 20, ()).response(store.facts())
    assert told.slots_total == plan["slots"]
    assert told.row_bytes == plan["row_bytes"]
    assert told.arena_bytes == plan["arena_bytes"]
    assert {name: getattr(told.limits, name) for name in WIDTHS} == plan["limits"]


def test_the_columns_add_up_to_the_row(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, "--slots", "3", "--max-tokens", "1", "--max-customized-info-bytes", "1KiB")
    layout = Layout(config.load({"max_tokens": "1", "max_customized_info_bytes": "1024"}, {}).limits())
    assert plan["row_bytes"] == layout.row_bytes
    assert plan["slots"] == 3
    assert plan["available_bytes"] is None or plan["available_bytes"] > 0
    assert sum(column["bytes"] for column in plan["columns"]) == layout.image_bytes
    assert {column["name"] for column in plan["columns"]} == {column.name for column in layout.columns}


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2), ("float8_e4m3", 1), ("float8_e5m2", 1)]
)
def test_hidden_states_by_element_type(capsys: pytest.CaptureFixture[str], dtype: str, size: int) -> None:
    plan = planned(capsys, "--hidden-size", "100", "--hidden-dtype", dtype)
    assert plan["limits"]["hidden_state_bytes"] == 100 * size
    assert planned(capsys, "--hidden-size", "0")["limits"]["hidden_state_bytes"] == 0


def test_explicit_slots_and_the_environment_count(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned(capsys, "--max-running-requests", "10", "--slots", "7")["slots"] == 7
    monkeypatch.setenv("PD_HANDOFF_SLOTS", "5")
    monkeypatch.setenv("PD_HANDOFF_MAX_TOP_LOGPROBS", "9")
    plan = planned(capsys)
    assert (plan["slots"], plan["limits"]["top_logprobs"]) == (5, 9)
    assert planned(capsys, "--max-top-logprobs", "3")["limits"]["top_logprobs"] == 3


def test_the_table_tells_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, "--slots", "11")
    assert plan_main(["--slots", "11"]) == 0
    table = capsys.readouterr().out
    assert f"arena: 11 slots x {plan['row_bytes']:,} bytes = {plan['arena_bytes']:,} bytes" in table
    for column in plan["columns"]:
        assert column["name"] in table


def test_memory_beside_the_arena_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    small, large = planned(capsys, "--slots", "1", "--tombstones", "0"), planned(capsys, "--slots", "2001")
    assert small["beside_bytes"] == PROCESS_BYTES + HANDOFF_BYTES
    grown = 2000 * HANDOFF_BYTES + config.load({}, {}).tombstones * OUTCOME_BYTES
    assert large["beside_bytes"] - small["beside_bytes"] == grown
    assert plan_main(["--slots", "2001"]) == 0
    assert f"beside the arena: about {human(large['beside_bytes'])}" in capsys.readouterr().out


@pytest.mark.parametrize(("slots", "measured"), [(4096, 355), (32_768, 375)])
def test_no_less_is_planned_than_was_measured(capsys: pytest.CaptureFixture[str], slots: int, measured: int) -> None:
    """All slots in use and all outcomes remembered, the most that was seen anywhere, in MiB (docs/startup.md)."""
    beside = planned(capsys, "--slots", str(slots), "--max-hidden-state-bytes", "0")["beside_bytes"]
    assert measured << 20 <= beside < 1.15 * (measured << 20)


def test_what_is_told_of_a_hand_off_is_what_it_takes() -> None:
    """Loosely: Python's own objects are half to all of it, and the rest is what the allocator makes of them."""
    slots = 2000
    clock = FakeClock()
    store, _ = build_store(config.load({"slots": str(slots), "max_hidden_state_bytes": "0"}, {}), clock)
    specs = [Spec(("", 2**60 + room, 0), f"prefill-{room:032x}", producer=("prefill-0", 1)) for room in range(slots)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for spec in specs:
            store.reserve(spec, 0, print)
        live = tracemalloc.get_traced_memory()[0] - before
        clock.advance(100)
        store.tick()
        ended = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert store.census().tombstones == slots
    assert HANDOFF_BYTES / 3 < live / slots < HANDOFF_BYTES
    assert OUTCOME_BYTES / 3 < ended / slots < OUTCOME_BYTES


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-running-requests", "0"], "--max-running-requests"),
        (["--hidden-size", "-1"], "--hidden-size"),
        (["--hidden-size", "1", "--max-hidden-state-bytes", "4"], "--hidden-size"),
        (["--slots", "0"], "--slots"),
        (["--max-top-logprobs", "x"], "--max-top-logprobs"),
        (["--hidden-size", str(1 << 40)], "--max-hidden-state-bytes"),
        (["--slotz", "3"], "--slotz 3; did you mean --slots?; see --help"),
        (["--hidden-dtype", "int8"], "--hidden-dtype"),
    ],
    ids=str,
)
def test_bad_values_are_refused_by_name(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    assert plan_main(arguments) == 2
    captured = capsys.readouterr()
    assert named in captured.err
    assert not captured.out
