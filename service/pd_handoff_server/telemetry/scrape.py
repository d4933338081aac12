"""The port that Prometheus reads. Plain HTTP, GET /metrics, and nothing else."""

from __future__ import annotations

import errno
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from pd_handoff_server.rpc.sockets import AddressError

from .exposition import Sources, StoreCollector

_PATIENCE: Final = 5.0  # seconds for a request to come, or an answer to be taken
_AT_A_TIME: Final = 8


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, where: tuple[str, int], family: socket.AddressFamily, registry: CollectorRegistry) -> None:
        self.address_family = family
        self.registry = registry
        self._places = threading.BoundedSemaphore(_AT_A_TIME)
        super().__init__(where, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a place, or hang up."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Give the place back at the end, whatever happens."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up early is of no interest."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _PATIENCE
    server_version = "pd-handoff"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a scrape."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        body = encode(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
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
            self._server = _Server((str(where[0]), int(where[1])), family, registry)
        except OSError as error:
            raise AddressError(_trouble(address, error)) from None
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="pd-handoff-metrics", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and let the port go."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _trouble(address: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        what = "it is in use, perhaps by another store's metrics; stop it or choose another --metrics-listen"
        return f"cannot serve metrics on {address}: {what}"
    return f"cannot serve metrics on {address}: {error.strerror or error}; choose another --metrics-listen"
