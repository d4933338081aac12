"""What the store's own process is set up with before gRPC loads. Not for processes that belong to somebody else."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from typing import Final

EXPERIMENTS: Final = "-event_engine_client,-event_engine_listener"

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MMAP_THRESHOLD: Final = 32 << 20  # the most that glibc takes
_TRIM_THRESHOLD: Final = 256 << 20


def prepare() -> None:
    """Set up the process. Settings that somebody made already stay.

    gRPC reads its experiments once, when it loads: with these two off the serving thread reads the sockets itself,
    which saves two thread changes a call. Large messages keep their memory from one to the next, instead of having it
    mapped and unmapped each time.
    """
    if "grpc" not in sys.modules:
        os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)
        # gRPC writes a line for each malformed header or failed handshake: strangers could fill a disk with them.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        _keep_memory()


def settle() -> None:
    """Set up garbage collection, once all that stays has been loaded.

    A search through what the imports left takes a tenth of a second and more, in which no call is answered. The store
    itself makes next to no reference cycles, so the search through its own objects can be rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 500)


def _keep_memory() -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another libc, which has its own ways
        return
    mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)
