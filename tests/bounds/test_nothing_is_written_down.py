"""Contents of records, tokens and credentials appear in no log line and in no error, whatever goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp
from structlog.testing import capture_logs

from tests.support import requests
from tests.support.caller import SINGLE, UnaryCaller
from tests.support.credentials import access_file, bearing
from tests.support.failures import CallFailed
from tests.support.fixtures import Start
from tests.support.steps import Steps

MARK = b"Zq7Kx-contents"
SECRET = "Zq7Kx-a-bearer-token-nobody-may-see"


def marked(**parts: Any) -> rp.HandoffRecord:
    """A record whose every part can be recognised."""
    return rp.HandoffRecord(
        tokens=[rp.SampledToken(token_id=1_717_986_918, logprob=1.0)], customized_info=MARK, **parts
    )


def bad_records() -> list[rp.HandoffRecord]:
    """One for each way in which a record is refused."""
    found = [marked() for _ in range(9)]
    found[0].customized_info = MARK * 1000
    found[1].tokens[0].token_id = -1_717_986_918
    found[2].tokens[0].top_logprobs.values.extend([0.5] * 200)
    found[3].tokens[0].top_logprobs.token_ids.extend([1_717_986_918] * 200)
    found[3].tokens[0].top_logprobs.values.extend([0.5] * 200)
    found[4].speculative.hidden_states.data = MARK
    found[5].speculative.hidden_states.dtype = rp.DATA_TYPE_FLOAT32
    found[5].speculative.hidden_states.shape.extend([3])
    found[5].speculative.hidden_states.data = MARK
    found[6].ClearField("tokens")
    found[7].sampling_mask.token_ids.extend([1_717_986_918] * 2000)
    found[8].finish_reason = 77  # type: ignore[assignment]
    return found


class Errors:
    """Makes calls that fail, and keeps what they were told."""

    def __init__(self, caller: UnaryCaller) -> None:
        self._caller = caller
        self.told: list[str] = []
        self.codes: set[str] = set()

    def provoke(self, method: str, request: Message | bytes) -> None:
        try:
            answer = self._caller.call(method, request)
        except CallFailed as error:
            self.told.append(f"{error} {error.status} {error.metadata}")
            self.codes.add(error.reason or error.code.name)
        else:
            errors = [result.error for result in getattr(answer, "results", ()) if result.HasField("error")]
            assert errors, f"{method} was not refused"
            self.told.extend(map(str, errors))


@pytest.mark.timeout(180)
def test_no_contents_in_logs_or_errors(start: Start, tmp_path: Path, failures: list[str]) -> None:
    tokens = access_file(tmp_path / "tokens", f"all admin * {SECRET}")
    with capture_logs() as captured:
        store = start(log_level="debug", token_file=str(tokens), slots=4, max_waiters=0)
        caller = UnaryCaller(bearing(store.channel(), SECRET))
        steps, errors = Steps(caller), Errors(caller)
        for number, record in enumerate(bad_records()):
            token = steps.reserve(number, f"owner-{number}").token
            errors.provoke("Put", requests.put(number, token, record))
            errors.provoke("BatchPut", pb.BatchPutRequest(requests=[requests.put(number, token, record)]))
            errors.provoke("Put", requests.put_once(number, record))
            steps.abort(number)
        steps.publish(20, marked())
        errors.provoke("Put", requests.put_once(20, marked(reasoning_tokens=1)))
        token = steps.publish(21, marked())
        errors.provoke("Put", requests.put(21, token, marked(reasoning_tokens=1)))
        errors.provoke("Put", requests.put(22, b"foreign " + MARK, marked()))
        store.core._arena.storage[:, 64:] ^= 1  # past the header of each row
        errors.provoke("Get", requests.get(21))
        steps.abort(20)
        errors.provoke("Put", requests.put(21, token, marked()))
        for method in SINGLE:
            errors.provoke(method, MARK)
            errors.provoke(method, b"\x0a\xff" + MARK)
        errors.provoke("Get", requests.get(23, max_wait=1))
        store.core._lifecycle.admit = _fails
        errors.provoke("Put", requests.put_once(30, marked()))
        wrong = UnaryCaller(bearing(store.channel(), SECRET + MARK.decode()))
        Errors(wrong).provoke("Get", requests.get(1))
        store.close()
    assert errors.codes >= {
        *("INVALID_RECORD", "TOP_LOGPROBS_OVERFLOW", "FIELD_OVERFLOW", "RECORD_IMMUTABLE", "STALE_RESERVATION"),
        *("HANDOFF_ABORTED", "INVALID_REQUEST", "TOO_MANY_WAITERS", "INTERNAL"),
    }
    failed = [event for event in captured if event["event"] == "failed"]
    assert len(failed) == 1
    assert "builtins.ValueError" in failed[0]["exception"]
    assert {"reserved", "published", "refused", "ended", "denied"} <= {event["event"] for event in captured}
    _search("the log", json.dumps(captured, default=str), token)
    _search("the errors", "\n".join(errors.told), token)
    failures.clear()


def _fails(spec: Any) -> Any:
    raise ValueError(f"{MARK!r} {spec} 1717986918")


def _search(where: str, text: str, token: bytes) -> None:
    for needle in (MARK.decode(), SECRET, "Zq7Kx", "1717986918", token.hex(), repr(token)[2:-1]):
        assert needle not in text, f"{needle} in {where}"


def test_events_of_strangers_are_counted_not_written(start: Start, tmp_path: Path) -> None:
    with capture_logs() as captured:
        store = start(token_file=str(access_file(tmp_path / "tokens", f"all admin * {SECRET}")))
        caller = UnaryCaller(bearing(store.channel(), "wrong"))
        for _ in range(600):
            with pytest.raises(CallFailed):
                caller.call("Get", b"")
        store.close()
    denied = [event for event in captured if event["event"] == "denied"]
    assert 200 <= len(denied) < 500
    assert {"method", "peer", "code"} <= denied[0].keys()
