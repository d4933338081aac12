"""What both faces of a client are made of: settings, their defaults, and a transport."""

from __future__ import annotations

import math
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from pd_handoff._calls.calls import Calls
from pd_handoff._calls.requests import new_name
from pd_handoff._transport import bearer, channel
from pd_handoff._transport.session_policy import SessionMode, check_mode
from pd_handoff._values.integers import shown
from pd_handoff.retries import Retries
from pd_handoff.v1 import metadata_store_pb2 as pb

if TYPE_CHECKING:
    import grpc

TransportT = TypeVar("TransportT")

# One a process, so that all clients of one instance agree on it; milliseconds, so that a quick restart is a later one.
_PROCESS_EPOCH = time.time_ns() // 1_000_000
_LONGEST_DELAY = 60  # seconds


class BaseClient(Generic[TransportT]):
    """A client of one store."""

    def __init__(
        self,
        target: str = channel.DEFAULT_TARGET,
        *,
        namespace: str = "",
        instance_id: str | None = None,
        epoch: int | None = None,
        reader_id: str | None = None,
        timeout: float = 5.0,
        retries: Retries | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | Callable[[], str] | None = None,
        insecure_token: bool = False,
        metadata: Callable[[], channel.Metadata] | None = None,
        options: Iterable[channel.Option] = (),
        session: SessionMode = "auto",
        put_soon_delay: float = 0.0005,
        transport: TransportT | None = None,
    ) -> None:
        """A client of one store.

        Args:
            target: `host:port`, or `unix:PATH`, of the store.
            namespace: for keys that name none.
            instance_id: of a producer: names this process across its restarts, and a restart then ends at once what the
                former one had reserved. One a process: two processes of one name would end each other's.
            epoch: of a producer: grows at each start of the instance; None takes the time at which this process loaded
                the client.
            reader_id: of a reader: names it among the expected ones; made up when None, so that each client is a reader
                of its own.
            timeout: seconds a call may take, on top of its max_wait.
            retries: how calls outlive a store that is away for a moment; None is `Retries()`.
            credentials: of the channel (`pd_handoff.tls_credentials`); None is plaintext.
            token: bearer token, or what returns it, asked at each call. Without `credentials` only for a target on
                loopback or a Unix socket.
            insecure_token: lets the token go elsewhere in plaintext, too.
            metadata: returns what else goes with each call, such as a traceparent; asked at each call.
            options: gRPC channel options over the client's own.
            session: whether single calls share one long-lived stream, which costs a fraction of a call each: "auto"
                after the first few calls, where it works, and not with `metadata`, of which a stream has only one;
                "always"; or "never".
            put_soon_delay: seconds, up to 60, that `put_soon` may keep a record back to send it with others.
            transport: another way to carry calls; then target, credentials, token, insecure_token, metadata, options
                and session are not used.

        Raises ValueError for a bad setting.
        """
        if not (_is_finite(timeout) and timeout > 0):
            raise ValueError(f"timeout must be a positive number of seconds, is {shown(timeout)}")
        if epoch is not None and instance_id is None:
            raise ValueError("epoch needs an instance_id")
        check_mode(session)
        if not (_is_finite(put_soon_delay) and 0 <= put_soon_delay <= _LONGEST_DELAY):
            raise ValueError(f"put_soon_delay must be seconds from 0 to {_LONGEST_DELAY}, is {shown(put_soon_delay)}")
        producer = None
        if instance_id is not None:
            producer = pb.Producer(instance_id=instance_id, epoch=_PROCESS_EPOCH if epoch is None else epoch)
        self._calls = Calls(
            namespace=namespace,
            timeout=timeout,
            retries=retries or Retries(),
            producer=producer,
            reader_id=new_name("reader") if reader_id is None else reader_id,
            encodes=transport is None,
        )
        self._soon_delay = put_soon_delay
        if transport is None:
            if token is not None:
                way = channel.target_of(target)
                bearer.check_way(way, encrypted=credentials is not None, insecure=insecure_token)
            transport = self._connect(target, credentials, channel.CallMetadata(token, metadata), options, session)
        self._transport = transport
        self._process = os.getpid()
        self._begin()

    def _begin(self) -> None:
        """What a kind of client has beside it."""

    @abstractmethod
    def _connect(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: channel.CallMetadata,
        options: Iterable[channel.Option],
        session: SessionMode,
    ) -> TransportT:
        """The transport of this face."""


def _is_finite(value: object) -> bool:
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return False
