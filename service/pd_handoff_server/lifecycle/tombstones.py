"""What became of hand-offs that have ended, for a bounded time and number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from .deadlines import NEVER
from .fair_order import FairOrder
from .model import Key, Tombstone


def _namespace(tombstone: Tombstone) -> str:
    return tombstone.key[0]


class Tombstones:
    """Outcomes by key and by token. When there are too many, the namespace that has most loses its oldest.

    By key only the newest attempt is found, and of equal ones the latest, or the one of a certain owner; by token every
    one that was not fenced by a higher attempt.

    Attributes:
        due: when the oldest is forgotten; NEVER when there is none. Kept up to date, since it is looked at with each
            call.
        newest: finds the highest ended attempt of a key, and of equal ones the latest.
        places: each stands in one place until it is forgotten; None where a place is free.
    """

    def __init__(self, capacity: int) -> None:
        self.due = NEVER
        self.places: list[Tombstone | None] = []
        self._free: list[int] = []
        self._capacity = capacity
        self._order: FairOrder[Tombstone] = FairOrder(_namespace)
        self._by_key: dict[Key, Tombstone] = {}
        self._former: dict[tuple[Key, str], Tombstone] = {}  # by owner: others have ended in that room since
        self._by_token: dict[bytes, Tombstone] = {}
        self.newest: Final[Callable[[Key], Tombstone | None]] = self._by_key.get

    def own(self, key: Key, attempt: int, owner: str) -> Tombstone | None:
        """What became of an attempt's hand-off of this owner, unless a higher attempt has ended since."""
        newest = self._by_key.get(key)
        if newest is None or newest.attempt != attempt:
            return None
        if newest.owner == owner:
            return newest
        former = self._former.get((key, owner)) if self._former else None
        return former if former is not None and former.attempt == attempt else None

    def of_token(self, token: bytes) -> Tombstone | None:
        """What became of the reservation that this token named."""
        return self._by_token.get(token)

    def add(self, tombstone: Tombstone) -> list[Tombstone]:
        """Remember an outcome; returns those forgotten for it, which is itself where none are remembered."""
        if not self._capacity:
            return [tombstone]
        forgotten = []
        while len(self._order) >= self._capacity:
            surplus = self._order.surplus()
            self._unlink(surplus)
            forgotten.append(surplus)
        if self._free:
            tombstone.place = place = self._free.pop()
            self.places[place] = tombstone
        else:
            tombstone.place = len(self.places)
            self.places.append(tombstone)
        self._link(tombstone)
        if forgotten or self.due == NEVER:
            self._look_ahead()
        return forgotten

    def resume(self, tombstones: Sequence[Tombstone]) -> None:
        """Take over those that an earlier process remembered, oldest first, at the places where they stand."""
        self.places = [None] * (1 + max((tombstone.place for tombstone in tombstones), default=-1))
        for tombstone in tombstones:
            self.places[tombstone.place] = tombstone
            self._link(tombstone)
        self._free = [place for place, tombstone in enumerate(self.places) if tombstone is None]
        self._look_ahead()

    def _link(self, tombstone: Tombstone) -> None:
        """Make it found by key and by token."""
        self._order.add(tombstone)
        if tombstone.token:
            self._by_token[tombstone.token] = tombstone
        former = self._by_key.get(tombstone.key)
        if former is None or former.attempt < tombstone.attempt:
            self._by_key[tombstone.key] = tombstone
        elif former.attempt == tombstone.attempt:
            self._by_key[tombstone.key] = tombstone
            if former.owner != tombstone.owner:
                self._former[former.key, former.owner] = former

    def fence(self, key: Key, attempt: int) -> Tombstone | None:
        """Drop the outcome that is found by this key if it is below this attempt; returns what was dropped."""
        newest = self._by_key.get(key)
        if newest is None or newest.attempt >= attempt:
            return None
        self._unlink(newest)
        return newest

    def expire(self, now: int) -> list[Tombstone]:
        """Forget those whose time is over; returns them."""
        forgotten = []
        while (oldest := self._order.first()) is not None and oldest.deadline <= now:
            self._unlink(oldest)
            forgotten.append(oldest)
        self._look_ahead()
        return forgotten

    def _look_ahead(self) -> None:
        oldest = self._order.first()
        self.due = NEVER if oldest is None else oldest.deadline

    def next(self) -> int | None:
        """When the oldest is forgotten; None when there is none."""
        return None if self.due == NEVER else self.due

    def _unlink(self, tombstone: Tombstone) -> None:
        self._order.remove(tombstone)
        self.places[tombstone.place] = None
        self._free.append(tombstone.place)
        if self._by_key.get(tombstone.key) is tombstone:
            del self._by_key[tombstone.key]
        elif self._former and self._former.get((tombstone.key, tombstone.owner)) is tombstone:
            del self._former[tombstone.key, tombstone.owner]
        if tombstone.token and self._by_token.get(tombstone.token) is tombstone:
            del self._by_token[tombstone.token]

    def __iter__(self) -> Iterator[Tombstone]:
        """Those still remembered, oldest first."""
        return iter(self._order)

    def __len__(self) -> int:
        """How many are held."""
        return len(self._order)
