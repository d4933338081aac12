"""Where calls wait: parked, woken, served in order of arrival, given up, and sent away when the store drains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pd_handoff_server import refusal
from pd_handoff_server.arena.draft import Draft
from pd_handoff_server.lifecycle import Key, Spec
from pd_handoff_server.lifecycle.deadlines import NEVER
from pd_handoff_server.refusal import Refusal

from .core import Core
from .interface import Origin, Parked
from .waiting import Claimant, Reader, Waiter


class Parking(Core):
    """Calls that cannot be answered yet, and what answers them."""

    # -- coming and going ----------------------------------------------------------------------------------------------

    def _until(self, max_wait: int) -> int:
        return self._clock.monotonic() + min(max_wait, self._max_wait)

    def _park(self, waiter: Waiter, origin: Origin | None) -> Parked:
        if origin is not None:
            waiter.sharer = origin.sharer
            waiter.weight += origin.take_weight()
        waiting = self._waiting
        if len(waiting) >= self._max_waiters:
            refused = refusal.too_many_waiters(self._max_waiters)
            self._push_out(waiting.share, waiting.share(waiter.sharer) + 1, refused)
        while waiting.weight + waiter.weight > self._max_waiting_bytes:  # ends: each turn raises or takes one out
            refused = refusal.too_many_waiting_bytes(self._max_waiting_bytes)
            self._push_out(waiting.burden, waiting.burden(waiter.sharer) + waiter.weight, refused)
        waiting.add(waiter)
        return waiter

    def _push_out(self, measure: Callable[[str], int], mine: int, refused: Refusal) -> None:
        """Take a place from whoever has most, if they have more than the newcomer will have; else refuse that one."""
        victim = self._waiting.newest_of_greediest(measure)
        if victim is None or measure(victim.sharer) <= mine:
            raise refused
        self._finish(victim, refused)

    def _cancel(self, waiter: Waiter) -> bool:
        with self._inside:
            return self._waiting.remove(waiter)  # leaving serves whoever stood behind it

    def _finish(self, waiter: Waiter, result: Any) -> None:
        done = waiter.done
        if self._waiting.remove(waiter):
            if isinstance(result, Refusal):
                result.key = waiter.keys[0]
                result.__traceback__ = None  # which holds all that was going on where it was raised
            self._answers.append((done, result))

    # -- after each change ---------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        lifecycle, waiting = self._lifecycle, self._waiting
        while True:
            touched, lifecycle.touched = lifecycle.touched, []
            for key in touched:
                self._wake(key)
            if not waiting.claimants:
                if not lifecycle.touched:
                    return
                continue
            served = self._serve_queue()
            for key in touched:
                self._reconsider(key)
            if not served and not lifecycle.touched:
                return

    def _wake(self, key: Key) -> None:
        for waiter in self._waiting.of(key):
            if not isinstance(waiter, Reader):
                continue
            try:
                reading = self._read(key, waiter.attempt, waiter.reader_id, waiter.consume)
            except Refusal as refused:
                self._finish(waiter, refused)
            else:
                if reading is not None:
                    self._finish(waiter, reading)

    def _reconsider(self, key: Key) -> None:
        """The key changed: answer those who wait for a slot for it and now need none of others, or may have none.

        After those whose turn it is: the slot of a consumed hand-off is theirs before it is the next owner's.
        """
        for waiter in self._waiting.of(key):
            if isinstance(waiter, Claimant):
                self._grant(waiter, barge=False)

    def _serve_queue(self) -> bool:
        waiting, served = self._waiting, False
        passed: set[str] = set()  # namespaces whose first in line has to wait for their quota
        while (turn := waiting.next_claimant(self._lifecycle.quotas.has_room, passed)) is not None:
            behind = next((spec.key[0] for spec in turn.specs if spec.key[0] in passed), None) if passed else None
            if behind is not None and turn.shelf is None:
                waiting.shelve(turn, behind)
                continue
            refused = self._grant(turn)
            if refused is None:
                served = True
            elif refused.quota is None:  # no slot for anybody
                if turn.shelf is not None:
                    waiting.shelve(turn, None)
                break
            else:
                passed.add(refused.quota)
                if turn.shelf != refused.quota:
                    waiting.shelve(turn, refused.quota)
        return served

    def _grant(self, waiter: Claimant, *, barge: bool = True) -> Refusal | None:
        """Try to give a waiting claimant what it waits for; ARENA_FULL when it has to go on waiting.

        With `barge` False it is not its turn, and it may have only what it frees itself.
        """
        try:
            if waiter.batch:
                result: Any = self._lifecycle.reserve_all(waiter.specs, barge=barge)
            elif waiter.draft is None:
                result = self._lifecycle.commit(self._lifecycle.admit(waiter.specs[0]), barge=barge)
            else:
                result = self._grant_put(waiter.specs[0], waiter.draft, barge=barge)
        except Refusal as refused:
            if refused.reason == "ARENA_FULL":
                return refused.with_traceback(None)  # else it would hold the frame that it is returned to: a cycle
            result = refused
        self._finish(waiter, result)
        if not isinstance(result, Refusal):
            self._note_reserved(waiter.specs)
        return None

    def _grant_put(self, spec: Spec, draft: Draft, *, barge: bool) -> int:
        owned = self._lifecycle.owned(spec)
        if owned is not None:
            return self._published_again(owned, draft)
        return self._publish(self._lifecycle.commit(self._lifecycle.admit(spec), barge=barge), draft)

    def _note_reserved(self, specs: Sequence[Spec]) -> None:
        """Others may wait for a slot for these very keys; they need none, or may have none, from now on."""
        if self._waiting.claimants:
            self._lifecycle.touched.extend(spec.key for spec in specs)

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self) -> int | None:
        """See `Store`."""
        with self._inside:
            self._lifecycle.expire()
            self._settle()
            self._give_up(self._waiting.due(self._clock.monotonic()))
            self._settle()
            due = self._next_deadline()
            self._armed = NEVER if due is None else due
        return due

    def _give_up(self, due: Iterable[Waiter]) -> None:
        for waiter in list(due):
            if isinstance(waiter, Reader):
                try:
                    result = self._not_there(waiter.keys[0], waiter.attempt, waited=True)
                except Refusal as refused:
                    result = refused
            else:
                result = self._lifecycle.full(waiter.shelf if isinstance(waiter, Claimant) else None)
            self._finish(waiter, result)

    def _next_deadline(self) -> int | None:
        own, waits = self._lifecycle.next_deadline(), self._waiting.next()
        if own is None or waits is None:
            return waits if own is None else own
        return min(own, waits)

    def drain(self) -> None:
        """See `Store`."""
        with self._inside:
            self._draining = True
            for waiter in self._waiting.everyone():
                self._finish(waiter, refusal.draining())
