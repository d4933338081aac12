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


async def keep_lean() -> None:
    """See that strangers cannot make the process keep more than it needs. Does not return.

    gRPC's own calls - reflection, whatever is unknown - leave reference cycles, and the search for them is rare (see
    `process.settle`): it is done here whenever the heap has grown by `_GROWN`. Once a minute, what a peak has left is
    given back when it is much; that takes a tenth of a second for hundreds of MiB, in which whoever allocates waits.
    """
    least = None
    for turn in itertools.count(1):
        now = heap()
        if now is None or _trim is None:
            return
        if least is None or now.used < least:
            least = now.used
        elif now.used - least > _GROWN:
            gc.collect()
            least = (heap() or now).used
        if turn % _TURNS == 0 and now.free > _MOST:
            await asyncio.get_running_loop().run_in_executor(None, _trim, 0)
        await asyncio.sleep(_EVERY)
