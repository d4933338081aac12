"""Which files a store takes, which it refuses, and that a refused one is left as it was."""

from __future__ import annotations

import errno
import mmap
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pd_handoff_server.lifecycle import Failure, Spec
from pd_handoff_server.persistence import codec
from pd_handoff_server.persistence.errors import ArenaFileError
from pd_handoff_server.persistence.superblock import MAGIC, Superblock
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Query, Reading, Reserved

from tests.support.records import full, numbered
from tests.support.waits import at_once

from .kept import BOOT, LIMITS, LONG, SECOND, Kept, ignore, policy


@pytest.fixture
def full_store(path: Path) -> Iterator[Kept]:
    """One with something of everything."""
    kept = Kept(path, slots=5)
    store = kept.store
    for room in range(4):
        spec = Spec(("", room, 0), f"owner {room}", 0, None, 12, (f"p{room}", room))
        handoff = store.reserve(spec, 0, ignore)
        assert isinstance(handoff, Reserved)
        if room:
            store.put(("", room, 0), handoff.token, full(room), at_once)
        for reader in range(11 if room == 2 else 12 * (room == 3)):
            store.get(Query(("", room, 0), 0, f"rank {reader}", True), 0, ignore)
    for room in range(10, 20):
        store.abort(("", room, 0), Failure(400, "REASON", "text" * room), b"", None, at_once)
    yield kept
    kept.close()


def refused(path: Path, again: Callable[[], Kept], message: str) -> None:
    """Opening it must fail with this message, tell what to do, and change nothing."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(ArenaFileError, match=message) as caught:
        again()
    assert re.search("choose another|remove|start with|stop that|move it away|start where|chosen", str(caught.value))
    assert str(path) in str(caught.value)
    if before is not None:
        assert path.read_bytes() == before


def test_a_second_store_is_refused(full_store: Kept) -> None:
    refused(full_store.path, lambda: full_store.restart(full_store.path), "in use by another store")


def test_a_file_is_free_again_after_a_refusal(full_store: Kept) -> None:
    for _ in range(2):
        full_store.close()
        refused(full_store.path, lambda: full_store.restart(slots=4), "made with --slots 5")
    full_store.restart().close()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"slots": 6}, r"--slots 5 \(now 6\)"),
        ({"limits": replace(LIMITS, top_logprobs=6)}, r"--max-top-logprobs 5 \(now 6\)"),
        ({"limits": replace(LIMITS, hidden_state_bytes=0)}, r"--max-hidden-state-bytes 16 \(now 0\)"),
        ({"rules": policy(tombstones=51)}, r"--tombstones 50 \(now 51\)"),
        ({"rules": policy(producers=51)}, "another version of pd-handoff"),
    ],
)
def test_changed_settings_are_refused_by_name(full_store: Kept, changes: dict[str, Any], named: str) -> None:
    full_store.close()
    refused(full_store.path, lambda: full_store.restart(**changes), named)


def test_other_times_are_no_change(full_store: Kept) -> None:
    before = full_store.state()
    after = full_store.restart(rules=policy(retention=SECOND, lease_default=2 * SECOND))
    assert after.state() == before
    after.close()


@pytest.mark.parametrize("content", [b"something else\n", b"x" * 10_000, MAGIC, MAGIC[:-1] + bytes(4096)])
def test_a_foreign_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    refused(path, lambda: Kept(path), "not an arena file")


def test_another_format_is_refused(full_store: Kept) -> None:
    full_store.close()
    data = bytearray(full_store.path.read_bytes())
    data[16] = 9
    full_store.path.write_bytes(data)
    refused(full_store.path, full_store.restart, "has format 9")


@pytest.mark.parametrize("size", [17, 4095, 4096, 100_000, -4096, +4096])
def test_another_size_is_refused(full_store: Kept, size: int) -> None:
    full_store.close()
    now = full_store.path.stat().st_size
    os.truncate(full_store.path, size if size > 0 and size != 4096 else now + size)
    refused(full_store.path, full_store.restart, "damaged|not an arena file")


def test_what_is_no_file_is_refused(directory: Path) -> None:
    refused(directory, lambda: Kept(directory), "cannot open")
    refused(directory / "none" / "arena", lambda: Kept(directory / "none" / "arena"), "cannot open")
    os.mkfifo(directory / "fifo")
    refused(directory / "fifo", lambda: Kept(directory / "fifo"), "not a regular file")


def test_a_file_that_others_can_write_is_refused(full_store: Kept) -> None:
    full_store.close()
    assert full_store.path.stat().st_mode & 0o777 == 0o600
    full_store.path.chmod(0o620)
    refused(full_store.path, full_store.restart, "can be written by other users")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_that_others_can_read_is_closed_to_them(full_store: Kept, mode: int) -> None:
    before = full_store.state()
    full_store.close()
    full_store.path.chmod(mode)
    after = full_store.restart()
    assert after.state() == before
    assert after.persistence.former_mode == mode
    assert after.path.stat().st_mode & 0o7777 == 0o600
    assert after.restart().persistence.former_mode == 0


def test_an_empty_file_that_others_can_read_is_closed_to_them(path: Path) -> None:
    path.touch()
    path.chmod(0o644)
    kept = Kept(path)
    assert kept.report.fresh
    assert kept.persistence.former_mode == 0o644
    assert path.stat().st_mode & 0o777 == 0o600
    kept.close()


def test_a_refused_file_keeps_its_permissions(path: Path) -> None:
    path.write_bytes(b"something else")
    path.chmod(0o644)
    refused(path, lambda: Kept(path), "not an arena file")
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("leads", ["nowhere", "to a file", "to an arena file"])
def test_a_symbolic_link_is_refused(path: Path, directory: Path, leads: str) -> None:
    target = directory / "target"
    if leads == "to a file":
        target.write_bytes(b"precious")
    elif leads == "to an arena file":
        Kept(target).close()
    content = target.read_bytes() if target.exists() else None
    path.symlink_to(target)
    refused(path, lambda: Kept(path), "is a symbolic link; remove it, or choose another --arena-file")
    assert (target.read_bytes() if target.exists() else None) == content


def test_too_small_a_file_system_is_found_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full_disk)
        with pytest.raises(ArenaFileError, match=r"needs [\d,]+ bytes and its file system has [\d,]+ left"):
            Kept(path)
    assert path.stat().st_size == 0
    Kept(path).close()


def test_a_file_system_that_maps_nothing_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_device(*_: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", no_device)
        with pytest.raises(ArenaFileError, match=r"cannot use .*: No such device; choose another"):
            Kept(path)
    Kept(path).close()


def test_every_byte_that_may_be_written_has_its_memory(path: Path) -> None:
    kept = Kept(path, slots=100)
    geometry = kept.persistence._file.geometry
    assert path.stat().st_blocks * 512 >= geometry.allocated
    kept.close()


def test_an_earlier_boot_is_begun_anew(full_store: Kept) -> None:
    epoch = full_store.persistence.epoch
    after = full_store.restart(boot="another")
    assert after.report.former_boot
    assert after.persistence.epoch != epoch
    assert not list(after.lifecycle.handoffs())
    assert not after.residue()
    again = after.restart(boot="another")
    assert not again.report.fresh
    assert again.persistence.epoch == after.persistence.epoch
    again.close()


def test_an_earlier_boot_with_other_settings_is_still_refused(full_store: Kept) -> None:
    full_store.close()
    refused(full_store.path, lambda: full_store.restart(boot="another", slots=9), "made with --slots 5")


def test_a_clock_that_went_back_is_refused(full_store: Kept) -> None:
    full_store.clock.advance(-10)
    full_store.close()
    refused(full_store.path, full_store.restart, "ahead of this machine's monotonic clock")


def test_a_maker_that_was_killed_leaves_nothing_in_the_way(path: Path) -> None:
    making = Superblock(False, 1, "00" * 8, BOOT, {}).pack()
    for size in (len(making), 50_000):
        path.write_bytes(making.ljust(size, b"\0"))
        path.chmod(0o600)
        kept = Kept(path)
        assert kept.report.fresh
        kept.close()
        path.unlink()


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("system_call", range(1, 7))
def test_death_while_a_file_is_made(path: Path, monkeypatch: pytest.MonkeyPatch, system_call: int) -> None:
    """Before any of the system calls that make it, and after the last but the one that completes it."""
    left = system_call

    def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                raise Killed
            return function(*arguments)

        return call

    for name in ("ftruncate", "pwrite", "posix_fallocate"):
        monkeypatch.setattr(os, name, mortal(getattr(os, name)))
    with pytest.raises(Killed):
        Kept(path)
    monkeypatch.undo()
    kept = Kept(path)
    assert kept.report.fresh
    assert kept.restart().report.fresh is False


# -- damage ------------------------------------------------------------------------------------------------------------

Hole = tuple[int, bytes]


def damage(kept: Kept, holes: list[Hole]) -> Path:
    """A copy of a store's file with some bytes overwritten."""
    data = bytearray(kept.bytes.tobytes())
    for offset, content in holes:
        at = offset % len(data)
        data[at : at + len(content)] = content[: len(data) - at]
    copy = kept.path.with_name("copy")
    copy.write_bytes(data)
    copy.chmod(0o600)
    return copy


def check_damaged(kept: Kept, copy: Path) -> bool:
    """Refused and left alone, or safe: whatever is still shown is what was put. Returns whether it was refused."""
    before, content = kept.state(), copy.read_bytes()
    try:
        after = kept.restart(copy)
    except ArenaFileError:
        assert copy.read_bytes() == content
        return True
    known = {one["token"]: one for one in before["live"]}
    for one in after.state()["live"]:
        assert one == known[one["token"]]
    lost = len(before["live"]) - len(after.state()["live"])
    assert lost == after.report.damaged
    told = {one["token"]: one["failure"].reason for one in after.state()["tombstones"] if one["token"] in known}
    assert set(told.values()) <= {"ROW_DAMAGED"}
    assert len(told) == lost
    after.close()
    return False


@settings(
    max_examples=3_000 if LONG else 300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_is_refused_or_safe(full_store: Kept, data: st.DataObject) -> None:
    geometry = full_store.persistence._file.geometry
    regions = [geometry.superblock, geometry.redo, geometry.control, geometry.slots, geometry.tombstones]
    regions += [geometry.producers, geometry.long_tombstones, geometry.readers, geometry.rows]
    holes = []
    for _ in range(data.draw(st.integers(1, 3))):
        region = data.draw(st.sampled_from(regions))
        offset = region.offset + data.draw(st.integers(0, region.size - 1) | st.integers(0, min(region.size, 2000) - 1))
        holes.append((offset, data.draw(st.binary(min_size=1, max_size=64) | st.builds(bytes, st.integers(1, 4096)))))
    check_damaged(full_store, damage(full_store, holes))


def test_every_flipped_bit_of_the_bookkeeping_in_use_is_found(full_store: Kept) -> None:
    """Each of the bytes that a store would read, one at a time, with one bit flipped."""
    file = full_store.persistence._file
    geometry, outcomes = file.geometry, full_store.persistence.journal.outcomes
    used = [*range(200), *range(4092, 4096)]  # the first page
    used += range(geometry.control.offset, geometry.control.offset + codec.CONTROL_SIZE)
    for slot in range(5):
        start = geometry.slots.offset + slot * codec.SLOT_STRIDE
        used += range(start, start + 56, 3)
    assert outcomes._held
    for place, tombstone in outcomes._held.items():
        start = geometry.tombstones.offset + place * codec.TOMBSTONE_STRIDE
        size = len(codec.pack_tombstone(tombstone, place, 1))
        used += range(start, start + min(size, codec.TOMBSTONE_STRIDE), 7)
    original = full_store.bytes.tobytes()
    for offset in used:
        copy = damage(full_store, [(offset, bytes((original[offset] ^ 1 << offset % 8,)))])
        refused_ = check_damaged(full_store, copy)
        assert refused_, offset


def test_a_damaged_row_costs_that_record_alone(full_store: Kept) -> None:
    handoff = full_store.lifecycle._live["", 1, 0]
    geometry = full_store.persistence._file.geometry
    row = geometry.rows.offset + handoff.slot * full_store.arena.layout.row_bytes
    copy = damage(full_store, [(row + 70, b"\xff\x00\xff")])
    after = full_store.restart(copy)
    assert (after.report.damaged, after.report.quarantined) == (1, 1)
    with pytest.raises(Exception, match="damaged; prefill again"):
        after.store.get(Query(("", 1, 0), 0, "rank 0", True), 0, ignore)
    assert after.store.get(Query(("", 2, 0), 0, "rank 0", True), 0, ignore).image == full(2).SerializeToString()  # type: ignore[union-attr]
    again = after.restart()
    assert (again.report.damaged, again.report.quarantined) == (0, 1)
    again.close()


def exchange_rows(kept: Kept, memory: memoryview | bytearray) -> None:
    """Put the rows of rooms 1 and 2, whole and of one generation, in each other's place."""
    one, other = (kept.lifecycle._live["", room, 0] for room in (1, 2))
    assert one.generation == other.generation
    size, start = kept.arena.layout.row_bytes, kept.persistence._file.geometry.rows.offset
    places = [slice(start + each.slot * size, start + (each.slot + 1) * size) for each in (one, other)]
    rows = [bytes(memory[place]) for place in places]
    memory[places[0]], memory[places[1]] = rows[1], rows[0]


def test_whole_rows_of_one_generation_exchanged_are_damage_to_a_reader(full_store: Kept) -> None:
    exchange_rows(full_store, full_store.persistence._file.memory)
    for room in (1, 2):
        with pytest.raises(Refusal) as caught:
            full_store.store.get(Query(("", room, 0), 0, "rank 0", True), 0, ignore)
        assert caught.value.metadata["failure_reason"] == "ROW_DAMAGED"
    assert full_store.lifecycle.slots.quarantined == {1, 2}
    assert isinstance(full_store.store.get(Query(("", 3, 0), 0, "rank 0", True), 0, ignore), Reading)


def test_whole_rows_of_one_generation_exchanged_are_damage_to_a_restart(full_store: Kept) -> None:
    content = bytearray(full_store.bytes.tobytes())
    exchange_rows(full_store, content)
    after = full_store.restart(damage(full_store, [(0, bytes(content))]))
    assert (after.report.damaged, after.report.quarantined) == (2, 2)
    told = {one.key[1]: one.failure for one in after.lifecycle.tombstones()}
    assert all((failure := told[room]) is not None and failure.reason == "ROW_DAMAGED" for room in (1, 2))
    after.close()


def test_numbers_of_the_log(full_store: Kept) -> None:
    report = full_store.restart().report
    counts = report.counts()
    assert counts == {
        "reserved": 1,
        "published": 2,
        "consumed": 1,
        "tombstones": 10,
        "producers": 4,
        "damaged": 0,
        "quarantined": 0,
    }
    assert numbered(1)  # records are never among them
