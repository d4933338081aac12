"""One table: every reason has its exception, and every exception survives what processes do to it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pd_handoff import Failure, Record, Token, errors
from pd_handoff.retries import NO_RETRIES
from pd_handoff.v1 import error_reason_pb2

from_status = errors.from_status

# (reason, code) -> class, HTTP status: contract section 6.
TABLE = {
    "TOP_LOGPROBS_OVERFLOW": ("RESOURCE_EXHAUSTED", errors.TopLogprobsOverflow, 400),
    "FIELD_OVERFLOW": ("RESOURCE_EXHAUSTED", errors.FieldOverflow, 400),
    "ARENA_FULL": ("RESOURCE_EXHAUSTED", errors.ArenaFull, 503),
    "TOO_MANY_WAITERS": ("RESOURCE_EXHAUSTED", errors.TooManyWaiters, 503),
    "HANDOFF_EXISTS": ("ALREADY_EXISTS", errors.HandoffExists, 409),
    "RECORD_IMMUTABLE": ("ALREADY_EXISTS", errors.RecordImmutable, 409),
    "STALE_RESERVATION": ("ABORTED", errors.StaleReservation, 409),
    "RESERVATION_EXPIRED": ("FAILED_PRECONDITION", errors.ReservationExpired, 504),
    "INVALID_RECORD": ("INVALID_ARGUMENT", errors.InvalidRecord, 400),
    "INVALID_REQUEST": ("INVALID_ARGUMENT", errors.InvalidRequest, 400),
    "HANDOFF_NOT_FOUND": ("NOT_FOUND", errors.HandoffNotFound, 404),
    "RECORD_NOT_READY": ("DEADLINE_EXCEEDED", errors.RecordNotReady, 504),
    "HANDOFF_ABORTED": ("ABORTED", errors.HandoffAborted, 500),
    "HANDOFF_EXPIRED": ("ABORTED", errors.HandoffExpired, 504),
    "PRODUCER_RESTARTED": ("UNAVAILABLE", errors.ProducerRestarted, 503),
    "ALREADY_CONSUMED": ("FAILED_PRECONDITION", errors.AlreadyConsumed, 409),
    "STORE_RESTARTED": ("FAILED_PRECONDITION", errors.StoreRestarted, 503),
    "SCHEMA_MISMATCH": ("FAILED_PRECONDITION", errors.SchemaMismatch, 500),
    "REQUEST_MISMATCH": ("FAILED_PRECONDITION", errors.RequestMismatch, 409),
    "ENGINE_UNREACHABLE": ("UNAVAILABLE", errors.EngineUnreachable, 503),
    "DRAINING": ("UNAVAILABLE", errors.Draining, 503),
    "INTERNAL": ("INTERNAL", errors.StoreInternalError, 500),
}


def test_every_reason_of_the_schema_is_in_the_table() -> None:
    reasons = {name.removeprefix("ERROR_REASON_") for name in error_reason_pb2.ErrorReason.keys()}  # noqa: SIM118  # no dict
    assert set(TABLE) == reasons - {"UNSPECIFIED"}


@pytest.mark.parametrize("reason", TABLE)
async def test_a_refusal_becomes_its_exception(reason: str, connect: Any, store: Any, refusal: Any) -> None:
    code, kind, http_status = TABLE[reason]
    store.script("Capabilities", refusal(code, reason, "what happened", metadata={"a": "1"}))
    client = connect("PrefillClient", retries=NO_RETRIES)
    with pytest.raises(errors.HandoffError) as caught:
        await client.capabilities()
    error = caught.value
    assert type(error) is kind
    assert (error.reason, error.code, error.http_status, str(error)) == (reason, code, http_status, "what happened")
    assert error.metadata == {"a": "1"}
    assert error.retry_after is None
    assert error.__cause__ is None


@pytest.mark.parametrize("reason", TABLE)
def test_exceptions_pickle_and_copy(reason: str, refusal: Callable[..., Any]) -> None:
    code, kind, _ = TABLE[reason]
    metadata = {"requested": "129", "limit": "128", "http_status": "418", "failure_reason": "TEAPOT"}
    error = from_status(
        refusal(code, reason, "told", metadata=metadata, retry_after=0.25, violations=(("key.room", "is missing"),))
    )
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is kind
        assert vars(twin) == vars(error)
        assert str(twin) == "told"
        assert twin.retry_after == 0.25
        assert twin.violations == (errors.Violation("key.room", "is missing"),)


def test_an_item_of_a_batch_tells_where_from_itself_on(refusal: Callable[..., Any]) -> None:
    violations = (("requests[12].record.tokens[0].token_id", "must not be negative"), ("requests", "is odd"))
    status = refusal(
        "INVALID_ARGUMENT", "INVALID_RECORD", "requests[12].record.tokens[0].token_id: must", violations=violations
    )
    error = errors.from_item(status)
    assert error.violations == (("record.tokens[0].token_id", "must not be negative"), ("requests", "is odd"))
    assert error.message == str(error) == "record.tokens[0].token_id: must"
    metadata = {"http_status": "400", "failure_reason": "BAD"}
    aborted = refusal("ABORTED", "HANDOFF_ABORTED", "see requests[12].body", metadata=metadata)
    assert errors.from_item(aborted).message == "see requests[12].body"  # its producer's own words
    assert str(copy.copy(error)) == str(pickle.loads(pickle.dumps(error))) == error.message


def test_overflow_has_its_numbers(refusal: Callable[..., Any]) -> None:
    numbers = {"requested": "129", "limit": "128", "token_index": "2"}
    error = from_status(refusal("RESOURCE_EXHAUSTED", "TOP_LOGPROBS_OVERFLOW", metadata=numbers))
    assert isinstance(error, errors.TopLogprobsOverflow)
    assert (error.requested, error.limit, error.token_index, error.http_status) == (129, 128, 2, 400)
    del numbers["token_index"]
    error = from_status(refusal("RESOURCE_EXHAUSTED", "TOP_LOGPROBS_OVERFLOW", metadata=numbers))
    assert isinstance(error, errors.TopLogprobsOverflow)
    assert error.token_index is None


def test_field_overflow_names_the_field(refusal: Callable[..., Any]) -> None:
    metadata = {"field": "hidden_state_bytes", "requested": str(2**40), "limit": "0"}
    error = from_status(refusal("RESOURCE_EXHAUSTED", "FIELD_OVERFLOW", metadata=metadata))
    assert isinstance(error, errors.FieldOverflow)
    assert (error.field, error.requested, error.limit) == ("hidden_state_bytes", 2**40, 0)


def test_an_abort_carries_the_failure_and_its_status(refusal: Callable[..., Any]) -> None:
    metadata = {"http_status": "400", "failure_reason": "INPUT_TOO_LONG"}
    error = from_status(refusal("ABORTED", "HANDOFF_ABORTED", "input too long", metadata=metadata))
    assert isinstance(error, errors.HandoffAborted)
    assert error.failure == Failure(400, "INPUT_TOO_LONG", "input too long")
    assert error.http_status == 400


def test_not_ready_tells_the_state(refusal: Callable[..., Any]) -> None:
    error = from_status(refusal("DEADLINE_EXCEEDED", "RECORD_NOT_READY", metadata={"state": "RESERVED"}))
    assert isinstance(error, errors.RecordNotReady)
    assert error.state == "RESERVED"


def test_a_reason_of_a_newer_store_is_told_as_it_is(refusal: Callable[..., Any]) -> None:
    error = from_status(refusal("UNAVAILABLE", "MOON_PHASE", "wait", metadata={"phase": "full"}))
    assert type(error) is errors.HandoffError
    assert (error.reason, error.code, error.http_status, error.metadata) == (
        "MOON_PHASE",
        "UNAVAILABLE",
        503,
        {"phase": "full"},
    )


def test_details_of_another_domain_are_not_ours(refusal: Callable[..., Any]) -> None:
    error = from_status(refusal("RESOURCE_EXHAUSTED", "ARENA_FULL", domain="other.example"))
    assert type(error) is errors.HandoffError
    assert error.reason == "RESOURCE_EXHAUSTED"


def test_damaged_details_leave_the_status(refusal: Callable[..., Any]) -> None:
    status = refusal("ABORTED", "HANDOFF_ABORTED", "gone")
    status.details[0].value = b"\xff\xff\xff"
    error = from_status(status)
    assert (error.code, error.message) == ("ABORTED", "gone")


def test_an_unknown_code_is_unknown(refusal: Callable[..., Any]) -> None:
    status = refusal("ABORTED")
    status.code = 999
    assert from_status(status).code == "UNKNOWN"


@pytest.mark.parametrize(
    ("code", "kind", "http_status"),
    [
        ("UNAVAILABLE", errors.StoreUnavailable, 503),
        ("CANCELLED", errors.StoreUnavailable, 503),
        ("DEADLINE_EXCEEDED", errors.DeadlineExceeded, 504),
        ("UNAUTHENTICATED", errors.Unauthenticated, 500),
        ("PERMISSION_DENIED", errors.PermissionDenied, 500),
        ("UNIMPLEMENTED", errors.NotAStore, 500),
        ("UNKNOWN", errors.HandoffError, 500),
        ("RESOURCE_EXHAUSTED", errors.HandoffError, 503),
    ],
)
async def test_statuses_without_our_details(
    code: str, kind: type[errors.HandoffError], http_status: int, connect: Any, store: Any, refusal: Any
) -> None:
    store.script("Capabilities", refusal(code, message="by convention"))
    client = connect("DecodeClient", retries=NO_RETRIES)
    with pytest.raises(errors.HandoffError) as caught:
        await client.capabilities()
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.http_status) == (code, http_status)


async def test_a_message_too_large_for_the_connection(connect: Any, store: Any) -> None:
    store.script("Put", None)
    client = connect("PrefillClient", retries=NO_RETRIES)
    large = bytes(5 << 20)  # the scripted store has gRPC's own limit of 4 MiB
    with pytest.raises(errors.MessageTooLarge) as caught:
        await client.put_once(1, Record(tokens=[Token(1)], customized_info=large))
    assert caught.value.http_status == 413
    assert store.calls == []


async def test_nobody_listens(connect: Any, tmp_path: Any) -> None:
    client = connect("DecodeClient", target=f"unix:{tmp_path}/nobody", retries=NO_RETRIES)
    with pytest.raises(errors.StoreUnavailable) as caught:
        await client.get(1)
    assert "nobody" in str(caught.value)
    assert caught.value.http_status == 503


def test_local_refusals_are_value_errors() -> None:
    assert isinstance(errors.invalid_record("tokens", "bad"), ValueError)
    assert errors.invalid_request("key", "bad").http_status == 400


def test_a_subclass_of_ones_own_keeps_the_row() -> None:
    class Mine(errors.ArenaFull):
        pass

    assert (Mine("full").reason, Mine("full").http_status) == ("ARENA_FULL", 503)
