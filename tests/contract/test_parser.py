"""Which reader of requests serves, C or Python: that for which PD_HANDOFF_NATIVE asks."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from pd_handoff_server import parser
from pd_handoff_server.handlers.capabilities import SCHEMA_FINGERPRINT

from tests.support import records
from tests.support.fixtures import Launch, Start
from tests.support.waits import eventually

pytestmark = pytest.mark.internals

WISH = os.environ.get("PD_HANDOFF_NATIVE", "auto")


class Spy:
    """A reader that counts what it understood."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.understood: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._reader, name)
        if not callable(found):
            return found

        def read(*arguments: Any) -> Any:
            result = found(*arguments)
            self.understood[name] += result is not None
            return result

        return read


def expected(wish: str) -> bool:
    """Whether C has to read."""
    if wish == "auto":
        return parser.why_not(parser.load(SCHEMA_FINGERPRINT, "auto")) is None
    return wish == "required"


def test_the_wished_reader_reads(start: Start, kind: str) -> None:
    store = start(started=False)
    spy = Spy(store.app.reader)
    store.app.reader = spy
    store.start()
    steps = store.steps(kind)
    token = steps.reserve(7).token
    steps.put(7, token, records.full())
    assert steps.record(7, reader="decode") == records.full()
    names = {"reserve_all", "put_all", "get_all"} if kind == "batch" else {"reserve", "put", "get"}
    served = {name for name in names if spy.understood[name]}
    assert served == (names if expected(WISH) else set())
    assert (parser.why_not(store.app.reader._reader) is None) == expected(WISH)


@pytest.mark.parametrize("wish", sorted({"off", WISH}))
def test_a_process_says_which_reader_it_has(launch: Launch, wish: str) -> None:
    store = launch(environment={"PD_HANDOFF_NATIVE": wish})
    told = store.events  # by another thread
    eventually(lambda: any(event["event"] == "serving" for event in told), "it says that it serves")
    (serving,) = [event for event in told if event["event"] == "serving"]
    assert serving["reader"] == ("C" if expected(wish) else "Python")
    assert store.steps().exchange(7) == records.full()
