"""What became of hand-offs that have ended, for a bounded time and number."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .deadlines import NEVER
from .model import Key, Tombstone


class Tombstones:
    """Outcomes by key and by token, forgotten oldest first.

    By key only the newest attempt is found; by token every one that was not fenced by a higher attempt. An Abort ahead
    of its Reserve can be newer than an attempt that ends after it: once it is forgotten, the lower one is found again.

    Attributes:
        due: when the oldest is forgotten; NEVER when there is none. Kept up to date, since it is looked at with each
            call.
    """

    def __init__(self, capacity: int) -> None:
        self.due = NEVER
        self._capacity = capacity
        self._order: deque[Tombstone] = deque()
        self._by_key: dict[Key, Tombstone] = {}
        self._below: dict[Key, list[Tombstone]] = {}  # of a lower attempt than the newest, and ended after it
        self._by_token: dict[bytes, Tombstone] = {}

    def newest(self, key: Key) -> Tombstone | None:
        """The highest ended attempt of a key, and of equal ones the latest."""
        return self._by_key.get(key)

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
        newest = self._by_key.get(tombstone.key)
        if newest is None or tombstone.attempt >= newest.attempt:
            self._by_key[tombstone.key] = tombstone
        else:
            self._below.setdefault(tombstone.key, []).append(tombstone)
        return forgotten

    def fence(self, key: Key, attempt: int) -> list[Tombstone]:
        """Drop the outcomes of a key that can be found by it and are below this attempt; returns what was dropped."""
        dropped = []
        while (newest := self._by_key.get(key)) is not None and newest.attempt < attempt:
            if self._unlink(newest):
                dropped.append(newest)
        return dropped

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
        below = self._below.get(tombstone.key)
        if self._by_key.get(tombstone.key) is tombstone:
            del self._by_key[tombstone.key]
            if below:
                found = max(reversed(below), key=lambda other: other.attempt)
                self._by_key[tombstone.key] = found
                below.remove(found)
        elif below and tombstone in below:
            below.remove(tombstone)
        if below is not None and not below:
            del self._below[tombstone.key]
        if tombstone.token and self._by_token.get(tombstone.token) is tombstone:
            del self._by_token[tombstone.token]
        return was_live

    def __iter__(self) -> Iterator[Tombstone]:
        """Those still remembered, oldest first."""
        return (tombstone for tombstone in self._order if tombstone.live)

    def __len__(self) -> int:
        """How many are held."""
        return len(self._order)
