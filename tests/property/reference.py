"""A second store, written from the contract (sections 4 and 5) and the decisions in docs/protocol.md, over plain dicts.

It shares no line with the service. It mints no tokens: those that the real store hands out are bound to its hand-offs
by whoever drives both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .catalogue import Paper
from .claims import Claims
from .terms import (
    Ask,
    Ended,
    Expected,
    Failure,
    Granted,
    Key,
    Live,
    Parked,
    Plain,
    Published,
    Read,
    Refused,
    Waits,
    refused,
)


@dataclass(frozen=True)
class _None:
    """A Get that could wait; `state` is NONE or RESERVED."""

    state: str


class Reference(Claims):
    """Every call of the store, answered with what the contract lets it answer."""

    # -- Reserve -------------------------------------------------------------------------------------------------------

    def reserve(self, asks: Sequence[Ask], wait: int, number: int, *, batch: bool) -> Expected:
        """One, or a batch of them."""
        self.sweep()
        if self.draining:
            return refused("DRAINING")
        verdicts = self.judge_all(asks)
        if isinstance(verdicts, Refused):
            return verdicts
        if self.in_pool(asks, verdicts, queue=self.has_queue()):
            return Granted(self.grant(asks, verdicts))
        if wait <= 0 or len(asks) > self.slots:
            return self.full()
        return self.park(Parked(number, self.until(wait), "batch" if batch else "reserve", tuple(asks)))

    # -- Put -----------------------------------------------------------------------------------------------------------

    def put(self, key: Key, token: bytes, paper: Paper) -> Expected:
        """With a token."""
        self.sweep()
        holder = self.holder(key, token)
        if isinstance(holder, Refused):
            return holder
        return self._put_into(holder, paper)

    def _put_into(self, holder: Live | Ended, paper: Paper) -> Expected:
        flaw = self.flaw(paper)
        if isinstance(holder, Ended):
            outcome = self.outcome(holder)
            live = holder.live
            if live is None or live.paper is None or holder.how not in {"EXPIRED", "COMPLETED"}:
                return outcome
            if flaw is None and paper.image == live.paper.image:
                return Published(live.published_wall)
            other = refused("RECORD_IMMUTABLE") if holder.how == "COMPLETED" else outcome
            return other if flaw is None else other | flaw
        if flaw is not None:
            return flaw
        if holder.paper is None:
            self.publish(holder, paper)
        elif holder.paper.image != paper.image:
            return refused("RECORD_IMMUTABLE")
        return Published(holder.published_wall)

    def put_once(self, ask: Ask, paper: Paper, wait: int, number: int) -> Expected:
        """Reserve and Put in one."""
        self.sweep()
        if self.draining:
            return refused("DRAINING")
        own = self.published_by(ask)
        if own is not None:
            return self._put_into(own, paper)
        verdicts = self.judge_all((ask,), widths=False)
        if isinstance(verdicts, Refused):
            return verdicts
        flaw = self.flaw(paper)
        wide = self.too_wide(ask)
        if flaw is not None or wide is not None:
            return flaw or wide or refused("")
        if self.in_pool((ask,), verdicts, queue=self.has_queue()):
            (live,) = self.grant((ask,), verdicts)
            self.publish(live, paper)
            return Published(live.published_wall)
        if wait <= 0:
            return self.full()
        return self.park(Parked(number, self.until(wait), "put", (ask,), paper))

    # -- Get -----------------------------------------------------------------------------------------------------------

    def get(self, key: Key, attempt: int, reader: str, consume: bool, wait: int, number: int) -> Expected:
        """A read, which may wait."""
        self.sweep()
        answer = self._look(key, attempt, reader, consume)
        if not isinstance(answer, _None):
            return answer
        if wait <= 0:
            if answer.state == "NONE":
                return refused("HANDOFF_NOT_FOUND")
            return refused("RECORD_NOT_READY", state=answer.state)
        if self.draining:
            return refused("DRAINING")
        until = self.until(wait)
        return self.park(
            Parked(number, until, "get", key=key, attempt=attempt, reader=reader, consume=consume),
        )

    def _look(self, key: Key, attempt: int, reader: str, consume: bool) -> Read | Refused | _None:
        live, ended = self.live.get(key), self.newest_ended(key)
        if ended is not None and ended.attempt >= attempt and (live is None or ended.attempt > live.ask.attempt):
            return self.outcome(ended, reading=True)
        if live is None or live.ask.attempt < attempt:
            return _None("NONE")
        if live.paper is None:
            return _None("RESERVED")
        if consume:
            self.consume(live, reader)
        return Read(live, live.paper)

    # -- Release and Abort ---------------------------------------------------------------------------------------------

    def release(self, key: Key, token: bytes, reader: str) -> Expected:
        """By token, or else by reader."""
        self.sweep()
        if not token:
            live = self.live.get(key)
            if live is not None:
                self.consume(live, reader)
            return Plain((None,))
        holder = self.holder(key, token)
        if isinstance(holder, Refused):
            return holder
        if isinstance(holder, Ended):
            return Plain((None,))
        if holder.state == "RESERVED":
            message = "the producer released the reservation before it put a record"
            self.end(holder, "ABORTED", (503, "RELEASED", message))
        elif holder.state == "CONSUMED":
            self.end(holder, "COMPLETED")
        return Plain((None,))

    def abort(self, key: Key, failure: Failure, token: bytes, attempt: int | None) -> Expected:
        """By token, by attempt, or of whatever is live."""
        self.sweep()
        if token:
            holder = self.holder(key, token)
            if isinstance(holder, Refused):
                return holder
            if isinstance(holder, Ended):
                return Plain((False,))
            return self._abort_live(holder, failure)
        live, ended = self.live.get(key), self.newest_ended(key)
        if live is not None and attempt in {None, live.ask.attempt}:
            return self._abort_live(live, failure)
        if attempt is None and ended is not None:
            return Plain((False,))
        attempt = attempt or 0
        if (live is not None and live.ask.attempt > attempt) or (ended is not None and ended.attempt >= attempt):
            return Plain((False,))
        if live is not None:
            self.end(live, "")  # there is a higher attempt, though it has ended: this one is superseded
        self.ended.append(Ended(key, attempt, "ABORTED", self.now() + self.times.tombstone, failure))
        return Plain((True,))

    def _abort_live(self, live: Live, failure: Failure) -> Expected:
        if live.state == "CONSUMED":
            return Plain((False,))
        self.end(live, "ABORTED", failure)
        return Plain((True,))

    # -- waiting and time ----------------------------------------------------------------------------------------------

    def settle(self, seen: Mapping[int, str]) -> dict[int, Expected]:
        """Who gets an answer now. `seen` has the reasons (or OK) with which the real store answered in this step: where
        the contract leaves the moment or the order open, the model goes along."""
        out: dict[int, Expected] = {}
        while True:
            before = len(out)
            for waiting in [one for one in self.parked.values() if one.kind == "get"]:
                answer = self._look(waiting.key, waiting.attempt, waiting.reader, waiting.consume)
                if not isinstance(answer, _None):
                    out[waiting.number] = answer
                    del self.parked[waiting.number]
            self._serve_claims(seen, out)
            if len(out) == before:
                return out

    def _serve_claims(self, seen: Mapping[int, str], out: dict[int, Expected]) -> None:
        """Whose turn it is, as far as there are slots; then the others, as far as they need none of others. Readers of
        what the former got come before the latter."""
        claims = [one for one in self.parked.values() if one.kind != "get"]
        first, changed = True, set[Key]()
        for waiting in claims:
            if not first and changed.intersection(ask.key for ask in waiting.asks):
                continue
            answer = self._serve(waiting, first, seen.get(waiting.number))
            if answer is None:
                first = False
                continue
            out[waiting.number] = answer
            del self.parked[waiting.number]
            if first:
                changed.update(ask.key for ask in waiting.asks)

    def _serve(self, waiting: Parked, first: bool, seen: str | None) -> Expected | None:
        if waiting.kind == "put":
            own = self.published_by(waiting.asks[0])
            if own is not None and waiting.paper is not None:
                return self._put_into(own, waiting.paper)
        verdicts = self.judge_all(waiting.asks)
        if isinstance(verdicts, Refused):
            # An older epoch is noticed when its turn comes.
            late = set(verdicts.options) == {"PRODUCER_RESTARTED"} and not first and seen is None
            return None if late else verdicts
        if not self.in_pool(waiting.asks, verdicts, queue=not first, restarts=first or seen is not None):
            return None
        lives = self.grant(waiting.asks, verdicts)
        if waiting.paper is None:
            return Granted(lives)
        self.publish(lives[0], waiting.paper)
        return Published(lives[0].published_wall)

    def tick(self, seen: Mapping[int, str]) -> dict[int, Expected]:
        """The timer looked."""
        self.sweep()
        out = self.settle(seen)
        for waiting in [one for one in self.parked.values() if one.until <= self.now()]:
            del self.parked[waiting.number]
            if waiting.kind != "get":
                out[waiting.number] = self.full()
                continue
            answer = self._look(waiting.key, waiting.attempt, "", consume=False)
            assert isinstance(answer, _None), "whoever could be answered has been"
            out[waiting.number] = refused("RECORD_NOT_READY", state=answer.state)
        return out | self.settle(seen)

    def drain(self) -> dict[int, Expected]:
        """Nothing new any more."""
        self.draining = True
        out: dict[int, Expected] = {number: refused("DRAINING") for number in self.parked}
        self.parked.clear()
        return out

    def until(self, wait: int) -> int:
        """When a wait that begins now is over."""
        return self.now() + min(wait, self.times.max_wait)

    def park(self, waiting: Parked) -> Expected:
        """Wait, if there is room."""
        if len(self.parked) >= self.max_waiters:
            return refused("TOO_MANY_WAITERS", limit=str(self.max_waiters))
        self.parked[waiting.number] = waiting
        return Waits()
