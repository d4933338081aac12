"""Tokens: opaque, unguessable names of one reservation."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

_PARTS = struct.Struct("<8sIQ")
_NONCE = 12
_SIZE = _PARTS.size + _NONCE


class TokenMint:
    """Makes tokens that bind store epoch, slot and generation; 32 bytes each, 96 bits of them random.

    Randomness is drawn in blocks, since a system call for each token would cost more than the reservation.
    """

    def __init__(self, epoch: str, random: Callable[[int], bytes] = os.urandom) -> None:
        self._epoch = bytes.fromhex(epoch)[:8].ljust(8, b"\0")
        self._random = random
        self._block = b""
        self._at = 0

    def foreign(self, token: bytes) -> tuple[str, str] | None:
        """(its epoch, this store's) of a token that another store made; None for any other."""
        if len(token) != _SIZE or token[:8] == self._epoch:
            return None
        return token[:8].hex(), self._epoch.hex()

    def mint(self, slot: int, generation: int) -> bytes:
        """A token that was never made before."""
        if self._at >= len(self._block):
            self._block = self._random(_NONCE * 256)
            self._at = 0
        nonce = self._block[self._at : self._at + _NONCE]
        self._at += _NONCE
        return _PARTS.pack(self._epoch, slot, generation) + nonce
