"""The port that Prometheus reads: plain HTTP, GET or HEAD, /metrics; beside it /healthz and /readyz for probes."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from pd_handoff_server.transport.addresses import AddressError

from .exposition import Sources, StoreCollector

_PATIENCE: Final = 5.0  # seconds without a byte of a request, or of an answer being taken
_TOTAL: Final = 10.0  # seconds from a connection to the end of its answer
_AT_A_TIME: Final = 8
_PAUSE: Final = 0.5  # seconds without accepting, when the process has no descriptor left
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)


_TEXT: Final = "text/plain; charset=utf-8"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(
        self, where: tuple[str, int], family: socket.AddressFamily, registry: CollectorRegistry, sources: Sources
    ) -> None:
        self.address_family = family
        self.registry = registry
        self.sources = sources
        self.stopping = threading.Event()
        self._places = threading.BoundedSemaphore(_AT_A_TIME)
        self._open: dict[Any, float] = {}  # connections, with the moment at which their time is over
        super().__init__(where, _Handler)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Without a descriptor for it, try again later instead of at once."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR:
                self.stopping.wait(_PAUSE)
            raise

    def service_actions(self) -> None:
        """Twice per second: cut off connections whose time is over, however slowly they go on."""
        now = time.monotonic()
        for request, until in list(self._open.items()):
            if until <= now:
                with contextlib.suppress(OSError):  # it has just ended
                    request.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a place, or hang up."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic() + _TOTAL
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Give the place back at the end, whatever happens."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.pop(request, None)
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up early is of no interest."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _PATIENCE
    server_version = "pd-handoff"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a scrape or a probe."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, kind, encode(self.server.registry))
        elif path == "/healthz":
            self._answer(200, _TEXT, b"ok\n")
        elif path == "/readyz":
            serving = self.server.sources.serving
            self._answer(200 if serving else 503, _TEXT, b"serving\n" if serving else b"not serving\n")
        else:
            self.send_error(404)

    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Scrapes are no events."""


class Scrape:
    """Serves the series of a store and of its process."""

    def __init__(self, address: str, sources: Sources) -> None:
        """`address` is host:port, port 0 for any. Raises AddressError."""
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(StoreCollector(sources))
        ProcessCollector(registry=registry)
        try:
            family, _, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
            self._server = _Server((str(where[0]), int(where[1])), family, registry, sources)
        except OSError as error:
            raise AddressError(_trouble(address, error)) from None
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="pd-handoff-metrics", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and let the port go."""
        self._server.stopping.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _trouble(address: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        what = "it is in use, perhaps by another store's metrics; stop it or choose another --metrics-listen"
        return f"cannot serve metrics on {address}: {what}"
    return f"cannot serve metrics on {address}: {error.strerror or error}; choose another --metrics-listen"
