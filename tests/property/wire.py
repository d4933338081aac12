"""The reference model beside a store behind a wire: `pair.Pair`, with gRPC in the place of the embedded store.

Nothing waits here: when a late answer arrives, a store behind a wire cannot be asked what it did in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.lifecycle import Failure as StoreFailure
from pd_handoff_server.lifecycle import Spec
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Published, Query, Reading, Reserved

from tests.support import requests
from tests.support.clock import FakeClock
from tests.support.failures import CallFailed
from tests.support.local import LocalStore
from tests.support.steps import Steps

from .catalogue import LEGAL, Paper
from .pair import Pair
from .reference import Reference
from .terms import SECOND, Ask, Key, Live, Times


class WireStore:
    """The calls of a `Store`, made over gRPC and answered in its terms.

    Where the store's clock is its own (not `timed`), all moments read 0, since the model's clock stands still.
    """

    def __init__(self, steps: Steps, *, timed: bool) -> None:
        self._steps = steps
        self._timed = timed
        self._epoch = steps.capabilities().store_epoch

    def facts(self) -> Any:
        """As much of the facts as comparing needs."""
        return SimpleNamespace(epoch=self._epoch, slots_free=self._steps.free)

    def reserve(self, spec: Spec, max_wait: int, done: object) -> Reserved:
        """See `Store`."""
        del max_wait, done
        answer: pb.ReserveResponse = self._call("Reserve", _reserving(spec))
        return self._reserved(answer)

    def reserve_all(self, specs: Sequence[Spec], max_wait: int, done: object) -> list[Reserved]:
        """See `Store`."""
        del max_wait, done
        request = pb.BatchReserveRequest(requests=[_reserving(spec) for spec in specs])
        return [self._reserved(each) for each in self._call("BatchReserve", request).responses]

    def put(self, key: Key, token: bytes, record: rp.HandoffRecord, done: object) -> Published:
        """See `Store`."""
        del done
        return self._published(self._call("Put", requests.put(_key(key), token, record)))

    def put_reserving(self, spec: Spec, record: rp.HandoffRecord, max_wait: int, done: object) -> Published:
        """See `Store`."""
        del max_wait, done
        reserving = _reserving(spec)
        reserving.ClearField("key")
        return self._published(self._call("Put", requests.put_once(_key(spec.key), record, reserving)))

    def get(self, query: Query, max_wait: int, done: object) -> Reading:
        """See `Store`."""
        del max_wait, done
        request = requests.get(_key(query.key), attempt=query.attempt, reader=query.reader_id, consume=query.consume)
        answer: pb.GetResponse = self._call("Get", request)
        return Reading(
            answer.record.SerializeToString(),
            answer.attempt,
            answer.store_epoch,
            reserved_wall=self._moment(answer.reserved_at),
            published_wall=self._moment(answer.published_at),
        )

    def release(self, key: Key, token: bytes, reader_id: str, done: object) -> None:
        """See `Store`."""
        del done
        self._call("Release", pb.ReleaseRequest(key=_key(key), token=token, reader_id=reader_id))

    def abort(self, key: Key, failure: StoreFailure, token: bytes, attempt: int | None, done: object) -> bool:
        """See `Store`."""
        del done
        why = pb.Failure(http_status=failure.http_status, reason=failure.reason, message=failure.message)
        return bool(self._call("Abort", requests.abort(_key(key), token=token, attempt=attempt, why=why)).ended)

    def tick(self) -> None:
        """Its timer looks by itself."""

    def _call(self, method: str, request: Any) -> Any:
        try:
            return self._steps.caller.call(method, request)
        except CallFailed as error:
            metadata = dict(error.metadata)
            if "age_ms" in metadata and not self._timed:
                metadata["age_ms"] = "0"
            raise _refusal(error, metadata) from None

    def _reserved(self, answer: pb.ReserveResponse) -> Reserved:
        return Reserved(answer.token, answer.lease.ToNanoseconds(), answer.store_epoch)

    def _published(self, answer: pb.PutResponse) -> Published:
        return Published(self._moment(answer.published_at), answer.store_epoch)

    def _moment(self, when: Timestamp) -> int:
        return when.ToNanoseconds() if self._timed else 0


class WirePair(Pair):
    """The model and a store behind a wire.

    Attributes:
        roomy: the store has settings of its own: it is never full, and what it cannot take is not tried.
    """

    def __init__(self, steps: Steps, slots: int, local: LocalStore | None) -> None:
        super().__init__(2)
        self._local = local
        self.roomy = local is None
        self.clock = FakeClock() if local is None else local.clock
        self.times = Times()
        self.store: Any = WireStore(steps, timed=local is not None)
        wall = self.clock.wall if local is not None else lambda: 0
        self.model = Reference(slots, self.times, 0, self.clock.monotonic, wall)

    def reserve(self, asks: Sequence[Ask], wait: int = 0, *, batch: bool = False) -> Any:
        """See `Pair`; without waiting."""
        del wait
        return super().reserve([self._ask(ask) for ask in asks], 0, batch=batch)

    def put(self, key: Key, token: bytes, paper: Paper) -> Any:
        """See `Pair`."""
        return super().put(key, token, self._paper(paper))

    def put_once(self, ask: Ask, paper: Paper, wait: int = 0) -> Any:
        """See `Pair`; without waiting."""
        del wait
        return super().put_once(self._ask(ask), self._paper(paper), 0)

    def get(self, key: Key, attempt: int = 0, reader: str = "r", consume: bool = True, wait: int = 0) -> Any:
        """See `Pair`; without waiting."""
        del wait
        return super().get(key, attempt, reader, consume, 0)

    def check(self) -> None:
        """As many slots are free as the model says."""
        if self._local is not None:
            self._local.advance(0)  # its timer looks, as the model does
            self.model.sweep()
            assert self.store.facts().slots_free == self.model.slots_free

    def _match_grant(self, reserved: Any, live: Live) -> None:
        if self.roomy and isinstance(reserved, Reserved):
            reserved = reserved._replace(lease=live.lease)  # its bounds are the store's own
        super()._match_grant(reserved, live)

    def _ask(self, ask: Ask) -> Ask:
        if not self.roomy:
            return ask
        return Ask(ask.key, ask.owner, ask.attempt, 60 * SECOND, ask.readers, ask.producer)

    def _paper(self, paper: Paper) -> Paper:
        return LEGAL[0] if self.roomy and paper.reason.endswith("OVERFLOW") else paper


def _key(key: Key) -> rp.HandoffKey:
    namespace, room, sample = key
    return rp.HandoffKey(namespace=namespace, room=room, sample=sample)


def _reserving(spec: Spec) -> pb.ReserveRequest:
    return requests.reserve(
        _key(spec.key),
        spec.owner,
        lease=None if spec.lease is None else spec.lease / SECOND,
        attempt=spec.attempt,
        readers=spec.expected_readers,
        producer=spec.producer,
        widths=pb.Widths(tokens=1, top_logprobs=spec.widths[1]) if spec.widths else None,
    )


def _refusal(error: CallFailed, metadata: dict[str, str]) -> Refusal:
    return Refusal(
        error.reason,
        error.message,
        metadata,
        violations=list(error.violations.items()),
        retry_after=error.retry_after,
    )
