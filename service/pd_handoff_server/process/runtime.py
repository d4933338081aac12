"""What the store's own process is set up with before gRPC loads. Not for processes that belong to somebody else."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
from types import ModuleType
from typing import Final

EXPERIMENTS: Final = "-event_engine_client,-event_engine_listener"

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MMAP_THRESHOLD: Final = 32 << 20  # the most that glibc takes
_TRIM_THRESHOLD: Final = 256 << 20


def prepare() -> None:
    """Set up the process. Settings that somebody made already stay.

    gRPC reads its experiments once, when it loads: with these two off the serving thread reads the sockets itself,
    which saves two thread changes a call.
    """
    if "grpc" not in sys.modules:
        os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)
        # gRPC writes a line for each malformed header or failed handshake: strangers could fill a disk with them.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    _load_log()


def _load_log() -> None:
    """Load structlog without rich, which it takes where it finds it.

    That is 3 MiB for tracebacks with the values of all variables, which a log of the store must not show.
    """
    if {"structlog", "rich"} & sys.modules.keys():
        return
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]  # None: as if not installed
    modules["rich"] = None
    try:
        importlib.import_module("structlog")
    finally:
        del modules["rich"]  # whoever else wants it may have it


def settle() -> None:
    """Set up memory, once all that stays has been loaded.

    A search for reference cycles through what the imports left takes a tenth of a second and more, in which no call is
    answered; the store itself makes next to no cycles, so the search through its own objects can be rare. What the
    start-up freed goes back to the system. From then on large messages keep their memory from one to the next, instead
    of having it mapped and unmapped each time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 500)
    try:
        libc = ctypes.CDLL(None)
        trim, mallopt = libc.malloc_trim, libc.mallopt
    except (AttributeError, OSError):  # another libc, which has its own ways
        return
    trim(0)
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)
