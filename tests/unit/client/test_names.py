"""A store that comes back at another address behind the same name."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import metadata_store_pb2_grpc

PATIENCE = 25.0


class NameServer:
    """Answers every question for an IPv4 address with `address`, and every other one with nothing."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, name="names", daemon=True).start()

    def _serve(self) -> None:
        while True:  # ends with the socket
            try:
                query, asker = self._socket.recvfrom(4096)
            except OSError:
                return
            end = query.index(b"\0", 12) + 5
            kind = struct.unpack("!H", query[end - 4 : end - 2])[0]
            answers = b""
            if kind == 1:
                self.asked += 1
                answers = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 0, 4) + socket.inet_aton(self.address)
            head = query[:2] + struct.pack("!HHHHH", 0x8580, 1, bool(answers), 0, 0)
            self._socket.sendto(head + query[12:end] + answers, asker)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def names() -> Iterator[NameServer]:
    server = NameServer("127.0.0.2")
    yield server
    server.close()


def serve(store: Any, address: str) -> tuple[grpc.Server, int]:
    host, _, port = address.partition(":")
    server = grpc.server(ThreadPoolExecutor(4))
    metadata_store_pb2_grpc.add_MetadataStoreServicer_to_server(store, server)
    bound = server.add_insecure_port(f"{host}:{port}")
    server.start()
    return server, bound


@pytest.mark.parametrize("session", ["never", "always"])
async def test_it_is_found_within_the_default_budget(session: str, names: NameServer, connect: Any, store: Any) -> None:
    store.script("Get", pb.GetResponse(store_epoch="first"))
    store.serve_sessions()
    first, port = serve(store, "127.0.0.2:0")
    client = connect("DecodeClient", target=f"dns://127.0.0.1:{names.port}/store.test:{port}", session=session)
    assert (await client.get(1)).store_epoch == "first"
    first.stop(None).wait(PATIENCE)
    store.script("Get", pb.GetResponse(store_epoch="second"))
    second, _ = serve(store, f"127.0.0.3:{port}")
    names.address = "127.0.0.3"
    try:
        assert (await client.get(1)).store_epoch == "second"
    finally:
        second.stop(None).wait(PATIENCE)
