"""A ReserveResponse framed by hand is what protobuf would have made of it."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.rpc import wire


@given(st.binary(min_size=1, max_size=300), st.integers(1, 10**18), st.text("0123456789abcdef", min_size=1, max_size=16))
def test_byte_for_byte(token: bytes, lease: int, epoch: str) -> None:
    duration = Duration(seconds=lease // 10**9, nanos=lease % 10**9)
    expected = pb.ReserveResponse(token=token, lease=duration, store_epoch=epoch).SerializeToString()
    assert wire.reserve_response(token, lease, epoch) == expected
