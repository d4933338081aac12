"""The calls of MetadataStore, whatever transport carries them: bytes in, bytes out.

Each handler takes the serialized request and returns the serialized response, or a Parked call whose `done` gets the
response or a Refusal later; it raises Refusal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server import parser, refusal
from pd_handoff_server.arena.layout import Layout
from pd_handoff_server.arena.packed_record import Draft, Violations
from pd_handoff_server.lifecycle.model import Key, Spec
from pd_handoff_server.parser import Reader
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import (
    Content,
    Delivery,
    Done,
    Published,
    Query,
    Reading,
    Ready,
    Reserved,
    Store,
)

from . import requests, responses
from .batch import Gathering, Item, Owed, Slot
from .call import Answer, Call, Handler, NoteItem, Report, Wrap, finish, parse, wrapped
from .capabilities import SCHEMA_FINGERPRINT, Describer
from .send_budget import Unread
from .status import INTERNAL

_tuple = tuple.__new__  # makes a NamedTuple in half the time of its own constructor

Ask = Callable[[Query, int, Call, Done], Answer | Owed]
"""What is done with a Get that was read: the query, how long to wait in nanoseconds, the call."""


class Calls:
    """Handlers by method name.

    Attributes:
        handlers: of the unary methods.
        reader: of requests.
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
        reader: Reader | None = None,
    ) -> None:
        """`wraps` go around each handler, the first one innermost; `note_item` is told of each item of a batch, and
        `report` of each refused one. `unread` bounds what is kept for callers that do not read. `note_refused` is told
        of what a Session refuses before it is a call. `reader` sees each request before Python does; None: the one in
        C, where it was built."""
        self.sessions = 0
        self._note_item = note_item
        self._report = report
        self._unread = Unread() if unread is None else unread
        self.note_refused: Final = note_refused
        self._store = store
        self._describer = describer
        self._max_batch = max_batch
        facts = store.facts()
        self.reader: Final = parser.load(SCHEMA_FINGERPRINT) if reader is None else reader
        self._answers = responses.Answers(self.reader)
        layout = Layout(facts.limits)
        self._heap = facts.heap_bytes > 0
        self._limits = struct.pack("=12Q", *layout.widths, layout.image_bytes)
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
        call.weight = len(data)
        read = self.reader.reserve(data)
        if read is not None:
            spec, wait = Spec(*read[0]), read[1]
            if call.principal is not None:
                call.permit("Reserve", spec.key[0])
            return self._reserve(spec, wait, call, done)
        request = parse(pb.ReserveRequest, data)
        if call.principal is not None:
            call.permit("Reserve", request.key.namespace)
        found: Violations = []
        spec = requests.spec_of(request, found)
        wait = requests.wait_of(request, found)
        requests.refuse(found)
        return self._reserve(spec, wait, call, done)

    def _reserve(self, spec: Spec, wait: int, call: Call, done: Done) -> Answer:
        call.key, call.owner = spec.key, spec.owner
        encode = self._answers.reserve
        answer = self._store.reserve(spec, wait and call.patience(wait), partial(finish, encode, done), call)
        return encode(answer) if answer.__class__ is Reserved else answer  # type: ignore[return-value]

    def batch_reserve(self, data: bytes, call: Call, done: Done) -> Answer:
        """All or none."""
        call.weight = len(data)
        read = self.reader.reserve_all(data)
        if read is None:
            specs, waits = self._read_reserves(data, call)
        else:
            specs, waits = [Spec(*spec) for spec, _ in read], [wait for _, wait in read]
            if call.principal is not None:
                for spec in specs:
                    call.permit("Reserve", spec.key[0])
            self._check_batch(len(specs))
        seen: dict[Key, int] = {}
        for index, spec in enumerate(specs):
            first = seen.setdefault(spec.key, index)
            if first != index:
                what = f"is that of requests[{first}]; keys of a batch must differ"
                requests.refuse([(f"requests[{index}].key", what)])
        later = partial(finish, self._batch_reserve_bytes, done)
        answer = self._store.reserve_all(specs, call.patience(min(waits)), later, call)
        return self._batch_reserve_bytes(answer) if isinstance(answer, list) else answer

    def _read_reserves(self, data: bytes, call: Call) -> tuple[list[Spec], list[int]]:
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
        requests.refuse(found)
        return specs, waits

    def _batch_reserve_bytes(self, all_reserved: list[Reserved]) -> bytes:
        return b"".join([responses.framed(1, self._answers.reserve(reserved)) for reserved in all_reserved])

    # -- Put -----------------------------------------------------------------------------------------------------------

    def put(self, data: bytes, call: Call, done: Done) -> Answer:
        """One record."""
        call.weight = len(data)
        read = self.reader.put(data, self._limits)
        if read is not None:
            return self._put_read(read, call, done, "")
        return self._put(parse(pb.PutRequest, data), call, done, "")

    def _put_read(self, read: Any, call: Call, done: Done, where: object) -> Answer:
        del where
        key, token, image, presence, widths, reserve = read
        if call.principal is not None:
            call.permit("Put", key[0])
        call.key = key
        draft = Draft(image, presence, widths)
        if reserve is not None:
            return self._put_reserving(Spec(*reserve[0]), reserve[1], draft, call, done)
        return self._put_by_token(key, token, draft, done)

    def _put(self, request: pb.PutRequest, call: Call, done: Done, where: object) -> Answer:
        if call.principal is not None:
            call.permit("Put", request.key.namespace)
        found: Violations = []
        key = requests.key_of(request.key, found, where)
        call.key = key
        if not request.HasField("record"):
            found.append((f"{where}record", "is required"))
        if request.HasField("reserve"):
            if request.token:
                found.append((f"{where}token", "must be left out when reserve is given"))
            if request.reserve.HasField("key"):
                found.append((f"{where}reserve.key", "must be left out; it is that of the Put"))
            spec = requests.spec_of(request.reserve, found, f"{where}reserve.", key)
            wait = requests.wait_of(request.reserve, found, f"{where}reserve.")
            requests.refuse(found)
            return self._put_reserving(spec, wait, request.record, call, done)
        token = request.token
        if not token:
            found.append((f"{where}token", "is required, unless reserve is given"))
        if found:
            requests.refuse(found)
        return self._put_by_token(key, token, request.record, done)

    def _put_by_token(self, key: Key, token: bytes, record: Content, done: Done) -> Answer:
        encode = self._answers.put
        answer = self._store.put(key, token, record, partial(finish, encode, done))
        return encode(answer) if answer.__class__ is Published else answer  # type: ignore[return-value]

    def _put_reserving(self, spec: Spec, wait: int, record: Content, call: Call, done: Done) -> Answer:
        call.owner = spec.owner
        encode = self._answers.put
        answer = self._store.put_reserving(spec, record, call.patience(wait), partial(finish, encode, done), call)
        return encode(answer) if isinstance(answer, Published) else answer

    def batch_put(self, data: bytes, call: Call, done: Done) -> Answer:
        """Many records, each on its own, in order."""
        call.weight = len(data)
        read = self.reader.put_all(data, self._limits)
        items, one = (parse(pb.BatchPutRequest, data).requests, self._put) if read is None else (read, self._put_read)
        return self._gather("BatchPut", items, one, call, done)

    # -- Get -----------------------------------------------------------------------------------------------------------

    def get(self, data: bytes, call: Call, done: Done) -> Answer:
        """One record."""
        call.weight = len(data)
        read = self.reader.get(data)
        if read is not None:
            return self._get_read(self._ask, read, call, done)  # type: ignore[return-value]  # nothing is owed
        return self._get(self._ask, parse(pb.GetRequest, data), call, done)  # type: ignore[return-value]

    def _get_read(self, ask: Ask, read: Any, call: Call, done: Done, where: object = "") -> Answer | Owed:
        del where
        key, attempt, wait, reader_id, consume, expected, digest = read
        if call.principal is not None:
            call.permit("Get", key[0])
        call.key = key
        return ask(_tuple(Query, (key, attempt, reader_id, consume, expected, digest, None, None)), wait, call, done)

    def _get(self, ask: Ask, request: pb.GetRequest, call: Call, done: Done, where: object = "") -> Answer | Owed:
        if call.principal is not None:
            call.permit("Get", request.key.namespace)
        found: Violations = []
        key = requests.key_of(request.key, found, where)
        call.key = key
        wait = requests.wait_of(request, found, where) if request.HasField("max_wait") else 0
        consume = request.consume
        reader_id = requests.identifier(request.reader_id, "reader_id", found, required=consume, where=where)
        digest = requests.digest_of(request.request_digest, found, where)
        wanted = requests.selection_of(request, found, where)
        if found:
            requests.refuse(found)
        query = Query(key, request.attempt, reader_id, consume, request.expected_store_epoch, digest, wanted)
        return ask(query, wait, call, done)

    def _ask(self, query: Query, wait: int, call: Call, done: Done) -> Answer:
        if self._heap and isinstance(done, Slot):
            query = query._replace(room=done.has_room)
        encode = self._answers.get
        if wait:
            later = _Delivery(encode, self._unread, call, done)
            answer = self._store.get(query, call.patience(wait), later, call)
        else:
            answer = self._store.get(query, 0, partial(finish, encode, done), call)
        return encode(answer) if answer.__class__ is Reading else answer  # type: ignore[return-value]

    def batch_get(self, data: bytes, call: Call, done: Done) -> Answer:
        """Many records. The answer comes when each item has its own, and only then are readers counted."""
        call.weight = len(data)
        read = self.reader.get_all(data)
        if read is None:
            requested = parse(pb.BatchGetRequest, data).requests
            waits = any(request.HasField("max_wait") for request in requested)
            one: Item = partial(self._get, self._await if waits else self._ask)
            return self._gather("BatchGet", requested, one, call, done)
        waits = any(item[2] for item in read)
        return self._gather("BatchGet", read, partial(self._get_read, self._await if waits else self._ask), call, done)

    def _await(self, query: Query, wait: int, call: Call, done: Done) -> Answer | Owed:
        """An item of a batch that may wait: it is read, and its reader counted, when all others can be."""
        owed = Owed(partial(self._ask, query, 0, call))
        if isinstance(done, Slot):
            done.owed = owed
        answer = self._store.await_record(query, call.patience(wait), done, call)
        return owed if isinstance(answer, Ready) else answer

    # -- Release and Abort ---------------------------------------------------------------------------------------------

    def release(self, data: bytes, call: Call, done: Done) -> Answer:
        """Give a claim back."""
        request = parse(pb.ReleaseRequest, data)
        if call.principal is not None:
            call.permit("Release", request.key.namespace)
        found: Violations = []
        call.key = key = requests.key_of(request.key, found)
        if bool(request.token) == bool(request.reader_id):
            found.append(("token", "exactly one of token and reader_id is required"))
        requests.identifier(request.reader_id, "reader_id", found, required=False)
        requests.refuse(found)
        answer = self._store.release(key, request.token, request.reader_id, partial(finish, _released, done))
        return b"" if answer is None else answer

    def abort(self, data: bytes, call: Call, done: Done) -> Answer:
        """End an attempt."""
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
        answer = self._store.abort(key, failure, request.token, attempt, partial(finish, _aborted, done))
        return _aborted(answer) if isinstance(answer, bool) else answer

    # -- batches -------------------------------------------------------------------------------------------------------

    def _check_batch(self, items: int) -> None:
        if not 1 <= items <= self._max_batch:
            raise refusal.invalid(
                "INVALID_REQUEST", [("requests", f"{items} items; a batch has 1 to {self._max_batch}")]
            )

    def _gather(self, method: str, items: Any, one: Item, call: Call, done: Done) -> Answer:
        self._check_batch(len(items))

        def refused(refusal_: Refusal, error: BaseException | None) -> None:
            if self._report is not None:
                self._report(method, call.approach, refusal_, error)

        note = self._note_item and partial(self._note_item, method)
        gathering = Gathering(len(items), done, refused, note, self._unread, self._describer.max_message)
        return gathering.run(items, one, call, self._store.together())


class _Delivery(Delivery):
    """Brings a record to a Get. Thousands may wait for one record and have it all at once."""

    __slots__ = ("_call", "_done", "_encode", "_kept", "_unread")

    def __init__(self, encode: Callable[[Reading], bytes], unread: Unread, call: Call, done: Done) -> None:
        self._encode = encode
        self._unread = unread
        self._call = call
        self._done = done
        self._kept = 0

    def turn_away(self, size: int) -> Refusal | None:
        """See `Delivery`. The caller's share is looked at again, since its call has waited."""
        refused = self._unread.over(self._call)
        if refused is None:
            self._kept = size
            self._unread.hold_more(self._call, size)
        return refused

    def __call__(self, result: Any) -> None:
        """See `Delivery`."""
        if not isinstance(result, Refusal):
            try:
                result = self._encode(result)
            except Exception:  # the caller must get an answer whatever happens
                result = INTERNAL
        if self._kept:
            self._unread.hold_more(self._call, -self._kept)  # from here on the transport counts it
        self._done(result)


def _released(_: None) -> bytes:
    return b""


def _aborted(ended: bool) -> bytes:
    return pb.AbortResponse(ended=ended).SerializeToString()
