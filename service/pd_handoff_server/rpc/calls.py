"""The calls of MetadataStore, whatever transport carries them: bytes in, bytes out.

Each handler takes the serialized request and returns the serialized response, or a Parked call whose `done` gets the
response or a Refusal later; it raises Refusal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server import refusal
from pd_handoff_server.arena.draft import Violations
from pd_handoff_server.lifecycle.model import Handoff, Key
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Done, Parked, Reading, Store

from . import requests, wire
from .capabilities import Describer
from .errors import INTERNAL, to_status
from .guard import Approach
from .principal import Principal

Answer = bytes | Parked
Handler = Callable[[bytes, "Call", Done], Answer]
Wrap = Callable[[str, Handler], Handler]
"""Puts something around the handler of a method: authorisation, metrics, traces."""
M = TypeVar("M", bound=Message)

_MARGIN = 0.1  # seconds before the caller's deadline at which it gets the reason instead


class Call:
    """What a handler knows of the call around it.

    Attributes:
        remaining: seconds to the caller's deadline, None without one.
        peer: whom the transport says the caller is.
        principal: what the caller may do; None where nobody is asked for credentials.
        approach: the call as it came in, for its metadata; None when the transport keeps none.
        key: of the hand-off, once the request is read; for events.
    """

    __slots__ = ("approach", "key", "peer", "principal", "remaining")

    def __init__(
        self,
        remaining: float | None = None,
        peer: str = "",
        principal: Principal | None = None,
        approach: Approach | None = None,
    ) -> None:
        self.remaining = remaining
        self.peer = peer
        self.principal = principal
        self.approach = approach
        self.key: Key | None = None

    def permit(self, method: str, namespace: str) -> None:
        """Raises Refusal PERMISSION_DENIED unless the caller may call the method for this namespace."""
        if self.principal is not None and not self.principal.permits(method, namespace):
            raise refusal.permission_denied()

    def patience(self, max_wait: int) -> int:
        """How long to wait, in nanoseconds: a little less than the caller does, so that it learns the reason."""
        if not max_wait or self.remaining is None:
            return max_wait
        spare = self.remaining - min(_MARGIN, self.remaining * 0.2)
        return min(max_wait, max(int(spare * 1e9), 0))


def parse(message: type[M], data: bytes) -> M:
    """Read a request. Raises Refusal INVALID_REQUEST for bytes that are none."""
    try:
        return message.FromString(data)
    except DecodeError:
        raise refusal.invalid("INVALID_REQUEST", [("request", f"is not a {message.DESCRIPTOR.name}")]) from None


def wrapped(handlers: Mapping[str, Handler], wraps: Sequence[Wrap]) -> dict[str, Handler]:
    """The handlers with these around them, the first one innermost."""
    result = dict(handlers)
    for wrap in wraps:
        result = {method: wrap(method, handler) for method, handler in result.items()}
    return result


class Calls:
    """Handlers by method name.

    Attributes:
        handlers: of the unary methods.
    """

    def __init__(self, store: Store, describer: Describer, max_batch: int, wraps: Sequence[Wrap] = ()) -> None:
        """`wraps` go around each handler, the first one innermost."""
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
        self.handlers: Final[dict[str, Handler]] = wrapped(handlers, wraps)

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
        call.key = spec.key
        answer = self._store.reserve(spec, call.patience(wait), _then(self._reserve_bytes, done))
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
        answer = self._store.reserve_all(specs, call.patience(min(waits)), _then(self._batch_reserve_bytes, done))
        return self._batch_reserve_bytes(answer) if isinstance(answer, list) else answer

    def _batch_reserve_bytes(self, handoffs: list[Handoff]) -> bytes:
        return pb.BatchReserveResponse(responses=map(self._reserve_response, handoffs)).SerializeToString()

    # -- Put -----------------------------------------------------------------------------------------------------------

    def put(self, data: bytes, call: Call, done: Done) -> Answer:
        """One record."""
        return self._put(parse(pb.PutRequest, data), call, done, "")

    def _put(self, request: pb.PutRequest, call: Call, done: Done, where: str) -> Answer:
        if call.principal is not None:
            call.permit("Put", request.key.namespace)
        found: Violations = []
        key = requests.key_of(request.key, found, f"{where}key")
        call.key = key
        if not request.HasField("record"):
            found.append((f"{where}record", "is required"))
        if request.HasField("reserve"):
            return self._put_reserving(request, key, found, call, done, where)
        if not request.token:
            found.append((f"{where}token", "is required, unless reserve is given"))
        requests.refuse(found)
        return wire.put_response(self._store.put(key, request.token, request.record), self._epoch)

    def _put_reserving(
        self, request: pb.PutRequest, key: Key, found: Violations, call: Call, done: Done, where: str
    ) -> Answer:
        reserve = request.reserve
        if request.token:
            found.append((f"{where}token", "must be left out when reserve is given"))
        if reserve.HasField("key"):
            found.append((f"{where}reserve.key", "must be left out; it is that of the Put"))
        spec = requests.spec_of(reserve, found, f"{where}reserve.", key)
        wait = requests.wait_of(reserve, found, f"{where}reserve.")
        requests.refuse(found)
        answer = self._store.put_reserving(spec, request.record, call.patience(wait), _then(self._put_bytes, done))
        return self._put_bytes(answer) if isinstance(answer, int) else answer

    def _put_bytes(self, published_wall: int) -> bytes:
        return wire.put_response(published_wall, self._epoch)

    def batch_put(self, data: bytes, call: Call, done: Done) -> Answer:
        """Many records, each on its own, in order."""
        batch = parse(pb.BatchPutRequest, data)
        self._check_batch(len(batch.requests))
        return self._gather(batch.requests, self._put, call, done)

    # -- Get -----------------------------------------------------------------------------------------------------------

    def get(self, data: bytes, call: Call, done: Done) -> Answer:
        """One record."""
        return self._get(parse(pb.GetRequest, data), call, done, "")

    def _get(self, request: pb.GetRequest, call: Call, done: Done, where: str) -> Answer:
        if call.principal is not None:
            call.permit("Get", request.key.namespace)
        found: Violations = []
        key = requests.key_of(request.key, found, f"{where}key")
        call.key = key
        wait = requests.wait_of(request, found, where)
        reader_id = requests.identifier(request.reader_id, f"{where}reader_id", found, required=request.consume)
        requests.refuse(found)
        expected = request.expected_store_epoch
        if expected and expected != self._epoch:
            raise refusal.store_restarted(expected[:64], self._epoch)
        later = _then(self._get_bytes, done)
        answer = self._store.get(key, request.attempt, reader_id, request.consume, call.patience(wait), later)
        return self._get_bytes(answer) if isinstance(answer, Reading) else answer

    def _get_bytes(self, reading: Reading) -> bytes:
        return wire.get_response(reading, self._epoch)

    def batch_get(self, data: bytes, call: Call, done: Done) -> Answer:
        """Many records; the answer comes when each has its answer."""
        batch = parse(pb.BatchGetRequest, data)
        self._check_batch(len(batch.requests))
        return self._gather(batch.requests, self._get, call, done)

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

    def _gather(self, items: Any, one: Callable[..., Answer], call: Call, done: Done) -> Answer:
        """Run each item as a call of its own. The results of both batch responses are field 1, oneof 1 or 2."""
        gathering = Gathering(len(items), done)
        for index, request in enumerate(items):
            try:
                answer = one(request, call, gathering.slot(index), f"requests[{index}].")
            except Refusal as refused:
                answer = wire.framed(2, to_status(refused).SerializeToString())
                gathering.results[index] = wire.framed(1, answer)
                continue
            except Exception:
                gathering.cancel()  # the call fails as a whole: leave no item waiting for nobody
                raise
            if isinstance(answer, bytes):
                gathering.results[index] = wire.framed(1, wire.framed(1, answer))
            else:
                gathering.parked.append(answer)
        return gathering.start()


class Gathering:
    """The answers of a batch on their way; a Parked of its own while some are missing."""

    def __init__(self, items: int, done: Done) -> None:
        self.results: list[bytes | None] = [None] * items
        self.parked: list[Parked] = []
        self._done = done
        self._started = False
        self._finished = False
        self._lock = threading.Lock()

    def slot(self, index: int) -> Done:
        """The completion of one item."""

        def complete(result: Any) -> None:
            if isinstance(result, Refusal):
                framed = wire.framed(2, to_status(result).SerializeToString())
            else:
                framed = wire.framed(1, result)
            self.results[index] = wire.framed(1, framed)
            if self._started:
                self._try_finish()

        return complete

    def start(self) -> Answer:
        """All items have been tried: the answer if it is whole, else wait for the rest."""
        if not self.parked or None not in self.results:
            self._finished = True
            return self._whole()
        self._started = True
        if None not in self.results:  # the last one came meanwhile, from another thread
            self._try_finish()
        return self

    def _whole(self) -> bytes:
        return b"".join(result for result in self.results if result is not None)

    def _try_finish(self) -> None:
        with self._lock:
            if self._finished or None in self.results:
                return
            self._finished = True
        self._done(self._whole())

    def cancel(self) -> bool:
        """Drop the items that still wait."""
        with self._lock:
            was_finished, self._finished = self._finished, True
        for parked in self.parked:
            parked.cancel()
        return not was_finished


def _then(encode: Callable[[Any], bytes], done: Done) -> Done:
    """A completion that encodes a result first."""

    def complete(result: Any) -> None:
        if not isinstance(result, Refusal):
            try:
                result = encode(result)
            except Exception:  # the caller must get an answer whatever happens
                result = INTERNAL
        done(result)

    return complete
