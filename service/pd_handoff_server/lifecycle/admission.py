"""Who may reserve: what a Reserve meets, and what a latecomer is told."""

from __future__ import annotations

from dataclasses import dataclass

from pd_handoff_server import refusal
from pd_handoff_server.refusal import Refusal

from .model import CONSUMED, RESERVED, Failure, Handoff, Key, Outcome, Spec, Tombstone


@dataclass(slots=True)
class Plan:
    """A Reserve that nothing forbids: `kept` answers it without a slot, `replaces` gives its slot up for it.

    A replaced hand-off ends with `replaced_outcome`; without one it was superseded.
    """

    spec: Spec
    kept: Handoff | None = None
    replaces: Handoff | None = None
    replaced_outcome: Outcome | None = None


def judge(spec: Spec, live: Handoff | None, ended: Tombstone | None, now: int) -> Plan:
    """Judge a Reserve by the live hand-off and the newest ended attempt of its key; changes nothing.

    Raises Refusal: HANDOFF_EXISTS, STALE_RESERVATION, or the outcome of the ended attempt.
    """
    plan = Plan(spec)
    if live is not None:
        _beside(plan, live, now)
    if ended is not None and (live is None or ended.attempt > live.attempt):
        _after(spec, ended)
    return plan


def refuse_latecomer(spec: Spec, live: Handoff | None, own: Tombstone | None) -> None:
    """Refuse what comes after the end of its own hand-off, `own`, whoever has used the room since. Raises Refusal."""
    if own is not None and (live is None or live.owner != spec.owner or live.attempt != spec.attempt):
        _after(spec, own)


def _beside(plan: Plan, live: Handoff, now: int) -> None:
    spec = plan.spec
    if spec.attempt < live.attempt:
        raise refusal.stale(live.state.value)
    if spec.attempt > live.attempt:
        plan.replaces = live
    elif live.state is RESERVED and _restarted(spec, live.key, live.producer):
        plan.replaces, plan.replaced_outcome = live, Outcome.RESTARTED
    elif live.owner == spec.owner:
        refuse_other_request(spec, live, now)
        plan.kept = live
    elif live.state is CONSUMED:
        plan.replaces, plan.replaced_outcome = live, Outcome.COMPLETED
    else:
        raise refusal.handoff_exists(live.state.value, _age_ms(live, now))


def refuse_other_request(spec: Spec, live: Handoff, now: int) -> None:
    """Refuse the owner of a live hand-off who states another digest than it was reserved with. Raises Refusal."""
    if spec.request_digest and spec.request_digest != live.request_digest:
        raise refusal.another_request(live.state.value, _age_ms(live, now))


def _age_ms(live: Handoff, now: int) -> int:
    return max(now - live.reserved_mono, 0) // 1_000_000


def _after(spec: Spec, ended: Tombstone) -> None:
    if spec.attempt < ended.attempt:
        raise refusal.stale(ended.outcome.state)
    if spec.attempt > ended.attempt:
        return
    if ended.outcome is Outcome.COMPLETED and ended.owner != spec.owner:
        return  # rooms are used again and again
    if ended.outcome is Outcome.RESTARTED and _restarted(spec, ended.key, ended.producer):
        return
    raise outcome_refusal(ended, reading=False)


def _restarted(spec: Spec, key: Key, producer: tuple[str, int] | None) -> bool:
    """Whether this Reserve comes from a later start of the process that `producer` names."""
    if spec.producer is None or producer is None or spec.key[0] != key[0]:
        return False
    return spec.producer[0] == producer[0] and spec.producer[1] > producer[1]


def outcome_refusal(ended: Tombstone, *, reading: bool) -> Refusal:
    """What a latecomer is told of an ended attempt."""
    if ended.outcome is Outcome.COMPLETED:
        return refusal.already_consumed()
    if ended.outcome is Outcome.RESTARTED:
        return refusal.producer_restarted()
    if ended.outcome is Outcome.EXPIRED:
        if reading or ended.digest is not None:
            return refusal.expired()
        return refusal.reservation_expired()
    failure = ended.failure or Failure(500, "ABORTED", "")
    return refusal.aborted(failure.http_status, failure.reason, failure.message or f"aborted: {failure.reason}")
