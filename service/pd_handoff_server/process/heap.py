"""What the C library's allocator holds: in use, and kept for later."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
from typing import Any, Final, NamedTuple

_EVERY: Final = 2.0
_TURNS: Final = 30
_GROWN: Final = 32 << 20
_MOST: Final = 256 << 20


class Heap(NamedTuple):
    """Bytes of the process's heap."""

    used: int
    free: int


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _function(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):  # another libc, or one that is older
        return None


_mallinfo, _trim = _function("mallinfo2"), _function("malloc_trim")
if _mallinfo is not None:
    _mallinfo.restype = _Mallinfo


def heap() -> Heap | None:
    """How the heap stands; None where the C library does not tell. Takes a fraction of a millisecond."""
    if _mallinfo is None:
        return None
    found = _mallinfo()
    return Heap(found.uordblks + found.hblkhd, found.fordblks)


class Watch:
    """When the heap is to be searched for reference cycles: told every `_EVERY` seconds how many bytes are in use.

    It is when it has grown by `_GROWN` since the last search, or since it was least. What was in use during that search
    may be garbage a moment later, without any more growth: while the heap stays above what it was at rest, it is
    searched again, at ever longer intervals, since it may also have grown for good.
    """

    def __init__(self) -> None:
        self._rest = self._searched = 1 << 63
        self._turns = self._pause = 0

    def is_due(self, used: int) -> bool:
        """Whether to search now."""
        self._rest = min(self._rest, used)
        self._searched = min(self._searched, used)
        if used - self._searched > _GROWN:
            self._pause = 1
            return True
        if not self._pause or used - self._rest <= _GROWN:
            self._pause = 0
            return False
        self._turns -= 1
        return self._turns <= 0

    def note_search(self, used: int) -> None:
        """It was searched; so many bytes are in use after it."""
        self._searched = used
        self._pause = self._turns = 2 * self._pause


async def keep_lean() -> None:
    """See that strangers cannot make the process keep more than it needs. Does not return.

    gRPC's own calls - reflection, whatever is unknown - leave reference cycles, and the search for them is rare (see
    `process.settle`): it is done here as `Watch` says. Once a minute, what a peak has left is given back when it is
    much; that takes a tenth of a second for hundreds of MiB, in which whoever allocates waits.
    """
    watch = Watch()
    for turn in itertools.count(1):
        now = heap()
        if now is None or _trim is None:
            return
        if watch.is_due(now.used):
            gc.collect()
            watch.note_search((heap() or now).used)
        if turn % _TURNS == 0 and now.free > _MOST:
            await asyncio.get_running_loop().run_in_executor(None, _trim, 0)
        await asyncio.sleep(_EVERY)
