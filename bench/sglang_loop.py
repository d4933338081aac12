"""What the hand-off takes from SGLang's scheduler: how long its loop is held per request, by a store that is near, far,
full or stopped; and the CPU time per hand-off in the engine's process, beside SGLang's own set_buf and get_buf.

Needs SGLang: `tools/test-sglang.sh --only-setup`, then `.venv-sglang/bin/python -m bench.sglang_loop`. Prints a table,
or with --json one line per figure.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pd_handoff import PrefillClient
from pd_handoff.engines.sglang import StoreLink, StoreMetadataBuffers

from bench.sglang_pair import SIZES
from examples.demo.store import Store
from examples.sglang.engine import load, sampling_masks
from examples.sglang.requests import Order, compute, request_of

ORDER = Order("some", 1, logprobs=True, top_logprobs=20)
HELD, CPU = "time that the loop is held per request", "CPU time per hand-off in the engine's process"
COMPANY = (1, 8, 64)
PAUSE = 0.002  # seconds between two looks, as a loop that has other work
_rooms = itertools.count(1 << 33)


@dataclass(frozen=True)
class Figure:
    """One line: of what, under which circumstances, and the values of the rounds in microseconds."""

    subject: str
    circumstance: str
    quantity: str
    values: list[float]


class Far:
    """A TCP relay to a store's Unix socket, `delay` seconds each way."""

    def __init__(self, target: str, delay: float) -> None:
        self._path, self._delay = target.removeprefix("unix:"), delay
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        serving = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = serving.result(10.0)
        self.target = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_unix_connection(self._path)
        await asyncio.gather(self._pump(reader, outer), self._pump(inner, writer), return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):  # ends with the connection
            self._loop.call_later(self._delay, sink.write, data)
        self._loop.call_later(self._delay, sink.close)

    def close(self) -> None:
        """Ends it, with its connections."""
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)


class Sides:
    """Prefill's and decode's buffers over one store, and the time that their calls take."""

    def __init__(self, target: str, rows: int) -> None:
        links = StoreLink(target), StoreLink(target, wait=60.0)
        self.refused = 0
        self.prefill, self.decode = (
            StoreMetadataBuffers(rows, *SIZES[1:], link=link, refused=self._refuse) for link in links
        )
        self.held: list[float] = []

    def _refuse(self, *_: object) -> None:
        self.refused += 1

    def requests(self, count: int) -> tuple[list[Any], list[Any]]:
        """Sources that have been computed, and what decode has of them."""
        sources, readers = [], []
        for index in range(count):
            source, reader = request_of(ORDER), request_of(ORDER)
            compute(source, ORDER)
            source.bootstrap_room = reader.bootstrap_room = next(_rooms)
            source.metadata_buffer_index = index
            sources.append(source)
            readers.append(reader)
        return sources, readers

    def hand_over(self, count: int, *, arrives: bool = True) -> None:
        """`count` requests at a time, each step timed as the loop would feel it."""
        sources, readers = self.requests(count)
        took = [0.0] * count
        for index, reader in enumerate(readers):
            took[index] += _timed(self.decode.bind, index, reader)
        for index, source in enumerate(sources):
            took[index] += _timed(self.prefill.reserve, source)
        for index, source in enumerate(sources):
            took[index] += _timed(self.prefill.set_buf, source)
        if arrives:
            self.arrive(count)
        else:
            self.prefill.settle(20.0)
        for index in range(count):
            if arrives:
                took[index] += _timed(self.decode.get_buf, index)
            took[index] += _timed(self.decode.clear_slot, index)
        self.held += took

    def arrive(self, count: int) -> None:
        """Waits until decode has all records. Raises RuntimeError when one does not come."""
        deadline = time.monotonic() + 60.0
        while not all(self.decode.ready(index) for index in range(count)):
            if time.monotonic() > deadline:
                raise RuntimeError("a record did not arrive")
            time.sleep(PAUSE)

    def close(self) -> None:
        """Both links."""
        self.prefill.close()
        self.decode.close()


def _timed(work: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def held(store: Store, rounds: int) -> Iterator[Figure]:
    """Near, far, full, stopped."""
    for name, delay in (("0 ms", 0.0), ("5 ms", 0.0025), ("50 ms", 0.025)):
        far = Far(store.target, delay)
        sides = Sides(far.target, 8)
        for _ in range(rounds):
            sides.hand_over(8)
        yield _of(HELD, f"{name} of round trip", sides.held[8:])
        sides.close()
        far.close()
    with PrefillClient(store.target) as other:
        free = other.capabilities().slots_total
        taken = [other.reserve(1 << 60 | number, owner="another", lease=60.0) for number in range(free)]
        sides = Sides(store.target, 8)
        for _ in range(max(rounds // 4, 1)):
            sides.hand_over(8, arrives=False)
        yield _of(HELD, "store full", sides.held)
        sides.close()
        for one in taken:
            other.release(one)
    sides = Sides(store.target, 8)
    sides.hand_over(8)
    sides.held.clear()
    store.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(max(rounds // 4, 1)):
            sides.hand_over(8, arrives=False)
    finally:
        store.process.send_signal(signal.SIGCONT)
    yield _of(HELD, "store stopped", sides.held)
    sides.close()


def cpu(store: Store, rounds: int) -> Iterator[Figure]:
    """Prefill's half and decode's half, at 1, 8 and 64 requests at a time; and SGLang's own class."""
    sides = Sides(store.target, max(COMPANY))
    for count in COMPANY:
        halves: dict[str, list[float]] = {"prefill": [], "decode": []}
        for turn in range(rounds + 2):
            sources, readers = sides.requests(count)
            began = time.process_time()
            for source in sources:
                sides.prefill.reserve(source)
            sides.prefill.settle()
            for source in sources:
                sides.prefill.set_buf(source)
            sides.prefill.settle()
            between = time.process_time()
            for index, reader in enumerate(readers):
                sides.decode.bind(index, reader)
            sides.arrive(count)
            for index in range(count):
                sides.decode.get_buf(index)
                sides.decode.clear_slot(index)
            ended = time.process_time()
            if turn > 1:  # connections are made in the first
                halves["prefill"].append((between - began) / count)
                halves["decode"].append((ended - between) / count)
        for half, values in halves.items():
            yield _of(CPU, f"{count} at a time", values, f"{half}, through the store")
    sides.close()
    with sampling_masks():
        real = load("srt.disaggregation.utils").MetadataBuffers(*SIZES)
    source = request_of(ORDER)
    compute(source, ORDER)
    source.metadata_buffer_index = 0
    own: dict[str, list[float]] = {"set_buf": [], "get_buf": []}
    for _ in range(rounds):
        for name, argument in (("set_buf", source), ("get_buf", 0)):
            began = time.process_time()
            for _ in range(20):
                getattr(real, name)(argument)
            own[name].append((time.process_time() - began) / 20)
    for name, values in own.items():
        yield _of(CPU, "one process", values, f"SGLang's own {name}")


def _of(subject: str, circumstance: str, seconds: list[float], quantity: str = "through the store") -> Figure:
    return Figure(subject, circumstance, quantity, [round(value * 1e6, 1) for value in seconds])


def main() -> None:
    """Starts a store and prints what is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line per figure")
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds")
    arguments = parser.parse_args()
    rounds = 6 if arguments.quick else 30
    with tempfile.TemporaryDirectory(prefix="pd-handoff-") as folder:
        store = Store(Path(folder), "--slots", "128")
        try:
            store.wait_until_serving(60)
            found = [*held(store, rounds), *cpu(store, rounds)]
        finally:
            store.stop()
    for figure in found:
        if arguments.json:
            print(json.dumps(asdict(figure)))
            continue
        values = sorted(figure.values)
        print(
            f"{figure.subject} | {figure.circumstance} | {figure.quantity} | p50 {statistics.median(values):.0f} µs, "
            f"p90 {values[int(len(values) * 0.9)]:.0f} µs, most {values[-1]:.0f} µs"
        )


if __name__ == "__main__":
    main()
