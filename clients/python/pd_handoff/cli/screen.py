"""A screen that is drawn again and again: the terminal's second page, single keys, plain output elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

try:
    import termios
    import tty
except ImportError:  # pragma: no cover - no terminal of this kind on this system
    termios = None  # type: ignore[assignment]

_STYLES = {"bold": "1", "dim": "2", "red": "31", "yellow": "33", "green": "32", "reverse": "7"}
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def styled(text: str, style: str) -> str:
    """Text in a style that light and dark terminals show: bold, dim, red, yellow, green or reverse."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and text else text


def plain(line: str) -> str:
    """A line without its styles."""
    return _ESCAPE.sub("", line)


def cut(line: str, width: int) -> str:
    """The first `width` characters of a line, styles not counted."""
    if len(plain(line)) <= width:
        return line
    kept, left = [], width
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b"):
            kept.append(part)
        else:
            kept.append(part[:left])
            left -= len(part[:left])
    return "".join(kept)


class Screen(Protocol):
    """Where frames go and keys come from."""

    live: bool
    """Whether there is a person at it, who may press keys and can only quit."""

    def size(self) -> tuple[int, int]:
        """Columns and lines."""

    def show(self, lines: Sequence[str]) -> None:
        """Shows one frame in place of the last."""

    def key(self, seconds: float) -> str:
        """The next key within so many seconds, or nothing."""


class Terminal:
    """A terminal. Between `open` and its end the terminal shows the frames alone; afterwards it is as it was."""

    live = True

    def __init__(self) -> None:
        self._colour = in_colour()

    def size(self) -> tuple[int, int]:
        columns, lines = shutil.get_terminal_size()
        return columns, lines

    def show(self, lines: Sequence[str]) -> None:
        columns, height = self.size()
        shown = [cut(line if self._colour else plain(line), columns) for line in lines[:height]]
        # Each line erases what stood behind it, so nothing flickers.
        sys.stdout.write("\x1b[H" + "\x1b[K\r\n".join(shown) + "\x1b[K\x1b[J")
        sys.stdout.flush()

    def key(self, seconds: float) -> str:
        wait = None if math.isinf(seconds) else max(seconds, 0.0)
        ready, _, _ = select.select([sys.stdin], [], [], wait)
        return os.read(sys.stdin.fileno(), 32).decode("ascii", "replace")[:1] if ready else ""


class Pages:
    """No terminal: each frame is printed below the last, without styles."""

    live = False

    def __init__(self) -> None:
        self._first = True

    def size(self) -> tuple[int, int]:
        columns, _ = shutil.get_terminal_size((160, 50))
        return columns, 200

    def show(self, lines: Sequence[str]) -> None:
        if not self._first:
            print()
        self._first = False
        print("\n".join(plain(line).rstrip() for line in lines), flush=True)

    def key(self, seconds: float) -> str:
        time.sleep(max(seconds, 0))
        return ""


@contextlib.contextmanager
def opened() -> Iterator[Screen]:
    """The terminal where there is one on both sides, else pages."""
    if termios is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield Pages()
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def leave(number: int, frame: object) -> None:
        del frame
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, leave)
    try:
        tty.setcbreak(file)
        sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
        yield Terminal()
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        termios.tcsetattr(file, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, handler)


def in_colour() -> bool:
    """Whether standard output is a terminal whose user wants colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
