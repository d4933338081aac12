"""Every call of the contract as steps (see `steps`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from pd_handoff._calls import batches, encoded_requests
from pd_handoff._calls import requests as _requests
from pd_handoff._calls.steps import Pause, Send, Steps
from pd_handoff._calls.waits import longest, wait_of
from pd_handoff._values.integers import shown
from pd_handoff.admin import HandoffInfo, HandoffState
from pd_handoff.capabilities import Capabilities
from pd_handoff.errors import ClientClosed, DeadlineExceeded, Draining, HandoffError, StoreUnavailable
from pd_handoff.handoff import Handoff
from pd_handoff.model import Failure, GetItem, Key, Published, Reservation, ReserveItem, Widths
from pd_handoff.record import Record
from pd_handoff.retries import Outage, Retries
from pd_handoff.v1 import admin_pb2, record_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

AnyRecord = Record | record_pb2.HandoffRecord
_LARGEST_PAGE = 1000
_PARKED_SECONDS = 0.5
"""A waiting call that lasted so long before it got no answer may have been cut by a proxy, and is looked into."""
_LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class Calls:
    """What a client is set to, and what it can ask."""

    namespace: str = ""
    timeout: float = 5.0
    retries: Retries = field(default_factory=Retries)
    producer: pb.Producer | None = None
    reader_id: str = ""
    clock: Callable[[], float] = time.monotonic
    learned: dict[str, int] = field(default_factory=dict)
    encodes: bool = False
    """Whether the transport takes `_encoded.Encoded` for a message."""

    def but(self, **changes: Any) -> Calls:
        """The same with other settings."""
        return replace(self, **changes)

    @property
    def patience(self) -> float:
        """Seconds that a call without a wait of its own can take, repetitions and all."""
        return self.timeout * 2 + self.retries.total_seconds

    def key(self, key: Key | int) -> record_pb2.HandoffKey:
        """The message of a key."""
        return _requests.key_message(key, self.namespace)

    def ask(
        self,
        method: str,
        request: Message,
        waits: Sequence[Duration] = (),
        failed: tuple[HandoffError, float] | None = None,
    ) -> Steps[Any]:
        """One call, repeated as `retries` allow. `waits` are the max_waits inside `request`, which an outage eats
        into; `failed` is how a first attempt ended that was made before, and when it began."""
        wait = longest(waits)
        outage: Outage | None = None
        while True:  # ends with the outage's budget
            if failed is None:
                began = self.clock()
                try:
                    return (yield Send(method, request, self.timeout + wait))
                except HandoffError as refused:
                    failed = refused, began
            error, began = failed
            failed = None
            outage = outage or Outage(self.retries)
            if waits and self.clock() - began >= _PARKED_SECONDS and (yield from self._was_cut(outage, error)):
                outage = Outage(self.retries)
            pause = outage.pause(error, began, self.clock())
            if pause is None:
                raise error
            yield Pause(pause)
            if waits:
                elapsed = self.clock() - began
                wait = max(wait - elapsed, 0.0)
                _requests.shorten_waits(waits, elapsed)

    def _was_cut(self, outage: Outage, error: HandoffError) -> Steps[bool]:
        """Whether a wait ended on the way, as proxies with short timeouts do it, while the store is well."""
        if not (isinstance(error, StoreUnavailable) and outage.wants(error) and self.retries.total_seconds > 0):
            return False
        try:
            yield Send("Capabilities", pb.CapabilitiesRequest(), min(self.timeout, _LOOK_SECONDS))
        except (StoreUnavailable, DeadlineExceeded, Draining, ClientClosed):
            return False
        except HandoffError:
            pass  # a refusal is an answer
        return True

    def capabilities(self, required: Widths | None, expected_schema_fingerprint: str | None) -> Steps[Capabilities]:
        """Capabilities."""
        _requests.check_type(required, Widths, "required")
        request = pb.CapabilitiesRequest(
            required=None if required is None else required.to_proto(),
            expected_schema_fingerprint=expected_schema_fingerprint,
        )
        return Capabilities.from_proto((yield from self.ask("Capabilities", request)))

    def reserve(self, key: Key | int, **options: Any) -> Steps[Reservation]:
        """Reserve."""
        request = self.reserve_request(key, **options)
        response = yield from self.ask("Reserve", request, wait_of(request))
        return _requests.reservation_of(request, response)

    def reserve_request(self, key: Key | int, **options: Any) -> pb.ReserveRequest:
        """What a Reserve sends."""
        return _requests.reserve_request(self.key(key), producer=self.producer, **options)

    def renew(self, reservation: Reservation) -> Steps[Reservation]:
        """Reserve by the same owner."""
        _requests.check_reservation(reservation, "renew")
        return self.reserve(
            reservation.key,
            owner=reservation.owner,
            widths=reservation.widths,
            lease=reservation.lease,
            expected_readers=reservation.expected_readers,
            attempt=reservation.attempt,
            max_wait=None,
            request_digest=reservation.request_digest,
        )

    def put(self, reservation: Reservation, record: AnyRecord) -> Steps[Published]:
        """Put by token."""
        return Published.from_proto((yield from self.ask("Put", self.put_request(reservation, record))))

    def put_once(self, key: Key | int, record: AnyRecord, **options: Any) -> Steps[Published]:
        """Reserve and Put in one call."""
        request = _requests.put_request(self.key(key), record)
        request.reserve.CopyFrom(_requests.reserve_request(None, producer=self.producer, **options))
        return Published.from_proto((yield from self.ask("Put", request, wait_of(request.reserve))))

    def release(self, key: Key | int, *, token: bytes = b"", reader_id: str = "") -> Steps[None]:
        """Release by token or reader."""
        yield from self.ask("Release", _requests.release_request(self.key(key), token=token, reader_id=reader_id))

    def abort(self, what: Key | int | Reservation, failure: Failure, attempt: int | None) -> Steps[bool]:
        """Abort by token, attempt, or neither."""
        if isinstance(what, Reservation):
            request = _requests.abort_request(self.key(what.key), failure, token=what.token, attempt=attempt)
        else:
            request = _requests.abort_request(self.key(what), failure, attempt=attempt)
        return bool((yield from self.ask("Abort", request)).ended)

    def get_request(
        self,
        key: Key | int,
        attempt: int,
        max_wait: float | None,
        consume: bool,
        reader_id: str | None,
        expected_store_epoch: str | None,
        request_digest: bytes | None = None,
        attachments: Iterable[str] | None = None,
    ) -> pb.GetRequest:
        """What a Get sends."""
        reader = self.reader_id if reader_id is None else reader_id
        if max_wait is None and self.encodes:
            where = encoded_requests.key(key, self.namespace)
            return cast(
                pb.GetRequest,
                encoded_requests.get(
                    where, attempt, reader, consume, expected_store_epoch, request_digest, attachments
                ),
            )
        return _requests.get_request(
            self.key(key),
            attempt=attempt,
            max_wait=max_wait,
            reader_id=reader,
            consume=consume,
            expected_store_epoch=expected_store_epoch,
            request_digest=request_digest,
            attachments=attachments,
        )

    def get(self, key: Key | int, **options: Any) -> Steps[Handoff]:
        """Get."""
        request = self.get_request(key, **options)
        return Handoff((yield from self.ask("Get", request, wait_of(request))))

    def reserve_many(
        self,
        items: Iterable[Key | int | ReserveItem],
        *,
        widths: Widths | None,
        attempt: int,
        request_digest: bytes | None = None,
        **options: Any,
    ) -> Steps[list[Reservation]]:
        """BatchReserve."""
        request = pb.BatchReserveRequest()
        add = request.requests.add
        common: pb.ReserveRequest | None = None
        for given in items:
            if isinstance(given, ReserveItem):
                which = {
                    "owner": given.owner,
                    "widths": widths if given.widths is None else given.widths,
                    "attempt": attempt if given.attempt is None else given.attempt,
                    "request_digest": request_digest if given.request_digest is None else given.request_digest,
                }
                request.requests.append(self.reserve_request(given.key, **which, **options))
                continue
            key = self.key(given)
            if common is None:
                common = _requests.reserve_request(
                    None,
                    owner="",
                    widths=widths,
                    attempt=attempt,
                    producer=self.producer,
                    request_digest=request_digest,
                    **options,
                )
            one = add(key=key, owner=_requests.new_name("owner"))
            one.MergeFrom(common)
        if not request.requests:
            return []
        waits = [wait for one in request.requests for wait in wait_of(one)]
        response = yield from self.ask("BatchReserve", request, waits)
        return [_requests.reservation_of(*pair) for pair in zip(request.requests, response.responses, strict=True)]

    def put_many(self, items: Iterable[tuple[Reservation, AnyRecord]]) -> Steps[list[Published | HandoffError]]:
        """BatchPut."""
        requests: list[pb.PutRequest] = []
        refused: dict[int, HandoffError] = {}
        for index, item in enumerate(items):
            try:
                held, record = item
            except (TypeError, ValueError):
                raise TypeError(f"items[{index}]: must be a reservation and a record, not {shown(item)}") from None
            try:
                requests.append(self.put_request(held, record))
            except HandoffError as error:
                refused[index] = error.with_traceback(None)
            except TypeError as error:
                raise TypeError(f"items[{index}]: {error}") from error
        return (yield from batches.outcomes(self, batches.PUTS, requests, refused))

    def put_request(self, reservation: Reservation, record: AnyRecord) -> pb.PutRequest:
        """What a Put by token sends. Raises TypeError for what is no reservation or no record."""
        try:
            where, token = reservation.key, reservation.token
        except AttributeError:
            raise TypeError(f"put takes a Reservation, then a Record; the first is {shown(reservation)}") from None
        if not self.encodes:
            return _requests.put_request(self.key(where), record, token)
        key = encoded_requests.key(where, self.namespace)
        return cast(pb.PutRequest, encoded_requests.put(key, token, _requests.record_message(record)))

    def put_all(self, requests: list[pb.PutRequest]) -> Steps[list[Published | HandoffError]]:
        """Put of one, BatchPut of several."""
        if len(requests) > 1:
            return (yield from batches.outcomes(self, batches.PUTS, requests))
        try:
            return [Published.from_proto((yield from self.ask("Put", requests[0])))]
        except HandoffError as error:
            return [error]

    def get_many(
        self,
        items: Iterable[Key | int | GetItem],
        *,
        attempt: int,
        max_wait: float | None,
        consume: bool,
        reader_id: str | None,
        expected_store_epoch: str | None,
        request_digest: bytes | None = None,
        attachments: Sequence[str] | None = None,
    ) -> Steps[list[Handoff | HandoffError]]:
        """BatchGet."""
        requests: list[pb.GetRequest] = []
        refused: dict[int, HandoffError] = {}
        for index, given in enumerate(items):
            key: Any = given
            which, reader, digest, names = attempt, reader_id, request_digest, attachments
            if isinstance(given, GetItem):
                key = given.key
                which = attempt if given.attempt is None else given.attempt
                reader = reader_id if given.reader_id is None else given.reader_id
                digest = request_digest if given.request_digest is None else given.request_digest
                names = attachments if given.attachments is None else given.attachments
            try:
                requests.append(
                    self.get_request(key, which, max_wait, consume, reader, expected_store_epoch, digest, names)
                )
            except HandoffError as error:
                if not refused:  # what is wrong with the call, not with this item, is raised here
                    options = (expected_store_epoch, request_digest, attachments)
                    self.get_request(0, attempt, max_wait, consume, reader_id, *options)
                refused[index] = error.with_traceback(None)
        return (yield from batches.outcomes(self, batches.GETS, requests, refused))

    def list_handoffs(
        self, namespace: str | None, states: Iterable[HandoffState], limit: int
    ) -> Steps[list[HandoffInfo]]:
        """ListHandoffs, page by page."""
        request = admin_pb2.ListHandoffsRequest(
            namespace=namespace, states=[admin_pb2.HandoffState.ValueType(state) for state in states]
        )
        found: list[HandoffInfo] = []
        while len(found) < limit:
            request.page_size = min(limit - len(found), _LARGEST_PAGE)
            response = yield from self.ask("ListHandoffs", request)
            found += [HandoffInfo.from_proto(handoff) for handoff in response.handoffs]
            if not response.next_page_token or not response.handoffs:
                break
            request.page_token = response.next_page_token
        return found

    def get_handoff(self, key: Key | int, include_record: bool) -> Steps[HandoffInfo]:
        """GetHandoff."""
        request = admin_pb2.GetHandoffRequest(key=self.key(key), include_record=include_record)
        response = yield from self.ask("GetHandoff", request)
        record = Record.from_proto(response.record) if response.HasField("record") else None
        return HandoffInfo.from_proto(response.handoff, record)
