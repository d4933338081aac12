"""What engines hand over goes through a store, on each transport, and comes back as it was."""

from __future__ import annotations

from typing import Any

import pytest
from pd_handoff import Record
from pd_handoff.engines import dynamo, lmdeploy, openengine, tensorrt_llm

from tests.support import engine_samples as samples
from tests.support.steps import Steps

pytestmark = [pytest.mark.wire, pytest.mark.settings(max_engine_state_bytes=8192)]


def exchanged(steps: Steps, room: int, record: Record) -> Record:
    return Record.from_proto(steps.exchange(room, record.to_proto()))


def test_tensorrt_llm(steps: Steps) -> None:
    for room, given in enumerate(samples.TRTLLM.values()):
        assert tensorrt_llm.params_of(exchanged(steps, room, tensorrt_llm.record_of(given))) == given


def test_dynamo(steps: Steps) -> None:
    for room, (engine, given, link) in enumerate(samples.DYNAMO.values()):
        record = exchanged(steps, room, dynamo.record_of(engine, given, migration_link=link))
        assert dynamo.prefill_result_of(engine, record) == given
        assert dynamo.migration_link_of(record) == link


def test_openengine(steps: Steps) -> None:
    given: Any = samples.session()
    record = exchanged(steps, 1, openengine.record_of(given, prompt_tokens=279, cached_tokens=256))
    assert openengine.session_of(samples.KvSessionRef, record) == given
    assert record == openengine.record_of(given, prompt_tokens=279, cached_tokens=256)


def test_lmdeploy(steps: Steps) -> None:
    for room, given in enumerate(samples.LMDEPLOY.values()):
        assert lmdeploy.request_of(exchanged(steps, room, lmdeploy.record_of(given))) == given
