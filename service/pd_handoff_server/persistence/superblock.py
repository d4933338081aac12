"""The first page of an arena file: whose it is, how it was made, and whether that was finished."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from .errors import ArenaFileError, DamageError
from .layout import PAGE

MAGIC = b"pd-handoff arena"
VERSION = 5
MAKING, READY = 1, 2

_FIXED = struct.Struct("<16sIIQ16s64sH")
_CRC = struct.Struct("<I")
_CRC_AT = PAGE - _CRC.size


@dataclass(frozen=True, slots=True)
class Superblock:
    """What is known of a file before the rest of it is read.

    Attributes:
        ready: False while the file is being made.
        size: of the file, in bytes.
        epoch: the store's, 16 hex digits.
        boot: identity of the boot in which the file was made.
        settings: what the file's geometry follows from.
    """

    ready: bool
    size: int
    epoch: str
    boot: str
    settings: Mapping[str, int]

    def pack(self) -> bytes:
        """One page."""
        text = json.dumps(dict(self.settings)).encode()
        state = READY if self.ready else MAKING
        fixed = _FIXED.pack(MAGIC, VERSION, state, self.size, self.epoch.encode(), self.boot.encode(), len(text))
        body = (fixed + text).ljust(_CRC_AT, b"\0")
        return body + _CRC.pack(crc32(body))

    @classmethod
    def unpack(cls, page: bytes) -> Superblock:
        """Raises ArenaFileError for what was never an arena file of this version, DamageError for what no longer is."""
        if page[: len(MAGIC)] != MAGIC or len(page) < PAGE:
            raise ArenaFileError("it is not an arena file; choose another --arena-file, or move it away")
        _, version, state, size, epoch, boot, length = _FIXED.unpack_from(page)
        if version != VERSION:
            raise ArenaFileError(
                f"it has format {version} and this pd-handoff reads format {VERSION}; start the version that made it, "
                "or remove it (the records in it are then lost)"
            )
        if crc32(page[:_CRC_AT]) != _CRC.unpack_from(page, _CRC_AT)[0] or state not in (MAKING, READY):
            raise DamageError("its first page")
        try:
            settings = json.loads(page[_FIXED.size : _FIXED.size + length])
            names = epoch.decode("ascii"), boot.rstrip(b"\0").decode("ascii")
            bytes.fromhex(names[0])
        except ValueError:
            raise DamageError("its first page") from None
        if not isinstance(settings, dict):
            raise DamageError("its first page")
        return cls(state == READY, size, *names, settings)


def boot_id() -> str:
    """What names the present boot of this machine. Raises ArenaFileError where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:64]
    except OSError as error:
        raise ArenaFileError(
            f"the kernel does not tell its boot identity ({error.strerror}), without which leases in a file cannot be "
            "judged; start without --arena-file"
        ) from None
