"""File descriptors: as many as the system grants, and connections that fit into them."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

KEPT: Final = 96
"""For all but connections: gRPC's own, the log, the arena and access files, the metrics port, the event loop."""


def raise_limit() -> int:
    """Raise this process's soft limit of open files to its hard limit; returns what is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # a hard limit that the kernel does not take for a soft one
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def fitting(connections: int, addresses: int, limit: int) -> int:
    """How many connections to each of so many addresses fit into `limit` descriptors: at most `connections`, at least
    one. A negative limit is none."""
    if limit < 0:
        return connections
    return max(min(connections, (limit - KEPT) // max(addresses, 1)), 1)
