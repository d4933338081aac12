"""A scripted store on a Unix socket, and one way to drive both faces of the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pd_handoff
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from pd_handoff import aio
from pd_handoff.v1 import admin_pb2_grpc, metadata_store_pb2_grpc
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.unit.client.driven import Driven


class Call(NamedTuple):
    """One call as the store saw it."""

    method: str
    request: Any
    metadata: Mapping[str, str]
    time_remaining: float


class FakeStore:
    """Answers each method with what the test scripted: responses, statuses, or functions of (request, context). The
    last answer is repeated."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._answers: dict[str, list[Any]] = {}

    def script(self, method: str, *answers: Any) -> None:
        self._answers[method] = list(answers)

    def of(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]

    def serve_sessions(self) -> None:
        """Answer the calls of Sessions as scripted for the calls alone; they are noted as `Session.Put` and the like.
        What is scripted as None gets no answer."""
        self.script("Session", self._session)

    def _session(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        metadata = dict(context.invocation_metadata())
        for request in requests:
            name = request.WhichOneof("call")
            self.calls.append(Call(f"Session.{name.capitalize()}", getattr(request, name), metadata, 0.0))
            answers = self._answers.get(name.capitalize(), [pb.CapabilitiesResponse()])
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if callable(answer):
                answer = answer(getattr(request, name), context)
            if isinstance(answer, status_pb2.Status):
                yield pb.SessionResponse(call_id=request.call_id, error=answer)
            elif answer is not None:
                yield pb.SessionResponse(call_id=request.call_id, **{name: answer})

    def __getattr__(self, method: str) -> Callable[[Any, Any], Any]:
        if not method[0].isupper():
            raise AttributeError(method)

        def handle(request: Any, context: Any) -> Any:
            metadata = dict(context.invocation_metadata())
            self.calls.append(Call(method, request, metadata, context.time_remaining()))
            answers = self._answers[method]
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if callable(answer):
                answer = answer(request, context)
            if isinstance(answer, status_pb2.Status):
                context.set_trailing_metadata((("grpc-status-details-bin", answer.SerializeToString()),))
                codes = {code.value[0]: code for code in grpc.StatusCode}
                context.abort(codes[answer.code], answer.message)
            return answer

        return handle


def _refusal(
    code: str,
    reason: str = "",
    message: str = "no",
    *,
    metadata: Mapping[str, str] | None = None,
    retry_after: float | None = None,
    violations: tuple[tuple[str, str], ...] = (),
    domain: str = "pd-handoff",
) -> status_pb2.Status:
    status = status_pb2.Status(code=grpc.StatusCode[code].value[0], message=message)
    if reason:
        info = error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=dict(metadata or {}))
        status.details.add().Pack(info)
    if retry_after is not None:
        delay = Duration()
        delay.FromNanoseconds(round(retry_after * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    if violations:
        bad = error_details_pb2.BadRequest()
        for field, description in violations:
            bad.field_violations.add(field=field, description=description)
        status.details.add().Pack(bad)
    return status


@pytest.fixture
def refusal() -> Callable[..., status_pb2.Status]:
    return _refusal


class Server:
    """The scripted store's socket; can be stopped and started again."""

    def __init__(self, store: FakeStore, path: Path) -> None:
        self.target = f"unix:{path}"
        self._store = store
        self._server: grpc.Server | None = None

    def start(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(8))
        metadata_store_pb2_grpc.add_MetadataStoreServicer_to_server(self._store, self._server)  # type: ignore[arg-type]
        admin_pb2_grpc.add_MetadataStoreAdminServicer_to_server(self._store, self._server)  # type: ignore[arg-type]
        assert self._server.add_insecure_port(self.target)
        self._server.start()

    def stop(self, grace: float | None = None) -> None:
        if self._server is not None:
            self._server.stop(grace).wait(5)
            self._server = None


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def server(store: FakeStore, tmp_path: Path) -> Iterator[Server]:
    server = Server(store, tmp_path / "s")
    server.start()
    yield server
    server.stop()


Connect = Callable[..., Driven]


@pytest.fixture(params=["blocking", "asyncio"])
async def connect(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Connect]:
    """connect("PrefillClient", **options): a client of the scripted store, closed after the test."""
    made: list[Driven] = []
    module = pd_handoff if request.param == "blocking" else aio

    def make(kind: str, **options: Any) -> Driven:
        made.append(Driven(getattr(module, kind)(options.pop("target", server.target), **options)))
        return made[-1]

    yield make
    for driven in made:
        await driven.close()
