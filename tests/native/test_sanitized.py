"""The reader in C reads nothing but its input, whatever that is."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.waits import patient
from tools import hatch_build

from .conftest import HERE, LONG, SOURCES, compile_c, count, framed
from .inputs import inputs, request

pytestmark = pytest.mark.timeout(6 * 3600 if LONG else 300)

# Bits of an answer, as in driver.c; SESSION does not look into its call.
BITS = {
    "HandoffRecord": 1,
    "PutRequest": 2,
    "GetRequest": 4,
    "ReserveRequest": 8,
    "SessionRequest": 16,
    "BatchPutRequest": 32,
    "BatchGetRequest": 64,
    "BatchReserveRequest": 128,
}
AT_ONCE = 50_000
# What leaks is another test's matter, and finding it is not possible wherever this runs.
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


def run(command: Sequence[str | Path], inputs_: Sequence[bytes], **environment: str) -> bytes:
    """What it answers; fails the test with what a sanitizer says."""
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **OPTIONS, **environment},
        input=framed(inputs_),
        capture_output=True,
        timeout=patient(600),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-8000:]
    return done.stdout


def test_every_request_is_understood_as_what_it_is(driver: Path) -> None:
    rng = random.Random(1)
    messages = [request(rng) for _ in range(count(4_000))]
    answers = run([driver], [message.SerializeToString() for message in messages])
    assert [BITS[type(message).__name__] for message in messages] == list(answers)


def test_nothing_else_is_read(driver: Path) -> None:
    understood = 0
    for first in range(0, count(AT_ONCE // 2), AT_ONCE):
        some = list(inputs(first, min(AT_ONCE, count(AT_ONCE // 2))))
        answers = run([driver], some)
        assert len(answers) == len(some)
        understood += sum(map(bool, answers))
    # Neither so broken that they end at the first byte, nor all in order.
    assert count(AT_ONCE // 2) // 8 < understood < count(AT_ONCE // 2) // 2


def test_each_size_of_a_message_cut_off(driver: Path) -> None:
    rng = random.Random(2)
    for _ in range(count(40)):
        data = request(rng).SerializeToString()[:2000]
        run([driver], [data[:size] for size in range(len(data) + 1)])


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("data", [b"", b"x", b"12345678", bytes(100)])
def test_a_single_byte_outside_is_noticed(driver: Path, data: bytes, where: str) -> None:
    done = subprocess.run(
        [driver, where],
        env={**os.environ, **OPTIONS},
        input=framed([data]),
        capture_output=True,
        timeout=patient(60),
        check=False,
    )
    assert done.returncode != 0
    assert b"ERROR: AddressSanitizer" in done.stderr


def test_under_python(sanitized_extension: Path) -> None:
    """The binding, too: references and values."""
    library = subprocess.run(
        [*hatch_build.compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert os.path.isabs(library), "gcc with its libasan is needed"
    command: list[str | Path] = [sys.executable, "-I", "-S", HERE / "under_sanitizers.py", sanitized_extension]
    some = list(inputs(3, count(6_000)))
    told = run(command, some, LD_PRELOAD=library, PYTHONMALLOC="malloc")
    assert int(told) > 2 * len(some) + len(some) // 8  # two of its functions find something for any input


def test_the_binding_compiles_without_a_warning(tmp_path: Path) -> None:
    headers = [f"-isystem{directory}" for directory in hatch_build.headers()]
    compile_c("-O2", "-DNDEBUG", "-c", "-fPIC", *headers, SOURCES / "module.c", "-o", tmp_path / "module.o")
