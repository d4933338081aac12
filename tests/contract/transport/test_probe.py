"""The fast transport is used where it works, told of where it does not, and never needed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server import app, config
from pd_handoff_server.transport.choose import TransportError, make_transport
from pd_handoff_server.transport.gate import Gate
from pd_handoff_server.transport.ports import Ports
from pd_handoff_server.transport.serving_thread import grpc_internals, selftest

from tests.support import records
from tests.support.fixtures import Start
from tests.support.later_grpc import Changed, one_argument_fewer

pytestmark = pytest.mark.internals


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """The probe runs once a process; here it runs again for each test."""
    selftest.probe.cache_clear()
    yield
    selftest.probe.cache_clear()


class Log:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **facts: Any) -> None:
        """See structlog."""
        self.told.append(("info", event, facts))

    def warning(self, event: str, **facts: Any) -> None:
        """See structlog."""
        self.told.append(("warning", event, facts))


def chosen(wanted: str) -> tuple[str, Log]:
    """The transport that is made, and what the log was told."""
    log = Log()
    return make_transport(wanted, Ports([]), Gate(), [], lambda *_: None, log).name, log


def lose_a_name(patch: pytest.MonkeyPatch) -> str:
    """gRPC has renamed something; returns what the problem mentions."""
    patch.delattr("grpc._server._request_call")
    return "_server._request_call"


def lose_a_state(patch: pytest.MonkeyPatch) -> str:
    """The server's state has lost a part."""
    patch.setattr(grpc_internals, "_STATE", (*grpc_internals._STATE, "no_such_part"))
    return "no_such_part"


def answer_wrongly(patch: pytest.MonkeyPatch) -> str:
    """The names are there, and mean something else."""
    start = grpc_internals.start_answer
    patch.setattr(grpc_internals, "start_answer", lambda call, message, tag: start(call, message + b"?", tag))
    return "an answer differs"


def lose_the_details(patch: pytest.MonkeyPatch) -> str:
    """Trailing metadata no longer goes out."""
    start = grpc_internals.start_status

    def bare(call: Any, code: int, details: bytes, trailing: Any, tag: Any, **how: bool) -> None:
        start(call, code, details, None, tag, **how)

    patch.setattr(grpc_internals, "start_status", bare)
    return "without its details"


def refuse_batches(patch: pytest.MonkeyPatch) -> str:
    """A batch cannot be started any more."""

    def fails(*_: object, **__: object) -> None:
        raise TypeError("start_server_batch() takes 3 arguments")

    patch.setattr(grpc_internals, "start_answer", fails)
    return "start_server_batch() takes 3 arguments"


def poll_otherwise(patch: pytest.MonkeyPatch) -> str:
    """A look for an event finds none, and says so in another way."""
    whole: Any = vars(grpc_internals)["cygrpc"]
    parts = {name: getattr(whole, name) for name in dir(whole)}
    parts["CompletionType"] = SimpleNamespace(queue_timeout=-1)
    patch.setattr(grpc_internals, "cygrpc", SimpleNamespace(**parts))
    return "TypeError"


OPERATIONS = [name for name in grpc_internals._OPERATIONS if name not in {"CompletionType", "auth_context"}]
FUNCTIONS = [name for name in grpc_internals._MODULE if name.startswith("_") and name[1].islower()]
"""Of those, `_request_registered_call` and `_stop_serving` are not called while the probe's calls run."""
CALLED_LATER = {"_request_registered_call", "_stop_serving"}


BREAKS = [lose_a_name, lose_a_state, answer_wrongly, lose_the_details, refuse_batches, poll_otherwise]


def test_it_works_on_the_grpc_that_is_installed() -> None:
    verdict = selftest.probe()
    assert verdict.problem is None
    assert verdict.polling in {"serving thread", "event engine"}


def test_auto_takes_it_and_says_so() -> None:
    name, log = chosen("auto")
    assert name == "fast"
    [(level, event, facts)] = log.told
    assert (level, event) == ("info", "transport")
    assert facts["transport"] == "fast"
    assert facts["grpcio"] == grpc.__version__


@pytest.mark.parametrize("break_", BREAKS)
def test_a_grpc_that_differs_is_noticed(break_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    what = break_(monkeypatch)
    verdict = selftest.probe()
    assert verdict.problem is not None
    assert what in verdict.problem
    assert grpc.__version__ in verdict.problem


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_with_another_signature_is_the_cause_that_is_told(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_internals, "cygrpc", Changed(vars(grpc_internals)["cygrpc"], name))
    problem = selftest.probe().problem
    assert problem is not None
    assert "TypeError: takes exactly 1 positional argument fewer" in problem


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - CALLED_LATER))
def test_a_function_with_another_signature_is_the_cause_that_is_told(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_internals, "_server", Changed(vars(grpc_internals)["_server"], name))
    problem = selftest.probe().problem
    assert problem is not None
    assert "TypeError: takes exactly 1 positional argument fewer" in problem


def test_a_queue_that_is_asked_in_another_way_is_the_cause_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run = grpc_internals.Loop._run

    def changed(loop: Any) -> None:
        loop._state = SimpleNamespace(
            completion_queue=Changed(loop._state.completion_queue, "poll"), rpc_states=loop._state.rpc_states
        )
        run(loop)

    monkeypatch.setattr(grpc_internals.Loop, "_run", changed)
    problem = selftest.probe().problem
    assert problem is not None
    assert "TypeError: takes exactly 1 positional argument fewer" in problem


def test_a_call_that_is_never_answered_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_internals, "start_answer", lambda *_: None)
    problem = selftest.probe().problem
    assert problem is not None
    assert "no answer within" in problem


def test_an_attempt_that_is_held_up_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has no time for this process."""
    start = grpc_internals.start_answer
    held_up: list[Any] = []

    def hold_up(call: Any, message: bytes, tag: Any) -> None:
        if not held_up:
            held_up.append(call)
        elif call is not held_up[0]:
            start(call, message, tag)

    monkeypatch.setattr(grpc_internals, "start_answer", hold_up)
    assert selftest.probe().problem is None
    assert held_up


def test_the_event_loop_goes_on_while_the_store_tries_grpc_out(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def probe() -> Any:
        threads.append(threading.current_thread().name)
        return selftest.Verdict("not today")

    monkeypatch.setattr(app, "probe", probe)
    monkeypatch.setattr(app, "App", one_argument_fewer)
    with pytest.raises(TypeError, match="fewer"):
        asyncio.run(app.serve(config.Settings()))
    assert len(threads) == 1
    assert threads[0] != threading.current_thread().name


def test_fast_by_name_is_refused_where_it_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    what = lose_a_name(monkeypatch)
    with pytest.raises(TransportError, match=what):
        chosen("fast")


@pytest.mark.parametrize("transport", ["auto"])
def test_auto_falls_back_with_a_warning_and_serves(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_wrongly(monkeypatch)
    store = start()
    assert store.app.server.name == "aio"
    steps = store.steps()
    answer: pb.CapabilitiesResponse = steps.caller.call("Capabilities", pb.CapabilitiesRequest())
    assert "transport-aio" in answer.features
    assert "transport-fast" not in answer.features
    assert steps.exchange(1, records.full()) == records.full()
    told = capsys.readouterr()
    assert "transport_fallback" in told.out + told.err


@pytest.mark.parametrize(("transport", "feature"), [("fast", "transport-fast"), ("aio", "transport-aio")])
def test_capabilities_name_the_transport(start: Start, feature: str) -> None:
    answer: pb.CapabilitiesResponse = start().steps().caller.call("Capabilities", pb.CapabilitiesRequest())
    assert [name for name in answer.features if name.startswith("transport-")] == [feature]
