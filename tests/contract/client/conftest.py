"""A real store in a process of its own, shared by these tests; each test takes rooms of its own."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pd_handoff
import pytest
from pd_handoff import aio

from tests.support.process import ProcessStore
from tests.unit.client.driven import Driven

_rooms = itertools.count(1000)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessStore]:
    """A store with short leases and waits that tests need not sit out."""
    path = tmp_path_factory.mktemp("s") / "s"
    settings: dict[str, Any] = {"slots": 256, "lease_min": 0.05, "consumed_grace": 1, "drain_notice": 0}
    with ProcessStore(f"unix:{path}", **settings) as store:
        yield store.wait()


@pytest.fixture
def room() -> int:
    """A room that no other test uses."""
    return next(_rooms)


_WAYS = [f"{face}-{session}" for face in ("blocking", "asyncio") for session in ("alone", "session")]


@pytest.fixture(params=_WAYS)
async def connect(request: pytest.FixtureRequest, served: ProcessStore) -> AsyncIterator[Callable[..., Driven]]:
    """connect("PrefillClient", **options): a client of the store, closed after the test; of either face, its calls each
    alone or over a Session."""
    made: list[Driven] = []
    face, _, session = request.param.partition("-")
    module: Any = pd_handoff if face == "blocking" else aio
    mode = {"alone": "never", "session": "always"}[session]

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
