"""Calls of threads over one Session, or alone (see `session_policy`)."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from google.protobuf.message import Message

from pd_handoff import errors
from pd_handoff._transport import channel, grpc_internals, session_frames
from pd_handoff._transport.multiplexer import Mux, MuxEnded
from pd_handoff._transport.session_policy import PROBE_SECONDS, Adaptive, SessionMode
from pd_handoff._transport.stream import open_wire
from pd_handoff._transport.transports import GrpcTransport
from pd_handoff._transport.watchdog import Alarm
from pd_handoff.v1 import metadata_store_pb2 as pb

if TYPE_CHECKING:
    import grpc

FRESH: Final = 1.0
"""Seconds. A call that met the end of its stream so soon, and nothing before it, met a stream that was dead already: it
is made again, alone."""
PROBE: Final = (session_frames.TAGS["Capabilities"], pb.CapabilitiesRequest().SerializeToString())
"""What the first call of a stream is."""


class SessionTransport(GrpcTransport):
    """Single calls over one stream when it pays and works; the others, and batches, each alone on the same channel."""

    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: channel.CallMetadata,
        options: Iterable[channel.Option],
        session: SessionMode,
    ) -> None:
        super().__init__(target, credentials, metadata, options)
        self._adaptive = Adaptive(session, differs=metadata.differs)
        self._mux: Mux | None = None
        self._opening = threading.Lock()
        _live.add(self)

    def call(self, method: str, request: Message, timeout: float) -> Message:
        """See Transport."""
        tag = session_frames.TAGS.get(method)
        if tag is None:
            return super().call(method, request, timeout)
        began = time.monotonic()
        mux = self._mux
        if mux is None or not mux.usable or self._metadata.changes:
            mux = self._stream(timeout)
        if mux is None or mux.full:
            return super().call(method, request, timeout)
        data = request.SerializeToString()
        if len(data) > session_frames.LARGEST:
            return super().call(method, request, timeout)
        try:
            return mux.call(tag, data, began + timeout)
        except TimeoutError:
            raise errors.no_answer(self._target) from None
        except MuxEnded as ended:
            self._lost(mux)
            if self._closed:
                raise errors.ClientClosed("this client was closed") from None
            elapsed = time.monotonic() - began
            if not (ended.idle and elapsed < min(FRESH, timeout)):
                raise ended.ended.error(self._target) from None
        return super().call(method, request, timeout - elapsed)

    def _stream(self, timeout: float) -> Mux | None:
        """The stream to use, opened if need be; None to call alone."""
        mux = self._mux
        if mux is not None:
            if not mux.usable:
                self._lost(mux)
            elif mux.metadata == self._metadata.credentials():
                return mux
        if not self._adaptive.wants():
            return None
        credentials = self._metadata.credentials()
        if not self._opening.acquire(blocking=self._adaptive.always):
            return None  # another thread is at it
        try:
            mux = self._mux
            if mux is not None and mux.usable:
                if mux.metadata == credentials:
                    return mux
                self._mux = None
                mux.retire()  # the token was renewed
            self._mux = mux = self._open(credentials, timeout)
            return mux
        finally:
            self._opening.release()

    def _open(self, credentials: channel.Metadata | None, timeout: float) -> Mux | None:
        """A stream that has answered once. Raises HandoffError where calls may not go alone instead."""
        if self._closed:
            raise errors.ClientClosed("this client was closed")
        always, given_up = self._adaptive.always, grpc_internals.given_up()
        try:
            mux = Mux(open_wire(self._channel, self._metadata()), ALARM, credentials)
        except ValueError:  # grpc: closed meanwhile
            raise errors.ClientClosed("this client was closed") from None
        error: errors.HandoffError | None = None
        try:
            mux.call(*PROBE, time.monotonic() + (timeout if always else min(timeout, PROBE_SECONDS)))
        except errors.HandoffError:
            pass  # a refusal is an answer
        except TimeoutError:
            error = errors.no_answer(self._target)
        except MuxEnded as ended:
            error = ended.ended.error(self._target)
        if error is None and not self._closed:
            self._adaptive.opened()
            return mux
        mux.close()
        if self._closed:
            raise errors.ClientClosed("this client was closed")
        if grpc_internals.given_up() and not given_up:
            return self._open(credentials, timeout)  # over a public stream
        if error is not None:
            self._adaptive.refused(error)
            if always:
                raise unopened(error, self._target)
        return None

    def _lost(self, mux: Mux) -> None:
        if self._mux is mux and not self._closed:
            self._mux = None
            self._adaptive.ended(time.monotonic() - mux.born)

    def close(self) -> None:
        """See Transport."""
        self._closed = True
        mux = self._mux
        if mux is not None:
            mux.close()
        super().close()

    def _forked(self) -> None:
        """In a child process the stream is the parent's: leave it alone, and open another."""
        _of_parents.append(self._mux)
        self._mux = None
        self._opening = threading.Lock()


def unopened(error: errors.HandoffError, target: str) -> errors.HandoffError:
    """For a call that was never sent, because no stream came about in its time: that can always be tried again."""
    if isinstance(error, errors.DeadlineExceeded):
        return errors.StoreUnavailable(f"no answer from the store at {target} to a new session")
    return error


ALARM: Final = Alarm()
_live: weakref.WeakSet[SessionTransport] = weakref.WeakSet()
_of_parents: list[Mux | None] = []  # kept, so that the child never cleans up what is the parent's


def _after_fork() -> None:
    ALARM.reset()
    for transport in list(_live):
        transport._forked()


os.register_at_fork(after_in_child=_after_fork)
