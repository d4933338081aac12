"""Where a store listens, and how a second one on the same place is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from typing import IO


class AddressError(Exception):
    """An address that cannot be served; the message says why and what to do."""


class SocketLock:
    """Holds a Unix socket's path for this process, by a lock file beside it.

    gRPC unlinks whatever lies at the path before it binds, so without this a second store would take the first one's
    place without a word.
    """

    def __init__(self, path: str) -> None:
        """Raises AddressError when another process holds the path, or when something else than a socket lies there."""
        try:
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                raise AddressError(f"{path} exists and is no socket; remove it or choose another path")
        except FileNotFoundError:
            pass
        self._file: IO[bytes] = self._open(path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise AddressError(f"another store serves unix:{path}; stop it or choose another path") from None

    @staticmethod
    def _open(path: str) -> IO[bytes]:
        try:
            return open(path + ".lock", "ab")
        except OSError as error:
            raise AddressError(f"cannot serve unix:{path}: {error.strerror}") from None

    def release(self) -> None:
        """Let go. The lock file stays, so that no two processes ever lock two files of the same name."""
        self._file.close()


def explain(address: str) -> str:
    """Why gRPC could not bind an address, found by trying it; gRPC itself does not say."""
    if address.startswith("unix:"):
        return f"cannot serve {address}; check that its directory exists and can be written"
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"{address} is in use, perhaps by another store; stop it or choose another --listen"
        return f"cannot serve {address}: {error.strerror or error}"
    return f"cannot serve {address}"
