"""vLLM's own KV connectors, with a store between prefill's scheduler and decode's.

    --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_producer",
                           "kv_connector_module_path": "pd_handoff.engines.vllm"}'

vLLM looks the connector up by its own name in this package, so the name stays what routers and other tools expect. The
class is vLLM's connector with `HandoffMixin` before it. It moves the KV cache as before, and the store carries what
decode needs for that. Prefill reserves when its request arrives, and publishes when it ends. Decode's request waits in
the scheduler's queue until the record is there. No call to the store holds the scheduler.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections import deque
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pd_handoff.engines.payload import UnusableHandoff
from pd_handoff.engines.vllm import settings as vllm_settings
from pd_handoff.engines.vllm.background import Background
from pd_handoff.engines.vllm.ending import CLIENT_LEFT, for_user, no_handoff
from pd_handoff.engines.vllm.engine_request import Leg, Side, digest_of, leg_of
from pd_handoff.engines.vllm.getting import record_for
from pd_handoff.engines.vllm.payload import params_of, record_of
from pd_handoff.engines.vllm.sending import Sending
from pd_handoff.engines.vllm.settings import Settings
from pd_handoff.engines.vllm.taken import Taken
from pd_handoff.errors import HandoffError, InvalidRecord
from pd_handoff.handoff import Handoff
from pd_handoff.model import Failure

if TYPE_CHECKING:

    class _Connector:
        """What the mixin expects of vLLM's connectors."""

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None: ...
        def on_new_request(self, request: Any) -> None: ...
        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]: ...
        def build_connector_meta(self, scheduler_output: Any) -> Any: ...
        def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]: ...
        def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]: ...
        def shutdown(self) -> None: ...

else:
    _Connector = object

log = logging.getLogger("vllm.pd_handoff")
_FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"
_HELD_SECONDS = 30.0  # for the HTTP side to answer a refused request; then it is computed after all
_PUBLISHED = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED")
_NIXL_NEEDS = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size")
_SIDES: dict[str, Side] = {"kv_producer": "prefill", "kv_consumer": "decode", "prefill": "prefill", "decode": "decode"}


@dataclass(slots=True)
class _Waiting:
    """A request of decode whose record has not come."""

    request: Any
    leg: Leg
    record: Future[Handoff]
    held_until: float | None = None


class _AsAborted:
    """A request as the inner connector is to see it when its hand-off has ended: it then keeps no blocks."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.status = type(request.status).FINISHED_ABORTED

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class HandoffMixin(_Connector):
    """Goes before a connector class of vLLM's. All of it runs in the scheduler's process."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """As vLLM's connectors. Raises ValueError, naming the variable, for a bad setting of this adapter."""
        super().__init__(vllm_config, role, kv_cache_config)
        self._sending: dict[str, Sending] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._arrived: deque[str] = deque()
        self._taken = Taken()
        self._background: Background | None = None
        if role.name != "SCHEDULER":
            return
        config = vllm_config.kv_transfer_config
        self._name = str(config.kv_connector)
        self._settings: Settings = vllm_settings.from_environment()
        self._default_side = _SIDES.get(self._settings.role) or _SIDES.get(str(config.kv_role))
        self._background = Background(self._settings)
        log.info("hand-offs of %s go through the store at %s", self._name, self._settings.target)

    # -- a request arrives ---------------------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        """Prefill: reserves. Decode: begins to wait for the record, and the inner connector learns of the request when
        there is something to fetch."""
        if self._background is not None and isinstance(request.kv_transfer_params, dict):
            request.kv_transfer_params = params = dict(request.kv_transfer_params)  # n samples may share one
            leg = leg_of(params, request.request_id, self._default_side, self._settings.room_from_request_id)
            params.pop("handoff", None)
            if leg is not None and leg.side == "prefill":
                self._begin_prefill(self._background, request, leg)
            elif leg is not None:
                if self._begin_decode(self._background, request, leg):
                    return
            elif params.get("do_remote_prefill") and not self._can_fetch(params):
                log.warning("request %s names nothing to fetch from: computed here", request.request_id)
                params.clear()
        super().on_new_request(request)

    def _begin_prefill(self, background: Background, request: Any, leg: Leg) -> None:
        params = request.kv_transfer_params
        params.update(do_remote_decode=True, do_remote_prefill=False)
        if not leg.fetches or request.abort_immediately:
            params.clear()
            return
        owner = request.request_id
        self._sending[owner] = Sending(background, leg, owner, digest_of(request), self._settings.lease)

    def _begin_decode(self, background: Background, request: Any, leg: Leg) -> bool:
        """Returns whether the request waits; else it is computed here."""
        params = request.kv_transfer_params
        params.clear()  # where to fetch from comes from the store alone
        if not leg.fetches:
            return False
        if request.abort_immediately:
            self._abort(background, leg, no_handoff("decode's server refused the request"))
            return False
        if getattr(request, "skip_reading_prefix_cache", False):  # such as with prompt logprobs
            self._abort(background, leg, no_handoff("decode computes this prompt itself"))
            return False
        if not self._taken.enter(leg.key):
            log.warning("room %d is in use by another request: computed here", leg.key.room)
            return False
        digest = digest_of(request)
        record = background.start(
            lambda clients: record_for(
                clients.decode, leg.key, attempt=leg.attempt, digest=digest, max_wait=self._settings.max_wait
            )
        )
        request_id = request.request_id
        self._waiting[request_id] = _Waiting(request, leg, record)
        record.add_done_callback(lambda _: self._arrived.append(request_id))
        return True

    def _abort(self, background: Background, leg: Leg, failure: Failure) -> None:
        background.start_unheeded(
            lambda clients: clients.decode.abort(leg.key, failure, attempt=leg.attempt),
            f"room {leg.key.room}: prefill was not told that its work is not needed",
        )

    def _can_fetch(self, params: dict[str, Any]) -> bool:
        if self._name.startswith("Nixl"):
            return all(params.get(name) for name in _NIXL_NEEDS)
        return any(not name.startswith("do_remote_") and value for name, value in params.items())

    # -- records arrive ------------------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        """Passes on what has arrived. Requests further back in the queue are included: their heartbeats to prefill
        begin."""
        while self._arrived:
            waiting = self._waiting.get(self._arrived.popleft())
            if waiting is not None and waiting.held_until is None:
                self._settle(waiting)

    def _settle(self, waiting: _Waiting) -> None:
        request, leg = waiting.request, waiting.leg
        try:
            self._fill(waiting)
        except HandoffError as error:
            if leg.answers and for_user(error) is not None:
                waiting.held_until = time.monotonic() + _HELD_SECONDS  # the HTTP side answers, and ends the request
                return
            log.warning("room %d: computed here: %s: %s", leg.key.room, type(error).__name__, error)
        except UnusableHandoff as error:
            log.warning("room %d: computed here: %s", leg.key.room, error)
        except (Exception, CancelledError):  # must never reach the scheduler
            log.exception("room %d: computed here", leg.key.room)
        del self._waiting[request.request_id]
        self._taken.leave(leg.key)
        if request.kv_transfer_params:
            super().on_new_request(request)

    def _fill(self, waiting: _Waiting) -> None:
        """Gives the request what the inner connector needs. Raises HandoffError, UnusableHandoff."""
        handoff = waiting.record.result(0)
        if not self._taken.first(waiting.leg.key, handoff):
            raise UnusableHandoff("another request of this engine has had the record of this room")
        params = params_of(self._name, handoff)
        if not params:  # a cache that both sides share: the inner connector looks there by itself
            return
        params.update(do_remote_prefill=True, do_remote_decode=False)
        if not self._can_fetch(params):
            raise UnusableHandoff("the record names nothing to fetch from")
        waiting.request.kv_transfer_params.update(params)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """`(None, False)` while the record has not come, which leaves the request in the scheduler's queue."""
        self._take_in()
        waiting = self._waiting.get(request.request_id)
        if waiting is None:
            return super().get_num_new_matched_tokens(request, num_computed_tokens)
        if waiting.held_until is None or time.monotonic() < waiting.held_until:
            return None, False
        log.warning("room %d: prefill refused the request and nothing answered it: computed here", waiting.leg.key.room)
        del self._waiting[request.request_id]
        self._taken.leave(waiting.leg.key)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Called in each step of the scheduler."""
        self._take_in()
        return super().build_connector_meta(scheduler_output)

    # -- a request ends ------------------------------------------------------------------------------------------------

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Prefill: publishes or aborts. Decode: tells prefill when the request left before its record came."""
        return self._finish(request, block_ids, super().request_finished)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """The same for connectors that know several groups of KV caches."""
        return self._finish(request, block_ids, super().request_finished_all_groups)

    def _finish(self, request: Any, block_ids: Any, inner: Any) -> tuple[bool, dict[str, Any] | None]:
        waiting = self._waiting.pop(request.request_id, None)
        if waiting is not None:
            self._leave(waiting)
        sending = self._sending.pop(request.request_id, None)
        if sending is not None:
            return self._end_prefill(sending, request, block_ids, inner)
        outcome: tuple[bool, dict[str, Any] | None] = inner(request, block_ids)
        return outcome

    def _leave(self, waiting: _Waiting) -> None:
        """A request of decode ends while it waits."""
        self._taken.leave(waiting.leg.key)
        if waiting.held_until is not None or self._background is None:
            return
        if waiting.record.cancel() or waiting.record.cancelled():
            self._abort(self._background, waiting.leg, CLIENT_LEFT)
            return
        try:
            self._fill(waiting)  # the inner connector then tells prefill that its blocks are free
        except (HandoffError, UnusableHandoff, CancelledError) as error:
            log.info("room %d: the request left: %s", waiting.leg.key.room, error)

    def _end_prefill(
        self, sending: Sending, request: Any, block_ids: Any, inner: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        ended = sending.ended
        if ended is not None:
            log.info("request %s: its hand-off has ended, so its blocks are freed: %s", request.request_id, ended)
            sending.abort(no_handoff("the hand-off had ended"))
            inner(_AsAborted(request), block_ids)
            return False, None
        keeps_blocks, params = inner(request, block_ids)
        status = request.status.name
        if status in _PUBLISHED and request.output_token_ids:
            try:
                sending.publish(record_of(self._name, params, request.output_token_ids[0]))
            except InvalidRecord as error:  # must never reach the scheduler
                log.error("request %s: not published: %s", request.request_id, error)
                sending.abort(no_handoff(f"the record was not published: {error.reason}"))
            return keeps_blocks, sending.params_for_decode
        sending.abort(no_handoff(f"the prefill ended as {status}"))
        return keeps_blocks, params

    def shutdown(self) -> None:
        """Ends the inner connector, and tells the store what will not be published."""
        super().shutdown()
        if self._background is not None:
            self._background.close()


def connector_class(name: str) -> type[Any]:
    """vLLM's connector of this name with HandoffMixin before it. Raises AttributeError, as the lookup of a name in a
    module does, for a name that vLLM does not know."""
    factory = importlib.import_module(_FACTORY).KVConnectorFactory
    try:
        inner = factory.get_connector_class_by_name(name)
    except ValueError as error:
        raise AttributeError(str(error)) from None
    return type(name, (HandoffMixin, inner), {"__module__": "pd_handoff.engines.vllm", "__doc__": HandoffMixin.__doc__})
