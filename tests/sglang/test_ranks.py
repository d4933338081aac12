"""Several ranks of one scheduler, in processes of their own: whatever the store says, they end each request alike."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pd_handoff import DecodeClient, Failure, HandoffAborted, PrefillClient
from pd_handoff.engines.sglang import (
    StoreLink,
    key_of,
    record_from_request,
)

from examples.sglang.engine import load
from examples.sglang.requests import Order, compute, request_of
from tests.sglang import patching
from tests.sglang.making import Made
from tests.sglang.ranks import READ, ROOMS
from tests.sglang.sides import Settled, Sides, decode_entry


class Ranks:
    """Both ranks, started."""

    def __init__(self, role: str, store: str, folder: Path, patched: Path) -> None:
        meeting = (folder / "meeting").as_uri()
        self.logs = [folder / f"rank-{rank}.log" for rank in range(2)]
        self.processes = []
        for rank, log in enumerate(self.logs):
            with log.open("wb") as sink:
                command = [sys.executable, "-m", "tests.sglang.ranks", role, str(rank), meeting, store]
                self.processes.append(
                    subprocess.Popen(
                        command,
                        env=patching.environment(patched),
                        cwd=patching.ROOT,
                        stdout=subprocess.PIPE,
                        stderr=sink,
                        text=True,
                    )
                )

    def said(self) -> list[dict[str, Any]]:
        """The next line of each. Raises AssertionError with the logs when there is none."""
        found = []
        for process in self.processes:
            line = next((line for line in process.stdout or () if line.startswith("{")), "")
            logs = "\n".join(log.read_text(errors="replace")[-3000:] for log in self.logs)
            assert line, f"a rank ended without a word:\n{logs}"
            found.append(json.loads(line))
        return found

    def end(self) -> None:
        """Whatever they do."""
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what a test started."""
    with ExitStack() as open_stack:
        yield open_stack


def start(stack: ExitStack, role: str, store: str, folder: Path, patched: Path) -> Ranks:
    """Both ranks of a role."""
    ranks = Ranks(role, store, folder, patched)
    stack.callback(ranks.end)
    return ranks


def test_ranks_of_prefill_end_each_request_alike(stack: ExitStack, target: str, tmp_path: Path, patched: Path) -> None:
    first, second = start(stack, "prefill", target, tmp_path, patched).said()

    # The rank that publishes knows why; the other, that it failed. Both took the request from the same queue.
    assert first["ended"]["too-wide"][0] == 400
    assert "129 exceeds disaggregation metadata capacity 128" in first["ended"]["too-wide"][1]
    assert first["ended"]["malformed"] == [500, "tokens[0].top_logprobs: 2 values for 3 token ids"]
    for rid in ("too-wide", "malformed"):
        assert second["ended"][rid][0] == 500
        assert "from another rank" in second["ended"][rid][1]
    for rid in ("first", "last"):
        assert first["ended"][rid] == second["ended"][rid]
        assert first["ended"][rid][0] == 200
    assert first["prefilled"] == second["prefilled"] == ["first", "malformed", "last"]  # too-wide cost no prefill
    assert first["free"] == second["free"] == 4

    with DecodeClient(target) as reader:
        for rid in ("first", "last"):
            assert reader.get(ROOMS[rid]).proto.tokens[0].token_id == first["ended"][rid][1][0]
        for rid in ("too-wide", "malformed"):
            with pytest.raises(HandoffAborted) as aborted:
                reader.get(ROOMS[rid])
            failure = aborted.value.failure
            assert [failure.http_status, failure.message] == first["ended"][rid]


def test_ranks_of_prefill_end_each_request_alike_while_the_store_is_away(
    stack: ExitStack, tmp_path: Path, patched: Path
) -> None:
    first, second = start(stack, "away", f"unix:{tmp_path}/nobody.sock", tmp_path, patched).said()
    for rid in ("away-1", "away-2"):
        assert first["ended"][rid][0] == 503
        assert second["ended"][rid][0] == 500
        assert "from another rank" in second["ended"][rid][1]
    assert first["free"] == second["free"] == 4


def test_ranks_of_decode_end_each_request_alike(stack: ExitStack, target: str, tmp_path: Path, patched: Path) -> None:
    ranks = start(stack, "decode", target, tmp_path, patched)
    assert ranks.said() == [{"waiting": True}] * 2
    order = Order("whole", READ["whole"], logprobs=True, top_logprobs=3, seed=READ["whole"])
    req = request_of(order)
    compute(req, order)
    failure = Failure(400, "BAD_REQUEST", "prefill found the input too long")
    with PrefillClient(target) as prefill:
        prefill.abort(READ["aborted"], failure, attempt=0)
        prefill.put_once(key_of(req), record_from_request(req), expected_readers=2)
    for rank in ranks.said():
        assert rank["ended"] == {"whole": [200, list(req.output_ids)], "aborted": [400, failure.message]}
        assert rank["free"] == 4


def test_a_pipeline_fails_a_request_only_behind_its_prefill(sides: Sides) -> None:
    """Its stages compare the senders of requests in flight, not those of requests that wait for their prefill."""
    aborted: list[str] = []
    source = Made(room=9031, logprob=-1.0, top_num=129, top_val=[[-1.0] * 129], top_idx=[[1] * 129]).request()
    source.disagg_kv_sender = SimpleNamespace(abort=lambda: aborted.append("sender"))
    ranks = {"attn_tp_rank": 0, "attn_cp_rank": 0, "pp_rank": 1, "pp_size": 2}
    with load("srt.runtime_context").get_parallel().override(**ranks):
        assert not sides.prefill.reserve(source)
        assert aborted == []
        assert not sides.publish(source)
    assert aborted == ["sender"]
    assert source.finished_reason is None  # it is SGLang's ranks that end it, all of them


def test_a_sender_with_the_state_of_another_request_of_its_room_fails_alone(sides: Sides) -> None:
    """SGLang's bootstrap queue ends the scheduler at a state that a request cannot have there."""
    source = Made(room=9033).request()
    source.pending_bootstrap, source.metadata_buffer_index = True, -1
    assert sides.prefill.sender_state(source, 1) == 1
    for poll in (3, 4):
        source.handoff_refused = None
        assert sides.prefill.sender_state(source, poll) == 0
        assert source.handoff_refused.http_status == 409
    source.handoff_refused, source.metadata_buffer_index = None, 0
    assert sides.prefill.sender_state(source, 3) == 3  # its own, once it has begun


def test_ranks_that_leave_aborts_to_another_say_nothing(target: str) -> None:
    for reports, speaks in ((None, False), (True, True)):
        link = StoreLink(target, publishes=False, reports=reports)
        buffers = Settled(1, 16, torch.float32, 16, link=link)
        assert (buffers.abort(Made(room=9032).request(), "stop") is not None) is speaks
        buffers.close()


def test_stages_of_a_decode_pipeline_agree_by_receivers_that_mind_the_record(sides: Sides) -> None:
    receiver = SimpleNamespace(poll=lambda: 4, require_staging=False)  # the KV cache has come
    requests = [Made(room=room).request(computed=False) for room in (9041, 9042)]
    entries = [SimpleNamespace(req=request, kv_receiver=receiver) for request in requests]
    alone = SimpleNamespace(req=Made(room=9046).request(computed=False), kv_receiver=receiver)
    sides.decode.bind(2, alone.req, alone)
    assert alone.kv_receiver is receiver  # the ranks of one stage have SGLang's gate
    with load("srt.runtime_context").get_parallel().override(pp_rank=0, pp_size=2):
        for idx, (request, entry) in enumerate(zip(requests, entries, strict=True)):
            sides.decode.bind(idx, request, entry)
    first, second = (entry.kv_receiver for entry in entries)
    assert (first.poll(), second.poll()) == (3, 3)
    assert first.require_staging is False
    assert sides.publish(Made(room=9041).request())
    sides.prefill.abort(Made(room=9042).request(), "too long", 400)
    sides.decode.get_buf(0)
    sides.decode.get_buf(1)
    assert (first.poll(), second.poll()) == (4, 0)
    for idx in range(3):
        sides.decode.clear_slot(idx)


def test_a_failure_that_comes_by_the_kv_transfer_first_waits_a_moment_for_its_reason(sides: Sides) -> None:
    now = [100.0]
    sides.decode.clock = lambda: now[0]
    requests = [Made(room=room).request(computed=False) for room in (9043, 9044)]
    for idx, request in enumerate(requests):
        sides.decode.bind(idx, request)
    entries = [decode_entry(request, idx) for idx, request in enumerate(requests)]

    def gated() -> list[int]:
        polls = [0, 0]  # both transfers have failed: prefill is gone
        sides.decode.gate(polls, entries)
        return polls

    assert gated() == [3, 3]
    now[0] += 0.09
    assert gated() == [3, 3]
    sides.prefill.abort(requests[0], "too long", 400)
    sides.decode.get_buf(0)
    assert gated() == [0, 3]  # its reason is here
    assert sides.decode.fail(entries[0])
    assert (requests[0].finished_reason.status_code, requests[0].finished_reason.message) == (400, "too long")
    now[0] += 0.02
    assert gated() == [0, 0]  # SGLang's own words will do
    assert not sides.decode.fail(entries[1])
    for idx in range(2):
        sides.decode.clear_slot(idx)


def test_one_of_several_ranks_fails_once_the_others_can_have_heard(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    sides.decode.clock = lambda: now[0]
    request = Made(room=9047).request(computed=False)
    sides.decode.bind(0, request)
    sides.prefill.abort(request, "too long", 400)
    sides.decode.get_buf(0)  # the answer is here
    entry = decode_entry(request, 0)

    def gated() -> list[int]:
        polls = [3]
        sides.decode.gate(polls, [entry])
        return polls

    monkeypatch.setattr("pd_handoff.engines.sglang.runtime.has_siblings", lambda: True)
    assert gated() == [3]
    now[0] += 0.04
    assert gated() == [3]
    now[0] += 0.02
    assert gated() == [0]
    sides.decode.clear_slot(0)
