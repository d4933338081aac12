"""A store under attack, with an honest caller beside it."""

from __future__ import annotations

import contextlib
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import requests
from tests.support.process import ProcessStore
from tests.support.waits import eventually

from .common import Report, differences, record_of

STORE, ADMIN = "pd_handoff.v1.MetadataStore", "pd_handoff.v1.MetadataStoreAdmin"
SECONDS = 30.0
CEILING = 512 << 20
"""Bytes that a store may have grown by at the height of an attack."""


class Target:
    """The store under attack.

    Attributes:
        address: where it listens.
    """

    def __init__(self, store: ProcessStore, report: Report, transport: str, say: Callable[[str], None]) -> None:
        self.report = report
        self.address = store.target
        self._store = store
        self._transport = transport
        self._say = say
        self._room = 1 << 40
        self._honest: Any = self.channel()
        self.check("before any attack")
        self._start = self._used()
        self._before = 0

    def channel(self, *options: tuple[str, Any]) -> Any:
        """A connection of its own."""
        own = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1), *options]
        return grpc.insecure_channel(self.address, own)

    def _memory(self, what: str) -> int:
        """Bytes that the store holds (VmRSS) or held at most (VmHWM)."""
        status = Path(f"/proc/{self._store.process.pid}/status").read_text()
        return int(status.partition(f"{what}:")[2].split()[0]) * 1024

    def fault(self, sentence: str) -> None:
        """Something was not as promised."""
        self.report.fault(f"{self._transport}: {sentence}")

    def expect(self, holds: bool, sentence: str) -> None:
        """A fault, unless it holds."""
        if not holds:
            self.fault(sentence)

    def check(self, when: str) -> None:
        """The store answers health, and hands a record over exactly."""
        self._room += 1
        key = ("", self._room, 0)
        put = requests.put_once(self._room, record_of(key, 0)).SerializeToString()
        get = requests.get(self._room, reader="honest").SerializeToString()
        try:
            health = health_pb2.HealthCheckResponse.FromString(self._ask("/grpc.health.v1.Health/Check", b""))
            self.expect(health.status == health_pb2.HealthCheckResponse.SERVING, f"{when}: not SERVING")
            self._ask(f"/{STORE}/Put", put)
            answer = pb.GetResponse.FromString(self._ask(f"/{STORE}/Get", get))
        except grpc.RpcError as error:
            self.fault(f"{when}: an honest caller got {error.code()}: {error.details()}")
            return
        found = differences(answer.record, key, 0)
        self.expect(not found, f"{when}: a record came back changed: {found}")
        self.report.count("hand-offs beside")

    def _ask(self, method: str, request: bytes) -> bytes:
        """A call as a client makes it: again, where gRPC dropped it under load before the store had seen it."""
        until = time.monotonic() + SECONDS
        while True:
            try:
                answer: bytes = self._honest.unary_unary(method)(request, timeout=SECONDS)
            except grpc.RpcError as error:
                dropped = error.code() in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
                if not dropped or time.monotonic() > until:
                    raise
                self.report.count("honest calls repeated")
            else:
                return answer

    @contextlib.contextmanager
    def attack(self, what: str) -> Iterator[None]:
        """Something is done to the store; it must come out of it as it was."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._store.process.pid}/clear_refs").write_text("5")  # the height is counted anew
        self._before = before = self._memory("VmRSS")
        complaints, began = self._complaints(), time.monotonic()
        yield
        self.report.count("attacks")
        self.expect(self._store.process.poll() is None, f"{what}: the store has ended")
        self.check(f"after {what}")
        height = self._memory("VmHWM") - before
        self._most("MiB at the height", height)
        self.expect(height < CEILING, f"{what}: grew by {height >> 20} MiB")
        fresh = self._complaints()[len(complaints) :]
        self.expect(not fresh, f"{what}: {len(fresh)} complaints in the log: {fresh[:3]}")
        spent = time.monotonic() - began
        self._say(f"{self._transport}: {what}: {spent:.1f} s, height {height >> 20} MiB, heap {self._used() >> 20} MiB")

    def height(self, what: str, most: int) -> None:
        """In the middle of an attack: the store may have grown by at most so many bytes."""
        grown = self._memory("VmHWM") - self._before
        self.expect(grown < most, f"{what}: grew by {grown >> 20} MiB")

    def _most(self, name: str, size: int) -> None:
        self.report.figures[name] = max(self.report.figures.get(name, 0), size >> 20)

    def _complaints(self) -> list[str]:
        failed = [str(event) for event in list(self._store.events) if event.get("event") == "failed"]
        return [*failed, *(line.strip() for line in list(self._store.other_output))]

    def settled(self) -> None:
        """All slots come back by themselves."""

        def free() -> bool:
            answer = pb.CapabilitiesResponse.FromString(self._ask(f"/{STORE}/Capabilities", b""))
            return answer.slots_free == answer.slots_total

        eventually(free, "every slot is free again", SECONDS)

    def _used(self) -> int:
        """Bytes of the store's heap that are in use, as it tells them."""
        address = next(event["metrics"] for event in self._store.events if event["event"] == "serving")
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=SECONDS) as answer:
            found = re.search(r'^pd_handoff_heap_bytes\{state="used"\} (\S+)$', answer.read().decode(), re.MULTILINE)
        return int(float(found[1])) if found else 0

    def rest(self, number: int, slack: int) -> None:
        """After a round of attacks: no more than `slack` bytes may be in use beyond what was before the first."""

        def grown() -> int:
            return self._used() - self._start

        try:
            eventually(lambda: grown() < slack, "memory is free again", SECONDS)
        except AssertionError:
            self.fault(f"{grown() >> 20} MiB more are in use after round {number} than before the first")
        name = f"KiB more in use after round {number}"
        self.report.figures[name] = max(self.report.figures.get(name, 0), grown() >> 10)

    def close(self) -> None:
        """Hang up."""
        self._honest.close()
