"""The records that are handed over: the same bytes for the store and for its peers."""

from __future__ import annotations

import random
from collections.abc import Iterable

from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2

SMALL, LARGE = "1.5 KB", "15.9 KB"
_HIDDEN = 7168  # bfloat16 elements


def record(size: str) -> record_pb2.HandoffRecord:
    """SMALL: one token with 128 top logprobs and 32 of listed ids. LARGE: the same with hidden states of 14 KiB."""
    rng = random.Random(7)
    made = record_pb2.HandoffRecord()
    token = made.tokens.add(token_id=rng.randrange(150_000), logprob=-0.25)
    for logprobs, count in ((token.top_logprobs, 128), (token.token_ids_logprobs, 64)):
        logprobs.values.extend(-rng.random() * 20 for _ in range(count))
        logprobs.token_ids.extend(rng.randrange(150_000) for _ in range(count))
    made.cached_tokens.total = 1000
    made.cached_tokens.device = 600
    made.cached_tokens.host = 300
    made.cached_tokens.storage = 100
    made.kv_checksum.digest = rng.getrandbits(64)
    made.kv_checksum.layout_signature = rng.getrandbits(64)
    made.sampling_mask.token_ids.extend(rng.randrange(150_000) for _ in range(32))
    if size == LARGE:
        state = made.speculative
        state.topk_p.extend(rng.random() for _ in range(8))
        state.topk_index.extend(rng.randrange(150_000) for _ in range(8))
        state.hidden_states.dtype = record_pb2.DATA_TYPE_BFLOAT16
        state.hidden_states.shape.append(_HIDDEN)
        state.hidden_states.data = rng.randbytes(_HIDDEN * 2)
    return made


def key(room: int) -> record_pb2.HandoffKey:
    """The key of a room."""
    return record_pb2.HandoffKey(room=room)


def reserves(rooms: Iterable[int]) -> list[bytes]:
    """A ReserveRequest a room."""
    return [pb.ReserveRequest(key=key(room), owner="bench").SerializeToString() for room in rooms]


def puts(rooms: Iterable[int], tokens: Iterable[bytes], what: record_pb2.HandoffRecord) -> list[bytes]:
    """A PutRequest a room, with the token of its Reserve."""
    return [
        pb.PutRequest(key=key(room), token=token, record=what).SerializeToString()
        for room, token in zip(rooms, tokens, strict=True)
    ]


def one_shot_puts(rooms: Iterable[int], what: record_pb2.HandoffRecord) -> list[bytes]:
    """A PutRequest a room that reserves too."""
    reserve = pb.ReserveRequest(owner="bench")
    return [pb.PutRequest(key=key(room), reserve=reserve, record=what).SerializeToString() for room in rooms]


def gets(rooms: Iterable[int], *, consume: bool = True, wait: float = 0.0) -> list[bytes]:
    """A GetRequest a room; `wait` in seconds."""
    requests = []
    for room in rooms:
        request = pb.GetRequest(key=key(room), reader_id="bench", consume=consume)
        if wait:
            request.max_wait.seconds = int(wait)
            request.max_wait.nanos = int(wait % 1 * 1e9)
        requests.append(request.SerializeToString())
    return requests


def batch_reserve(rooms: Iterable[int]) -> bytes:
    """A BatchReserveRequest."""
    requests = [pb.ReserveRequest(key=key(room), owner="bench") for room in rooms]
    return pb.BatchReserveRequest(requests=requests).SerializeToString()


def batch_put(rooms: Iterable[int], tokens: Iterable[bytes], what: record_pb2.HandoffRecord) -> bytes:
    """A BatchPutRequest."""
    requests = [
        pb.PutRequest(key=key(room), token=token, record=what) for room, token in zip(rooms, tokens, strict=True)
    ]
    return pb.BatchPutRequest(requests=requests).SerializeToString()


def batch_get(rooms: Iterable[int]) -> bytes:
    """A BatchGetRequest; all are consumed."""
    requests = [pb.GetRequest(key=key(room), reader_id="bench", consume=True) for room in rooms]
    return pb.BatchGetRequest(requests=requests).SerializeToString()
