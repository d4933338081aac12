"""Contract section 5, order of refusal: form of the request, token and state, form of the record, widths, sameness."""

from __future__ import annotations

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.local import LocalStore
from tests.support.records import Token, logprobs
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

TOO_WIDE = records.with_top(129)
MALFORMED_AND_WIDE = rp.HandoffRecord(tokens=[Token(token_id=-1, top_logprobs=logprobs(129))])
FOREIGN = b"a token of nobody's"


def test_form_of_the_request_before_the_token(steps: Steps) -> None:
    with refused("INVALID_REQUEST"):
        steps.caller.call("Put", pb.PutRequest(key=requests.key(7), token=FOREIGN))
    with refused("INVALID_REQUEST"):
        steps.caller.call("Put", pb.PutRequest(token=FOREIGN, record=MALFORMED_AND_WIDE))


def test_token_before_the_form_of_the_record(steps: Steps) -> None:
    with refused("STALE_RESERVATION"):
        steps.put(7, FOREIGN, MALFORMED_AND_WIDE)


@pytest.mark.clock
def test_state_before_the_form_of_the_record(steps: Steps, store: LocalStore) -> None:
    aborted = steps.reserve(1).token
    steps.abort(1)
    with refused("HANDOFF_ABORTED"):
        steps.put(1, aborted, MALFORMED_AND_WIDE)
    expired = steps.reserve(2, lease=1).token
    store.advance(1)
    with refused("RESERVATION_EXPIRED"):
        steps.put(2, expired, MALFORMED_AND_WIDE)
    steps.reserve(3, "first")
    with refused("HANDOFF_EXISTS"):
        steps.put_once(3, MALFORMED_AND_WIDE, owner="second")


def test_form_of_the_record_before_widths(steps: Steps) -> None:
    token = steps.reserve(7).token
    with refused("INVALID_RECORD"):
        steps.put(7, token, MALFORMED_AND_WIDE)
    with refused("INVALID_RECORD"):
        steps.put_once(8, MALFORMED_AND_WIDE)


def test_widths_before_immutability(steps: Steps) -> None:
    token = steps.publish(7, records.numbered(1))
    with refused("INVALID_RECORD"):
        steps.put(7, token, MALFORMED_AND_WIDE)
    with refused("TOP_LOGPROBS_OVERFLOW"):
        steps.put(7, token, TOO_WIDE)
    with refused("RECORD_IMMUTABLE"):
        steps.put(7, token, records.numbered(2))


def test_state_before_declared_widths(steps: Steps) -> None:
    steps.reserve(7, "first")
    with refused("HANDOFF_EXISTS"):
        steps.reserve(7, "second", widths=pb.Widths(top_logprobs=129))


def test_store_epoch_after_form(steps: Steps) -> None:
    with refused("INVALID_REQUEST"):
        steps.get(7, epoch="other", consume=True)


def test_declared_widths_do_not_bind_the_put(steps: Steps) -> None:
    token = steps.reserve(7, widths=pb.Widths(tokens=1, top_logprobs=1)).token
    steps.put(7, token, records.full())
    assert steps.record(7) == records.full()


@pytest.mark.internals
def test_widths_before_free_slots(store: LocalStore, steps: Steps) -> None:
    for room in range(8):
        steps.reserve(room)
    with refused("TOP_LOGPROBS_OVERFLOW"):
        steps.reserve(9, widths=pb.Widths(top_logprobs=129))
    with refused("TOP_LOGPROBS_OVERFLOW"):
        steps.put_once(9, TOO_WIDE)
    assert store.waiting == 0
