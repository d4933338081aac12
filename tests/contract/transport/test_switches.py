"""What makes the fast transport fast can be counted: its server changes threads for next to no call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import http2, records
from tests.support.process import ProcessStore

pytestmark = pytest.mark.internals

STORE = "/pd_handoff.v1.MetadataStore/"
_ROUNDS = 6


def switches(process: ProcessStore) -> int:
    """How often the store's threads have gone to sleep of their own accord."""
    total = 0
    for task in Path(f"/proc/{process.process.pid}/task").iterdir():
        status = (task / "status").read_text()
        total += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


@pytest.mark.parametrize(("in_flight", "calls", "most"), [(1, 200, 1.5), (64, 1000, 0.3)])
def test_thread_changes_a_call(launch: Callable[..., ProcessStore], in_flight: int, calls: int, most: float) -> None:
    """The least of some rounds: on idle cores a wake-up may find only part of a request, and sleep again for the rest.

    A transport that hands calls to another thread changes threads several times for each call of every round.
    """
    process = launch(transport="fast", slots=calls, fresh=True)
    [polling] = [event["polling"] for event in process.events if event["event"] == "transport"]
    assert polling == "serving thread"  # `pd-handoff serve` sees to it
    counted: dict[str, list[float]] = {"Reserve": [], "Put": [], "Get": []}

    def drive(method: str, messages: list[bytes]) -> list[bytes]:
        before = switches(process)
        outcome = http2.drive(process.target, STORE + method, messages, in_flight=in_flight, keep=True)
        counted[method].append((switches(process) - before) / calls)
        assert outcome.errors == 0
        return [answer for answer in outcome.answers if answer is not None]

    for number in range(_ROUNDS):
        rooms = range(number * calls, (number + 1) * calls)
        tokens = [pb.ReserveResponse.FromString(answer).token for answer in drive("Reserve", records.reserves(rooms))]
        drive("Put", records.puts(rooms, tokens, records.record(records.SMALL)))
        assert len(drive("Get", records.gets(rooms))) == calls
    assert {method: min(counts) for method, counts in counted.items() if min(counts) > most} == {}
