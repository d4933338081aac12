"""Addresses bound to a server of either transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import grpc

from pd_handoff_server.access.tls import Credentials

from .addresses import AddressError, Places, SocketLock, join


class Bindable(Protocol):
    """What both kinds of server have in common here."""

    def add_insecure_port(self, address: str) -> int:
        """Listen without TLS."""

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """Listen with TLS."""


class Ports:
    """What a server listens on. A Unix socket is locked against other stores until `release`."""

    def __init__(self, listen: Sequence[str], credentials: Credentials | None = None) -> None:
        """`credentials`, if any, are for all addresses but Unix sockets, which stay plaintext."""
        self._listen = listen
        self._credentials = credentials
        self._locks: list[SocketLock] = []

    def bind(self, server: Bindable) -> list[str]:
        """Bind; returns the addresses, with the ports that were chosen for 0. Raises AddressError."""
        return [self._bind(server, address) for address in self._listen]

    def _bind(self, server: Bindable, address: str) -> str:
        if address.startswith("unix:"):
            self._locks.append(SocketLock(address.removeprefix("unix:").removeprefix("//")))
            if not self._add(server, address, None):
                raise AddressError(f"cannot serve {address}; check that its directory exists and can be written")
            return address
        hosts, port = Places(address).free()
        for host in hosts:
            bound = self._add(server, join(host, port), self._credentials)
            if not bound:
                raise AddressError(f"{join(host, port)} could be bound a moment ago and not by gRPC; start again")
            port = bound
        return f"{address.rpartition(':')[0]}:{port}"

    @staticmethod
    def _add(server: Bindable, address: str, credentials: Credentials | None) -> int:
        try:
            if credentials is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, credentials())
        except RuntimeError:
            return 0

    def release(self) -> None:
        """Let go of the sockets."""
        for lock in self._locks:
            lock.release()
