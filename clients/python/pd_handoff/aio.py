"""The clients of `pd_handoff.client` for asyncio. Share one an event loop: it belongs to the loop of its first call,
and raises RuntimeError in another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pd_handoff._calls import steps as _steps
from pd_handoff._calls.base_client import BaseClient
from pd_handoff._calls.calls import AnyRecord
from pd_handoff._calls.prefill import OnAbort, Prefill
from pd_handoff._calls.put_soon import AsyncSoon
from pd_handoff._calls.requests import check_reservation, reservation_of
from pd_handoff._calls.waits import longest, wait_of
from pd_handoff._transport import channel
from pd_handoff._transport.session_aio import AsyncSessionTransport
from pd_handoff._transport.session_policy import SessionMode
from pd_handoff._transport.transports import AsyncTransport, GrpcAioTransport
from pd_handoff.admin import HandoffInfo, HandoffState
from pd_handoff.capabilities import Capabilities
from pd_handoff.errors import HandoffError
from pd_handoff.handoff import Handoff
from pd_handoff.model import Failure, GetItem, Key, Published, Reservation, ReserveItem, Widths

if TYPE_CHECKING:
    import grpc
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.message import Message
    from typing_extensions import Self

T = TypeVar("T")


class _Client(BaseClient[AsyncTransport]):
    def _connect(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: channel.CallMetadata,
        options: Iterable[channel.Option],
        session: SessionMode,
    ) -> AsyncTransport:
        if session == "never":
            return GrpcAioTransport(target, credentials, metadata, options)
        return AsyncSessionTransport(target, credentials, metadata, options, session)

    async def _ask(self, method: str, request: Message, waits: Sequence[Duration] = ()) -> Any:
        # The first attempt without steps: what happens to nearly every call is what should cost the least.
        calls = self._calls
        began = calls.clock()
        try:
            timeout = calls.timeout + longest(waits) if waits else calls.timeout
            return await self._transport.call(method, request, timeout)
        except HandoffError as error:
            failed = error, began
        return await self._run(calls.ask(method, request, waits, failed))

    async def _run(self, steps: _steps.Steps[T]) -> T:
        return await _steps.arun(steps, self._transport.call, asyncio.sleep)

    async def capabilities(
        self, *, required: Widths | None = None, expected_schema_fingerprint: str | None = None
    ) -> Capabilities:
        """What the store takes. With `required`, the store itself raises TopLogprobsOverflow or FieldOverflow; with a
        fingerprint, SchemaMismatch."""
        return await self._run(self._calls.capabilities(required, expected_schema_fingerprint))

    async def close(self) -> None:
        """Closes the connection; calls under way end with ClientClosed. In a forked process it does nothing: the
        connection is its parent's, and nothing answers there."""
        if os.getpid() == self._process:
            await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _HandoffClient(_Client):
    async def abort(
        self, what: Key | int | Reservation, failure: Failure | None = None, *, attempt: int | None = None
    ) -> bool:
        """Ends a hand-off for everyone, in any state, also before its Reserve. With a key and no attempt: whatever
        attempt is live. Returns True when this call ended it (False also when a repetition after a lost answer did).

        Raises StaleReservation for a reservation that was never this key's."""
        return await self._run(self._calls.abort(what, failure or Failure(), attempt))


class PrefillClient(_HandoffClient):
    """The producer's side."""

    def _begin(self) -> None:
        self._soon = AsyncSoon(lambda requests: self._run(self._calls.put_all(requests)), self._soon_delay)

    async def reserve(
        self,
        key: Key | int,
        *,
        owner: str | None = None,
        widths: Widths | None = None,
        lease: float | None = None,
        expected_readers: int = 1,
        attempt: int = 0,
        max_wait: float | None = None,
        request_digest: bytes | None = None,
    ) -> Reservation:
        """Claims a slot before the prefill. `lease` and `max_wait` (for a free slot) in seconds; `owner` is made up
        when None. `request_digest` (up to 32 bytes, see `digest_of_prompt`) ties the record to one request: a Get that
        states another one raises RequestMismatch.

        Raises TopLogprobsOverflow, FieldOverflow, ArenaFull, TooManyWaiters, HandoffExists, StaleReservation,
        ProducerRestarted, InvalidRequest, or the outcome of an attempt that has ended."""
        request = self._calls.reserve_request(
            key,
            owner=owner,
            widths=widths,
            lease=lease,
            expected_readers=expected_readers,
            attempt=attempt,
            max_wait=max_wait,
            request_digest=request_digest,
        )
        return reservation_of(request, await self._ask("Reserve", request, wait_of(request)))

    async def renew(self, reservation: Reservation) -> Reservation:
        """Renews the lease. Use the reservation that it returns: a store that came back empty gives a new token. Raises
        as reserve does."""
        return await self._run(self._calls.renew(reservation))

    async def put(self, reservation: Reservation, record: AnyRecord) -> Published:
        """Publishes the record, whole or not at all; a refused one can be mended and put again.

        Raises TopLogprobsOverflow, FieldOverflow, InvalidRecord, RecordImmutable, StaleReservation, ReservationExpired,
        HandoffAborted; TypeError for what is no reservation or no record."""
        return Published.from_proto(await self._ask("Put", self._calls.put_request(reservation, record)))

    async def put_once(
        self,
        key: Key | int,
        record: AnyRecord,
        *,
        owner: str | None = None,
        widths: Widths | None = None,
        lease: float | None = None,
        expected_readers: int = 1,
        attempt: int = 0,
        max_wait: float | None = None,
        request_digest: bytes | None = None,
    ) -> Published:
        """Reserve and put in one call; refused, it leaves no reservation. Raises as both do."""
        return await self._run(
            self._calls.put_once(
                key,
                record,
                owner=owner,
                widths=widths,
                lease=lease,
                expected_readers=expected_readers,
                attempt=attempt,
                max_wait=max_wait,
                request_digest=request_digest,
            )
        )

    async def release(self, reservation: Reservation) -> None:
        """Gives the slot back: what was not published ends (readers see HandoffAborted, RELEASED), a published record
        stays for its readers. Can be repeated. Raises StaleReservation for a reservation that was never this key's."""
        check_reservation(reservation, "release")
        await self._run(self._calls.release(reservation.key, token=reservation.token))

    async def reserve_many(
        self,
        items: Iterable[Key | int | ReserveItem],
        *,
        widths: Widths | None = None,
        lease: float | None = None,
        expected_readers: int = 1,
        attempt: int = 0,
        max_wait: float | None = None,
        request_digest: bytes | None = None,
    ) -> list[Reservation]:
        """Reserves all or none, in order; up to the store's max_batch. Raises as reserve does, for the first that is
        refused."""
        return await self._run(
            self._calls.reserve_many(
                items,
                widths=widths,
                lease=lease,
                expected_readers=expected_readers,
                attempt=attempt,
                max_wait=max_wait,
                request_digest=request_digest,
            )
        )

    def put_soon(self, reservation: Reservation, record: AnyRecord) -> asyncio.Future[Published]:
        """Puts without waiting: the record leaves in the background, together with others that come at about the same
        time. It is kept back at most `put_soon_delay` seconds (64 together go at
        once). The record is read before this returns, so its arrays may be used again. Whatever `put` would
        raise for the record is the future's exception. `close` sends what is left.

        Not a coroutine. Raises ClientClosed; TypeError for what is no reservation or no record."""
        try:
            request = self._calls.put_request(reservation, record)
        except HandoffError as error:
            refused: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused
        return self._soon.add(request)

    async def close(self) -> None:
        """Sends what `put_soon` still keeps, then closes the connection; other calls under way end with
        ClientClosed."""
        if os.getpid() == self._process:
            await self._soon.close(self._calls.patience)
        await super().close()

    async def put_many(self, items: Iterable[tuple[Reservation, AnyRecord]]) -> list[Published | HandoffError]:
        """Puts many; each succeeds or fails alone, in order: an InvalidRecord, too, is the outcome of its item alone.
        More than the store takes at a time go as several batches, one after the other. Once something was answered, a
        failure of a whole batch is the outcome of each of its items, and of all after it, unsent, when it is one that
        they would meet, too (no answer, draining, closed, no permission).

        Raises the failure while nothing was answered yet; TypeError, before anything is sent, for what is no
        reservation or no record (`items[1]: ...`)."""
        return await self._run(self._calls.put_many(items))

    def prefill(
        self,
        key: Key | int,
        *,
        owner: str | None = None,
        widths: Widths | None = None,
        lease: float | None = None,
        expected_readers: int = 1,
        attempt: int = 0,
        max_wait: float | None = None,
        request_digest: bytes | None = None,
        on_abort: OnAbort | None = None,
    ) -> PrefillHandoff:
        """An async context manager around the computation: reserves on entry (raising as reserve does), renews in the
        background, and on leaving without a put, or by an exception, aborts so that readers learn it at once. An entry
        that can never succeed aborts its attempt, too. After a successful put, leaving changes nothing.

        `on_abort` is called once, in the event loop, when the other side ended the hand-off, with the error: within a
        round trip of an abort (see `PrefillHandoff.aborted`)."""
        return PrefillHandoff(
            self,
            key,
            owner=owner,
            widths=widths,
            lease=lease,
            expected_readers=expected_readers,
            attempt=attempt,
            max_wait=max_wait,
            request_digest=request_digest,
            on_abort=on_abort,
        )


class PrefillHandoff(Prefill):
    """What `PrefillClient.prefill` gives."""

    def __init__(
        self, client: PrefillClient, key: Key | int, *, on_abort: OnAbort | None = None, **options: object
    ) -> None:
        super().__init__(client._calls, key, options, on_abort)
        self._client = client
        self._renewal: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None

    async def put(self, record: AnyRecord) -> Published:
        """Publishes the record; the lease needs no renewal from then on. Raises `lost` when a renewal was refused, else
        as PrefillClient.put does."""
        published = await self._client._run(self._put(record))
        await self._end_renewal()
        return published

    async def abort(self, failure: Failure) -> bool:
        """Ends the hand-off with a failure of one's own; nothing more is sent on leaving."""
        ended = await self._client._run(self._abort(failure))
        await self._end_renewal()
        return ended

    async def __aenter__(self) -> Self:
        await self._client._run(self._begin())
        self._renewal = asyncio.create_task(self._client._run(self._keep()), name="pd-handoff-renewal")
        if self._watched:
            self._start_watch()
        return self

    def _start_watch(self) -> None:
        self._watch_task = asyncio.create_task(self._client._run(self._watch()), name="pd-handoff-watch")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._client._run(self._finish(error))
        except Exception:
            if error is None:  # else the caller sees what they raised
                raise
        finally:
            await self._end_renewal()

    async def _end_renewal(self) -> None:
        tasks = [task for task in (self._renewal, self._watch_task) if task is not None]
        self._renewal = self._watch_task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class DecodeClient(_HandoffClient):
    """The reader's side."""

    async def get(
        self,
        key: Key | int,
        *,
        attempt: int = 0,
        max_wait: float | None = None,
        consume: bool = True,
        reader_id: str | None = None,
        expected_store_epoch: str | None = None,
        request_digest: bytes | None = None,
        attachments: Sequence[str] | None = None,
    ) -> Handoff:
        """The record of the newest attempt from `attempt` on; waits for it up to `max_wait` seconds, across restarts of
        the store as far as `retries` allow. Can be repeated by the same reader. With `request_digest` (up to 32 bytes,
        made as the producer made its own), a record that was reserved for another request raises RequestMismatch.
        `attachments` are the names of those to return: none for an empty list, all for None.

        Raises HandoffNotFound, RecordNotReady, HandoffAborted, HandoffExpired, ProducerRestarted, AlreadyConsumed,
        StoreRestarted, RequestMismatch, TooManyWaiters, InvalidRequest."""
        request = self._calls.get_request(
            key, attempt, max_wait, consume, reader_id, expected_store_epoch, request_digest, attachments
        )
        return Handoff(await self._ask("Get", request, wait_of(request)))

    async def get_many(
        self,
        items: Iterable[Key | int | GetItem],
        *,
        attempt: int = 0,
        max_wait: float | None = None,
        consume: bool = True,
        reader_id: str | None = None,
        expected_store_epoch: str | None = None,
        request_digest: bytes | None = None,
        attachments: Sequence[str] | None = None,
    ) -> list[Handoff | HandoffError]:
        """Gets many; each succeeds or fails alone, in order: an InvalidRequest of one key, too, is the outcome of its
        item alone. Returns when all have their answer. More than the store takes at a time go as several batches, one
        after the other. Once something was answered, a failure of a whole batch is the outcome of each of its items,
        and of all after it, unsent, when it is one that they would meet, too (no answer, draining, closed, no
        permission): the same reader can ask for those again.

        Raises the failure while nothing was answered yet; InvalidRequest for an option that no item can have."""
        return await self._run(
            self._calls.get_many(
                items,
                attempt=attempt,
                max_wait=max_wait,
                consume=consume,
                reader_id=reader_id,
                expected_store_epoch=expected_store_epoch,
                request_digest=request_digest,
                attachments=attachments,
            )
        )

    async def release(self, key: Key | int, *, reader_id: str | None = None) -> None:
        """Says that this reader needs no more of the hand-off; counts as its consumption. Can be repeated."""
        await self._run(self._calls.release(key, reader_id=self._calls.reader_id if reader_id is None else reader_id))


class AdminClient(_Client):
    """A look into the store, which changes nothing."""

    async def list_handoffs(
        self, *, namespace: str | None = None, states: Iterable[HandoffState] = (), limit: int = 1000
    ) -> list[HandoffInfo]:
        """Up to `limit` hand-offs, live ones first, by their place in the store; of one namespace or (None) of all, in
        these states or (none given) in all live ones."""
        return await self._run(self._calls.list_handoffs(namespace, states, limit))

    async def get_handoff(self, key: Key | int, *, include_record: bool = False) -> HandoffInfo:
        """The newest attempt of one key. Raises HandoffNotFound."""
        return await self._run(self._calls.get_handoff(key, include_record))
