"""What one caller does costs no other: floods of fences and of log events, readers that wake all at once.

On each transport one store with small tables. A namespace keeps its tombstones while another makes thousands; callers
that fill the log get no more lines than their allowance; hundreds of waiting Gets and batches that wake together have
one record, or a refusal, while honest callers go on.
"""

from __future__ import annotations

import time
from typing import Any

import grpc
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.process import ProcessStore
from tests.support.waits import eventually

from .common import Options, Report, Scenario
from .outside import metrics
from .target import SECONDS, STORE, Target

TOMBSTONES = 512
ALLOWANCE, RATE = 200, 20  # log events at once, and per second, as docs/threat-model.md says
UNREAD = 64 << 20
SETTINGS: dict[str, Any] = {
    "slots": 64,
    "tombstones": TOMBSTONES,
    "max_hidden_state_bytes": 1 << 20,
    "max_unread_bytes": UNREAD,
    "metrics_listen": "127.0.0.1:0",
}


def key(namespace: str, room: int) -> rp.HandoffKey:
    """A key in a namespace."""
    return rp.HandoffKey(namespace=namespace, room=room)


def reason(error: grpc.RpcError) -> str:
    """The reason of a refusal, else its code."""
    assert isinstance(error, grpc.Call)
    packed = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    info = error_details_pb2.ErrorInfo()
    for detail in Status.FromString(packed).details if isinstance(packed, bytes) else ():
        if detail.Unpack(info):
            return str(info.reason)
    return str(error.code())


def fences(target: Target, many: int) -> None:
    """Aborts ahead in one namespace, by the thousand, over a Session's worth of calls: another's fences hold."""
    channel = target.channel()
    abort, reserve = channel.unary_unary(f"/{STORE}/Abort"), channel.unary_unary(f"/{STORE}/Reserve")
    with target.attack("a flood of fences in another namespace"):
        for room in range(16):
            abort(requests.abort(key("good", room)).SerializeToString(), timeout=SECONDS)
        for start in range(0, many, 64):
            asked = [
                abort.future(requests.abort(key("evil", room)).SerializeToString(), timeout=SECONDS)
                for room in range(start, start + 64)
            ]
            for each in asked:
                each.result()
            target.report.count("aborts in another namespace", 64)
        for room in range(16):
            try:
                reserve(requests.reserve(key("good", room)).SerializeToString(), timeout=SECONDS)
                target.fault(f"a flood of fences: room {room} of another namespace lost its fence")
            except grpc.RpcError as error:
                target.expect(reason(error) == "HANDOFF_ABORTED", f"a fence came as {reason(error)}")
    channel.close()


def log(target: Target, store: ProcessStore, many: int) -> None:
    """Calls that are refused and told, with owners that are long and odd: the log grows by its allowance alone."""
    channel = target.channel()
    reserve = channel.unary_unary(f"/{STORE}/Reserve")
    began, before = time.monotonic(), len(store.events)
    with target.attack("a flood of log events"):
        for number in range(many // 64):
            request = requests.reserve(key("log", 1), owner=f"{number}\x01\x02\x1b[31m" + "x" * 200)
            asked = [reserve.future(request.SerializeToString(), timeout=SECONDS) for _ in range(64)]
            for each in asked:
                each.exception()
            target.report.count("refusals that are events", 64)
    most = ALLOWANCE + RATE * (time.monotonic() - began + 2) + 50
    told = len(store.events) - before
    target.report.count("log events told", told)
    target.expect(told <= most, f"a flood of log events: {told} lines, {most:.0f} are allowed")
    channel.close()


def wake(target: Target, store: ProcessStore, waiting: int) -> None:
    """Readers and batches of one key, all waiting, and a record of 1 MiB."""
    record = records.with_hidden(rp.DATA_TYPE_FLOAT8_E4M3, [1 << 20], bytes(1 << 20))
    channels = [target.channel(("grpc.max_receive_message_length", -1)) for _ in range(8)]
    token = requests_token(channels[0])
    get = requests.get(key("wake", 1), reader="", max_wait=60, consume=False).SerializeToString()
    batch = pb.BatchGetRequest(
        requests=[requests.get(key("wake", 2)), requests.get(key("wake", 1), max_wait=60)]
    ).SerializeToString()
    put = channels[0].unary_unary(f"/{STORE}/Put")
    put(requests.put_once(key("wake", 2), record).SerializeToString(), timeout=SECONDS)
    with target.attack("hundreds that wake together"):
        asked = []
        for number in range(waiting):
            name, request = ("BatchGet", batch) if number % 4 == 0 else ("Get", get)
            call = channels[number % len(channels)].unary_unary(f"/{STORE}/{name}")
            asked.append(call.future(request, timeout=SECONDS))
        eventually(lambda: waiters(store) >= waiting, "all wait", SECONDS)
        put(requests.put(key("wake", 1), token, record).SerializeToString(), timeout=SECONDS)
        target.check("among those that wake")
        for each in asked:
            error = each.exception()
            if error is None:
                target.report.count("woken with the record")
                target.expect(len(each.result()) > 1 << 20, "an answer has no record")
            else:
                target.report.count("woken with a refusal")
                target.expect(reason(error) == "TOO_MANY_WAITERS", f"a reader got {reason(error)}")
        target.height("hundreds that wake together", 4 * UNREAD)
    for channel in channels:
        channel.close()


def requests_token(channel: Any) -> bytes:
    """The token of a reservation of the key that all wait for."""
    reserve = channel.unary_unary(f"/{STORE}/Reserve")
    answer = reserve(requests.reserve(key("wake", 1), lease=300).SerializeToString(), timeout=SECONDS)
    return pb.ReserveResponse.FromString(answer).token


def waiters(store: ProcessStore) -> float:
    """How many calls wait, as the metrics tell it."""
    told = metrics(store)
    return sum(value for name, value in told.items() if name.startswith("pd_handoff_waiters{"))


def run(options: Options) -> Report:
    """All of it, on each transport."""
    report = Report()
    for transport in options.transports:
        with ProcessStore("127.0.0.1:0", transport=transport, **SETTINGS).wait() as store:
            target = Target(store, report, transport, options.say)
            fences(target, options.times(2_048, 20_480))
            log(target, store, options.times(2_048, 20_480))
            wake(target, store, options.times(200, 1_000))
            target.close()
    return report


SCENARIO = Scenario("isolation", "floods of one caller that must cost no other its fence, its log or its record", run)
