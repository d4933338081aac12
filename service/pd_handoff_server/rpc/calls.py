"""The calls of MetadataStore, whatever transport carries them: bytes in, bytes out.

Each handler takes the serialized request and returns the serialized response, or a Parked call whose `done` gets the
response or a Refusal later; it raises Refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server import refusal
from pd_handoff_server.arena.draft import Violations
from pd_handoff_server.lifecycle.model import Handoff, Key
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Done, Reading, Store

from . import requests, wire
from .call import Answer, Call, Handler, NoteItem, Report, Wrap, parse, wrapped
from .capabilities import Describer
from .errors import INTERNAL
from .gathering import Gathering, Item
from .unread import Unread


class Calls:
    """Handlers by method name.

    Attributes:
        handlers: of the unary methods.
        sessions: how many are open.
        note_refused: see `__init__`.
    """

    def __init__(
        self,
        store: Store,
        describer: Describer,
        max_batch: int,
        wraps: Sequence[Wrap] = (),
        note_item: NoteItem | None = None,
        report: Report | None = None,
        unread: Unread | None = None,
        note_refused: NoteItem | None = None,
    ) -> None:
        """`wraps` go around each handler, the first one innermost; `note_item` is told of each item of a batch, and
        `report` of each refused one. `unread` bounds what is kept for callers that do not read. `note_refused` is told
        of what a Session refuses before it is a call."""
        self.sessions = 0
        self._note_item = note_item
        self._report = report
        self._unread = Unread() if unread is None else unread
        self.note_refused: Final = note_refused
        self._store = store
        self._describer = describer
        self._max_batch = max_batch
        self._epoch = store.facts().epoch
        handlers: dict[str, Handler] = {
            "Capabilities": self.capabilities,
            "Reserve": self.reserve,
            "Put": self.put,
            "Get": self.get,
            "Release": self.release,
            "Abort": self.abort,
            "BatchReserve": self.batch_reserve,
            "BatchPut": self.batch_put,
            "BatchGet": self.batch_get,
        }
        self.handlers: Final[dict[str, Handler]] = wrapped(handlers, wraps, self._unread)

    def capabilities(self, data: bytes, call: Call, done: Done) -> Answer:
        """Limits, or a check against them."""
        del call, done
        request = parse(pb.CapabilitiesRequest, data)
        if request.HasField("expected_schema_fingerprint"):
            self._describer.check_fingerprint(request.expected_schema_fingerprint)
        if request.HasField("required"):
            self._store.check_widths(requests.widths_of(request.required))
        return self._describer.response(self._store.facts()).SerializeToString()

    # -- Reserve -------------------------------------------------------------------------------------------------------

    def reserve(self, data: bytes, call: Call, done: Done) -> Answer:
        """One reservation."""
        request = parse(pb.ReserveRequest, data)
        if call.principal is not None:
            call.permit("Reserve", request.key.namespace)
        found: Violations = []
        spec = requests.spec_of(request, found)
        wait = requests.wait_of(request, found)
        requests.refuse(found)
        call.key, call.owner = spec.key, spec.owner
        call.weight = len(data)
        later = done
        if wait:
            wait = call.patience(wait)
            later = _then(self._reserve_bytes, done)
        answer = self._store.reserve(spec, wait, later, call)
        return self._reserve_bytes(answer) if isinstance(answer, Handoff) else answer

    def _reserve_response(self, handoff: Handoff) -> pb.ReserveResponse:
        response = pb.ReserveResponse(token=handoff.token, store_epoch=self._epoch)
        response.lease.seconds, response.lease.nanos = divmod(handoff.lease, 1_000_000_000)
        return response

    def _reserve_bytes(self, handoff: Handoff) -> bytes:
        return self._reserve_response(handoff).SerializeToString()

    def batch_reserve(self, data: bytes, call: Call, done: Done) -> Answer:
        """All or none."""
        batch = parse(pb.BatchReserveRequest, data)
        if call.principal is not None:
            for request in batch.requests:
                call.permit("Reserve", request.key.namespace)
        self._check_batch(len(batch.requests))
        found: Violations = []
        specs, waits = [], []
        for index, request in enumerate(batch.requests):
            where = f"requests[{index}]."
            specs.append(requests.spec_of(request, found, where))
            waits.append(requests.wait_of(request, found, where))
        seen: dict[Key, int] = {}
        for index, spec in enumerate(specs):
            first = seen.setdefault(spec.key, index)
            if first != index and not found:
                found.append((f"requests[{index}].key", f"is that of requests[{first}]; keys of a batch must differ"))
        requests.refuse(found)
        call.weight = len(data)
        later = _then(self._batch_reserve_bytes, done)
        answer = self._store.reserve_all(specs, call.patience(min(waits)), later, call)
        return self._batch_reserve_bytes(answer) if isinstance(answer, list) else answer

    def _batch_reserve_bytes(self, handoffs: list[Handoff]) -> bytes:
        return pb.BatchReserveResponse(responses=map(self._reserve_response, handoffs)).SerializeToString()

    # -- Put -----------------------------------------------------------------------------------------------------------

    def put(self, data: bytes, call: Call, done: Done) -> Answer:
        """One record."""
        call.weight = len(data)
        return self._put(parse(pb.PutRequest, data), call, done, "")

    def _put(self, request: pb.PutRequest, call: Call, done: Done, where: object) -> Answer:
        if call.principal is not None:
            call.permit("Put", request.key.namespace)
        found: Violations = []
        key = requests.key_of(request.key, found, where)
        call.key = key
        if not request.HasField("record"):
            found.append((f"{where}record", "is required"))
        if request.HasField("reserve"):
            return self._put_reserving(request, key, found, call, done, where)
        token = request.token
        if not token:
            found.append((f"{where}token", "is required, unless reserve is given"))
        if found:
            requests.refuse(found)
        return wire.put_response(self._store.put(key, token, request.record), self._epoch)

    def _put_reserving(
        self, request: pb.PutRequest, key: Key, found: Violations, call: Call, done: Done, where: object
    ) -> Answer:
        reserve = request.reserve
        if request.token:
            found.append((f"{where}token", "must be left out when reserve is given"))
        if reserve.HasField("key"):
            found.append((f"{where}reserve.key", "must be left out; it is that of the Put"))
        spec = requests.spec_of(reserve, found, f"{where}reserve.", key)
        wait = requests.wait_of(reserve, found, f"{where}reserve.")
        requests.refuse(found)
        call.owner = spec.owner
        later = _then(self._put_bytes, done)
        answer = self._store.put_reserving(spec, request.record, call.patience(wait), later, call)
        return self._put_bytes(answer) if isinstance(answer, int) else answer

    def _put_bytes(self, published_wall: int) -> bytes:
        return wire.put_response(published_wall, self._epoch)

    def batch_put(self, data: bytes, call: Call, done: Done) -> Answer:
        """Many records, each on its own, in order."""
        batch = parse(pb.BatchPutRequest, data)
        call.weight = len(data)
        self._check_batch(len(batch.requests))
        return self._gather("BatchPut", batch.requests, self._put, call, done)

    # -- Get -----------------------------------------------------------------------------------------------------------

    def get(self, data: bytes, call: Call, done: Done) -> Answer:
        """One record."""
        call.weight = len(data)
        return self._get(parse(pb.GetRequest, data), call, done, "")

    def _get(self, request: pb.GetRequest, call: Call, done: Done, where: object) -> Answer:
        if call.principal is not None:
            call.permit("Get", request.key.namespace)
        found: Violations = []
        key = requests.key_of(request.key, found, where)
        call.key = key
        wait = requests.wait_of(request, found, where) if request.HasField("max_wait") else 0
        consume = request.consume
        reader_id = requests.identifier(request.reader_id, "reader_id", found, required=consume, where=where)
        if found:
            requests.refuse(found)
        expected = request.expected_store_epoch
        if expected and expected != self._epoch:
            raise refusal.store_restarted(expected[:64], self._epoch)
        later = done
        if wait:
            wait = call.patience(wait)
            later = _then(self._get_bytes if consume else partial(self._late_bytes, call), done)
        answer = self._store.get(key, request.attempt, reader_id, consume, wait, later, call)
        return self._get_bytes(answer) if isinstance(answer, Reading) else answer

    def _get_bytes(self, reading: Reading) -> bytes:
        return wire.get_response(reading, self._epoch)

    def _late_bytes(self, call: Call, reading: Reading) -> bytes | Refusal:
        """The answer to a Get that has waited and consumes nothing. Thousands can wait for one record and have it all
        at once, so that their callers' shares are looked at again; whoever is refused here can read again. A consuming
        one is counted as a reader by now, and only the expected ones are: it must have its record."""
        return self._unread.over(call) or self._get_bytes(reading)

    def batch_get(self, data: bytes, call: Call, done: Done) -> Answer:
        """Many records; the answer comes when each has its answer."""
        batch = parse(pb.BatchGetRequest, data)
        call.weight = len(data)
        self._check_batch(len(batch.requests))
        return self._gather("BatchGet", batch.requests, self._get, call, done)

    # -- Release and Abort ---------------------------------------------------------------------------------------------

    def release(self, data: bytes, call: Call, done: Done) -> Answer:
        """Give a claim back."""
        del done
        request = parse(pb.ReleaseRequest, data)
        if call.principal is not None:
            call.permit("Release", request.key.namespace)
        found: Violations = []
        call.key = key = requests.key_of(request.key, found)
        if bool(request.token) == bool(request.reader_id):
            found.append(("token", "exactly one of token and reader_id is required"))
        requests.identifier(request.reader_id, "reader_id", found, required=False)
        requests.refuse(found)
        self._store.release(key, request.token, request.reader_id)
        return b""

    def abort(self, data: bytes, call: Call, done: Done) -> Answer:
        """End an attempt."""
        del done
        request = parse(pb.AbortRequest, data)
        if call.principal is not None:
            call.permit("Abort", request.key.namespace)
        found: Violations = []
        call.key = key = requests.key_of(request.key, found)
        attempt = request.attempt if request.HasField("attempt") else None
        if request.token and attempt is not None:
            found.append(("attempt", "must be left out when token is given"))
        failure = requests.failure_of(request.failure, found)
        requests.refuse(found)
        ended = self._store.abort(key, failure, request.token, attempt)
        return pb.AbortResponse(ended=ended).SerializeToString()

    # -- batches -------------------------------------------------------------------------------------------------------

    def _check_batch(self, items: int) -> None:
        if not 1 <= items <= self._max_batch:
            raise refusal.invalid(
                "INVALID_REQUEST", [("requests", f"{items} items; a batch has 1 to {self._max_batch}")]
            )

    def _gather(self, method: str, items: Any, one: Item, call: Call, done: Done) -> Answer:
        def refused(refusal_: Refusal) -> None:
            if self._report is not None:
                self._report(method, call.approach, refusal_, None)

        note = self._note_item and partial(self._note_item, method)
        return Gathering(len(items), done, refused, note, self._unread).run(items, one, call)


def _then(encode: Callable[[Any], bytes | Refusal], done: Done) -> Done:
    """A completion that encodes a result first."""

    def complete(result: Any) -> None:
        if not isinstance(result, Refusal):
            try:
                result = encode(result)
            except Exception:  # the caller must get an answer whatever happens
                result = INTERNAL
        done(result)

    return complete
