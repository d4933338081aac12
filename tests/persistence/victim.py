"""Real SIGKILLs, hundreds in seconds: `python -m tests.persistence.victim DIRECTORY ROUNDS SEED`.

A child process makes the calls of a script that follows from the seed, as fast as it can, and notes after each how far
it is; its parent kills it at a random moment, makes the calls that were noted on a store that nobody kills, and
compares all that the two know. The child of the next round goes on where the file is. Prints what was found as JSON.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
import select
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pd_handoff_server.lifecycle import Failure, Spec, TokenMint
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Query

from tests.faults.common import record_of
from tests.support.clock import FakeClock
from tests.support.waits import at_once

from .kept import Kept, ignore, policy

SLOTS = 6
STEP = 0.5
_EPOCH = "00c0ffee00c0ffee"
_COUNT = struct.Struct("<Q")


def script(seed: int) -> Iterator[Callable[[Kept], object]]:
    """Calls without end. Those of one seed are the same in every process."""
    rng = random.Random(seed)
    for number in itertools.count():
        room = number // 40 * 4 + rng.randrange(4)  # on to new rooms before all have ended for good
        yield _call(rng.choice(_CHOICES), room, rng.randrange(3), rng.randrange(2), rng.choice((1, 1, 2, 10)))


_CHOICES = ("reserve", "reserve", "put", "put", "put", "get", "get", "get", "abort", "release", "producer", "batch")


def _call(kind: str, room: int, attempt: int, owner: int, readers: int) -> Callable[[Kept], object]:
    key = ("", room, 0)

    def call(kept: Kept) -> object:
        store, live = kept.store, kept.lifecycle._live.get(key)
        kept.clock.advance(STEP)
        if kind == "reserve":
            return store.reserve(Spec(key, f"owner {owner}", attempt, None, readers), 0, ignore)
        if kind == "producer":
            return store.reserve(Spec(key, f"owner {owner}", attempt, None, 1, ("p", readers)), 0, ignore)
        if kind == "batch":
            specs = [Spec(("", room + at, 0), f"owner {owner}", attempt) for at in range(3)]
            return store.reserve_all(specs, 0, ignore)
        if kind == "put" and live is not None:
            return store.put(key, live.token, _small(key, live.attempt), at_once)
        if kind == "get":
            return store.get(Query(key, attempt, f"reader {readers}", True), 0, ignore)
        if kind == "abort":
            return store.abort(key, Failure(400, "REASON", "text " * readers), b"", attempt, at_once)
        if kind == "release" and live is not None:
            store.release(key, live.token, "", at_once)
        return store.tick()

    return call


def _small(key: tuple[str, int, int], attempt: int) -> Any:
    record = record_of(key, attempt)
    for field in ("speculative", "sampling_mask"):
        record.ClearField(field)
    del record.tokens[1:]
    del record.tokens[0].top_logprobs.values[3:], record.tokens[0].top_logprobs.token_ids[3:]
    record.tokens[0].ClearField("token_ids_logprobs")
    record.customized_info = record.customized_info[:64]
    return record


def carry_out(kept: Kept, call: Callable[[Kept], object]) -> None:
    """A call, granted or refused."""
    try:
        call(kept)
    except Refusal:
        return


def open_store(path: Path, seed: int, passed: float = 0) -> Kept:
    """A process's store, so many seconds after the first. Its clock goes by calls; its tokens follow from the seed."""
    clock = FakeClock()
    clock.advance(passed)
    mint = TokenMint(_EPOCH, random.Random(f"tokens {seed}").randbytes)
    return Kept(path, slots=SLOTS, clock=clock, mint=mint, rules=policy(tombstones=20))


def known(kept: Kept) -> dict[str, Any]:
    """All that two stores must agree on."""
    state = kept.state()
    del state["epoch"]
    return state


def child(path: Path, seed: int, passed: float, progress: mmap.mmap, ready: int) -> None:
    """Make calls until killed; the parent is told by the pipe `ready` when they begin."""
    kept = open_store(path, seed, passed)
    progress[:8] = _COUNT.pack(1)
    os.write(ready, b"!")
    for number, call in enumerate(script(seed), 2):
        carry_out(kept, call)
        progress[:8] = _COUNT.pack(number)


def kill_one(path: Path, seed: int, passed: float, delay: float) -> int:
    """A child of this seed, killed so many seconds after it was ready; returns how many calls it has noted."""
    progress = mmap.mmap(-1, mmap.PAGESIZE)
    told, ready = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            child(path, seed, passed, progress, ready)
        finally:
            os._exit(1)
    os.close(ready)
    try:
        if select.select([told], [], [], 60)[0]:
            os.read(told, 1)
            select.select([told], [], [], delay)  # there is nothing more to read, unless it ends by itself
    finally:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(told)
    if not os.WIFSIGNALED(status):
        raise RuntimeError("the child ended by itself")
    return int(_COUNT.unpack(progress[:8])[0]) - 1


def main(directory: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Kill so many children; stops at the first fault."""
    rng = random.Random(seed)
    path, other = directory / "killed", directory / "unharmed"
    open_store(path, 0).close()
    unharmed = open_store(other, 0)
    calls = amid = 0
    passed = 0.0
    for number in range(rounds):
        own = seed * 1_000_000 + number
        noted = kill_one(path, own, passed, rng.expovariate(1 / 0.004))
        unharmed.close()
        unharmed = open_store(other, own, passed)
        going = script(own)
        for _ in range(noted):
            carry_out(unharmed, next(going))
        calls += noted
        passed += noted * STEP
        after = open_store(path, own, passed + STEP)
        found, residue, damaged = known(after), after.residue(), after.report.damaged
        after.close()
        if found != known(unharmed):
            carry_out(unharmed, next(going))  # the call was made, and death came before it was noted
            amid += 1
        passed += STEP
        if found != known(unharmed) or residue or damaged:
            return {"kills": number + 1, "calls": calls, "fault": f"round {number}, call {noted}, residue {residue}"}
    unharmed.close()
    return {"kills": rounds, "calls": calls, "done but not noted": amid, "fault": ""}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
