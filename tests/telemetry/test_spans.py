"""Spans of calls, sent to a collector that is a gRPC server of this test."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from pd_handoff_server.telemetry import hub

from tests.support.caller import UnaryCaller
from tests.support.credentials import sending
from tests.support.failures import CallFailed
from tests.support.fixtures import Start
from tests.support.steps import Steps

from .test_events import PARENT, SPAN, TRACE


class Collector:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(2))
        export = grpc.unary_unary_rpc_method_handler(
            self._export, otlp.ExportTraceServiceRequest.FromString, otlp.ExportTraceServiceResponse.SerializeToString
        )
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": export}),))
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._lock = threading.Lock()
        self.spans: list[Any] = []
        self.resources: set[str] = set()
        self._server.start()

    def _export(self, request: Any, context: Any) -> Any:
        del context
        with self._lock:
            for group in request.resource_spans:
                self.resources |= {f"{one.key}={one.value.string_value}" for one in group.resource.attributes}
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
        return otlp.ExportTraceServiceResponse()

    def close(self) -> None:
        self._server.stop(0).wait(20)


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_a_span_of_each_call(start: Start, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    store = start(otlp_endpoint=collector.endpoint, slots=4)
    traced = Steps(UnaryCaller(sending(store.channel(), ("traceparent", PARENT), ("tracestate", "a=b"))))
    unsampled = Steps(UnaryCaller(sending(store.channel(), ("traceparent", PARENT[:-1] + "0"))))
    waiting = traced.start_get(2**63 + 1, reader="d")
    store.until_waiting(1)
    given_up = traced.start_get(7)
    store.until_waiting(2)
    given_up.cancel()  # type: ignore[attr-defined]
    store.until_waiting(1)
    traced.put_once(2**63 + 1)
    waiting.result()
    with pytest.raises(CallFailed):
        traced.get(99)
    store.steps().capabilities()
    unsampled.capabilities()
    store.sight(2**63 + 1)
    store.close()
    by_name: dict[str, list[Any]] = {}
    for span in collector.spans:
        by_name.setdefault(span.name, []).append(span)
    service = "pd_handoff.v1.MetadataStore"
    assert {name: len(spans) for name, spans in by_name.items()} == {
        f"{service}/Put": 1,
        f"{service}/Get": 3,
        f"{service}/Capabilities": 1,
        f"{service}Admin/GetHandoff": 1,
    }
    (put,) = by_name[f"{service}/Put"]
    assert (put.trace_id.hex(), put.parent_span_id.hex()) == (TRACE, SPAN)
    assert put.kind == 2  # SERVER
    assert attributes(put) == {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": "Put",
        "rpc.grpc.status_code": 0,
        "pd_handoff.reason": "OK",
        "pd_handoff.namespace": "",
        "pd_handoff.room": str(2**63 + 1),
        "pd_handoff.sample": 0,
    }
    reasons = {attributes(span)["pd_handoff.reason"]: span for span in by_name[f"{service}/Get"]}
    assert reasons.keys() == {"OK", "CANCELLED", "HANDOFF_NOT_FOUND"}
    assert attributes(reasons["HANDOFF_NOT_FOUND"])["rpc.grpc.status_code"] == 5
    assert reasons["OK"].end_time_unix_nano >= put.start_time_unix_nano  # as long as its wait
    assert by_name[f"{service}/Capabilities"][0].trace_id.hex() != TRACE
    assert "service.name=pd-handoff" in collector.resources


def test_without_opentelemetry_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "pd_handoff_server.telemetry.spans", raising=False)
    with pytest.raises(hub.TelemetryError, match=r"pip install 'pd-handoff\[otel\]'"):
        hub._spans("http://127.0.0.1:1")


def test_a_collector_that_is_not_there_stops_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    store = start(otlp_endpoint="http://127.0.0.1:1")
    store.steps().exchange(1)
    assert store.steps().free == 8
