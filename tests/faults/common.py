"""What every scenario needs: records that say whose they are, a check that names what differs, and a report.

A record's contents follow from its key and attempt alone, in every field and every length, so that any mix-up shows:
another hand-off's record, a former attempt's, a tail of a longer one, a part of each.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from pd_handoff.v1 import record_pb2 as rp

Key = tuple[str, int, int]
"""(namespace, room, sample)."""

WIDTHS: dict[str, Any] = {
    "max_tokens": 3,
    "max_top_logprobs": 20,
    "max_token_ids_logprobs": 8,
    "max_sampling_mask_tokens": 16,
    "max_speculative_topk": 4,
    "max_dsa_topk_indices": 16,
    "max_hidden_state_bytes": 512,
    "max_customized_info_bytes": 256,
}
"""Settings of a store whose rows just hold what `record_of` makes."""


# -- records -----------------------------------------------------------------------------------------------------------


def record_of(key: Key, attempt: int) -> rp.HandoffRecord:
    """The one right record of this attempt. Every part may be absent, empty or full; every float may be any bits."""
    rng = random.Random(f"{key[0]}/{key[1]}/{key[2]}/{attempt}")
    record = rp.HandoffRecord(
        customized_info=f"{key[0]}/{key[1]}/{key[2]}/{attempt} ".encode() + rng.randbytes(_up(rng, 180))
    )
    for _ in range(rng.randint(1, 3)):
        token = record.tokens.add(token_id=rng.getrandbits(31))
        if rng.random() < 0.7:
            token.MergeFromString(b"\x15" + rng.randbytes(4))  # field 2: a float by its bits
        if rng.random() < 0.7:
            _logprobs(token.top_logprobs, _up(rng, 20), rng)
        if rng.random() < 0.3:
            _logprobs(token.token_ids_logprobs, _up(rng, 8), rng)
    if rng.random() < 0.5:
        record.cached_tokens.SetInParent()
        for name in ("total", "device", "host", "storage"):
            if rng.random() < 0.7:
                setattr(record.cached_tokens, name, rng.getrandbits(rng.choice((1, 12, 64))))
    if rng.random() < 0.3:
        record.modality_tokens.image = rng.getrandbits(64)
    if rng.random() < 0.4:
        count = _up(rng, 16)
        mask = record.sampling_mask
        mask.SetInParent()
        mask.token_ids.extend(_ids(count, rng))
        mask.MergeFromString(_packed_floats(2, count, rng))
        mask.truncated = rng.random() < 0.5
    if rng.random() < 0.4:
        _speculative(record.speculative, rng)
    if rng.random() < 0.5:
        record.kv_checksum.digest, record.kv_checksum.layout_signature = rng.getrandbits(64), rng.getrandbits(64)
    if rng.random() < 0.2:
        record.finish_reason = rng.choice((rp.FINISH_REASON_STOP, rp.FINISH_REASON_LENGTH, rp.FINISH_REASON_ABORT))
    if rng.random() < 0.3:
        record.reasoning_tokens = rng.getrandbits(32)
    return record


def _up(rng: random.Random, most: int) -> int:
    return rng.choice((0, 1, most, rng.randint(0, most)))


def _ids(count: int, rng: random.Random) -> list[int]:
    return [number & 0x7FFFFFFF for number in array("I", rng.randbytes(4 * count))]


def _packed_floats(number: int, count: int, rng: random.Random) -> bytes:
    size = 4 * count
    head = [number << 3 | 2, size] if size < 128 else [number << 3 | 2, size & 0x7F | 0x80, size >> 7]
    return bytes(head) + rng.randbytes(size)


def _logprobs(logprobs: rp.Logprobs, count: int, rng: random.Random) -> None:
    logprobs.SetInParent()
    logprobs.token_ids.extend(_ids(count, rng))
    logprobs.MergeFromString(_packed_floats(1, count, rng))


def _speculative(state: rp.SpeculativeState, rng: random.Random) -> None:
    count = _up(rng, 4)
    state.SetInParent()
    state.topk_index.extend(number - 2**63 for number in array("Q", rng.randbytes(8 * count)))
    state.MergeFromString(_packed_floats(1, count, rng))
    state.dsa_topk_indices.extend(rng.choice((-1, rng.getrandbits(31))) for _ in range(_up(rng, 16)))
    if rng.random() < 0.8:
        columns = _up(rng, 128)
        state.hidden_states.dtype = rp.DATA_TYPE_BFLOAT16
        state.hidden_states.shape.extend((2, columns))
        state.hidden_states.data = rng.randbytes(4 * columns)


def differences(found: rp.HandoffRecord, key: Key, attempt: int) -> list[str]:
    """The fields in which a record that was read is not the one of this attempt, bit for bit; none if all is well."""
    expected = record_of(key, attempt)
    if found.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True):
        return []
    return list(_differences(found, expected, "")) or ["unknown fields"]


def _differences(found: Message, expected: Message, path: str) -> Iterator[str]:
    for spec in expected.DESCRIPTOR.fields:
        name = f"{path}{spec.name}"
        one, other = getattr(found, spec.name), getattr(expected, spec.name)
        if spec.is_repeated:
            if len(one) != len(other):
                yield f"{name}: {len(one)} elements for {len(other)}"
            elif spec.message_type is not None:
                for index, pair in enumerate(zip(one, other, strict=True)):
                    yield from _differences(*pair, f"{name}[{index}].")
            else:
                yield from (f"{name}[{at}]" for at, pair in enumerate(zip(one, other, strict=True)) if not _same(*pair))
        elif spec.has_presence and found.HasField(spec.name) != expected.HasField(spec.name):
            yield f"{name}: {'present' if found.HasField(spec.name) else 'absent'}"
        elif spec.message_type is not None:
            if expected.HasField(spec.name):
                yield from _differences(one, other, f"{name}.")
        elif not _same(one, other):
            yield name


def _same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    return one == other


# -- scenarios ---------------------------------------------------------------------------------------------------------


TRANSPORTS = ("fast", "aio")
"""What carries calls to a store."""


@dataclass(frozen=True)
class Options:
    """How a scenario is run.

    Attributes:
        short: in its short form, of a few seconds.
        seed: of its random choices.
        rounds: how often it breaks something, on each transport; None: as often as the form has it.
        directory: for its files; empty, with a short path, and gone afterwards.
        say: told of progress.
        transports: of the stores that it breaks.
    """

    short: bool
    seed: int
    directory: Path
    rounds: int | None = None
    say: Callable[[str], None] = lambda text: None
    transports: tuple[str, ...] = TRANSPORTS

    def times(self, short: int, long: int) -> int:
        """How many rounds."""
        return self.rounds or (short if self.short else long)

    def random(self, name: str) -> random.Random:
        """Random choices of one part of a scenario, the same for the same seed."""
        return random.Random(f"{self.seed}/{name}")


@dataclass
class Report:
    """What a scenario did and found.

    Attributes:
        figures: counts, by name.
        faults: what was not as promised, a sentence each; none if all is well.
    """

    figures: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a figure."""
        self.figures[name] = self.figures.get(name, 0) + by

    def fault(self, sentence: str) -> None:
        """Something was not as promised."""
        self.faults.append(sentence)

    def expect(self, holds: bool, sentence: str) -> None:
        """A fault, unless it holds."""
        if not holds:
            self.fault(sentence)


def on_each_transport(options: Options, report: Report, play: Callable[[Options, Report, str], None]) -> None:
    """`play(options, report, transport)` on each transport in turn, with a directory and a report of its own."""
    for transport in options.transports:
        directory = options.directory / transport
        directory.mkdir()
        own = Report()
        play(replace(options, directory=directory), own, transport)
        for name, number in own.figures.items():
            report.count(name, number)
        report.faults.extend(f"{transport}: {fault}" for fault in own.faults)
        options.say(f"on {transport}: {own.figures}")


def per_transport(play: Callable[[Options, Report, str], None]) -> Callable[[Options], Report]:
    """The `run` of a scenario that is nothing but `play`, on each transport."""

    def run(options: Options) -> Report:
        report = Report()
        on_each_transport(options, report, play)
        return report

    return run


@dataclass(frozen=True)
class Scenario:
    """Something that is broken on purpose."""

    name: str
    summary: str
    run: Callable[[Options], Report]


def scenarios() -> dict[str, Scenario]:
    """All of this package, by name."""
    import tests.faults as package  # noqa: PLC0415 - its modules import this one

    found = {}
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_") and not module.name.startswith("test_"):
            scenario = getattr(importlib.import_module(f"tests.faults.{module.name}"), "SCENARIO", None)
            if isinstance(scenario, Scenario):
                found[scenario.name] = scenario
    return found
