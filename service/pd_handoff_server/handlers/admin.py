"""MetadataStoreAdmin: a look into the store, from the synchronous core to messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from pd_handoff.v1 import admin_pb2, record_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server import refusal
from pd_handoff_server.access.roles import CONTENTS
from pd_handoff_server.arena.layout import WIDTHS
from pd_handoff_server.arena.packed_record import Violations
from pd_handoff_server.lifecycle.model import Key
from pd_handoff_server.store.interface import LIVE_STATES, Done, Sight, Store

from . import requests
from .call import Answer, Call, Handler, Wrap, finish, parse, wrapped
from .capabilities import duration
from .responses import timestamp

_PAGE: Final = 100
_LARGEST_PAGE: Final = 1000


class Admin:
    """Both calls, bytes in and bytes out, as those of `Calls`.

    Attributes:
        handlers: by method name, as those of `Calls`.
    """

    def __init__(self, store: Store, *, contents: bool, wraps: Sequence[Wrap] = ()) -> None:
        """`contents` permits GetHandoff to return records. `wraps` go around each handler, the first one innermost."""
        self._store = store
        self._contents = contents
        handlers: dict[str, Handler] = {"ListHandoffs": self.list_handoffs, "GetHandoff": self.get_handoff}
        self.handlers: Final[dict[str, Handler]] = wrapped(handlers, wraps)

    def list_handoffs(self, data: bytes, call: Call, done: Done) -> Answer:
        """One page of what the store knows, or of what the caller may see of it."""
        request = parse(admin_pb2.ListHandoffsRequest, data)
        principal = call.principal
        namespaces = None if principal is None else principal.namespaces("ListHandoffs")
        found: Violations = []
        if request.HasField("namespace"):
            if principal is not None and namespaces is not None and request.namespace not in namespaces:
                raise refusal.permission_denied(principal.name)
            key = record_pb2.HandoffKey(namespace=request.namespace, room=0)
            namespaces = frozenset((requests.key_of(key, found)[0],))
        after = 0
        if request.page_token:
            if request.page_token.isascii() and request.page_token.isdigit() and len(request.page_token) < 10:
                after = int(request.page_token)
            else:
                found.append(("page_token", "must be next_page_token of an earlier answer"))
        states = set(LIVE_STATES)
        if request.states:
            named = {admin_pb2.HandoffState.Name(state) for state in request.states if _is_state(state)}
            states = {name.removeprefix("HANDOFF_STATE_") for name in named}
            if len(named) != len(set(request.states)):
                found.append(("states", "must be states of a hand-off"))
        requests.refuse(found)
        size = min(request.page_size or _PAGE, _LARGEST_PAGE)
        answer = self._store.look(namespaces, frozenset(states), after, size, partial(finish, _page, done))
        return _page(answer) if isinstance(answer, tuple) else answer

    def get_handoff(self, data: bytes, call: Call, done: Done) -> Answer:
        """The newest attempt of one key."""
        request = parse(admin_pb2.GetHandoffRequest, data)
        if call.principal is not None:
            call.permit("GetHandoff", request.key.namespace)
            if request.include_record:
                call.permit(CONTENTS, request.key.namespace)
        found: Violations = []
        key = requests.key_of(request.key, found)
        if request.include_record and not self._contents:
            found.append(("include_record", "this store does not show contents; start it with --admin-contents yes"))
        requests.refuse(found)
        answer = self._store.look_at(key, request.include_record, partial(finish, _one, done))
        return _one(answer) if isinstance(answer, tuple) else answer


def _page(found: tuple[list[Sight], int]) -> bytes:
    sights, more = found
    response = admin_pb2.ListHandoffsResponse(next_page_token=str(more) if more else "")
    response.handoffs.extend(map(_message, sights))
    return response.SerializeToString()


def _one(found: tuple[Sight, bytes | None]) -> bytes:
    sight, image = found
    response = admin_pb2.GetHandoffResponse(handoff=_message(sight))
    if image is not None:
        response.record.ParseFromString(image)
    return response.SerializeToString()


def _is_state(number: int) -> bool:
    return number != admin_pb2.HANDOFF_STATE_UNSPECIFIED and number in admin_pb2.HandoffState.values()


def _key(key: Key) -> record_pb2.HandoffKey:
    return record_pb2.HandoffKey(namespace=key[0], room=key[1], sample=key[2])


def _message(sight: Sight) -> admin_pb2.Handoff:
    message = admin_pb2.Handoff(
        key=_key(sight.key),
        attempt=sight.attempt,
        state=admin_pb2.HandoffState.Value("HANDOFF_STATE_" + sight.state),
        owner=sight.owner,
        age=duration(sight.age),
        expires_in=duration(sight.expires_in),
        waiting=sight.waiting,
    )
    if sight.reserved_wall:
        message.reserved_at.CopyFrom(timestamp(sight.reserved_wall))
    if sight.published_wall:
        message.published_at.CopyFrom(timestamp(sight.published_wall))
    if sight.widths is not None:
        message.widths.CopyFrom(pb.Widths(**dict(zip(WIDTHS, sight.widths, strict=True))))
    if sight.producer is not None:
        message.producer.CopyFrom(pb.Producer(instance_id=sight.producer[0], epoch=sight.producer[1]))
    if sight.slot is not None:
        message.slot = sight.slot
        message.generation = sight.generation
        message.expected_readers = sight.expected_readers
        message.readers_done = sight.readers_done
    elif sight.failure is not None:
        failure = sight.failure
        message.failure.CopyFrom(
            pb.Failure(http_status=failure.http_status, reason=failure.reason, message=failure.message)
        )
    return message
