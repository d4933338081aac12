"""The steps of a hand-off in one line each, over whichever caller."""

from __future__ import annotations

from typing import Any

from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from . import records, requests
from .caller import Caller, Pending
from .requests import Key


class Steps:
    """Single calls, in short. All raise CallFailed."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def reserve(self, which: Key, owner: str = "prefill", **fields: Any) -> pb.ReserveResponse:
        """Reserve; fields as of `requests.reserve`."""
        answer: pb.ReserveResponse = self.caller.call("Reserve", requests.reserve(which, owner, **fields))
        return answer

    def start_reserve(self, which: Key, owner: str = "prefill", **fields: Any) -> Pending:
        """A Reserve that will wait for its slot."""
        return self.caller.start("Reserve", requests.reserve(which, owner, **fields))

    def put(self, which: Key, token: bytes, record: rp.HandoffRecord | None = None) -> pb.PutResponse:
        """Put under a token."""
        answer: pb.PutResponse = self.caller.call("Put", requests.put(which, token, record))
        return answer

    def put_once(
        self, which: Key, record: rp.HandoffRecord | None = None, owner: str = "prefill", **fields: Any
    ) -> pb.PutResponse:
        """Reserve and publish in one call; fields as of `requests.reserve`."""
        request = requests.put_once(which, record, requests.reserve(None, owner, **fields))
        answer: pb.PutResponse = self.caller.call("Put", request)
        return answer

    def publish(self, which: Key, record: rp.HandoffRecord | None = None, **fields: Any) -> bytes:
        """Reserve, then Put; returns the token."""
        token = self.reserve(which, **fields).token
        self.put(which, token, record)
        return token

    def get(self, which: Key, **fields: Any) -> pb.GetResponse:
        """Get; fields as of `requests.get`."""
        answer: pb.GetResponse = self.caller.call("Get", requests.get(which, **fields))
        return answer

    def start_get(self, which: Key, max_wait: float = 300, **fields: Any) -> Pending:
        """A Get that will wait, without a deadline of its own."""
        return self.caller.start("Get", requests.get(which, max_wait=max_wait, **fields), None)

    def record(self, which: Key, **fields: Any) -> rp.HandoffRecord:
        """Get, and only the record."""
        return self.get(which, **fields).record

    def release(self, which: Key, *, token: bytes = b"", reader: str = "") -> None:
        """Release by token or by reader."""
        self.caller.call("Release", pb.ReleaseRequest(key=requests.key(which), token=token, reader_id=reader))

    def abort(self, which: Key, **fields: Any) -> bool:
        """Abort; fields as of `requests.abort`; returns `ended`."""
        answer: pb.AbortResponse = self.caller.call("Abort", requests.abort(which, **fields))
        return answer.ended

    def capabilities(self, **fields: Any) -> pb.CapabilitiesResponse:
        """Capabilities; fields as of the message."""
        answer: pb.CapabilitiesResponse = self.caller.call("Capabilities", pb.CapabilitiesRequest(**fields))
        return answer

    @property
    def free(self) -> int:
        """Free slots, as Capabilities tells them."""
        return self.capabilities().slots_free

    def exchange(self, which: Key, record: rp.HandoffRecord | None = None) -> rp.HandoffRecord:
        """Put in one call, read and consume: what came back. The record is by default one of many parts."""
        self.put_once(which, record or records.full())
        return self.record(which, reader="decode")
