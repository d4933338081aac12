"""Will the arena fit? Reckoned before anything is allocated."""

from __future__ import annotations

from pathlib import Path

from pd_handoff_server.arena.layout import HeapShape, Layout

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class ArenaTooLargeError(Exception):
    """The arena would not fit the machine's memory; the message shows the arithmetic."""


def human(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def available() -> int | None:
    """Bytes that could be allocated now, by the kernel's estimate and the container's limit; None when unknown."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        pass
    for path in _CGROUP_LIMITS:
        try:
            found.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(found, default=None)


def check_fits(layout: Layout, slots: int, room: int | None, heap: HeapShape | None = None) -> None:
    """Raises ArenaTooLargeError when rows of this layout, and a heap beside them, need more than `room` bytes."""
    total = layout.row_bytes * slots
    attachments = 0 if heap is None else heap.total
    if room is None or total + attachments <= room:
        return
    if attachments:
        raise ArenaTooLargeError(
            f"the arena does not fit: {slots:,} slots x {layout.row_bytes:,} bytes a row = {total:,} bytes "
            f"({human(total)}), and {attachments:,} bytes of attachments ({human(attachments)}), but {human(room)} are "
            "available. Lower --attachment-heap, --slots, or the widths"
        )
    widest = max(layout.columns, key=lambda column: column.bytes)
    raise ArenaTooLargeError(
        f"the arena does not fit: {slots:,} slots x {layout.row_bytes:,} bytes a row = {total:,} bytes "
        f"({human(total)}), but {human(room)} are available; at most {room // layout.row_bytes:,} slots fit. "
        f"Lower --slots, or the widths (the widest column is {widest.name} with {widest.bytes:,} bytes a row)"
    )
