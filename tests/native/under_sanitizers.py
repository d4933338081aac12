"""Run by a Python with the sanitizers' library preloaded: every function of the extension over inputs from stdin.

Argument: the extension's file. Prints how many results it got that were not None.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

LIMITS = b"\xff" * 96


def inputs() -> Iterator[bytes]:
    """As `framed` in conftest.py writes them."""
    while head := sys.stdin.buffer.read(4):
        yield sys.stdin.buffer.read(int.from_bytes(head, sys.byteorder))


def main() -> None:
    """The command."""
    spec = importlib.util.spec_from_file_location("_scan", sys.argv[1])
    if spec is None or spec.loader is None:
        raise RuntimeError("not an extension")
    scan = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scan)
    found = 0
    for data in inputs():
        results = [getattr(scan, name)(data, LIMITS) for name in ("put", "put_all")]
        for name in ("get", "get_all", "reserve", "reserve_all", "session"):
            results.append(getattr(scan, name)(data))
        results.append(scan.answer(int.from_bytes(data[:8], "big"), 1 + len(data) % 15, data))
        results.append(scan.stamp(10 + 8 * (len(data) % 15), int.from_bytes(data[:9], "big")))
        found += sum(result is not None for result in results)
        repr(results)  # looks at every value
    for call in (scan.get, scan.session, scan.put, scan.put_all, scan.answer, scan.stamp):
        for arguments in (
            (),
            (bytearray(b"x"),),
            (b"", b""),
            (b"", b"x" * 87),
            (None, LIMITS),
            (b"", b"", b""),
            (-1, -1),
            (-1, 2, b""),
        ):
            try:
                call(*arguments)
            except (TypeError, ValueError, OverflowError):
                continue
            raise RuntimeError(f"{call} took {arguments}")
    print(found)


if __name__ == "__main__":
    main()
