"""One store, one undivided server, and a pair for each way of handing over."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.vllm_pair.servers import LIMIT, PREFILL_LENGTH, Store, Vllm

PREFILL = "pd_handoff.engines.vllm.PrefillHandoff"
DECODE = "pd_handoff.engines.vllm.DecodeHandoff"
LOG_SHOWN = 6000
"""Characters of each log that a failed test shows."""


@dataclass
class Pair:
    """Two servers that hand over.

    Attributes:
        way: "middleware" with vLLM's connector as it is, or "connector" with the one of this project.
    """

    way: str
    prefill: Vllm
    decode: Vllm
    undivided: Vllm
    store: Store

    def assert_serves(self) -> None:
        """Both servers live."""
        for server in (self.prefill, self.decode):
            assert server.alive, server.tail()
            assert server.get("/health")[0] == 200, server.tail()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the end of each server's log: the servers' files are gone when CI is read."""
    report = yield
    pair = getattr(item, "funcargs", {}).get("pair")
    if report.failed and isinstance(pair, Pair):
        for server in (pair.prefill, pair.decode):
            report.sections.append((f"log of {server.log.stem}", server.tail(LOG_SHOWN)))
    return report


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where logs and caches go."""
    made = tmp_path_factory.mktemp("vllm")
    (made / "cache").mkdir()
    print(f"\nlogs of the servers: {made}")
    return made


@pytest.fixture(scope="session")
def store(directory: Path) -> Iterator[Store]:
    """The store of all pairs."""
    made = Store(directory, slots=64, max_top_logprobs=LIMIT, max_engine_state_bytes="64KiB", consumed_grace=1)
    try:
        made.start()
        made.wait()
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="session")
def undivided(directory: Path) -> Iterator[Vllm]:
    """The oracle: the same vLLM, alone. Tests wait for it by `pair`."""
    made = Vllm("undivided", directory)
    try:
        made.start()
        yield made
    finally:
        made.kill()


def pair_of(way: str, directory: Path, store: Store, undivided: Vllm) -> Pair:
    """A pair that is not started."""
    sides = {
        role: Vllm(
            f"{way}-{role}",
            directory,
            connector="NixlConnector",
            role=role,
            length=PREFILL_LENGTH if role == "prefill" else 2 * PREFILL_LENGTH,
            store=store,
            with_module=way == "connector",
            middleware=[PREFILL if role == "prefill" else DECODE],
        )
        for role in ("prefill", "decode")
    }
    return Pair(way, sides["prefill"], sides["decode"], undivided, store)


@pytest.fixture(scope="session", params=["middleware", "connector"])
def pair(request: pytest.FixtureRequest, directory: Path, store: Store, undivided: Vllm) -> Iterator[Pair]:
    """A running pair."""
    made = pair_of(request.param, directory, store, undivided)
    try:
        made.prefill.start()
        made.decode.start()
        for server in (made.prefill, made.decode, undivided):
            server.wait()
        yield made
    finally:
        made.prefill.kill()
        made.decode.kill()
