"""What became of hand-offs that have ended, for a bounded time and number."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from .deadlines import NEVER
from .model import Key, Tombstone


class Tombstones:
    """Outcomes by key and by token, forgotten oldest first.

    By key only the newest attempt is found, and of equal ones the latest, or the one of a certain owner; by token every
    one that was not fenced by a higher attempt.

    Attributes:
        due: when the oldest is forgotten; NEVER when there is none. Kept up to date, since it is looked at with each
            call.
        newest: finds the highest ended attempt of a key, and of equal ones the latest.
    """

    def __init__(self, capacity: int) -> None:
        self.due = NEVER
        self._capacity = capacity
        self._order: deque[Tombstone] = deque()
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
        forgotten = []
        while self._order and len(self._order) >= self._capacity:
            oldest = self._order.popleft()
            if self._unlink(oldest):
                forgotten.append(oldest)
        if not self._capacity:
            tombstone.live = False
            return [tombstone]
        self._order.append(tombstone)
        self.due = self._order[0].deadline
        if tombstone.token:
            self._by_token[tombstone.token] = tombstone
        former = self._by_key.get(tombstone.key)
        if former is None or former.attempt < tombstone.attempt:
            self._by_key[tombstone.key] = tombstone
        elif former.attempt == tombstone.attempt:
            self._by_key[tombstone.key] = tombstone
            if former.owner != tombstone.owner:
                self._former[former.key, former.owner] = former
        return forgotten

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
        order = self._order
        while order and (not order[0].live or order[0].deadline <= now):
            oldest = order.popleft()
            if self._unlink(oldest):
                forgotten.append(oldest)
        self.due = order[0].deadline if order else NEVER
        return forgotten

    def next(self) -> int | None:
        """When the oldest is forgotten; None when there is none."""
        return None if self.due == NEVER else self.due

    def _unlink(self, tombstone: Tombstone) -> bool:
        was_live, tombstone.live = tombstone.live, False
        if self._by_key.get(tombstone.key) is tombstone:
            del self._by_key[tombstone.key]
        elif self._former and self._former.get((tombstone.key, tombstone.owner)) is tombstone:
            del self._former[tombstone.key, tombstone.owner]
        if tombstone.token and self._by_token.get(tombstone.token) is tombstone:
            del self._by_token[tombstone.token]
        return was_live

    def __iter__(self) -> Iterator[Tombstone]:
        """Those still remembered, oldest first."""
        return (tombstone for tombstone in self._order if tombstone.live)

    def __len__(self) -> int:
        """How many are held."""
        return len(self._order)
