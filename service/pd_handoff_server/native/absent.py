"""What takes the place of the reader in C: it reads nothing, so that Python reads all."""

from __future__ import annotations

from typing import Any, Protocol


class Reader(Protocol):
    """The functions of `_scan`, which has their meaning."""

    def put(self, data: bytes, limits: bytes, /) -> Any:
        """A PutRequest."""

    def put_all(self, data: bytes, limits: bytes, /) -> Any:
        """A BatchPutRequest."""

    def get(self, data: bytes, /) -> Any:
        """A GetRequest."""

    def get_all(self, data: bytes, /) -> Any:
        """A BatchGetRequest."""

    def reserve(self, data: bytes, /) -> Any:
        """A ReserveRequest."""

    def reserve_all(self, data: bytes, /) -> Any:
        """A BatchReserveRequest."""

    def session(self, data: bytes, /) -> Any:
        """A SessionRequest."""


class Absent:
    """A `Reader` that leaves everything to Python."""

    def __init__(self, why: str) -> None:
        """`why` it is in this place, for people."""
        self.why = why

    def put(self, data: bytes, limits: bytes, /) -> None:
        """See `Reader`."""

    def put_all(self, data: bytes, limits: bytes, /) -> None:
        """See `Reader`."""

    def get(self, data: bytes, /) -> None:
        """See `Reader`."""

    def get_all(self, data: bytes, /) -> None:
        """See `Reader`."""

    def reserve(self, data: bytes, /) -> None:
        """See `Reader`."""

    def reserve_all(self, data: bytes, /) -> None:
        """See `Reader`."""

    def session(self, data: bytes, /) -> None:
        """See `Reader`."""
