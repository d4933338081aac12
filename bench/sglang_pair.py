"""A set_buf + get_buf pair through a store, beside SGLang's class in one process: what leaving shared memory costs.

Needs SGLang: `tools/test-sglang.sh --only-setup`, then `.venv-sglang/bin/python -m bench.sglang_pair`. Prints a table,
or with --json one line a record.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pd_handoff.engines.sglang import StoreLink, StoreMetadataBuffers

from examples.demo.store import Store
from examples.sglang.engine import load, sampling_masks
from examples.sglang.requests import HIDDEN_DTYPE, HIDDEN_SIZE, MASK_TOKENS, SPARSE, Order, compute, request_of

ORDERS = {
    "token alone": Order("plain", 1),
    "20 top logprobs": Order("some", 1, logprobs=True, top_logprobs=20),
    "128 top logprobs, mask, draft state": Order("all", 1, logprobs=True, top_logprobs=128, mask="support", eagle=True),
}
SIZES = (1, HIDDEN_SIZE, HIDDEN_DTYPE, MASK_TOKENS, 128, None, SPARSE)
_rooms = itertools.count(1 << 32)


@dataclass(frozen=True)
class Pair:
    """One set_buf + get_buf, in microseconds: the median of all rounds, and each round; the ratio is that of the
    medians."""

    record: str
    in_process_us: float
    through_store_us: float
    ratio: float
    in_process_rounds_us: list[float]
    through_store_rounds_us: list[float]


def measure(target: str, *, rounds: int = 30, pairs: int = 50) -> Iterator[Pair]:
    """Both in turns, `rounds` times `pairs` of each, for each kind of record, against the store at `target`. Raises
    RuntimeError when a record does not come back as it was put."""
    with sampling_masks():
        real = load("srt.disaggregation.utils").MetadataBuffers(*SIZES)
    prefill, decode = (StoreMetadataBuffers(*SIZES, link=StoreLink(target)) for _ in range(2))
    try:
        for name, order in ORDERS.items():
            _same(_through_store(prefill, decode, order)(), _in_process(real, order)())
            kinds = (_in_process(real, order), _through_store(prefill, decode, order))
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds):
                for run, times in zip(kinds, taken, strict=True):
                    began = time.perf_counter()
                    for _ in range(pairs):
                        run()
                    times.append((time.perf_counter() - began) / pairs * 1e6)
            one, other = map(statistics.median, taken)
            rounded = ([round(value, 1) for value in values] for values in taken)
            yield Pair(name, round(one, 1), round(other, 1), round(other / one, 1), *rounded)
    finally:
        prefill.close()
        decode.close()


def _in_process(real: Any, order: Order) -> Callable[[], tuple[Any, ...]]:
    req = request_of(order)
    compute(req, order)
    req.metadata_buffer_index = 0

    def run() -> tuple[Any, ...]:
        real.set_buf(req)
        row: tuple[Any, ...] = real.get_buf(0)
        real.clear_slot(0)
        return row

    return run


def _through_store(
    prefill: StoreMetadataBuffers, decode: StoreMetadataBuffers, order: Order
) -> Callable[[], tuple[Any, ...]]:
    source, request = request_of(order), request_of(order)
    compute(source, order)
    source.metadata_buffer_index = 0

    def run() -> tuple[Any, ...]:
        source.bootstrap_room = request.bootstrap_room = next(_rooms)
        decode.bind(0, request)
        if not prefill.set_buf(source):
            raise RuntimeError(f"the store refused the record: {source.finished_reason.message}")
        row = decode.get_buf(0)
        decode.clear_slot(0)
        return row

    return run


def _same(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):  # the last is the room, which is another each time
        if not mine.equal(other):
            raise RuntimeError(f"a record came back as {mine}, SGLang's class gives {other}")


def main() -> None:
    """Starts a store and prints what `measure` finds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line a record")
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pd-handoff-") as folder:
        store = Store(Path(folder), "--slots", "1024")
        try:
            store.wait_until_serving(60)
            found = list(measure(store.target, rounds=6 if arguments.quick else 30))
        finally:
            store.stop()
    if arguments.json:
        for pair in found:
            print(json.dumps(dataclasses.asdict(pair)))
        return
    print("| set_buf + get_buf | in process, us | through the store, us | ratio |\n|---|---|---|---|")
    for pair in found:
        print(f"| {pair.record} | {pair.in_process_us} | {pair.through_store_us} | {pair.ratio} |")


if __name__ == "__main__":
    main()
