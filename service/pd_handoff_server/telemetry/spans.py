"""A span of each call, sent by OTLP. Needs the extra `otel`; nothing else in the store imports OpenTelemetry."""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pd_handoff_server import __version__
from pd_handoff_server.handlers.call import Answer, Call, Handler
from pd_handoff_server.handlers.status import CODES
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Done, Parked
from pd_handoff_server.transport.gate import ADMIN, ADMIN_UNARY, STORE

_CARRIED: Final = ("traceparent", "tracestate")


class Spans:
    """Makes and sends spans. Sampling follows the caller's, and OTEL_TRACES_SAMPLER for calls without a trace."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint` is of an OTLP collector, http://host:port or https://host:port."""
        resource = Resource.create({"service.name": "pd-handoff", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("pd_handoff_server", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def stop(self) -> None:
        """Send what is left, and end."""
        self._provider.shutdown()

    def wrap(self, method: str, handler: Handler) -> Handler:
        """A `Wrap`."""
        service = ADMIN if method in ADMIN_UNARY else STORE
        name = f"{service}/{method}"
        fixed = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}

        def handle(data: bytes, call: Call, done: Done) -> Answer:
            span = self._tracer.start_span(name, self._parent(call), SpanKind.SERVER, fixed)

            def later(result: Any) -> None:
                _end(span, call, result.reason if isinstance(result, Refusal) else "OK")
                done(result)

            try:
                answer = handler(data, call, later)
            except Refusal as refused:
                _end(span, call, refused.reason)
                raise
            except Exception:
                _end(span, call, "INTERNAL")
                raise
            if isinstance(answer, bytes):
                _end(span, call, "OK")
                return answer
            return _Open(answer, span, call)

        return handle

    def _parent(self, call: Call) -> Any:
        if call.approach is None:
            return None
        carrier = {key: value for key, value in call.approach.metadata if key in _CARRIED}
        return self._propagator.extract(carrier)


class _Open:
    """A parked call whose span ends when its caller leaves."""

    __slots__ = ("_call", "_parked", "_span")

    def __init__(self, parked: Parked, span: Span, call: Call) -> None:
        self._parked, self._span, self._call = parked, span, call

    def cancel(self) -> bool:
        """See `Parked`."""
        if not self._parked.cancel():
            return False
        _end(self._span, self._call, "CANCELLED")
        return True


def _end(span: Span, call: Call, reason: str) -> None:
    code = CODES[reason].value[0] if reason in CODES else {"OK": 0, "CANCELLED": 1}[reason]
    span.set_attribute("rpc.grpc.status_code", code)
    span.set_attribute("pd_handoff.reason", reason)
    if call.key is not None:
        span.set_attribute("pd_handoff.namespace", call.key[0])
        span.set_attribute("pd_handoff.room", str(call.key[1]))  # 64 bits unsigned, which an integer here is not
        span.set_attribute("pd_handoff.sample", call.key[2])
    if reason == "INTERNAL":
        span.set_status(Status(StatusCode.ERROR))
    span.end()
