"""What became of hand-offs that have ended, for a bounded time and number."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .model import Key, Tombstone


class Tombstones:
    """Outcomes by key and by token, forgotten oldest first.

    By key only the newest attempt is found; by token every one that was not fenced by a higher attempt.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._order: deque[Tombstone] = deque()
        self._by_key: dict[Key, Tombstone] = {}
        self._by_token: dict[bytes, Tombstone] = {}

    def newest(self, key: Key) -> Tombstone | None:
        """The highest ended attempt of a key, and of equal ones the latest."""
        return self._by_key.get(key)

    def of_token(self, token: bytes) -> Tombstone | None:
        """What became of the reservation that this token named."""
        return self._by_token.get(token)

    def add(self, tombstone: Tombstone) -> list[Tombstone]:
        """Remember an outcome; returns those forgotten for it."""
        forgotten = []
        while self._order and len(self._order) >= self._capacity:
            oldest = self._order.popleft()
            if self._unlink(oldest):
                forgotten.append(oldest)
        if not self._capacity:
            return forgotten
        self._order.append(tombstone)
        if tombstone.token:
            self._by_token[tombstone.token] = tombstone
        newest = self._by_key.get(tombstone.key)
        if newest is None or tombstone.attempt >= newest.attempt:
            self._by_key[tombstone.key] = tombstone
        return forgotten

    def fence(self, key: Key, attempt: int) -> Tombstone | None:
        """Drop the newest outcome of a key if it is below this attempt; returns what was dropped."""
        newest = self._by_key.get(key)
        if newest is not None and newest.attempt < attempt and self._unlink(newest):
            return newest
        return None

    def expire(self, now: int) -> list[Tombstone]:
        """Forget those whose time is over; returns them."""
        forgotten = []
        order = self._order
        while order and (not order[0].live or order[0].deadline <= now):
            oldest = order.popleft()
            if self._unlink(oldest):
                forgotten.append(oldest)
        return forgotten

    def next(self) -> int | None:
        """When the oldest is forgotten; None when there is none."""
        return self._order[0].deadline if self._order else None

    def _unlink(self, tombstone: Tombstone) -> bool:
        was_live, tombstone.live = tombstone.live, False
        if self._by_key.get(tombstone.key) is tombstone:
            del self._by_key[tombstone.key]
        if tombstone.token and self._by_token.get(tombstone.token) is tombstone:
            del self._by_token[tombstone.token]
        return was_live

    def __iter__(self) -> Iterator[Tombstone]:
        """Those still remembered, oldest first."""
        return (tombstone for tombstone in self._order if tombstone.live)

    def __len__(self) -> int:
        """How many are held."""
        return len(self._order)
