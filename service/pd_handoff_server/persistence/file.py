"""An arena file: found or made, checked, locked, and mapped."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import stat
from collections.abc import Mapping
from typing import Final

from . import codec
from .errors import ArenaFileError, DamageError
from .layout import PAGE, Geometry
from .superblock import Superblock

_REMOVE = "remove the file to start empty (the records in it are then lost)"
_MODE: Final = 0o600


class ArenaFile:
    """Holds a file for this process, and maps it, shared.

    Attributes:
        epoch: the store's; that of the process before, when its state is in the file.
        fresh: the file was made just now, and is empty.
        former_boot: the file was of an earlier boot of the machine, and was made anew.
        former_mode: permissions that let others read the file, which are taken away; 0 when it had none such.
        memory: all of it, writable.
    """

    def __init__(self, path: str, geometry: Geometry, boot: str) -> None:
        """Raises ArenaFileError; then nothing was changed, except that a new file may be left empty."""
        self.path = path
        self.geometry = geometry
        self.fresh = self.former_boot = False
        self.former_mode = 0
        self._fd = _open(path)
        try:
            _lock(self._fd, path)
            found = self._read(boot)
            self._close_to_others()
            self.epoch = secrets.token_hex(8) if found is None else found.epoch
            if found is None:
                self._make(boot)
            self._map = mmap.mmap(self._fd, geometry.size)
            self.memory = memoryview(self._map)
            if found is None:
                self._fill(boot)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                reason = f"cannot use {path}: {error.strerror}; choose another --arena-file, best in tmpfs"
                raise ArenaFileError(reason) from None
            raise

    def _read(self, boot: str) -> Superblock | None:
        """What the file says of itself; None when there is nothing in it to go on from."""
        size = os.fstat(self._fd).st_size
        if size == 0:
            return None
        try:
            found = Superblock.unpack(os.pread(self._fd, PAGE, 0))
        except ArenaFileError as error:
            raise ArenaFileError(f"{self.path}: {error}") from None
        except DamageError as error:
            raise self.damaged(error) from None
        if not found.ready:
            return None  # its maker was killed at it, and nobody has used it
        self._compare(found.settings)
        if size != found.size or size != self.geometry.size:
            raise self.damaged(DamageError(f"its size of {size:,} bytes (it had {found.size:,})"))
        if found.boot != boot:
            # Its clock has gone, and so have records that live for seconds: nothing in it can be told from lies.
            self.former_boot = True
            return None
        return found

    def _close_to_others(self) -> None:
        """Before a record goes in: an operator's `touch`, or a copy, leaves a file that all can read."""
        mode = stat.S_IMODE(os.fstat(self._fd).st_mode)
        if mode & 0o077:
            os.fchmod(self._fd, _MODE)
            self.former_mode = mode

    def _compare(self, made_with: Mapping[str, object]) -> None:
        wanted = self.geometry.settings
        differing = [name for name in {**wanted, **made_with} if made_with.get(name) != wanted.get(name)]
        if not differing:
            return
        flags = [name for name in differing if name not in ("row_bytes", "producers")]
        if not flags:
            raise ArenaFileError(
                f"{self.path} was made by another version of pd-handoff, with rows laid out otherwise; start that "
                f"version, or {_REMOVE}"
            )
        texts = [f"--{name.replace('_', '-')} {made_with.get(name)} (now {wanted.get(name)})" for name in flags]
        raise ArenaFileError(
            f"{self.path} was made with {', '.join(texts)}; start with the settings that it was made with, choose "
            f"another --arena-file, or {_REMOVE}"
        )

    def damaged(self, error: DamageError) -> ArenaFileError:
        """What to say of a file with a part that is not what was written."""
        return ArenaFileError(f"{self.path} is damaged ({error}) and was left as it is; {_REMOVE}")

    def _make(self, boot: str) -> None:
        """Give an empty file its size, with all its memory, so that no write can fail later."""
        self.fresh = True
        size = self.geometry.size
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, self._superblock(boot, ready=False), 0)
            os.ftruncate(self._fd, size)
            os.posix_fallocate(self._fd, 0, self.geometry.long_tombstones.offset)
            os.posix_fallocate(self._fd, self.geometry.rows.offset, size - self.geometry.rows.offset)
        except OSError as error:
            os.ftruncate(self._fd, 0)
            raise self._no_room(error) from None

    def _no_room(self, error: OSError) -> ArenaFileError:
        need = self.geometry.allocated
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return ArenaFileError(f"cannot make {self.path}: {error.strerror}; choose another --arena-file")
        space = os.fstatvfs(self._fd)
        return ArenaFileError(
            f"{self.path} needs {need:,} bytes and its file system has {space.f_bavail * space.f_frsize:,} left; "
            "choose another --arena-file, enlarge the file system (of a container: its shm size), or lower --slots, "
            "--tombstones or the widths"
        )

    def _fill(self, boot: str) -> None:
        geometry = self.geometry
        for slot in range(geometry.slot_count):
            head = codec.pack_empty(slot, 0)
            at = geometry.slots.offset + slot * codec.SLOT_STRIDE
            self.memory[at : at + len(head)] = head
        control = codec.pack_control(0, 0)
        self.memory[geometry.control.offset : geometry.control.offset + len(control)] = control
        # By one call of a page, which no signal divides: a half-written first page would look like damage.
        os.pwrite(self._fd, self._superblock(boot, ready=True), 0)

    def _superblock(self, boot: str, *, ready: bool) -> bytes:
        return Superblock(ready, self.geometry.size, self.epoch, boot, self.geometry.settings).pack()

    def allocate(self, offset: int, size: int) -> None:
        """Give a hole its memory. Raises OSError when there is none."""
        os.posix_fallocate(self._fd, offset, size)

    def close(self) -> None:
        """Let others have the file. The mapping itself goes with the last view of it."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # by name: the mapping holds a second descriptor of the same lock
        os.close(self._fd)


def allocated(path: str) -> int:
    """Bytes of memory or disk that a file holds already; 0 when there is none."""
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


def _open(path: str) -> int:
    try:
        # No link is followed: in a directory of all users, one of theirs would say where the records go.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW, _MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ArenaFileError(
                f"{path} is a symbolic link; remove it, or choose another --arena-file: the path that it leads to"
            ) from None
        raise ArenaFileError(f"cannot open {path}: {error.strerror}; choose another --arena-file") from None
    status = os.fstat(fd)
    trouble = None
    if not stat.S_ISREG(status.st_mode):
        trouble = "is not a regular file"
    elif status.st_uid != os.geteuid() or status.st_mode & 0o022:
        trouble = "can be written by other users, who could forge records"
    if trouble:
        os.close(fd)
        raise ArenaFileError(f"{path} {trouble}; choose another --arena-file, or remove it")
    return fd


def _lock(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise ArenaFileError(f"cannot lock {path}: {error.strerror}; choose another --arena-file") from None
        raise ArenaFileError(
            f"{path} is in use by another store; stop that one, or choose another --arena-file"
        ) from None
