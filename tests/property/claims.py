"""The lower half of the reference model: what is live, what has ended, and who may have a slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .catalogue import LIMITS, Paper
from .terms import Ask, Ended, Failure, Key, Live, Parked, Refused, Times, refused


@dataclass(frozen=True)
class Verdict:
    """A Reserve that may be: `kept` needs no slot, `frees` gives its own up, ending as `how` (superseded if empty)."""

    kept: Live | None = None
    frees: Live | None = None
    how: str = ""


class Claims:
    """State and the rules of slots, owners, attempts and producers."""

    def __init__(
        self, slots: int, times: Times, max_waiters: int, now: Callable[[], int], wall: Callable[[], int]
    ) -> None:
        self.slots = slots
        self.times = times
        self.max_waiters = max_waiters
        self.now = now
        self.wall = wall
        self.live: dict[Key, Live] = {}
        self.ended: list[Ended] = []
        self.epochs: dict[tuple[str, str], tuple[int, int]] = {}
        """Of each instance the highest epoch, and when it last reserved something."""
        self.parked: dict[int, Parked] = {}
        self.draining = False
        self._completions = 0

    # -- what is there -------------------------------------------------------------------------------------------------

    def newest_ended(self, key: Key) -> Ended | None:
        """Of the highest attempt, the last to end."""
        return max((one for one in reversed(self.ended) if one.key == key), key=lambda one: one.attempt, default=None)

    def state(self, key: Key) -> str:
        """In one word."""
        live, ended = self.live.get(key), self.newest_ended(key)
        return live.state if live is not None else ended.state if ended is not None else "NONE"

    def consumed(self) -> list[Live]:
        """Those whose slots may be taken back, oldest first."""
        return sorted((one for one in self.live.values() if one.state == "CONSUMED"), key=lambda one: one.consumed_as)

    @property
    def slots_free(self) -> int:
        """CONSUMED counts as free."""
        return self.slots - len(self.live) + len(self.consumed())

    def has_queue(self) -> bool:
        """Whether others wait for slots."""
        return any(one.kind != "get" for one in self.parked.values())

    def full(self) -> Refused:
        """No slot."""
        return refused("ARENA_FULL", slots_total=str(self.slots), in_use=str(self.slots - self.slots_free))

    # -- what happens --------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """End whatever is overdue."""
        for live in [one for one in self.live.values() if one.until <= self.now()]:
            self.end(live, "COMPLETED" if live.state == "CONSUMED" else "EXPIRED")
        self.ended = [one for one in self.ended if one.forget_at > self.now()]
        patience = max(self.times.lease_max, self.times.tombstone)
        self.epochs = {one: known for one, known in self.epochs.items() if known[1] + patience > self.now()}

    def end(self, live: Live, how: str, failure: Failure | None = None) -> None:
        """Free the slot; superseded (`how` empty), nothing is remembered."""
        del self.live[live.ask.key]
        if how:
            forget_at = self.now() + self.times.tombstone
            self.ended.append(Ended(live.ask.key, live.ask.attempt, how, forget_at, failure, live))

    def publish(self, live: Live, paper: Paper) -> None:
        """Readers may see it; those who released their claim before have had it."""
        live.state, live.paper = "PUBLISHED", paper
        live.until = self.now() + self.times.retention
        live.published_wall = self.wall()
        self._complete(live)

    def consume(self, live: Live, reader: str) -> None:
        """Count a reader, also one that gives its claim up before the Put."""
        if len(live.readers) < live.ask.readers:
            live.readers.add(reader)
            self._complete(live)

    def _complete(self, live: Live) -> None:
        if live.state == "PUBLISHED" and len(live.readers) >= live.ask.readers:
            live.state = "CONSUMED"
            live.until = self.now() + self.times.grace
            self._completions += 1
            live.consumed_as = self._completions

    # -- who may have it -----------------------------------------------------------------------------------------------

    def holder(self, key: Key, token: bytes) -> Live | Ended | Refused:
        """What a token names."""
        live = self.live.get(key)
        if live is not None and live.token == token:
            return live
        for ended in self.ended:
            named = ended.key == key and ended.live is not None and ended.live.token == token
            if named and not self._is_past(key, ended.attempt):
                return ended
        return refused("STALE_RESERVATION", state=self.state(key))

    def _is_past(self, key: Key, attempt: int) -> bool:
        """Whether a higher attempt is live or has ended."""
        live, ended = self.live.get(key), self.newest_ended(key)
        return attempt < max(-1 if live is None else live.ask.attempt, -1 if ended is None else ended.attempt)

    def _own(self, ask: Ask) -> Live | Ended | None:
        """This owner's hand-off of this attempt, live or ended, whoever has used the room since."""
        live = self.live.get(ask.key)
        if live is not None and (live.ask.owner, live.ask.attempt) == (ask.owner, ask.attempt):
            return live
        if self._is_past(ask.key, ask.attempt):
            return None
        of_owner = (one for one in reversed(self.ended) if one.live is not None and one.live.ask.owner == ask.owner)
        return next((one for one in of_owner if (one.key, one.attempt) == (ask.key, ask.attempt)), None)

    def published_by(self, ask: Ask) -> Live | Ended | None:
        """What a one-shot Put finds that it has published before."""
        own = self._own(ask)
        if isinstance(own, Ended):
            return own if own.live and own.live.paper and own.how in {"EXPIRED", "COMPLETED"} else None
        return own if own is not None and own.paper is not None else None

    def judge_all(self, asks: Sequence[Ask], *, widths: bool = True) -> list[Verdict] | Refused:
        """A verdict each; or the refusal of the whole, of any that are refused."""
        verdicts: list[Verdict] = []
        refusals: list[Refused] = []
        for ask in asks:
            verdict = self._judge(ask)
            wide = self.too_wide(ask) if widths else None
            if isinstance(verdict, Refused):
                refusals.append(verdict)
            elif wide is not None:
                refusals.append(wide)
            else:
                verdicts.append(verdict)
        for ask in asks:  # an epoch of this batch makes older ones of this batch old
            if ask.producer is not None and any(self._outdates(other, ask.key, ask.producer) for other in asks):
                refusals.append(refused("PRODUCER_RESTARTED"))
        for verdict in verdicts:
            if verdict.kept is not None and verdict.kept in self._outdated(asks):
                refusals.append(refused("PRODUCER_RESTARTED"))
        if not refusals:
            return verdicts
        whole = refusals[0]
        for one in refusals[1:]:
            whole = whole | one
        return whole

    def _judge(self, ask: Ask) -> Verdict | Refused:
        answer = self._judge_attempt(ask)
        if ask.producer is not None:
            known, _ = self.epochs.get((ask.key[0], ask.producer[0]), (0, 0))
            if ask.producer[1] < known:
                old = refused("PRODUCER_RESTARTED")
                return old | answer if isinstance(answer, Refused) else old
        return answer

    def _judge_attempt(self, ask: Ask) -> Verdict | Refused:
        live, ended = self.live.get(ask.key), self.newest_ended(ask.key)
        if self._is_past(ask.key, ask.attempt):
            return refused("STALE_RESERVATION", state=self.state(ask.key))
        own = self._own(ask)
        if isinstance(own, Ended) and not self._passes(ask, own):
            return self.outcome(own)
        if live is not None and live.ask.attempt == ask.attempt:
            return self._judge_beside(ask, live)
        if ended is not None and ended.attempt == ask.attempt and not self._passes(ask, ended):
            return self.outcome(ended)
        return Verdict(frees=live)

    def _passes(self, ask: Ask, ended: Ended) -> bool:
        """Whether this may be reserved again at the same attempt: a completed one by others, a killed one's by its
        successor."""
        reused = ended.how == "COMPLETED" and ended.live is not None and ended.live.ask.owner != ask.owner
        former = None if ended.live is None else ended.live.ask.producer
        return reused or (ended.how == "RESTARTED" and self._outdates(ask, ended.key, former))

    def _judge_beside(self, ask: Ask, live: Live) -> Verdict | Refused:
        if live.state == "RESERVED" and self._outdates(ask, live.ask.key, live.ask.producer):
            return Verdict(frees=live, how="RESTARTED")
        if live.ask.owner == ask.owner:
            return Verdict(kept=live)
        if live.state == "CONSUMED":
            return Verdict(frees=live, how="COMPLETED")
        return refused("HANDOFF_EXISTS", state=live.state, age_ms=str((self.now() - live.reserved_at) // 10**6))

    @staticmethod
    def _outdates(ask: Ask, key: Key, producer: tuple[str, int] | None) -> bool:
        if ask.producer is None or producer is None:
            return False
        return ask.key[0] == key[0] and ask.producer[0] == producer[0] and ask.producer[1] > producer[1]

    def _outdated(self, asks: Sequence[Ask]) -> list[Live]:
        return [
            live
            for live in self.live.values()
            if live.state == "RESERVED" and any(self._outdates(ask, live.ask.key, live.ask.producer) for ask in asks)
        ]

    def in_pool(self, asks: Sequence[Ask], verdicts: Sequence[Verdict], *, queue: bool, restarts: bool = True) -> bool:
        """Whether there are slots for all; with others before them in the queue, of those that they free themselves."""
        needed = sum(verdict.kept is None for verdict in verdicts)
        own = {verdict.frees.ask.key for verdict in verdicts if verdict.frees is not None}
        if restarts:
            own |= {live.ask.key for live in self._outdated(asks)}
        if queue:
            return needed <= len(own)
        own |= {live.ask.key for live in self._evictable(verdicts)}
        return needed <= len(own) + self.slots - len(self.live)

    def grant(self, asks: Sequence[Ask], verdicts: Sequence[Verdict]) -> tuple[Live, ...]:
        """Carry out what was judged."""
        for verdict in verdicts:
            if verdict.frees is not None:
                self.end(verdict.frees, verdict.how)
        for ask in asks:
            if ask.producer is not None:
                instance = (ask.key[0], ask.producer[0])
                known, _ = self.epochs.get(instance, (0, 0))
                self.epochs[instance] = max(known, ask.producer[1]), self.now()
        for live in self._outdated(asks):
            self.end(live, "RESTARTED")
        return tuple(self._grant_one(ask, verdict, verdicts) for ask, verdict in zip(asks, verdicts, strict=True))

    def _evictable(self, verdicts: Sequence[Verdict]) -> list[Live]:
        """Consumed ones whose slots these may take: not what they answer with themselves."""
        kept = [verdict.kept for verdict in verdicts]
        return [one for one in self.consumed() if one not in kept]

    def _grant_one(self, ask: Ask, verdict: Verdict, verdicts: Sequence[Verdict]) -> Live:
        times = self.times
        lease = times.lease_default if ask.lease is None else min(max(ask.lease, times.lease_min), times.lease_max)
        if verdict.kept is not None:
            if verdict.kept.state == "RESERVED":
                verdict.kept.lease, verdict.kept.until = lease, self.now() + lease
            return verdict.kept
        self.ended = [one for one in self.ended if one.key != ask.key or one.attempt >= ask.attempt]
        if len(self.live) == self.slots:
            self.end(self._evictable(verdicts)[0], "COMPLETED")
        live = Live(ask, lease, self.now() + lease, self.wall(), self.now())
        self.live[ask.key] = live
        return live

    # -- what is refused -----------------------------------------------------------------------------------------------

    @staticmethod
    def flaw(paper: Paper) -> Refused | None:
        """What is wrong with a record."""
        return refused(paper.reason, **paper.metadata) if paper.reason else None

    @staticmethod
    def too_wide(ask: Ask) -> Refused | None:
        """Declared widths that can never fit."""
        if ask.top_logprobs <= LIMITS.top_logprobs:
            return None
        numbers = {"requested": str(ask.top_logprobs), "limit": str(LIMITS.top_logprobs)}
        return refused("TOP_LOGPROBS_OVERFLOW", **numbers)

    @staticmethod
    def outcome(ended: Ended, *, reading: bool = False) -> Refused:
        """What latecomers are told."""
        if ended.how == "COMPLETED":
            return refused("ALREADY_CONSUMED")
        if ended.how == "RESTARTED":
            return refused("PRODUCER_RESTARTED")
        if ended.how == "EXPIRED":
            published = ended.live is not None and ended.live.paper is not None
            return refused("HANDOFF_EXPIRED" if reading or published else "RESERVATION_EXPIRED")
        status, reason, message = ended.failure or (500, "ABORTED", "")
        told = refused("HANDOFF_ABORTED", http_status=str(status), failure_reason=reason)
        return Refused(told.options, message)
