"""`pd-handoff serve --arena-file`, as an operator meets it."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pd_handoff import DecodeClient, Handoff, PrefillClient, Retries, errors

from tests.faults.common import WIDTHS, differences, record_of
from tests.support.process import ProcessStore, flags, run_serve

PATIENT = Retries(total_seconds=60, initial_backoff=0.02, max_backoff=0.2)
SETTINGS: dict[str, Any] = {**WIDTHS, "slots": 16, "drain_notice": 0.05, "grace": 5}


@pytest.fixture
def target(directory: Path) -> str:
    """A Unix socket."""
    return f"unix:{directory / 's'}"


@pytest.fixture
def prefill(target: str) -> Iterator[PrefillClient]:
    """A patient producer."""
    with PrefillClient(target, retries=PATIENT) as client:
        yield client


@pytest.fixture
def decode(target: str) -> Iterator[DecodeClient]:
    """A patient reader."""
    with DecodeClient(target, retries=PATIENT) as client:
        yield client


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_is_not_noticed(
    how: int, path: Path, target: str, prefill: PrefillClient, decode: DecodeClient
) -> None:
    """A waiting Get, a reservation and a published record outlive the store, drained or killed."""
    answers: list[Handoff] = []
    with ProcessStore(target, arena_file=path, **SETTINGS) as first:
        first.wait()
        epoch = prefill.capabilities().store_epoch
        waiting = threading.Thread(target=lambda: answers.append(decode.get(1, max_wait=60)))
        waiting.start()
        held = prefill.reserve(1)
        prefill.put_once(2, record_of(("", 2, 0), 0))
        while first_waits(decode):
            continue
        first.signal(how)
        assert first.exit_code() == (0 if how == signal.SIGTERM else -how)
    with ProcessStore(target, arena_file=path, **SETTINGS) as second:
        published = prefill.put(held, record_of(("", 1, 0), 0))  # with the token of the first
        waiting.join(60)
        assert not differences(answers[0].proto, ("", 1, 0), 0)
        assert published.store_epoch == answers[0].store_epoch == epoch
        assert not differences(decode.get(2, expected_store_epoch=epoch).proto, ("", 2, 0), 0)
        second.wait()
        recovered = next(event for event in second.events if event["event"] == "recovered")
        assert (recovered["reserved"], recovered["published"]) == (1, 1)


def first_waits(decode: DecodeClient) -> bool:
    """Whether the record is still not there; gives the waiting Get its time to arrive."""
    with pytest.raises(errors.RecordNotReady):
        decode.get(1, max_wait=0.2)
    return False


def refusal(*arguments: str) -> str:
    """Why a store refuses to start: the last line of its log, and no traceback."""
    ended = run_serve("--log-format", "json", *arguments)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    event = json.loads(ended.stderr.splitlines()[-1])
    assert event["event"] == "refused_to_start"
    return str(event["error"])


def test_refusals_say_what_to_do(path: Path, directory: Path, target: str) -> None:
    other = f"unix:{directory / 'other'}"
    settings = flags(arena_file=path, **SETTINGS)
    with ProcessStore(target, arena_file=path, **SETTINGS) as store:
        store.wait()
        assert "in use by another store; stop that one, or choose another --arena-file" in refusal(
            "--listen", other, *settings
        )
    assert "made with --slots 16 (now 17)" in refusal("--listen", other, *settings, "--slots", "17")
    path.write_text("a letter to somebody")
    assert "is not an arena file" in refusal("--listen", other, *settings)
    assert path.read_text() == "a letter to somebody"


def test_without_a_file_a_store_comes_back_empty(target: str, prefill: PrefillClient, decode: DecodeClient) -> None:
    with ProcessStore(target, **SETTINGS) as first:
        first.wait()
        epoch = prefill.put_once(1, record_of(("", 1, 0), 0)).store_epoch
    with ProcessStore(target, **SETTINGS) as second:
        second.wait()
        with pytest.raises(errors.StoreRestarted):
            decode.get(1, expected_store_epoch=epoch)
        with pytest.raises(errors.HandoffNotFound):
            decode.get(1)


def test_a_file_open_to_others_is_closed_and_told(path: Path, target: str) -> None:
    path.touch()
    path.chmod(0o644)
    with ProcessStore(target, arena_file=path, **SETTINGS) as store:
        store.wait()
        (told,) = [event for event in store.events if event["event"] == "arena_file_permissions_narrowed"]
        assert (told["level"], told["path"], told["was"]) == ("warning", str(path), "0644")
        assert path.stat().st_mode & 0o777 == 0o600
