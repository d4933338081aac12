"""A store's name that moves to another address, while hand-offs are under way: planned, and by its loss.

A DNS server of our own on loopback answers for the name. In a planned move the former store drains; in a loss it is
killed. Clients that are open stay open. They must find the store behind the new address within their retry budget,
whatever they were about: what the former store held is refused by its reason, and what is handed over afterwards comes
out exact.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dnslib import QTYPE, RR, A, DNSRecord
from dnslib.server import BaseResolver, DNSServer
from pd_handoff import DecodeClient, HandoffError, PrefillClient, Retries, StaleReservation, StoreRestarted

from tests.support.process import ProcessStore
from tests.support.waits import eventually, patient

from .common import WIDTHS, Options, Report, Scenario, differences, per_transport, record_of
from .outside import QUIET, metrics

HOSTS = ("127.0.0.1", "127.0.0.2")
SECONDS = patient(20.0)
"""Budget of a client that follows. gRPC's own wait between two looks at a name is 30 s."""
READERS = 4


class Name(BaseResolver):  # type: ignore[misc]  # dnslib has no types
    """A name with one address, and the DNS server that tells it."""

    def __init__(self) -> None:
        self.address = HOSTS[0]
        self._server = DNSServer(self, port=0, address="127.0.0.1", logger=_Silent())
        self._server.start_thread()

    def target(self, port: int) -> str:
        """For clients: the name, asked of this server."""
        return f"dns://127.0.0.1:{self._server.server.server_address[1]}/store.test:{port}"

    def resolve(self, request: DNSRecord, handler: Any) -> DNSRecord:
        """The answer to a question; none but for an IPv4 address."""
        reply = request.reply()
        if request.q.qtype == QTYPE.A:
            reply.add_answer(RR(request.q.qname, QTYPE.A, rdata=A(self.address), ttl=0))
        return reply

    def close(self) -> None:
        """No more answers."""
        self._server.stop()
        self._server.server.server_close()


class _Silent:
    """A log of nothing, in the form that the DNS server asks for."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def start(host: str, port: int, transport: str) -> ProcessStore:
    """A store behind one of the addresses."""
    settings: dict[str, Any] = {"slots": 64, "transport": transport, **WIDTHS, **QUIET}
    return ProcessStore(f"{host}:{port}", **settings).wait()


class Move:
    """Clients by the name, and what they see of its move."""

    def __init__(self, name: Name, port: int, first_room: int, session: str, report: Report) -> None:
        self._report = report
        self._room = first_room
        options: dict[str, Any] = {"retries": Retries(total_seconds=SECONDS), "session": session}
        self.prefill = PrefillClient(name.target(port), **options)
        self.decode = DecodeClient(name.target(port), reader_id="reader", **options)

    def hand_over(self) -> None:
        """One hand-off, whole."""
        self._room += 1
        record = record_of(("", self._room, 0), 0)
        with self.prefill.prefill(self._room, lease=SECONDS) as handoff:
            handoff.put(record)
        found = self.decode.get(self._room, max_wait=SECONDS)
        wrong = differences(found.proto, ("", self._room, 0), 0)
        self._report.expect(not wrong, f"room {self._room}: read another record, different in {wrong[:5]}")
        self._report.count("hand-offs by the name")

    def across(self, store: ProcessStore, move: Any) -> None:
        """Moves while a reservation is held and reads wait."""
        first = self._room + 1
        self._room += 1 + READERS
        held = self.prefill.reserve(first, lease=SECONDS)
        epoch = held.store_epoch
        with ThreadPoolExecutor(READERS) as threads:
            rooms = range(first + 1, first + 1 + READERS)
            waiting = [
                threads.submit(self.decode.get, room, max_wait=2 * SECONDS, expected_store_epoch=epoch)
                for room in rooms
            ]
            eventually(lambda: metrics(store)['pd_handoff_waiters{kind="record"}'] >= READERS, "reads wait")
            move()
            self.hand_over()
            for room, reading in zip(rooms, waiting, strict=True):
                self._refused(f"room {room}: a parked read", reading.result, StoreRestarted)
        self._refused(
            f"room {first}: a Put", lambda: self.prefill.put(held, record_of(("", first, 0), 0)), StaleReservation
        )
        self._report.count("moves of the name")

    def _refused(self, what: str, call: Any, expected: type[HandoffError]) -> None:
        try:
            call()
        except expected:
            self._report.count("told that the store is another")
        except HandoffError as error:
            self._report.fault(f"{what} across the move ended as {error.reason or type(error).__name__}: {error}")
        else:
            self._report.fault(f"{what} across the move succeeded")

    def close(self) -> None:
        """Ends both clients."""
        self.prefill.close()
        self.decode.close()


def play(options: Options, report: Report, transport: str) -> None:
    """One transport: the name goes to and fro."""
    name = Name()
    here = start(HOSTS[0], 0, transport)
    port = int(here.target.rpartition(":")[2])
    stores = [here]
    moves = [Move(name, port, 10**6 * number, session, report) for number, session in enumerate(("never", "always"))]
    try:
        for turn in range(options.times(2, 12)):
            for move in moves:
                move.hand_over()
            for move in moves:
                former = stores[-1]
                host = HOSTS[1 - HOSTS.index(name.address)]

                def swap(former: ProcessStore = former, host: str = host, planned: bool = turn % 2 == 0) -> None:
                    stores.append(start(host, port, transport))
                    name.address = host
                    if planned:
                        former.stop()
                    else:
                        former.process.kill()

                move.across(former, swap)
    except (HandoffError, AssertionError) as error:
        report.fault(f"a client did not follow: {type(error).__name__}: {error}")
    finally:
        for move in moves:
            move.close()
        for store in stores:
            store.close()
        name.close()


SCENARIO = Scenario("names", "a store's name that moves to another address, planned and by a loss", per_transport(play))
