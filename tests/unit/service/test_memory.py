"""Whether the arena fits, reckoned before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import pytest
from pd_handoff_server.arena.layout import Layout, Limits
from pd_handoff_server.process import memory
from pd_handoff_server.process.memory import ArenaTooLargeError, available, check_fits, human

LAYOUT = Layout(Limits())


@pytest.mark.parametrize("slots", [1, 1024, 4096])
def test_exactly_as_much_as_there_is_fits_and_a_byte_less_does_not(slots: int) -> None:
    total = LAYOUT.row_bytes * slots
    check_fits(LAYOUT, slots, total)
    check_fits(LAYOUT, slots, None)
    with pytest.raises(ArenaTooLargeError) as caught:
        check_fits(LAYOUT, slots, total - 1)
    message = str(caught.value)
    assert f"{slots:,} slots x {LAYOUT.row_bytes:,} bytes a row = {total:,} bytes" in message
    assert f"at most {slots - 1:,} slots fit" in message


def test_the_message_shows_what_to_lower() -> None:
    layout = Layout(Limits(hidden_state_bytes=1 << 28))
    with pytest.raises(ArenaTooLargeError, match="--slots") as caught:
        check_fits(layout, 1000, 10 << 20)
    assert "widest column is speculative.hidden_states.data with 268,435,456 bytes" in str(caught.value)
    assert "10.0 MiB are available; at most 0 slots fit" in str(caught.value)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 40, "3,072.0 GiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert human(size) == text


def test_the_least_of_machine_and_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = available()
    assert machine is not None
    assert machine > 0
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", (str(limit), str(tmp_path / "absent")))
    limit.write_text("4096\n")
    assert available() == 4096
    limit.write_text("max\n")
    unlimited = available()
    assert unlimited is not None
    assert unlimited > 4096
