"""Death between any two instructions: every state that a file goes through in a call, and what the next process finds.

The interpreter is traced, instruction by instruction, through all code that writes to the file. What one instruction
changes may also be torn by death: hence mixtures of the bytes before and after it are looked at, too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pd_handoff_server
from pd_handoff_server.persistence.errors import ArenaFileError

from .kept import Kept

Image = np.ndarray[Any, np.dtype[np.uint8]]
State = dict[str, Any]

_PACKAGE = Path(pd_handoff_server.__file__).parent
_WRITERS = (str(_PACKAGE / "persistence"), str(_PACKAGE / "arena" / "arena.py"))


class Watch:
    """Traces what runs inside its context, and copies the file after each instruction that changed it.

    Attributes:
        images: the file, from before to after.
        marks: for each image, what `mark` was then.
        mark: set by whoever watches.
    """

    def __init__(self, file: Image) -> None:
        self._file = file
        self._writes: dict[CodeType, bool] = {}
        self.images: list[Image] = [file.copy()]
        self.mark = 0
        self.marks = [0]

    def __enter__(self) -> Watch:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self._look()

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        writes = self._writes.get(code)
        if writes is None:
            writes = self._writes[code] = code.co_filename.startswith(_WRITERS)
        if not writes:
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        self._look()
        return self._step

    def _look(self) -> None:
        if not np.array_equal(self._file, self.images[-1]):
            self.images.append(self._file.copy())
            self.marks.append(self.mark)

    def deaths(self, mixtures: int) -> Iterator[tuple[Image, int, int]]:
        """Every image, and between each two of them mixtures; with the marks before and after."""
        rng = random.Random(len(self.images))
        for index, (image, mark) in enumerate(zip(self.images, self.marks, strict=True)):
            yield image, mark, mark
            if index + 1 < len(self.images):
                for mixed in _mixtures(image, self.images[index + 1], mixtures, rng):
                    yield mixed, mark, self.marks[index + 1]


def _mixtures(before: Image, after: Image, count: int, rng: random.Random) -> Iterator[Image]:
    changed = np.flatnonzero(before != after)
    for kind in range(count if len(changed) > 1 else 0):
        cut = rng.randrange(1, len(changed))
        if kind % 3 == 0:
            chosen = changed[:cut]
        elif kind % 3 == 1:
            chosen = changed[cut:]
        else:
            chosen = np.array(sorted(rng.sample(changed.tolist(), cut)))
        mixed = before.copy()
        mixed[chosen] = after[chosen]
        yield mixed


@dataclass
class Findings:
    """How many deaths were died, and what the first that broke something broke."""

    deaths: int = 0
    fault: str = ""


def die_in(
    kept: Kept,
    call: Callable[[], object],
    copy: Path,
    findings: Findings,
    *,
    mixtures: int = 3,
    damages: bool = False,
    twice: int = 0,
    whole: bool = True,
) -> None:
    """Carry out a call, and see what death at each of its moments would leave.

    With `damages` the call damages a row and then finds out: whoever finds it later does the same about it. After
    every `twice`-th death the successor dies at each moment of its recovery, too. Without `whole` a call may be half
    done, as long as no record is torn and no row left dirty.
    """
    states = [kept.state()]
    journal = kept.persistence.journal
    commit = journal.commit
    watch = Watch(kept.bytes)

    def noting() -> None:
        states.append(kept.state())
        watch.mark = len(states) - 1
        commit()

    kept.store.commit = journal.commit = noting  # type: ignore[method-assign]
    try:
        with watch:
            call()
    finally:
        kept.store.commit = journal.commit = commit  # type: ignore[method-assign]
    states.append(kept.state())
    for image, first, last in watch.deaths(mixtures):
        allowed = states[max(first - 1, 0) : last + 1]
        if damages and image is not watch.images[0]:
            allowed = states[-1:]
        if not whole:
            allowed = []
        again = bool(twice) and findings.deaths % twice == 0
        _judge(kept, image, copy, allowed, findings, damages=damages, again=again)
        if findings.fault:
            return
    _judge(kept, watch.images[-1], copy, states[-1:], findings, damages=False, again=False)


def _judge(
    kept: Kept, image: Image, copy: Path, allowed: list[State], findings: Findings, *, damages: bool, again: bool
) -> None:
    findings.deaths += 1
    copy.write_bytes(image.tobytes())
    watch = Watch(np.memmap(copy, np.uint8))
    try:
        if again:
            with watch:
                after = kept.restart(copy)
        else:
            after = kept.restart(copy)
    except ArenaFileError as error:
        findings.fault = f"death {findings.deaths}: refused: {error}"
        return
    fault = _fault(after, allowed, damages=damages)
    after.close()
    if fault:
        findings.fault = f"death {findings.deaths}: {fault}"
    if again:
        for later, _, _ in watch.deaths(1):
            if not findings.fault:
                _judge(kept, later, copy, allowed, findings, damages=damages, again=False)


def _fault(after: Kept, allowed: list[State], *, damages: bool) -> str:
    if after.report.damaged and not damages:
        return "a published record was torn"
    found = after.state()
    if allowed and not any(found == state for state in allowed):
        expected = allowed[-1]
        differing = (f"{name} {found[name]} for {expected[name]}" for name in found if found[name] != expected[name])
        return f"neither before nor after: {'; '.join(differing)}"
    residue = after.residue()
    return f"residue in slots {residue}" if residue else ""
