"""Why the store refuses a call, in its own terms; `handlers.status` turns it into a status with details.

One constructor a reason, so that the metadata that the contract (section 6) promises stands in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

OVERFLOW_PHRASE = "exceeds disaggregation metadata capacity"  # existing handlers of engines match on these words


class Refusal(Exception):  # noqa: N818 - it is an answer, not an error of ours
    """A call that was refused and changed nothing.

    Attributes:
        reason: name of an `ErrorReason` without prefix.
        message: one sentence for people that says what to do; never the contents of a record.
        metadata: what `ErrorInfo.metadata` carries.
        violations: (field path, what is wrong) pairs of a malformed request.
        key, owner: of the hand-off that the call was about, where they are known; for events, never sent.
        retry_after: seconds after which a retry makes sense, or None when it does not.
        caller: of PERMISSION_DENIED, the name of who called; for events, never sent.
        hopeless: of ARENA_FULL, that the same call can never succeed.
        quota: of ARENA_FULL, the namespace that has used up its slots, or the line of those that wait for the heap;
            None when there are no slots at all.
    """

    __slots__ = (
        "caller",
        "hopeless",
        "key",
        "message",
        "metadata",
        "owner",
        "quota",
        "reason",
        "retry_after",
        "violations",
    )

    def __init__(
        self,
        reason: str,
        message: str,
        metadata: Mapping[str, str] | None = None,
        *,
        violations: Sequence[tuple[str, str]] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after = retry_after
        self.key: tuple[str, int, int] | None = None
        self.owner = ""
        self.caller = ""
        self.quota: str | None = None
        self.hopeless = False


def overflow(field: str, requested: int, limit: int, *, token_index: int | None = None) -> Refusal:
    """A width over its limit; top logprobs have a reason of their own. `field` is the name of a field of `Widths`."""
    numbers = {"requested": str(requested), "limit": str(limit)}
    if field == "top_logprobs":
        where = "" if token_index is None else f" (tokens[{token_index}])"
        if token_index is not None:
            numbers["token_index"] = str(token_index)
        what = f"top_logprobs_num {requested} {OVERFLOW_PHRASE} {limit}{where}"
        message = f"{what}; clamp it to {limit}, or raise --max-top-logprobs"
        return Refusal("TOP_LOGPROBS_OVERFLOW", message, numbers)
    option = "--max-" + field.replace("_", "-")
    if field == "attachment_bytes":
        if not limit:
            message = f"{field} {requested} {OVERFLOW_PHRASE} 0; leave attachments out, or start the store with "
            return Refusal("FIELD_OVERFLOW", message + "--attachment-heap", {"field": field, **numbers})
        option += " and --attachment-heap"
    message = f"{field} {requested} {OVERFLOW_PHRASE} {limit}; send at most {limit}, or raise {option}"
    return Refusal("FIELD_OVERFLOW", message, {"field": field, **numbers})


def arena_full(slots_total: int, in_use: int, retry_after: float) -> Refusal:
    """No free slot."""
    return Refusal(
        "ARENA_FULL",
        f"all slots are taken ({in_use} of {slots_total}); retry later, wait with max_wait, or raise --slots",
        {"slots_total": str(slots_total), "in_use": str(in_use)},
        retry_after=retry_after,
    )


def namespace_full(namespace: str, limit: int, held: int, retry_after: float) -> Refusal:
    """A namespace holds as many slots as it may."""
    refused = Refusal(
        "ARENA_FULL",
        f"namespace {namespace!r} holds all the slots it may ({held} of {limit}); retry later, wait with max_wait, or "
        "raise its --namespace-slots",
        {"slots_total": str(limit), "in_use": str(held)},
        retry_after=retry_after,
    )
    refused.quota = namespace
    return refused


def heap_full(
    heap_total: int, heap_in_use: int, slots_total: int, in_use: int, line: str, retry_after: float
) -> Refusal:
    """Not enough free pages for attachments. `line` is where those wait that need some."""
    refused = Refusal(
        "ARENA_FULL",
        f"the heap of attachments is full ({heap_in_use} of {heap_total} bytes), or others wait for it; retry later, "
        "wait with max_wait, or raise --attachment-heap",
        {
            "slots_total": str(slots_total),
            "in_use": str(in_use),
            "heap_total": str(heap_total),
            "heap_in_use": str(heap_in_use),
        },
        retry_after=retry_after,
    )
    refused.quota = line
    return refused


def heap_never_fits(wanted: int, full: Refusal) -> Refusal:
    """More bytes of attachments at once than the heap has: nothing to wait for. `full` tells how full it is."""
    total = full.metadata["heap_total"]
    refused = Refusal(
        "ARENA_FULL",
        f"the heap of attachments has {total} bytes and this asks for {wanted} at once: waiting does not help; split "
        "the batch, or raise --attachment-heap",
        full.metadata,
        retry_after=1.0,
    )
    refused.hopeless = True
    return refused


def batch_answer_full(limit: int) -> Refusal:
    """An item of a batch whose record no longer fits the answer."""
    return Refusal(
        "TOO_MANY_WAITERS",
        f"with this record the answer would be larger than a message may be ({limit} bytes); ask for it in a call of "
        "its own, or leave attachments out",
        {"limit": str(limit)},
        retry_after=0.1,
    )


def never_fits(wanted: int, slots_total: int, in_use: int, namespace: str | None = None) -> Refusal:
    """More slots at once than there are, or with a namespace than it may hold: nothing to wait for."""
    if namespace is None:
        what = f"the store has {slots_total} slots"
        option = "--slots"
    else:
        what = f"namespace {namespace!r} may hold {slots_total} slots"
        option = "its --namespace-slots"
    refused = Refusal(
        "ARENA_FULL",
        f"{what} and this asks for {wanted} at once: waiting does not help; split the batch, or raise {option}",
        {"slots_total": str(slots_total), "in_use": str(in_use)},
        retry_after=1.0,  # every ARENA_FULL has one (contract section 6): a caller that obeys it asks no oftener
    )
    refused.hopeless = True
    return refused


def too_many_waiters(limit: int, retry_after: float = 0.1) -> Refusal:
    """More parked calls than allowed."""
    return Refusal(
        "TOO_MANY_WAITERS",
        f"{limit} calls wait already; retry later, or raise --max-waiters",
        {"limit": str(limit)},
        retry_after=retry_after,
    )


def too_many_waiting_bytes(limit: int, retry_after: float = 0.1) -> Refusal:
    """Parked calls hold more memory than allowed."""
    return Refusal(
        "TOO_MANY_WAITERS",
        f"calls that wait hold up to {limit} bytes already; retry later, or raise --max-waiting-bytes",
        {"limit": str(limit)},
        retry_after=retry_after,
    )


def too_many_unread_bytes(limit: int, retry_after: float = 0.1) -> Refusal:
    """The caller has not read enough of the answers that it was given."""
    return Refusal(
        "TOO_MANY_WAITERS",
        f"answers that are not read hold up to {limit} bytes already, too many of them this caller's; read them and "
        "retry, or raise --max-unread-bytes",
        {"limit": str(limit)},
        retry_after=retry_after,
    )


def handoff_exists(state: str, age_ms: int) -> Refusal:
    """The key is live under another owner."""
    return Refusal(
        "HANDOFF_EXISTS",
        f"this key is {state} for {age_ms} ms by another owner; choose another room, or a higher attempt",
        {"state": state, "age_ms": str(age_ms)},
    )


def another_request(state: str, age_ms: int) -> Refusal:
    """The key is live under this owner, for a request with another digest."""
    return Refusal(
        "HANDOFF_EXISTS",
        f"this key is {state} for {age_ms} ms by this owner with another request_digest; choose another room, or a "
        "higher attempt",
        {"state": state, "age_ms": str(age_ms)},
    )


def request_mismatch(state: str) -> Refusal:
    """The hand-off is of another request than the reader's. `state` is that of the hand-off."""
    return Refusal(
        "REQUEST_MISMATCH",
        f"the hand-off under this key (now {state}) is of another request: the request_digests differ; give each "
        "request a room of its own",
        {"state": state},
    )


def record_immutable() -> Refusal:
    """Another record was published before."""
    return Refusal("RECORD_IMMUTABLE", "another record was published under this token; what readers see never changes")


def stale(state: str) -> Refusal:
    """The token or attempt is not (or no longer) the current one. `state` is that of the key now."""
    return Refusal(
        "STALE_RESERVATION",
        f"this token or attempt does not own the hand-off (now {state}); drop the work",
        {"state": state},
    )


def foreign(state: str, token_epoch: str, store_epoch: str) -> Refusal:
    """The token was made by another store."""
    return Refusal(
        "STALE_RESERVATION",
        f"this token is of a store with epoch {token_epoch} and this one has {store_epoch}: it came back empty, or two "
        "stores serve behind one address; drop the work",
        {"state": state, "token_epoch": token_epoch, "store_epoch": store_epoch},
    )


def engine_unreachable(retry_after: float = 1.0) -> Refusal:
    """The engine behind a front end does not answer."""
    return Refusal(
        "ENGINE_UNREACHABLE", "the engine behind this front end does not answer; retry", retry_after=retry_after
    )


def reservation_expired() -> Refusal:
    """The lease ran out before the Put."""
    return Refusal(
        "RESERVATION_EXPIRED",
        "the lease ran out before the Put; renew with Reserve while computing, or reserve again with a higher attempt",
    )


def invalid(reason: str, violations: Sequence[tuple[str, str]]) -> Refusal:
    """A malformed request (INVALID_REQUEST) or record (INVALID_RECORD)."""
    return Refusal(reason, "; ".join(f"{field}: {what}" for field, what in violations[:8]), violations=violations)


def not_found() -> Refusal:
    """Nobody knows the key, and the call did not wait."""
    return Refusal("HANDOFF_NOT_FOUND", "no such hand-off; to wait for its Reserve and Put, set max_wait")


def not_ready(state: str) -> Refusal:
    """No record yet. `state` is NONE or RESERVED."""
    return Refusal("RECORD_NOT_READY", f"no record yet (state {state}); ask again with max_wait", {"state": state})


def aborted(http_status: int, failure_reason: str, message: str) -> Refusal:
    """The hand-off was aborted; every reader gets the producer's own words."""
    return Refusal("HANDOFF_ABORTED", message, {"http_status": str(http_status), "failure_reason": failure_reason})


def expired() -> Refusal:
    """Lease or retention ran out before it was read."""
    return Refusal("HANDOFF_EXPIRED", "the hand-off expired before it was read; prefill again with a higher attempt")


def producer_restarted() -> Refusal:
    """The producer came back with a higher epoch."""
    return Refusal("PRODUCER_RESTARTED", "the producer restarted and lost this hand-off; prefill again")


def already_consumed() -> Refusal:
    """All readers had it, and its slot was freed."""
    return Refusal("ALREADY_CONSUMED", "every expected reader has had this record and its slot was freed")


def store_restarted(expected: str, actual: str) -> Refusal:
    """Another store epoch than the reader expected."""
    return Refusal(
        "STORE_RESTARTED",
        "the store came back empty since; what it held before is gone: prefill again",
        {"expected": expected, "actual": actual},
    )


def schema_mismatch(expected: str, actual: str) -> Refusal:
    """Another schema than the caller expected."""
    return Refusal(
        "SCHEMA_MISMATCH",
        "the store speaks another schema; upgrade the older side",
        {"expected": expected, "actual": actual},
    )


def draining(retry_after: float = 1.0) -> Refusal:
    """The store starts or stops and takes nothing new."""
    return Refusal(
        "DRAINING", "the store is starting or stopping and takes nothing new; retry", retry_after=retry_after
    )


def unknown_service() -> Refusal:
    """A health check of a service that is not there; told as gRPC's own health service does."""
    return Refusal("NOT_FOUND", "")


def unauthenticated() -> Refusal:
    """No credentials, or wrong ones; nothing else is told."""
    return Refusal("UNAUTHENTICATED", "no valid credentials")


def permission_denied(caller: str = "") -> Refusal:
    """Credentials that do not allow this; nothing else is told. `caller` is for events."""
    refused = Refusal("PERMISSION_DENIED", "not permitted")
    refused.caller = caller
    return refused
