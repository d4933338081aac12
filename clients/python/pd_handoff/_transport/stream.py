"""The client's end of one bidirectional stream of serialized messages, for a thread that reads it itself.

gRPC's public streams hand every message from a thread of their own to the caller's, and take every request from an
iterator on yet another; that costs more than the call. `RawWire` starts the same operations on the call that the public
classes start, and waits for them in the calling thread, as gRPC's own blocking unary calls do. It needs names that are
not public (docs/client.md); where they are missing, `PublicWire` does with what is.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Protocol

import grpc

from pd_handoff import errors
from pd_handoff._transport import grpc_internals, session_frames
from pd_handoff._transport.grpc_internals import Status, cygrpc


class WireEnded(Exception):  # noqa: N818  # an end, not always an error
    """The stream is over."""

    def __init__(self, status: Any) -> None:
        super().__init__(status)
        self.status = status

    def error(self, target: str) -> errors.HandoffError:
        """What it means for a call that was under way: what the store said, else that there is no answer."""
        error = errors.from_rpc(self.status, target)
        if isinstance(error, _TELLING):
            return error
        text = self.status.details() or "the session ended"
        return errors.StoreUnavailable(f"no answer from the store at {target}: {text}")


_TELLING = (errors.Draining, errors.Unauthenticated, errors.PermissionDenied, errors.NotAStore)


class Wire(Protocol):
    """`send`, `wake` and `cancel` from any thread; `receive` by one thread at a time."""

    def send(self, frame: bytes) -> None:
        """Sends, now or when what was sent before has gone out."""

    def receive(self) -> bytes | None:
        """Blocks for the next message; None after a `wake`. Raises WireEnded."""

    def exchange(self, frame: bytes) -> bytes | None:
        """`send`, then `receive`."""

    def wake(self) -> None:
        """Makes a `receive` under way, or the next, return None."""

    def cancel(self) -> None:
        """Ends the stream: `receive` raises WireEnded soon."""


_CANCELLED = grpc.StatusCode.CANCELLED.value[0]
_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
_INITIAL, _END, _SENT, _RECEIVED, _WOKEN = "initial", "end", "sent", "received", "woken"


class RawWire:
    """Operations on gRPC's own call object, completed in the thread that calls `receive`."""

    def __init__(self, channel: grpc.Channel, metadata: Any) -> None:
        self._lock = threading.RLock()  # a collector may cancel the stream at any point of this thread
        self._unsent: deque[bytes] = deque()
        self._sending = self._armed = self._over = False
        self._begun = 2  # batches; counted under the lock
        self._taken = 0  # of them; counted by the thread that receives
        self._status: Status | None = None
        begin = (cygrpc.SendInitialMetadataOperation(metadata, 0), cygrpc.ReceiveStatusOnClientOperation(0))
        initial = (cygrpc.ReceiveInitialMetadataOperation(0),)
        self._call: Any = grpc_internals.begin_of(channel)(
            cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            session_frames.METHOD.encode(),
            None,
            None,
            metadata,
            None,
            ((begin, _END), (initial, _INITIAL)),
            None,
        )

    def send(self, frame: bytes) -> None:
        """See Wire."""
        with self._lock:
            try:
                self._send(frame)
            except Exception as error:  # the thread that receives learns of the end
                self._cancel_for(error)

    def receive(self) -> bytes | None:
        """See Wire."""
        try:
            with self._lock:
                self._arm()
        except WireEnded:
            raise
        except Exception as error:
            raise self._unfit(error) from None
        return self._next()

    def exchange(self, frame: bytes) -> bytes | None:
        """See Wire."""
        try:
            with self._lock:
                self._send(frame)
                self._arm()
        except WireEnded:
            raise
        except Exception as error:
            raise self._unfit(error) from None
        return self._next()

    def _send(self, frame: bytes) -> None:
        if self._over:
            return
        if self._sending:
            self._unsent.append(frame)
        else:
            self._sending = True
            self._start((cygrpc.SendMessageOperation(frame, 0),), _SENT)

    def _arm(self) -> None:
        if self._over and self._begun == self._taken:
            raise WireEnded(self._status)
        if not self._armed:
            self._armed = True
            self._start((cygrpc.ReceiveMessageOperation(0),), _RECEIVED)

    def _next(self) -> bytes | None:
        try:
            while True:  # each turn takes an operation that was started; the last is the stream's end
                event = self._call.next_event()
                tag = event.tag
                self._taken += 1
                if tag is _SENT:
                    with self._lock:
                        self._sending = False
                        if self._unsent and not self._over:
                            self._sending = True
                            self._start((cygrpc.SendMessageOperation(self._unsent.popleft(), 0),), _SENT)
                elif tag is _END:
                    with self._lock:
                        self._over = True
                        self._status = grpc_internals.status_of(event.batch_operations[1])
                # Taking what is left frees the call; after that it must not be touched. Once it is over nothing begins.
                if self._over and self._begun == self._taken:
                    raise WireEnded(self._status)
                if tag is _RECEIVED:
                    message: bytes | None = event.batch_operations[0].message()
                    if message is not None:
                        self._armed = False
                        return message
                elif tag is _WOKEN and not self._over:
                    return None
        except WireEnded:
            raise
        except Exception as error:
            raise self._unfit(error) from None
        except BaseException:
            self._interrupted()
            raise

    def _cancel_for(self, error: Exception) -> None:
        """An operation has another form in this gRPC: end the stream."""
        grpc_internals.give_up(error)
        with suppress(Exception):
            self._call.cancel(_CANCELLED, "an operation of gRPC failed")

    def _unfit(self, error: Exception) -> WireEnded:
        """The same, in the thread that receives: the stream is over for it."""
        with self._lock:
            self._cancel_for(error)
            self._over = True
            self._taken = self._begun
            self._status = Status(_UNAVAILABLE, f"an operation of gRPC failed: {error}", ())
        return WireEnded(self._status)

    def _interrupted(self) -> None:
        # gRPC frees a call whose wait a signal's handler ends: it must not be waited for again. Elsewhere in the loop,
        # something that came may have been lost.
        with self._lock:
            with suppress(Exception):
                self._call.cancel(_CANCELLED, "the client was interrupted")
            self._over = True
            self._taken = self._begun
            self._status = Status(_CANCELLED, "the client was interrupted", ())

    def wake(self) -> None:
        """See Wire."""
        with self._lock:
            if not self._over:
                try:
                    self._start((), _WOKEN)  # a batch of nothing completes at once
                except Exception as error:
                    self._cancel_for(error)

    def cancel(self) -> None:
        """See Wire."""
        with self._lock:
            if not self._over:
                try:
                    self._call.cancel(_CANCELLED, "the client ended the session")
                except Exception as error:
                    self._unfit(error)

    def _start(self, operations: Any, tag: str) -> None:
        # False: the call is over, and what is under way will tell so.
        if self._call.operate(operations, tag):
            self._begun += 1


class PublicWire:
    """The same over gRPC's public stream."""

    def __init__(self, channel: grpc.Channel, metadata: Any) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ended: WireEnded | None = None
        method = channel.stream_stream(session_frames.METHOD, _same, _same)
        self._call: Any = method(iter(self._requests.get, None), metadata=metadata)
        threading.Thread(target=self._read, name="pd-handoff-session", daemon=True).start()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._received.put(message)
            ended = WireEnded(Status(0, "", ()))
        except grpc.RpcError as error:
            ended = WireEnded(error)
        self._requests.put(None)
        self._received.put(ended)

    def send(self, frame: bytes) -> None:
        """See Wire."""
        self._requests.put(frame)

    def receive(self) -> bytes | None:
        """See Wire."""
        if self._ended is None:
            found: bytes | WireEnded | None = self._received.get()
            if not isinstance(found, WireEnded):
                return found
            self._ended = found
        raise self._ended

    def exchange(self, frame: bytes) -> bytes | None:
        """See Wire."""
        self.send(frame)
        return self.receive()

    def wake(self) -> None:
        """See Wire."""
        self._received.put(None)

    def cancel(self) -> None:
        """See Wire."""
        self._call.cancel()


def open_wire(channel: grpc.Channel, metadata: Any) -> Wire:
    """A new stream; fails, if it must, at the first `receive`."""
    lacks = grpc_internals.missing(channel, _NAMES, ("operate", "next_event", "cancel"))
    if lacks or not grpc_internals.wanted():
        return PublicWire(channel, metadata)
    try:
        return RawWire(channel, metadata)
    except Exception as error:
        wire = PublicWire(channel, metadata)  # what this refuses, too, is the caller's own
        grpc_internals.give_up(error)
        return wire


_NAMES = (
    *("SendInitialMetadataOperation", "ReceiveStatusOnClientOperation", "ReceiveInitialMetadataOperation"),
    *("SendMessageOperation", "ReceiveMessageOperation", "PropagationConstants"),
)


def _same(data: bytes) -> bytes:
    return data
