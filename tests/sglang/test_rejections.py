"""Every way in which SGLang ends a request of prefill's is told to decode, with status and text."""

from __future__ import annotations

from pathlib import Path

import pytest
from pd_handoff import DecodeClient, HandoffAborted, PrefillClient

from tests.sglang import patching, rejecting


@pytest.fixture(scope="module")
def store(target: str, patched: Path) -> str:
    """One in which all of them have ended."""
    patching.run(patched, "-m", "tests.sglang.rejecting", target)
    return target


@pytest.mark.parametrize(
    ("room", "status", "text"),
    [
        (rejecting.DOOR, 400, "Input length (9000) exceeds the maximum allowed length (8192)"),
        (rejecting.PRIORITY, 503, rejecting.PRIORITY_TEXT),
        (rejecting.QUEUED, 500, "Aborted"),
        (rejecting.RESULT, 400, "the sampling mask is too long"),
    ],
)
def test_a_rejection_without_prepare_abort_is_told(store: str, room: int, status: int, text: str) -> None:
    with DecodeClient(store) as reader, pytest.raises(HandoffAborted) as aborted:
        reader.get(room)
    assert (aborted.value.failure.http_status, aborted.value.failure.message) == (status, text)


def test_an_abort_after_the_record_was_read_leaves_the_room_alone(store: str) -> None:
    with PrefillClient(store) as prefill:
        for attempt in (0, 2):
            reservation = prefill.reserve(rejecting.RUNNING, owner=f"the next, attempt {attempt}", attempt=attempt)
            assert reservation.attempt == attempt
            prefill.release(reservation)
