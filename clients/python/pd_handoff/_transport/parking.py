"""Calls that wait in the store go over connections of their own beyond a number that every proxy takes.

A proxy allows about 100 calls at a time over one connection. Waiting Gets alone can use that up, and all other calls
would then wait behind them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from pd_handoff._transport.channel import Option

T = TypeVar("T")

MOST_PARKED: Final = 64
"""Waiting calls of one connection."""
OF_ITS_OWN: Final[tuple[Option, ...]] = (("grpc.use_local_subchannel_pool", 1),)
"""Options of a channel that shares no connection with another to the same address."""


class _Place(Generic[T]):
    __slots__ = ("parked", "way")

    def __init__(self, way: T) -> None:
        self.way = way
        self.parked = 0


class Parking(Generic[T]):
    """Which connection a waiting call takes; used by many threads at once."""

    def __init__(self, first: T, another: Callable[[], T]) -> None:
        """`first` carries the other calls, too; `another` opens a connection."""
        self.first = first
        self._another = another
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._places = [_Place(self.first)]

    def enter(self) -> _Place[T]:
        """A place for one waiting call."""
        if os.getpid() != self._process:
            self._begin()  # a child: what waits there is its parent's
        with self._lock:
            place = next((place for place in self._places if place.parked < MOST_PARKED), None)
            if place is None:
                place = _Place(self._another())
                self._places.append(place)
            place.parked += 1
            return place

    def leave(self, place: _Place[T]) -> None:
        """It no longer waits."""
        with self._lock:
            place.parked -= 1

    @property
    def others(self) -> list[T]:
        """The connections that were opened beside the first."""
        return [place.way for place in self._places[1:]]
