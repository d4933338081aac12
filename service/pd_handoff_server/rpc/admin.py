"""MetadataStoreAdmin: a look into the store, from the synchronous core to messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pd_handoff.v1 import admin_pb2, record_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server import refusal
from pd_handoff_server.arena.draft import Violations
from pd_handoff_server.arena.layout import WIDTHS
from pd_handoff_server.lifecycle.model import Handoff, Key, Tombstone
from pd_handoff_server.store.interface import LIVE_STATES, Done, Sight, Store, state_word

from . import requests
from .call import Answer, Call, Handler, Wrap, parse, wrapped
from .capabilities import duration
from .principal import CONTENTS
from .wire import timestamp

_PAGE: Final = 100
_LARGEST_PAGE: Final = 1000


class Admin:
    """Both calls, on messages or, by `handlers`, on bytes. Raises Refusal.

    Attributes:
        handlers: by method name, as those of `Calls`.
    """

    def __init__(self, store: Store, *, contents: bool, wraps: Sequence[Wrap] = ()) -> None:
        """`contents` permits GetHandoff to return records. `wraps` go around each handler, the first one innermost."""
        self._store = store
        self._contents = contents
        handlers: dict[str, Handler] = {"ListHandoffs": self._list_bytes, "GetHandoff": self._get_bytes}
        self.handlers: Final[dict[str, Handler]] = wrapped(handlers, wraps)

    def _list_bytes(self, data: bytes, call: Call, done: Done) -> Answer:
        del done
        return self.list_handoffs(parse(admin_pb2.ListHandoffsRequest, data), call).SerializeToString()

    def _get_bytes(self, data: bytes, call: Call, done: Done) -> Answer:
        del done
        return self.get_handoff(parse(admin_pb2.GetHandoffRequest, data), call).SerializeToString()

    def list_handoffs(
        self, request: admin_pb2.ListHandoffsRequest, call: Call | None = None
    ) -> admin_pb2.ListHandoffsResponse:
        """One page of what the store knows, or of what the caller may see of it."""
        principal = None if call is None else call.principal
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
        sights, more = self._store.look(namespaces, frozenset(states), after, size)
        response = admin_pb2.ListHandoffsResponse(next_page_token=str(more) if more else "")
        response.handoffs.extend(map(_message, sights))
        return response

    def get_handoff(
        self, request: admin_pb2.GetHandoffRequest, call: Call | None = None
    ) -> admin_pb2.GetHandoffResponse:
        """The newest attempt of one key."""
        if call is not None and call.principal is not None:
            call.permit("GetHandoff", request.key.namespace)
            if request.include_record:
                call.permit(CONTENTS, request.key.namespace)
        found: Violations = []
        key = requests.key_of(request.key, found)
        if request.include_record and not self._contents:
            found.append(("include_record", "this store does not show contents; start it with --admin-contents yes"))
        requests.refuse(found)
        sight, image = self._store.look_at(key, request.include_record)
        response = admin_pb2.GetHandoffResponse(handoff=_message(sight))
        if image is not None:
            response.record.ParseFromString(image)
        return response


def _is_state(number: int) -> bool:
    return number != admin_pb2.HANDOFF_STATE_UNSPECIFIED and number in admin_pb2.HandoffState.values()


def _key(key: Key) -> record_pb2.HandoffKey:
    return record_pb2.HandoffKey(namespace=key[0], room=key[1], sample=key[2])


def _message(sight: Sight) -> admin_pb2.Handoff:
    entry = sight.entry
    message = admin_pb2.Handoff(
        key=_key(entry.key),
        attempt=entry.attempt,
        state=admin_pb2.HandoffState.Value("HANDOFF_STATE_" + state_word(entry)),
        owner=entry.owner,
        age=duration(sight.age),
        expires_in=duration(sight.expires_in),
        waiting=sight.waiting,
    )
    if entry.reserved_wall:
        message.reserved_at.CopyFrom(timestamp(entry.reserved_wall))
    if entry.published_wall:
        message.published_at.CopyFrom(timestamp(entry.published_wall))
    if sight.widths is not None:
        message.widths.CopyFrom(pb.Widths(**dict(zip(WIDTHS, sight.widths, strict=True))))
    if entry.producer is not None:
        message.producer.CopyFrom(pb.Producer(instance_id=entry.producer[0], epoch=entry.producer[1]))
    if isinstance(entry, Handoff):
        message.slot = entry.slot
        message.generation = entry.generation
        message.expected_readers = entry.expected_readers
        message.readers_done = len(entry.readers)
    elif isinstance(entry, Tombstone) and entry.failure is not None:
        failure = entry.failure
        message.failure.CopyFrom(
            pb.Failure(http_status=failure.http_status, reason=failure.reason, message=failure.message)
        )
    return message
