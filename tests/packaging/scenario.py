"""Run by the fresh environments' own Python: a hand-off through the installed package. Argument: the store's target."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from importlib.metadata import version

import pd_handoff
from pd_handoff import (
    DecodeClient,
    Key,
    Logprobs,
    PrefillClient,
    Record,
    Token,
    TopLogprobsOverflow,
    Widths,
)
from pd_handoff.v1 import admin_pb2_grpc, error_reason_pb2, metadata_store_pb2_grpc


def main() -> None:
    """Prints what it ran on."""
    for name in ("torch", "numpy", "structlog"):
        if importlib.util.find_spec(name) is not None:
            raise RuntimeError(f"{name} is installed: this environment is not fresh")
    target = sys.argv[1]
    key = Key(room=2**64 - 1, sample=3, namespace=f"packaging-{version('protobuf')}")
    record = Record(
        tokens=[Token(7, logprob=-0.0, top_logprobs=Logprobs([-0.5, -math.inf], [7, 8])), Token(0)],
        customized_info=bytes(range(256)),
    )
    with PrefillClient(target) as prefill, DecodeClient(target, reader_id="fresh") as decode:
        limit = prefill.capabilities().limits.top_logprobs
        try:
            prefill.reserve(key, widths=Widths(top_logprobs=limit + 1))
        except TopLogprobsOverflow as refused:
            if (refused.requested, refused.limit, refused.http_status) != (limit + 1, limit, 400):
                raise
        else:
            raise RuntimeError("a width over the limit was not refused")
        prefill.put(prefill.reserve(key), record)
        received = decode.get(key, max_wait=5, consume=True).record
    if received != record:  # bit for bit: -0.0 is not 0.0
        raise RuntimeError(f"another record came back: {received}")
    if {"torch", "numpy"} & sys.modules.keys():
        raise RuntimeError("torch or numpy was imported")
    print(
        json.dumps(
            {
                "package": pd_handoff.__file__,
                "protobuf": version("protobuf"),
                "grpcio": version("grpcio"),
                "reasons": len(error_reason_pb2.ErrorReason.keys()),
                "stubs": [
                    metadata_store_pb2_grpc.MetadataStoreStub.__name__,
                    admin_pb2_grpc.MetadataStoreAdminStub.__name__,
                ],
            }
        )
    )


if __name__ == "__main__":
    main()
