"""Files that decide who gets in: read only if nobody else can write them, and read again when they change."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final

_LARGEST: Final = 64 << 20  # bytes of a file that is read whole
_RETRY: Final = 1.0  # seconds between readings of files that could not be used and have not changed since
_REMIND: Final = 60.0  # seconds after which the same trouble is told again
_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH

Stamp = tuple[int, ...] | None
Doubt = Callable[[str, str], None]
"""Told (path, what) of a file that is used, and that an operator should look at."""


class FileError(Exception):
    """A file that cannot be used; the message names it, says what to do, and shows no secret."""


class Content:
    """A file that was read.

    Attributes:
        data: all of it.
        open_to_all: how to keep it from others' eyes, in words, when any user of the machine can read it; else empty.
    """

    __slots__ = ("data", "open_to_all")

    def __init__(self, path: str, data: bytes, mode: int) -> None:
        self.data = data
        self.open_to_all = ""
        if mode & stat.S_IROTH:
            self.open_to_all = f"can be read by every user of this machine (mode {mode:04o}); chmod o-r {path}"


def read(path: str) -> Content:
    """Read a file. Raises FileError, also when others than its owner can write it."""
    try:
        with _opened(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & _WRITABLE:
                raise FileError(
                    f"{path} can be written by other users (mode {mode:04o}), who could let themselves in; "
                    f"chmod go-w {path}"
                )
            data = file.read(_LARGEST + 1)
    except PermissionError as error:
        advice = f"let the store's user (uid {os.geteuid()}) read it, by chown or chmod"
        raise FileError(f"cannot read {path}: {error.strerror}; {advice}") from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}; put a readable file there") from None
    if len(data) > _LARGEST:
        raise FileError(f"cannot read {path}: it is larger than {_LARGEST:,} bytes; put a smaller file there")
    return Content(path, data, mode)


class _Spare:
    """A descriptor held back, so that these files can be read when connections have taken all others: a token that was
    revoked must not stay valid for that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = -1

    def hold(self) -> None:
        """Take one, unless it is held."""
        with self._lock, contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def give_back(self) -> bool:
        """Let it go; False when there is none."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd < 0:
            return False
        os.close(fd)
        return True


_SPARE: Final = _Spare()


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    _SPARE.hold()
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below, before the spare one is taken again
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not _SPARE.give_back():
            raise
        file = open(path, "rb")  # noqa: SIM115
    with file:
        yield file
    _SPARE.hold()


class Renewal:
    """When files that are in force have to be read again. Not safe for threads.

    Files that could not be used are tried again at once when anything of them changes, and else once a second: what
    keeps them from being read may lie in a directory above. What is known to be in force is only what was read whole.
    """

    def __init__(self, paths: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        """To be made before the files are read for the first time; `clock` counts seconds."""
        self._paths = tuple(paths)
        self._clock = clock
        self._good = self._stamps()
        self._tried: list[Stamp] | None = None
        self._again = 0.0
        self._told = ""
        self._remind = 0.0

    def _stamps(self) -> list[Stamp]:
        return [_stamp(path) for path in self._paths]

    def attempt(self, read_all: Callable[[], None]) -> bool:
        """Read the files if they are due; True when they were read, False when there is nothing new.

        Raises the FileError of `read_all`, but the same one at most once a minute: in between, False.
        """
        stamps = self._stamps()
        if stamps == self._good:
            return False
        now = self._clock()
        if stamps == self._tried and now < self._again:
            return False
        try:
            read_all()
        except FileError as error:
            self._tried, self._again = stamps, now + _RETRY
            if str(error) == self._told and now < self._remind:
                return False
            self._told, self._remind = str(error), now + _REMIND
            raise
        self._good, self._tried, self._told = stamps, None, ""
        return True


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    # With the time of the change of its state, which chmod and chown move, and no program sets.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev
