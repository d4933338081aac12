"""The mixin before a connector that behaves as vLLM's NixlConnector does, with a real store between the two sides."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pd_handoff import DecodeClient, EngineState, Failure, HandoffAborted, Key, PrefillClient, Record, Token, errors
from pd_handoff.engines import vllm as package
from pd_handoff.engines.vllm.connector import HandoffMixin
from pd_handoff.engines.vllm.payload import params_of, record_of
from pd_handoff.gateway.relay import COMPUTE_LOCALLY
from pd_handoff.model import digest_of_prompt
from pd_handoff_server.lifecycle import SystemClock

from tests.support.local import LocalStore, Loop, fresh_directory, settings_for, transports
from tests.support.waits import PATIENCE, eventually

PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
PROMPT = [5, 6, 7]


class Status(enum.Enum):
    WAITING = 0
    FINISHED_STOPPED = 1
    FINISHED_LENGTH_CAPPED = 2
    FINISHED_ABORTED = 3


class Inner:
    """What of NixlConnector the mixin meets."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self.new: list[str] = []
        self.finished: list[tuple[str, str]] = []
        self.to_notify: list[str] = []
        self.closed = False

    def on_new_request(self, request: Any) -> None:
        self.new.append(request.request_id)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        params = request.kv_transfer_params
        if params and params.get("do_remote_prefill"):
            return len(request.prompt_token_ids), True
        return 0, False

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return "meta"

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        params = request.kv_transfer_params
        self.finished.append((request.request_id, request.status.name))
        if not params:
            return False, None
        if params.get("do_remote_prefill"):
            self.to_notify.append(params["remote_request_id"])  # KeyError without, as vLLM's
            return False, None
        if params.get("do_remote_decode") and request.status is not Status.FINISHED_ABORTED:
            return True, dict(PARAMS)
        return False, None

    request_finished_all_groups = request_finished

    def shutdown(self) -> None:
        self.closed = True


class NixlConnector(HandoffMixin, Inner):
    """As the package makes it of vLLM's."""


class Shared(Inner):
    """A connector to a cache that both sides share."""

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    request_finished_all_groups = request_finished


class Odd(Inner):
    """A connector whose parameters hold what JSON has no form for."""

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return True, {**PARAMS, "remote_engine_id": object()}


class OddConnector(HandoffMixin, Odd):
    """Of it."""


class ExampleConnector(HandoffMixin, Shared):
    """Of it."""


def request(room: int | None, side: str | None, index: int = 0, **fields: Any) -> Any:
    """A request as vLLM's scheduler has it."""
    params: dict[str, Any] = {} if side is None else {f"do_remote_{side}": True}
    if room is not None:
        params["handoff"] = {"room": str(room)}
    made = {
        "request_id": f"cmpl-x{index}-0-0123abcd",
        "kv_transfer_params": params,
        "prompt_token_ids": PROMPT,
        "abort_immediately": False,
        "skip_reading_prefix_cache": False,
        "status": Status.WAITING,
        "output_token_ids": [],
    }
    return SimpleNamespace(**{**made, **fields})


Make = Callable[..., Any]


@pytest.fixture
def make(environment: Callable[..., None]) -> Iterator[Make]:
    """Makes a connector of a scheduler."""
    made: list[Any] = []

    def make_(kind: Any = NixlConnector, role: str = "SCHEDULER", kv_role: str = "kv_both", **settings: object) -> Any:
        environment(**{"lease": 5, "decode_wait": 30, **settings})
        config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector=kind.__name__, kv_role=kv_role))
        made.append(kind(config, SimpleNamespace(name=role), None))
        return made[-1]

    yield make_
    for connector in made:
        connector.shutdown()


def finish(connector: Any, which: Any, status: Status, token: int | None = 9) -> Any:
    """The request ends."""
    which.status = status
    which.output_token_ids = [] if token is None else [token]
    return connector.request_finished_all_groups(which, ([1, 2],))


def until_matched(connector: Any, which: Any) -> tuple[int | None, bool]:
    """What the connector says of a request of decode, once it no longer waits."""
    found: list[tuple[int | None, bool]] = []

    def look() -> bool:
        found.append(connector.get_num_new_matched_tokens(which, 0))
        return found[-1][0] is not None

    eventually(look, "the request waits no longer")
    return found[-1]


def put(client: PrefillClient, room: int, record: Record | None = None, **more: Any) -> None:
    """A prefill of another make."""
    client.put_once(room, record or record_of("NixlConnector", PARAMS, 9), **more)


def is_refused(client: DecodeClient, room: int) -> bool:
    """Whether the store refuses a prefill, since the hand-off was aborted before it. Looking changes nothing."""
    try:
        client.get(room, consume=False)
    except HandoffAborted as aborted:
        return str(aborted.failure.reason) == COMPUTE_LOCALLY
    except errors.HandoffNotFound:
        return False
    raise AssertionError("a record that no one put")


def test_both_sides(make: Make, room: int) -> None:
    prefill, decode = make(), make()
    waits, computes = request(room, "prefill"), request(room, "decode", 1)
    decode.on_new_request(waits)
    assert decode.new == []  # the inner connector hears of it when there is something to fetch
    assert decode.get_num_new_matched_tokens(waits, 0) == (None, False)
    prefill.on_new_request(computes)
    assert prefill.new == [computes.request_id]
    keeps, params = finish(prefill, computes, Status.FINISHED_LENGTH_CAPPED)
    assert keeps
    assert params == {"do_remote_prefill": True, "do_remote_decode": False, "handoff": {"room": str(room)}}
    assert until_matched(decode, waits) == (3, True)
    assert waits.kv_transfer_params == PARAMS
    assert decode.new == [waits.request_id]


def test_the_inner_connector_hears_of_requests_further_back_in_the_queue(
    make: Make, prefill: PrefillClient, room: int
) -> None:
    decode, waits = make(), request(room, "prefill")
    decode.on_new_request(waits)
    put(prefill, room)

    def heard() -> bool:
        assert decode.build_connector_meta(None) == "meta"
        return bool(decode.new == [waits.request_id])

    eventually(heard, "the inner connector heard of it")


def test_a_prefill_that_stopped_at_once_is_published(make: Make, decode: DecodeClient, room: int) -> None:
    prefill, computes = make(), request(room, "decode")
    prefill.on_new_request(computes)
    finish(prefill, computes, Status.FINISHED_STOPPED, 2)
    handoff = decode.get(room, max_wait=PATIENCE, request_digest=digest_of_prompt(PROMPT))
    assert handoff.record.tokens[0].token_id == 2
    assert params_of("NixlConnector", handoff) == PARAMS


def test_parameters_that_no_record_can_hold(make: Make, decode: DecodeClient, room: int) -> None:
    """The scheduler goes on, and decode is told."""
    prefill, computes = make(OddConnector), request(room, "decode")
    prefill.on_new_request(computes)
    finish(prefill, computes, Status.FINISHED_LENGTH_CAPPED)
    with pytest.raises(HandoffAborted, match="not published"):
        decode.get(room, max_wait=PATIENCE)


def test_the_digest_is_of_the_prompt(make: Make, decode: DecodeClient, room: int) -> None:
    prefill, computes = make(), request(room, "decode")
    prefill.on_new_request(computes)
    finish(prefill, computes, Status.FINISHED_LENGTH_CAPPED)
    with pytest.raises(errors.RequestMismatch):
        decode.get(room, max_wait=PATIENCE, request_digest=digest_of_prompt([1]))


def test_another_requests_record_is_not_taken(make: Make, prefill: PrefillClient, room: int) -> None:
    decode, waits = make(), request(room, "prefill")
    put(prefill, room, request_digest=digest_of_prompt([1]))
    decode.on_new_request(waits)
    assert until_matched(decode, waits) == (0, False)
    assert not waits.kv_transfer_params


@pytest.mark.parametrize("status", [Status.FINISHED_ABORTED, Status.FINISHED_LENGTH_CAPPED])
def test_a_prefill_without_a_token_tells_decode_to_compute(
    make: Make, decode: DecodeClient, room: int, status: Status
) -> None:
    prefill, computes = make(), request(room, "decode")
    prefill.on_new_request(computes)
    finish(prefill, computes, status, None)
    with pytest.raises(HandoffAborted) as aborted:
        decode.get(room, max_wait=PATIENCE)
    assert aborted.value.failure.reason == COMPUTE_LOCALLY


@pytest.mark.parametrize(
    "failure", [Failure(200, COMPUTE_LOCALLY, "lost"), Failure(400, "PREFILL_REFUSED", "too long")]
)
def test_after_an_abort_decode_computes(make: Make, prefill: PrefillClient, room: int, failure: Failure) -> None:
    decode, waits = make(), request(room, "prefill")
    decode.on_new_request(waits)
    prefill.abort(room, failure, attempt=0)
    assert until_matched(decode, waits) == (0, False)


def test_a_refused_request_waits_for_the_side_that_answers_it(make: Make, prefill: PrefillClient, room: int) -> None:
    decode, waits, other = make(), request(room, "prefill"), request(None, None, 1)
    waits.kv_transfer_params["handoff"]["answers"] = True
    decode.on_new_request(waits)
    prefill.abort(room, Failure(400, "PREFILL_REFUSED", "too long"), attempt=0)

    def held() -> bool:
        decode.build_connector_meta(None)
        return decode._waiting[waits.request_id].held_until is not None

    eventually(held, "the refusal came")
    assert decode.get_num_new_matched_tokens(waits, 0) == (None, False)
    assert decode.get_num_new_matched_tokens(other, 0) == (0, False)  # others go on
    finish(decode, waits, Status.FINISHED_ABORTED, None)
    assert decode.finished == [(waits.request_id, "FINISHED_ABORTED")]
    assert decode.to_notify == []


def test_a_lost_prefill(make: Make, prefill: PrefillClient, room: int) -> None:
    decode, waits = make(decode_wait=0.2), request(room, "prefill")
    decode.on_new_request(waits)
    assert until_matched(decode, waits) == (0, False)  # none ever reserved
    second = request(room, "prefill", 1)
    prefill.reserve(room, lease=1.0)
    decode.on_new_request(second)
    assert until_matched(decode, second) == (0, False)  # one did, and fell silent


def test_a_store_that_is_away(make: Make, room: int) -> None:
    decode, waits = make(target="127.0.0.1:1"), request(room, "prefill")
    decode.on_new_request(waits)
    assert until_matched(decode, waits) == (0, False)
    prefill, computes = make(target="127.0.0.1:1"), request(room, "decode")
    prefill.on_new_request(computes)
    finish(prefill, computes, Status.FINISHED_LENGTH_CAPPED)
    assert prefill.finished == [(computes.request_id, "FINISHED_LENGTH_CAPPED")]


def test_an_engine_that_shuts_down_tells_decode(make: Make, decode: DecodeClient, room: int) -> None:
    prefill, computes = make(), request(room, "decode")
    prefill.on_new_request(computes)
    sending = prefill._sending[computes.request_id]
    eventually(lambda: sending._handoff is not None, "it has reserved")
    prefill.shutdown()
    assert prefill.closed
    with pytest.raises(HandoffAborted) as aborted:
        decode.get(room)
    assert aborted.value.failure.reason == COMPUTE_LOCALLY


def test_a_store_that_came_back_empty(make: Make, loop_thread: Loop, sockets: Any, room: int) -> None:
    """Its token is unknown there: the record is published all the same."""
    directory = fresh_directory(sockets)
    settings = settings_for(transports()[0], max_engine_state_bytes=4096)
    first = LocalStore(loop_thread, directory, clock=SystemClock(), **settings)
    first.start()
    prefill, computes = make(target=first.target, lease=600), request(room, "decode")
    prefill.on_new_request(computes)
    sending = prefill._sending[computes.request_id]
    eventually(lambda: sending._handoff is not None, "it has reserved")
    first.close()
    second = LocalStore(loop_thread, directory, clock=SystemClock(), **settings)
    second.start()
    try:
        finish(prefill, computes, Status.FINISHED_LENGTH_CAPPED, 77)
        with DecodeClient(second.target) as client:
            assert client.get(room, max_wait=PATIENCE).record.tokens[0].token_id == 77
    finally:
        prefill.shutdown()
        second.close()


def test_a_client_that_leaves_decode(make: Make, room: int) -> None:
    prefill, decode = make(), make()
    waits, computes = request(room, "prefill"), request(room, "decode", 1)
    prefill.on_new_request(computes)
    decode.on_new_request(waits)
    finish(decode, waits, Status.FINISHED_ABORTED, None)
    assert decode.to_notify == []
    sending = prefill._sending[computes.request_id]
    eventually(lambda: sending.ended is not None, "prefill knows")
    assert finish(prefill, computes, Status.FINISHED_LENGTH_CAPPED) == (False, None)
    assert prefill.finished == [(computes.request_id, "FINISHED_ABORTED")]  # so it keeps nothing


def test_a_client_that_leaves_after_the_record_came(make: Make, prefill: PrefillClient, room: int) -> None:
    decode, waits = make(), request(room, "prefill")
    put(prefill, room)
    decode.on_new_request(waits)
    eventually(decode._waiting[waits.request_id].record.done, "the record came")
    finish(decode, waits, Status.FINISHED_ABORTED, None)
    assert decode.to_notify == ["r"]  # prefill's blocks are freed


def test_a_room_that_is_in_use(make: Make, decode: DecodeClient, room: int) -> None:
    prefill = make()
    first, second = request(room, "decode"), request(room, "decode", 1)
    prefill.on_new_request(first)
    eventually(lambda: prefill._sending[first.request_id]._handoff is not None, "the first has reserved")
    prefill.on_new_request(second)
    sending = prefill._sending[second.request_id]
    eventually(lambda: sending.ended is not None, "the second is refused")
    assert finish(prefill, second, Status.FINISHED_LENGTH_CAPPED) == (False, None)
    finish(prefill, first, Status.FINISHED_LENGTH_CAPPED, 42)
    assert decode.get(room, max_wait=PATIENCE).record.tokens[0].token_id == 42


def test_a_record_is_fetched_once(make: Make, prefill: PrefillClient, room: int) -> None:
    """Prefill frees its blocks after the first fetch: they may hold another request's by then."""
    decode = make()
    together = [request(room, "prefill", index) for index in range(2)]
    for each in together:
        decode.on_new_request(each)
    assert decode.get_num_new_matched_tokens(together[1], 0) == (0, False)
    put(prefill, room)
    assert until_matched(decode, together[0]) == (3, True)
    later = request(room, "prefill", 2)
    decode.on_new_request(later)
    assert until_matched(decode, later) == (0, False)


def test_samples_beyond_the_first_compute_the_prompt(make: Make, room: int) -> None:
    prefill, decode = make(), make()
    for connector, side in ((decode, "prefill"), (prefill, "decode")):
        other = request(room, side, request_id="1_cmpl-x-0-0123abcd")
        connector.on_new_request(other)
        assert connector.get_num_new_matched_tokens(other, 0) == (0, False)
        assert finish(connector, other, Status.FINISHED_LENGTH_CAPPED) == (False, None)
    assert prefill._sending == {}


def test_each_prompt_of_a_list_has_a_record(make: Make, decode: DecodeClient, room: int) -> None:
    prefill = make()
    for index in range(2):
        computes = request(room, "decode", request_id=f"cmpl-x-{index}-0123abcd", prompt_token_ids=[index])
        prefill.on_new_request(computes)
        finish(prefill, computes, Status.FINISHED_LENGTH_CAPPED, 100 + index)
    for index in range(2):
        digest = digest_of_prompt([index])
        handoff = decode.get(Key(room, index), max_wait=PATIENCE, request_digest=digest)
        assert handoff.record.tokens[0].token_id == 100 + index


@pytest.mark.parametrize("params", [{"do_remote_prefill": True}, {"do_remote_prefill": True, "remote_host": "x"}])
@pytest.mark.parametrize("immediately", [False, True])
def test_case_53_a_flag_with_nothing_to_fetch_from(make: Make, params: dict[str, Any], immediately: bool) -> None:
    decode = make()
    flagged = request(None, None, kv_transfer_params=params, abort_immediately=immediately)
    decode.on_new_request(flagged)
    assert decode.get_num_new_matched_tokens(flagged, 0) == (0, False)
    assert finish(decode, flagged, Status.FINISHED_ABORTED, None) == (False, None)


def test_topology_beside_a_room_is_not_used(make: Make, room: int) -> None:
    decode = make(decode_wait=0.2)
    waits = request(room, "prefill")
    waits.kv_transfer_params.update(PARAMS)
    decode.on_new_request(waits)
    assert until_matched(decode, waits) == (0, False)


def test_a_router_that_brings_the_parameters_itself_is_served_as_before(make: Make) -> None:
    decode = make()
    brought = request(None, None, kv_transfer_params=dict(PARAMS))
    decode.on_new_request(brought)
    assert decode.new == [brought.request_id]
    assert decode.get_num_new_matched_tokens(brought, 0) == (3, True)


def test_a_request_that_decode_refused_tells_prefill(make: Make, decode: DecodeClient, room: int) -> None:
    side = make()
    refused = request(room, "prefill", abort_immediately=True)
    side.on_new_request(refused)
    assert finish(side, refused, Status.FINISHED_ABORTED, None) == (False, None)
    eventually(lambda: is_refused(decode, room), "prefill is told")


def test_prompt_logprobs_are_computed_by_decode(make: Make, decode: DecodeClient, room: int) -> None:
    side = make()
    reads_no_cache = request(room, "prefill", skip_reading_prefix_cache=True)
    side.on_new_request(reads_no_cache)
    assert side.get_num_new_matched_tokens(reads_no_cache, 0) == (0, False)
    eventually(lambda: is_refused(decode, room), "prefill is told")


def test_records_that_this_engine_cannot_use(make: Make, prefill: PrefillClient, room: int) -> None:
    decode = make()
    useless = [
        record_of("ExampleConnector", PARAMS, 9),
        record_of("NixlConnector", {**PARAMS, "remote_block_ids": []}, 9),
        Record(tokens=[Token(9)], engine_state=EngineState("vllm/NixlConnector;v=1", b"no json")),
        Record(tokens=[Token(9)]),
    ]
    for index, record in enumerate(useless):
        put(prefill, Key(room, index), record)  # type: ignore[arg-type]
        waits = request(room, "prefill", index)
        waits.kv_transfer_params["handoff"]["sample"] = index
        decode.on_new_request(waits)
        assert until_matched(decode, waits) == (0, False)


def test_a_cache_that_both_sides_share(make: Make, room: int) -> None:
    prefill, decode = make(ExampleConnector), make(ExampleConnector)
    waits, computes = request(room, "prefill"), request(room, "decode", 1)
    decode.on_new_request(waits)
    assert decode.get_num_new_matched_tokens(waits, 0) == (None, False)
    prefill.on_new_request(computes)
    finish(prefill, computes, Status.FINISHED_LENGTH_CAPPED)
    assert until_matched(decode, waits) == (0, False)  # what the inner connector says of its own cache
    assert not waits.kv_transfer_params


def test_the_role_in_the_configuration(make: Make, prefill: PrefillClient, room: int) -> None:
    decode = make(kv_role="kv_consumer")
    waits = request(room, None)
    decode.on_new_request(waits)
    assert decode.get_num_new_matched_tokens(waits, 0) == (None, False)
    put(prefill, room)
    assert until_matched(decode, waits) == (3, True)


def test_the_workers_side_does_nothing(make: Make, room: int) -> None:
    worker = make(role="WORKER")
    untouched = request(room, "prefill")
    worker.on_new_request(untouched)
    assert worker.new == [untouched.request_id]


def test_a_bad_setting_ends_the_start(make: Make) -> None:
    with pytest.raises(ValueError, match="PD_HANDOFF_LEASE must be seconds from 1 to 3600"):
        make(lease="0.5")
    with pytest.raises(ValueError, match="PD_HANDOFF_TARGET must name one store"):
        make(target="127.0.0.1:1,127.0.0.1:2", lease="5")


def test_connectors_are_found_by_vllms_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Factory:
        @staticmethod
        def get_connector_class_by_name(name: str) -> Any:
            if name != "NixlConnector":
                raise ValueError(f"Connector '{name}' is not registered.")
            return Inner

    name = "vllm.distributed.kv_transfer.kv_connector.factory"
    factory = types.ModuleType(name)
    factory.KVConnectorFactory = Factory  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, factory)
    monkeypatch.delitem(package.__dict__, "NixlConnector", raising=False)
    made = package.NixlConnector  # type: ignore[attr-defined]
    assert made.__name__ == "NixlConnector"
    assert issubclass(made, HandoffMixin)
    assert issubclass(made, Inner)
    with pytest.raises(AttributeError, match="not registered"):
        package.NoSuchConnector  # type: ignore[attr-defined]  # noqa: B018
    monkeypatch.delitem(package.__dict__, "NixlConnector")
