"""A real store in a process of its own, shared by these tests; each test takes rooms of its own."""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pd_handoff
import pytest
from pd_handoff import aio

from tests.support.process import ProcessStore
from tests.unit.client.driven import Driven

_rooms = itertools.count(1000)


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ProcessStore]]:
    """serving(transport): a store with short leases and waits that tests need not sit out, one a transport."""
    settings: dict[str, Any] = {
        "slots": 256,
        "lease_min": 0.05,
        "consumed_grace": 1,
        "drain_notice": 0,
        "attachment_heap": 32 << 20,
    }
    with ExitStack() as stack:

        @functools.cache
        def serve(transport: str) -> ProcessStore:
            path = tmp_path_factory.mktemp("s") / "s"
            store = ProcessStore(f"unix:{path}", transport=transport, **settings)
            return stack.enter_context(store).wait()

        yield serve


@pytest.fixture(scope="session")
def served(serving: Callable[[str], ProcessStore]) -> ProcessStore:
    """The one on the default transport."""
    return serving("fast")


@pytest.fixture
def room() -> int:
    """A room that no other test uses."""
    return next(_rooms)


# Each test runs on both transports, and by each way to make a call.
_WAYS = ("blocking-alone-fast", "blocking-session-aio", "asyncio-alone-aio", "asyncio-session-fast")


@pytest.fixture(params=_WAYS)
async def connect(
    request: pytest.FixtureRequest, serving: Callable[[str], ProcessStore]
) -> AsyncIterator[Callable[..., Driven]]:
    """connect("PrefillClient", **options): a client of a store, closed after the test; of either face, its calls each
    alone or over a Session."""
    made: list[Driven] = []
    face, session, transport = request.param.split("-")
    module: Any = pd_handoff if face == "blocking" else aio
    mode = {"alone": "never", "session": "always"}[session]
    served = serving(transport)

    def make(kind: str, **options: Any) -> Driven:
        options = {"target": served.target, "session": mode, **options}
        made.append(Driven(getattr(module, kind)(**options)))
        return made[-1]

    yield make
    for driven in made:
        await driven.close()


@pytest.fixture
def socket(tmp_path: Path) -> str:
    """Where a store of one's own can listen."""
    return f"unix:{tmp_path / 's'}"
