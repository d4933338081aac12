"""A store that is away: what it costs a scheduler's loop, and what it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pd_handoff import Failure, Key
from pd_handoff.engines.sglang import StoreLink
from pd_handoff.engines.sglang import link as link_module
from pd_handoff.engines.sglang.breaker import Breaker
from pd_handoff.engines.sglang.courier import Claim
from pd_handoff.errors import (
    ArenaFull,
    DeadlineExceeded,
    Draining,
    HandoffError,
    PermissionDenied,
    StoreUnavailable,
)
from pd_handoff.retries import NO_RETRIES

from examples.demo.store import Store
from tests.sglang.making import Made
from tests.sglang.sides import Settled


class Outside:
    """A clock that is set by hand, and a store that answers probes as it is told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.probes = 0
        self.error: HandoffError | None = StoreUnavailable("nobody there")

    def clock(self) -> float:
        return self.now

    def probe(self) -> None:
        self.probes += 1
        if self.error is not None:
            raise self.error


def test_after_a_call_without_answer_the_next_fail_at_once_for_a_while() -> None:
    outside = Outside()
    breaker = Breaker(outside.probe, pause=5.0, clock=outside.clock)
    breaker.check()
    breaker.note(ArenaFull())  # an answer
    breaker.check()
    breaker.note(StoreUnavailable())
    for now in (100.0, 102.0, 104.9):
        outside.now = now
        with pytest.raises(StoreUnavailable, match=f"has not answered for {now - 100.0:.1f} s"):
            breaker.check()
    assert outside.probes == 0
    outside.now = 105.0
    with pytest.raises(StoreUnavailable, match=r"asked again in 5\.0 s"):
        breaker.check()
    outside.now = 109.9
    with pytest.raises(StoreUnavailable):
        breaker.check()
    assert outside.probes == 1
    outside.now, outside.error = 110.0, None
    breaker.check()
    breaker.check()
    assert outside.probes == 2


@pytest.mark.parametrize("error", [StoreUnavailable(), DeadlineExceeded(), Draining()])
def test_what_counts_as_no_answer(error: HandoffError) -> None:
    breaker = Breaker(lambda: None, clock=lambda: 0.0)
    breaker.note(error)
    with pytest.raises(StoreUnavailable):
        breaker.check()


def test_a_probe_that_is_refused_was_answered() -> None:
    outside = Outside()
    outside.error = PermissionDenied("not for you")
    breaker = Breaker(outside.probe, pause=5.0, clock=outside.clock)
    breaker.note(StoreUnavailable())
    outside.now += 5.0
    breaker.check()


def test_a_store_that_is_away_is_called_once_and_asked_again_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = Outside()
    address = tmp_path / "store.sock"
    link = StoreLink(f"unix:{address}", timeout=1.0, retries=NO_RETRIES, pause=5.0, clock=outside.clock)
    buffers = Settled(1, 16, torch.float32, 16, link=link)
    calls = count_calls(link, monkeypatch)
    monkeypatch.setattr(link, "abort_own", lambda *_, **__: None)  # waits in the background, and for longer
    for room in range(401, 404):
        source = Made(room=room).request(rid=f"r{room}")
        assert not buffers.reserve(source)
        assert not buffers.set_buf(source)
        assert source.finished_reason.status_code == 503
    assert calls == ["reserve"]  # six would have waited, one after another

    store = Store(tmp_path, "--slots", "4")
    store.wait_until_serving(60)
    again = StoreLink(store.target, timeout=10.0, retries=NO_RETRIES, pause=5.0, clock=outside.clock)
    again.breaker.note(StoreUnavailable())
    buffers.link = again
    assert not buffers.reserve(Made(room=404).request())  # nobody looks before its time
    outside.now += 5.0
    assert buffers.reserve(Made(room=405).request())
    again.close()
    link.close()
    store.stop()


def count_calls(link: StoreLink, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which calls prefill's loop waits for, from now on."""
    calls: list[str] = []
    client = link.prefill
    for name in ("reserve", "put", "put_once"):
        original = getattr(client, name)

        def counted(*args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            calls.append(_name)
            return _original(*args, **kwargs)

        monkeypatch.setattr(client, name, counted)
    return calls


def test_decodes_loop_does_not_wait_for_a_fence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = StoreLink(f"unix:{tmp_path}/nobody.sock")
    sent: list[Any] = []
    monkeypatch.setattr(link, "_start", lambda work, **_: sent.append(work))
    link.fence(Key(1), 2)
    assert len(sent) == 1
    link.close()


def test_no_thread_waits_for_an_abort_while_the_store_is_known_to_be_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = Outside()
    link = StoreLink(f"unix:{tmp_path}/nobody.sock", retries=NO_RETRIES, clock=outside.clock)
    calls = count_calls(link, monkeypatch)
    monkeypatch.setattr(link_module, "_CLAIM", 0.0)
    terms = {"owner": "prefill", "lease": 60.0, "expected_readers": 1}
    link.breaker.note(StoreUnavailable())
    aborts = [link.abort_own(Key(room), Failure(), 0, None, terms) for room in range(3)]
    assert all(isinstance(abort.exception(20.0), StoreUnavailable) for abort in aborts)
    assert calls == []
    outside.now += 60.0
    assert isinstance(link.abort_own(Key(9), Failure(), 0, None, terms).exception(20.0), StoreUnavailable)
    assert calls == ["reserve"]
    assert link.breaker.away
    link.close()


def test_calls_that_fail_at_once_do_not_put_off_the_next_look_at_the_store(target: str) -> None:
    outside = Outside()
    link = StoreLink(target, pause=5.0, clock=outside.clock)

    def claimed(room: int) -> Any:
        claim = Claim(Key(room), 0, None, {"owner": "a", "lease": 60.0, "expected_readers": 1}, counted=False)
        link.courier.send(claim)
        return claim.future

    link.breaker.note(StoreUnavailable("nobody there"))
    for now in (102.0, 104.9):
        outside.now = now
        with pytest.raises(StoreUnavailable, match="it is asked again in"):
            claimed(1).result(30.0)
    outside.now = 105.0  # the store answers this probe
    assert claimed(1).result(30.0).key.room == 1
    link.close()


def test_a_probe_that_cannot_be_made_is_not_the_end_of_a_loop() -> None:
    outside = Outside()

    def unmade() -> None:
        raise ValueError("no address")

    breaker = Breaker(unmade, pause=5.0, clock=outside.clock)
    breaker.note(StoreUnavailable())
    outside.now = 105.0
    breaker.check()
