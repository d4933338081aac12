"""Calls that wait: readers by key, and a queue for slots, first come first served."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pd_handoff_server.arena.draft import Draft
from pd_handoff_server.lifecycle.deadlines import Deadlines
from pd_handoff_server.lifecycle.model import Key, Spec

from .interface import Done


class Waiter:
    """A parked call. `deadline` is the monotonic moment in nanoseconds at which it gives up."""

    __slots__ = ("_cancel", "deadline", "done", "keys", "queued_at")

    def __init__(self, keys: Sequence[Key], deadline: int, done: Done, cancel: Callable[[Waiter], bool]) -> None:
        self.keys = keys
        self.deadline: int | None = deadline
        self.queued_at: int | None = None
        self.done = done
        self._cancel = cancel

    def cancel(self) -> bool:
        """Give up; True when it had not been answered."""
        return self._cancel(self)


class Reader(Waiter):
    """A Get for a record that is not there yet."""

    __slots__ = ("attempt", "consume", "reader_id")

    def __init__(self, key: Key, deadline: int, done: Done, cancel: Callable[[Waiter], bool], *parts: Any) -> None:
        super().__init__((key,), deadline, done, cancel)
        self.attempt, self.reader_id, self.consume = parts


class Claimant(Waiter):
    """A Reserve, a batch of them, or a one-shot Put (with `draft`) that needs slots."""

    __slots__ = ("batch", "draft", "specs")

    def __init__(
        self,
        specs: Sequence[Spec],
        deadline: int,
        done: Done,
        cancel: Callable[[Waiter], bool],
        *,
        batch: bool = False,
        draft: Draft | None = None,
    ) -> None:
        super().__init__([spec.key for spec in specs], deadline, done, cancel)
        self.specs = specs
        self.batch = batch
        self.draft = draft


class Waiting:
    """All parked calls, found by key, by order of arrival (claimants) and by deadline."""

    def __init__(self) -> None:
        self.queue: OrderedDict[Claimant, None] = OrderedDict()
        self._by_key: dict[Key, dict[Waiter, None]] = {}
        self._deadlines: Deadlines[Waiter] = Deadlines()
        self._count = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    def add(self, waiter: Waiter) -> None:
        """Park a call."""
        self._count += 1
        for key in waiter.keys:
            self._by_key.setdefault(key, {})[waiter] = None
        if isinstance(waiter, Claimant):
            self.queue[waiter] = None
        self._deadlines.watch(waiter)

    def remove(self, waiter: Waiter) -> bool:
        """Take a call out; False when it was out already."""
        held = self._by_key.get(waiter.keys[0])
        if held is None or waiter not in held:
            return False
        self._count -= 1
        for key in waiter.keys:
            held = self._by_key[key]
            del held[waiter]
            if not held:
                del self._by_key[key]
        if isinstance(waiter, Claimant):
            del self.queue[waiter]
        self._deadlines.forget(waiter)
        return True

    def of(self, key: Key) -> list[Waiter]:
        """Those that wait on this key, in order of arrival."""
        held = self._by_key.get(key)
        return list(held) if held else []

    def head(self) -> Claimant | None:
        """Who is first in the queue for slots."""
        return next(iter(self.queue), None)

    def due(self, now: int) -> Iterator[Waiter]:
        """Those whose wait has run out; each must be removed."""
        while (waiter := self._deadlines.pop_due(now)) is not None:
            yield waiter

    def next(self) -> int | None:
        """A moment at or before the earliest deadline."""
        return self._deadlines.next()

    def everyone(self) -> list[Waiter]:
        """All of them, each once."""
        return list(dict.fromkeys(waiter for held in self._by_key.values() for waiter in held))
