"""Calls by themselves, by gRPC's own operations and by its stub: the same answers and the same errors."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from pd_handoff import AdminClient, DecodeClient, PrefillClient, Retries, errors
from pd_handoff._transport import channel as _channel
from pd_handoff._transport import unary
from pd_handoff._transport.unary import CallFailed, CheckedUnary, PublicUnary, RawUnary
from pd_handoff.retries import NO_RETRIES
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

ALONE: dict[str, Any] = {"session": "never", "retries": NO_RETRIES}
PATIENCE = 30.0


@pytest.fixture(params=["raw", "public"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without the names of gRPC that are not public."""
    if request.param == "public":
        monkeypatch.setattr(unary, "_NAMES", (*unary._NAMES, "NoSuchOperation"))
    return str(request.param)


def test_the_way_is_chosen_by_what_there_is(way: str, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc.insecure_channel(server.target) as channel:
        assert type(unary.open_unary(channel)) is (CheckedUnary if way == "raw" else PublicUnary)
        wrapped = grpc.intercept_channel(channel, Interceptor())
        assert type(unary.open_unary(wrapped)) is PublicUnary  # whoever looks at calls sees them
        monkeypatch.setattr("pd_handoff._transport.grpc_internals.cygrpc", None)
        assert type(unary.open_unary(channel)) is PublicUnary


class Interceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc, unused-ignore]
    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(details, request)


def test_every_call_has_its_path() -> None:
    paths = {path for path, _ in _channel.METHODS.values()}
    assert len(paths) == len(_channel.METHODS) == 11
    assert _channel.METHODS["BatchGet"] == ("/pd_handoff.v1.MetadataStore/BatchGet", pb.BatchGetResponse)
    assert _channel.METHODS["GetHandoff"] == (
        "/pd_handoff.v1.MetadataStoreAdmin/GetHandoff",
        admin_pb2.GetHandoffResponse,
    )


def test_answers_and_what_goes_with_them(store: Any, server: Any) -> None:
    store.script("Get", pb.GetResponse(store_epoch="e"))
    store.script("ListHandoffs", admin_pb2.ListHandoffsResponse())
    with DecodeClient(server.target, token="t", metadata=lambda: (("traceparent", "00-ab"),), **ALONE) as client:
        assert client.get(1).store_epoch == "e"
    with AdminClient(server.target, **ALONE) as admin:
        assert admin.list_handoffs() == []
    (call,) = store.of("Get")
    assert call.metadata["authorization"] == "Bearer t"
    assert call.metadata["traceparent"] == "00-ab"
    assert 4 < call.time_remaining < 6


def test_refusals(store: Any, server: Any, refusal: Callable[..., Any]) -> None:
    store.script(
        "Put", refusal("RESOURCE_EXHAUSTED", "TOP_LOGPROBS_OVERFLOW", "no", metadata={"limit": "20"}, retry_after=0.5)
    )
    with PrefillClient(server.target, **ALONE) as client, pytest.raises(errors.TopLogprobsOverflow) as caught:
        client.put_once(1, pb.PutRequest().record)
    assert caught.value.limit == 20
    assert caught.value.retry_after == 0.5
    assert str(caught.value) == "no"


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_code(code: grpc.StatusCode, store: Any, server: Any) -> None:
    store.script("Get", lambda _, context: context.abort(code, "so it is"))
    with DecodeClient(server.target, **ALONE) as client, pytest.raises(errors.HandoffError) as caught:
        client.get(1)
    assert caught.value.code == code.name
    if code.name != "DEADLINE_EXCEEDED":
        assert "so it is" in str(caught.value)


def test_nobody_there(tmp_path: Path) -> None:
    with DecodeClient(f"unix:{tmp_path}/none", **ALONE) as client, pytest.raises(errors.StoreUnavailable) as caught:
        client.get(1)
    assert str(caught.value).startswith(f"no answer from the store at unix:{tmp_path}/none: ")


def test_a_call_is_repeated(store: Any, server: Any, refusal: Callable[..., Any]) -> None:
    store.script("Get", refusal("UNAVAILABLE", "DRAINING", retry_after=0.01), pb.GetResponse(store_epoch="later"))
    with DecodeClient(server.target, session="never", retries=Retries(initial_backoff=0.01)) as client:
        assert client.get(1).store_epoch == "later"


def test_time_runs_out(store: Any, server: Any) -> None:
    done = threading.Event()
    store.script("Get", lambda *_: done.wait(PATIENCE) and pb.GetResponse())
    with DecodeClient(server.target, timeout=0.1, **ALONE) as client, pytest.raises(errors.DeadlineExceeded):
        client.get(1)
    done.set()


def test_closing_ends_what_is_under_way(store: Any, server: Any) -> None:
    seen, done = threading.Event(), threading.Event()

    def wait(_: Any, __: Any) -> Any:
        seen.set()
        done.wait(PATIENCE)
        return pb.GetResponse()

    store.script("Get", wait)
    client = DecodeClient(server.target, **ALONE)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, 1)
        assert seen.wait(PATIENCE)
        client.close()
        with pytest.raises(errors.ClientClosed):
            waiting.result(PATIENCE)
    done.set()
    with pytest.raises(errors.ClientClosed):
        client.get(1)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where a shell that started the tests in the background had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_wait(interrupts: None, store: Any, server: Any) -> None:
    done = threading.Event()

    def interrupt(*_: Any) -> Any:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        done.wait(PATIENCE)
        return pb.GetResponse()

    store.script("Get", interrupt, pb.GetResponse(store_epoch="e"))
    with DecodeClient(server.target, timeout=PATIENCE, **ALONE) as client:
        with pytest.raises(KeyboardInterrupt):
            client.get(1)
        done.set()
        assert client.get(1).store_epoch == "e"


def test_an_end_without_an_answer_is_none() -> None:
    class Call:
        def next_event(self) -> None:
            """What was waited for is as it was made: no message, and all well."""

    class Channel:
        _channel = SimpleNamespace(segregated_call=lambda *_: Call())

    with pytest.raises(CallFailed) as caught:
        RawUnary(Channel()).call("Get", pb.GetRequest(), 1.0, None)  # type: ignore[arg-type]
    assert caught.value.status.code() is grpc.StatusCode.INTERNAL


class Raw(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
    """Answers every call with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda *_: self._answer)


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[[bytes], str]]:
    servers: list[grpc.Server] = []

    def start(answer: bytes) -> str:
        server = grpc.server(ThreadPoolExecutor(1), handlers=[Raw(answer)])
        server.add_insecure_port(f"unix:{tmp_path}/raw")
        server.start()
        servers.append(server)
        return f"unix:{tmp_path}/raw"

    yield start
    for server in servers:
        server.stop(None).wait(PATIENCE)


@pytest.mark.parametrize("answer", [b"\xff", b"\x2a\x01\xff", b"\x0a\x05ab"])
def test_what_is_no_answer(answer: bytes, answering: Callable[[bytes], str]) -> None:
    with DecodeClient(answering(answer), **ALONE) as client, pytest.raises(errors.HandoffError) as caught:
        client.get(1)
    assert caught.value.code == caught.value.reason == "INTERNAL"


def test_an_empty_answer_is_one(answering: Callable[[bytes], str]) -> None:
    with DecodeClient(answering(b""), **ALONE) as client:
        assert client.get(1).store_epoch == ""
