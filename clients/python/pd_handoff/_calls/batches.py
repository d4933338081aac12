"""Many items in as many batches as it takes. What was answered is never lost: it may be a reader's only copy.

So a failure of the whole is raised only while nothing has been answered yet; from then on it is the outcome of each
item that it left without one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from google.protobuf.message import Message

from pd_handoff import errors
from pd_handoff._calls import encoded_requests
from pd_handoff._calls import requests as _requests
from pd_handoff._calls.steps import Pause, Steps
from pd_handoff._calls.waits import wait_of
from pd_handoff.errors import HandoffError, from_item
from pd_handoff.handoff import Handoff
from pd_handoff.model import Published
from pd_handoff.retries import Outage
from pd_handoff.v1 import metadata_store_pb2 as pb

if TYPE_CHECKING:
    from pd_handoff._calls.calls import Calls

_SURE_BATCH = 32
"""Items of a batch that are sent without asking first how many the store takes."""
_OF_ALL = (
    errors.StoreUnavailable,
    errors.DeadlineExceeded,
    errors.Draining,
    errors.ClientClosed,
    errors.Unauthenticated,
    errors.PermissionDenied,
    errors.NotAStore,
)
"""What the next batch would meet, too, some of them after its whole timeout or all its retries."""


class Batch(NamedTuple):
    """A batch call: its name, its message, and what becomes of an item's answer."""

    method: str
    request: Callable[..., Any]
    made: Callable[[Any], Any]


PUTS = Batch("BatchPut", pb.BatchPutRequest, Published.from_proto)
GETS = Batch("BatchGet", pb.BatchGetRequest, Handoff)


def outcomes(
    calls: Calls, batch: Batch, requests: list[Any], refused: dict[int, HandoffError] | None = None
) -> Steps[list[Any]]:
    """Of each its answer or failure. `refused` are those that could not be made into requests: the place among all ->
    why, in order.

    One batch after the other; what an earlier one waited is taken off the waits of the later ones."""
    answers: list[Any] = []
    size, began = len(requests), calls.clock()
    if size > _SURE_BATCH:
        size = calls.learned.get("max_batch", 0) or (yield from _learn(calls))
    while len(answers) < len(requests):  # each turn answers some, or makes batches smaller
        part = requests[len(answers) : len(answers) + size]
        if answers:
            for request in part:
                _requests.shorten_waits(wait_of(request), calls.clock() - began)
        found: list[Any] = []
        failed: HandoffError | None
        over = False
        try:
            found, failed = yield from _each(calls, batch, part)
        except HandoffError as error:
            failed = error
        if failed is not None and not found:  # as a whole
            if _too_many(failed):
                try:
                    size = yield from _learn(calls)
                except HandoffError as error:
                    failed, over = error, True
                else:
                    if size < len(part):
                        continue
            if isinstance(failed, errors.MessageTooLarge) and len(part) > 1:
                size = len(part) // 2  # a proxy on the way takes less than the store
                continue
            if not answers:
                raise failed
            found = _each_its_own(failed, len(part))
        answers += found
        if failed is not None and (over or isinstance(failed, _OF_ALL) or Outage(calls.retries).wants(failed)):
            answers += _each_its_own(failed, len(requests) - len(answers))
    for place, unfit in (refused or {}).items():
        answers.insert(place, unfit)
    return answers


def _too_many(error: HandoffError) -> bool:
    return isinstance(error, errors.InvalidRequest) and any(one.field == "requests" for one in error.violations)


def _each_its_own(failed: HandoffError, count: int) -> list[Any]:
    """Instances of their own: whoever raises one writes its traceback into it."""
    return [copy.copy(failed) for _ in range(count)]


def _learn(calls: Calls) -> Steps[int]:
    """How many items a batch may have, as the store says now."""
    size = max((yield from calls.capabilities(None, None)).max_batch, 1)
    calls.learned["max_batch"] = size
    return size


def _each(calls: Calls, batch: Batch, requests: list[Any]) -> Steps[tuple[list[Any], HandoffError | None]]:
    """A batch whose items succeed or fail alone; items that a retry can help (a drain woke them) are asked again.
    Beside the answers: what a repetition failed of as a whole. Raises that while no item has its answer."""
    answers: list[Any] = [None] * len(requests)
    pending = list(range(len(requests)))
    outage = Outage(calls.retries)
    while pending:  # ends with the outage's budget
        began = calls.clock()
        part = [requests[index] for index in pending]
        if isinstance(part[0], encoded_requests.Encoded):
            message, waits = cast(Message, encoded_requests.batch(part)), []
        else:
            message = batch.request(requests=part)
            waits = [wait for one in message.requests for wait in wait_of(one)]
        try:
            response = yield from calls.ask(batch.method, message, waits)
        except HandoffError as failed:
            if len(pending) == len(requests):
                raise
            for index, its_own in zip(pending, _each_its_own(failed, len(pending)), strict=True):
                answers[index] = its_own
            return answers, failed
        again, last = [], None
        for index, result in zip(pending, response.results, strict=True):
            if result.HasField("response"):
                answers[index] = batch.made(result.response)
                continue
            answers[index] = refused = from_item(result.error)
            if outage.wants(refused):
                again.append(index)
                last = refused
        pause = None if last is None else outage.pause(last, began, calls.clock())
        if pause is None:
            break
        yield Pause(pause)
        pending, elapsed = again, calls.clock() - began
        for index in pending:
            _requests.shorten_waits(wait_of(requests[index]), elapsed)
    return answers, None
