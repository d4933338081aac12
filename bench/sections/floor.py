"""Without any transport: the store's own handlers, called in this process; and what the way through the store costs
SGLang, beside its MetadataBuffers in one process."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server import parser
from pd_handoff_server.build import build_store
from pd_handoff_server.config import Settings
from pd_handoff_server.handlers import responses
from pd_handoff_server.handlers.call import Call, Handler
from pd_handoff_server.handlers.capabilities import SCHEMA_FINGERPRINT, Describer
from pd_handoff_server.handlers.store import Calls
from pd_handoff_server.lifecycle import SystemClock

from bench import records
from bench.scene import NARROW, QUICK, Scene

SECTION = "in process, no transport"
PAIR = "SGLang: set_buf + get_buf, through the store beside its own class in one process"
SGLANG = Path(".venv-sglang/bin/python")
_PAIR_SECONDS = 300.0  # most of which SGLang's imports may take on a busy machine
_ITEMS = 32
_BATCH = 192  # records timed together; the least of many is what the code costs when nothing disturbs it


def run(scene: Scene) -> None:
    """All of it."""
    store, _ = build_store(Settings(slots=scene.amount.slots, **NARROW), SystemClock())
    readers = {"Python": parser.load(SCHEMA_FINGERPRINT, "off")}
    found = parser.load(SCHEMA_FINGERPRINT)
    if parser.why_not(found) is None:
        readers["C"] = found
    else:
        scene.report.lacks(f"the reader in C ({parser.why_not(found)})")
    calls = {
        name: Calls(store, Describer("bench", 128, 1 << 22, ()), 128, reader=reader).handlers
        for name, reader in readers.items()
    }
    for size in (records.SMALL, records.LARGE):
        record = records.record(size)
        for _ in range(scene.amount.rounds * 4):
            for name, handlers in calls.items():
                _one_by_one(scene, f"{size}, read by {name}", handlers, record)
                _in_batches(scene, f"{size}, in batches of {_ITEMS}, read by {name}", handlers, record)
    _sglang(scene)


def _one_by_one(scene: Scene, what: str, handlers: Mapping[str, Handler], record: Any) -> None:
    first = scene.rooms()
    rooms = range(first, first + _BATCH)
    answers = _time(scene, f"Reserve, {what}", handlers["Reserve"], records.reserves(rooms))
    tokens = [pb.ReserveResponse.FromString(answer).token for answer in answers]
    _time(scene, f"Put, {what}", handlers["Put"], records.puts(rooms, tokens, record))
    _time(scene, f"Get, {what}", handlers["Get"], records.gets(rooms))


def _in_batches(scene: Scene, what: str, handlers: Mapping[str, Handler], record: Any) -> None:
    first = scene.rooms()
    rooms = range(first, first + _BATCH)
    answers = _time(scene, f"Reserve, {what}", handlers["BatchReserve"], _joined(records.reserves(rooms)), _ITEMS)
    tokens = [one.token for answer in answers for one in pb.BatchReserveResponse.FromString(answer).responses]
    _time(scene, f"Put, {what}", handlers["BatchPut"], _joined(records.puts(rooms, tokens, record)), _ITEMS)
    _time(scene, f"Get, {what}", handlers["BatchGet"], _joined(records.gets(rooms)), _ITEMS)


def _joined(requests: Iterable[bytes]) -> list[bytes]:
    """Batches: every one of them has its requests in field 1."""
    framed = [responses.framed(1, request) for request in requests]
    return [b"".join(framed[at : at + _ITEMS]) for at in range(0, len(framed), _ITEMS)]


def _time(scene: Scene, subject: str, handler: Handler, messages: Iterable[bytes], items: int = 1) -> list[bytes]:
    call = Call()
    messages, answers = list(messages), []
    began = time.perf_counter()
    for message in messages:
        answers.append(handler(message, call, _never))
    seconds = time.perf_counter() - began
    scene.report.add(SECTION, subject, "a record", "µs", seconds / len(messages) / items * 1e6)
    return [answer for answer in answers if isinstance(answer, bytes)]


def _never(result: object) -> None:
    raise RuntimeError(f"nothing waits here, yet {result!r} came")


def _sglang(scene: Scene) -> None:
    if not SGLANG.exists():
        scene.report.lacks(
            "SGLang's MetadataBuffers, and the ratio to them (make it with tools/test-sglang.sh --only-setup)"
        )
        return
    command = [str(SGLANG), "-m", "bench.sglang_pair", "--json", *(["--quick"] if scene.amount == QUICK else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PAIR_SECONDS)
    except subprocess.TimeoutExpired:
        scene.report.lacks(f"SGLang's MetadataBuffers (no answer within {_PAIR_SECONDS:.0f} s)")
        return
    if done.returncode:
        scene.report.lacks(f"SGLang's MetadataBuffers ({' '.join(done.stderr.strip().splitlines()[-1:])})")
        return
    for line in done.stdout.splitlines():
        pair = json.loads(line)
        ours, theirs = pair["through_store_rounds_us"], pair["in_process_rounds_us"]
        scene.report.add(PAIR, pair["record"], "in one process", "µs", *theirs)
        scene.report.add(PAIR, pair["record"], "through the store", "µs", *ours)
        scene.report.add(
            PAIR, pair["record"], "ratio", "times", *(one / other for one, other in zip(ours, theirs, strict=True))
        )
