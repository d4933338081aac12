"""A log that nobody can take any more costs no call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support import records
from tests.support.caller import UnaryCaller
from tests.support.preloaded import START_SECONDS, begin
from tests.support.process import SERVING, flags
from tests.support.steps import Steps
from tests.support.waits import PATIENCE


def reader_gone() -> IO[str]:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


def disk_full() -> IO[str]:
    """A file that takes nothing."""
    return Path("/dev/full").open("w")


@pytest.fixture(params=[reader_gone, disk_full], ids=lambda log: log.__name__)
def target(request: pytest.FixtureRequest, sockets: Path, transport: str) -> Iterator[str]:
    """Of a store with such a log."""
    where = f"unix:{sockets}/lost-log.sock"
    with request.param() as log:
        arguments = flags(log_format="json", transport=transport, slots=8, drain_notice=0)
        nothing = os.open(os.devnull, os.O_RDWR)
        serve = ["serve", "--listen", where, *arguments]
        process = begin("pd_handoff.cli:main", serve, {}, streams=(nothing, nothing, log.fileno()))
        os.close(nothing)
    try:
        with grpc.insecure_channel(where) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=START_SECONDS
            )
            assert any(answer.status == SERVING for answer in watch)
        yield where
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait(PATIENCE)


def test_calls_that_are_told_of_go_on(target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        steps = Steps(UnaryCaller(channel))
        for room in range(5):
            assert steps.abort(room)
            assert steps.exchange(100 + room) == records.full()
