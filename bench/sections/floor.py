"""Without any transport: the store's own handlers, called in this process; and what the way through the store costs
SGLang, beside its MetadataBuffers in one process."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.build import build_store
from pd_handoff_server.config import Settings
from pd_handoff_server.lifecycle import SystemClock
from pd_handoff_server.rpc.call import Call
from pd_handoff_server.rpc.calls import Calls
from pd_handoff_server.rpc.capabilities import Describer

from bench import records
from bench.scene import NARROW, QUICK, Scene

SECTION = "in process, no transport"
PAIR = "SGLang: set_buf + get_buf, through the store beside its own class in one process"
SGLANG = Path(".venv-sglang/bin/python")
_PAIR_SECONDS = 300.0  # most of which SGLang's imports may take on a busy machine
_BATCH = 200  # calls timed together; the least of many is what the code costs when nothing disturbs it


def run(scene: Scene) -> None:
    """All of it."""
    store, _ = build_store(Settings(slots=scene.amount.slots, **NARROW), SystemClock())
    handlers = Calls(store, Describer("bench", 128, 1 << 22, ()), 128).handlers
    for size in (records.SMALL, records.LARGE):
        record = records.record(size)
        for _ in range(scene.amount.rounds * 4):
            first = scene.rooms()
            rooms = range(first, first + _BATCH)
            answers = _time(scene, f"Reserve, {size}", handlers["Reserve"], records.reserves(rooms))
            tokens = [pb.ReserveResponse.FromString(answer).token for answer in answers]
            _time(scene, f"Put, {size}", handlers["Put"], records.puts(rooms, tokens, record))
            _time(scene, f"Get, {size}", handlers["Get"], records.gets(rooms))
    _sglang(scene)


def _time(scene: Scene, subject: str, handler: Callable[..., object], messages: list[bytes]) -> list[bytes]:
    call = Call()
    answers = []
    began = time.perf_counter()
    for message in messages:
        answers.append(handler(message, call, _never))
    seconds = time.perf_counter() - began
    scene.report.add(SECTION, subject, "a call", "µs", seconds / len(messages) * 1e6)
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
