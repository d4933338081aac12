"""Where a store listens, and how a second one on the same place is refused."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
from typing import IO, Final


class AddressError(Exception):
    """An address that cannot be served; the message says why and what to do."""


class SocketLock:
    """Holds a Unix socket's path for this process, by a lock file beside it.

    gRPC unlinks whatever lies at the path before it binds, so without this a second store would take the first one's
    place without a word.
    """

    def __init__(self, path: str) -> None:
        """Raises AddressError when another process holds the path, or when something else than a socket lies there."""
        if os.path.islink(path):  # it would be replaced, whoever serves what it leads to
            raise AddressError(f"{path} is a symbolic link; give the path that it leads to, {os.path.realpath(path)}")
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


class Places:
    """The addresses that host:port stands for, in numbers: one, or all that a name has on this machine.

    gRPC is content with one of them. A store that got half of a name would share it with whoever has the other half.
    """

    def __init__(self, address: str) -> None:
        """Raises AddressError for a name that nobody knows."""
        self._address = address
        host, _, port = address.rpartition(":")
        self._port = int(port)
        self._hosts = _numbers(host.strip("[]"))

    def free(self) -> tuple[list[str], int]:
        """(hosts, port) that can be bound now; the port is 0 where gRPC may choose it. Raises AddressError."""
        tries = _TRIES if len(self._hosts) > 1 and not self._port else 1
        while True:
            tries -= 1
            try:
                return self._try()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise AddressError(f"cannot serve {self._address}: {error.strerror or error}") from None
                if not tries:
                    raise AddressError(self._in_use()) from None

    def _try(self) -> tuple[list[str], int]:
        port, several = self._port, len(self._hosts) > 1
        found: list[str] = []
        with contextlib.ExitStack() as trials:
            for host in self._hosts:
                try:
                    trial = trials.enter_context(_bound(host, port))
                except OSError as error:
                    if error.errno not in _NOT_HERE or not (several or host == _ANY):
                        raise
                    if host == _ANY:
                        found.append(host)  # without IPv6 gRPC takes it for all of IPv4
                    continue
                found.append(host)
                if several:
                    port = int(trial.getsockname()[1])
        if not found:
            raise OSError(errno.EADDRNOTAVAIL, "none of its addresses is one of this machine")
        return found, port

    def _in_use(self) -> str:
        advice = "perhaps by another store; stop it or choose another --listen"
        if len(self._hosts) == 1:
            return f"{self._address} is in use, {advice}"
        places = " and ".join(join(host, self._port) for host in self._hosts)
        return (
            f"{self._address} stands for {places}, of which one is in use, {advice}, or name the one address to serve"
        )


_TRIES: Final = 16  # of ports that are free on one address of a name and taken on another
_ANY: Final = "::"
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def _numbers(host: str) -> list[str]:
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AddressError(f"cannot serve {host}: {reason}; give an address of this machine in numbers") from None
    found = [socket.getnameinfo(where, socket.NI_NUMERICHOST)[0] for _, _, _, _, where in answers]
    if host == "localhost":
        found += ["127.0.0.1", "::1"]  # clients try both, whatever this machine's list of names says
    return list(dict.fromkeys(found))


def join(host: str, port: int) -> str:
    """host:port, of a host in numbers."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bound(host: str, port: int) -> socket.socket:
    """A socket bound as gRPC would bind it. Raises OSError."""
    numeric = socket.AI_NUMERICHOST
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)[0]
    trial = socket.socket(family, kind, protocol)
    try:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        trial.bind(where)
    except OSError:
        trial.close()
        raise
    return trial
