"""Roles and namespaces through real gRPC, on each transport. `tests/faults/auth_matrix.py` has every pair."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp
from structlog.testing import capture_logs

from tests.support import records, requests
from tests.support.caller import Caller, SessionCaller
from tests.support.credentials import access_file
from tests.support.failures import CallFailed
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.steps import Steps
from tests.support.waits import eventually

from .conftest import LLAMA, TOKENS, Connect

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


def key(namespace: str, room: int | None = 1) -> rp.HandoffKey:
    return rp.HandoffKey(namespace=namespace, room=room)


def bare(caller: Caller, method: str, request: Message | bytes) -> grpc.StatusCode:
    """The code of a refusal that must tell nothing else."""
    with pytest.raises(CallFailed) as caught:
        caller.call(method, request)
    error = caught.value
    assert not error.reason
    assert error.status is None or not error.status.details
    assert error.message in {"no valid credentials", "not permitted"}
    return error.code


@pytest.fixture
def store(start: Start, token_file: Path) -> LocalStore:
    return start(token_file=str(token_file), real_time=True, admin_contents=True)


def test_a_hand_off_between_two_roles(store: LocalStore, connect: Connect, kind: str) -> None:
    prefill = Steps(connect(store, TOKENS["prefill"], kind=kind))
    decode = Steps(connect(store, TOKENS["decode"], kind=kind))
    waiting = decode.start_get(1, reader="d")
    token = prefill.publish(1, records.full())
    assert waiting.result().record == records.full()
    prefill.release(1, token=token)
    assert prefill.capabilities().slots_free == decode.capabilities().slots_free == 8


def test_roles_keep_to_their_calls(store: LocalStore, connect: Connect, kind: str) -> None:
    prefill, decode = (connect(store, TOKENS[role], kind=kind) for role in ("prefill", "decode"))
    assert bare(prefill, "Get", requests.get(1)) is DENIED
    assert bare(decode, "Reserve", requests.reserve(1)) is DENIED
    assert bare(decode, "Put", requests.put_once(1)) is DENIED


def test_strangers_learn_nothing(store: LocalStore, connect: Connect) -> None:
    for token in (None, "a-wrong-token-0123456789", TOKENS["prefill"] + "0"):
        stranger = connect(store, token)
        asked: list[tuple[str, Message | bytes]] = [
            ("Capabilities", pb.CapabilitiesRequest()),
            ("Get", requests.get(1)),
            ("Get", b"\xff no message"),
            ("BatchGet", b""),
            ("ListHandoffs", admin_pb2.ListHandoffsRequest()),
            ("GetHandoff", b"\xff no message"),
        ]
        for method, request in asked:
            assert bare(stranger, method, request) is UNAUTHENTICATED
        session = SessionCaller(store.channel())
        assert session.stream.ended.result(20) is UNAUTHENTICATED
        session.close()


def test_the_log_has_the_name_of_who_may_not(start: Start, token_file: Path, connect: Connect) -> None:
    with capture_logs() as captured:
        store = start(token_file=str(token_file))
        for caller in (connect(store, TOKENS["decode"]), connect(store, TOKENS["decode"], kind="session")):
            assert bare(caller, "Reserve", requests.reserve(1)) is DENIED
        llama = connect(store, LLAMA)
        assert bare(llama, "Reserve", requests.reserve(key("other"))) is DENIED
        assert bare(llama, "ListHandoffs", admin_pb2.ListHandoffsRequest(namespace="other")) is DENIED
        assert bare(llama, "GetHandoff", admin_pb2.GetHandoffRequest(key=key("other"))) is DENIED
        assert bare(connect(store, None), "Reserve", requests.reserve(1)) is UNAUTHENTICATED
    told = [
        (event["event"], event["method"], event.get("caller"))
        for event in captured
        if event["event"] in {"denied", "refused"}
    ]
    assert told == [
        ("denied", "Reserve", "decode-0"),
        ("refused", "Reserve", "decode-0"),  # in a Session, which it may open
        ("refused", "Reserve", "llama-0"),
        ("refused", "ListHandoffs", "llama-0"),
        ("refused", "GetHandoff", "llama-0"),
        ("denied", "Reserve", None),
    ]


def test_credentials_come_before_the_form_of_the_request(store: LocalStore, connect: Connect, kind: str) -> None:
    caller = connect(store, LLAMA, kind=kind)
    nothing: dict[str, Message] = {
        "Reserve": pb.ReserveRequest(key=key("other", None), max_wait=requests.seconds(-1)),
        "Put": pb.PutRequest(key=key("other", None), token=b"x", reserve=pb.ReserveRequest(key=key("llama"))),
        "Get": pb.GetRequest(key=key("other", None), consume=True, expected_store_epoch="x"),
        "Release": pb.ReleaseRequest(key=key("no/namespace"), token=b"t", reader_id="r"),
        "Abort": pb.AbortRequest(token=b"t", attempt=1),  # of the empty namespace
    }
    for method, request in nothing.items():
        assert bare(caller, method, request) is DENIED
    # Within its namespace it is told what is wrong.
    with pytest.raises(CallFailed) as caught:
        caller.call("Get", pb.GetRequest(key=key("llama", None)))
    assert caught.value.reason == "INVALID_REQUEST"


def test_a_batch_is_judged_item_by_item_and_a_reservation_as_a_whole(store: LocalStore, connect: Connect) -> None:
    caller = connect(store, LLAMA)
    theirs = Steps(connect(store, TOKENS["admin"]))
    theirs.put_once(key("other"))
    mixed = [requests.reserve(key("llama")), requests.reserve(key("other", 2))]
    assert bare(caller, "BatchReserve", pb.BatchReserveRequest(requests=mixed)) is DENIED
    # A batch that is too large, too, is refused for its credentials first.
    assert bare(caller, "BatchReserve", pb.BatchReserveRequest(requests=mixed * 100)) is DENIED
    put = pb.BatchPutRequest(requests=[requests.put_once(key("llama")), requests.put_once(key("other", 3))])
    results = caller.call("BatchPut", put).results
    assert results[0].WhichOneof("result") == "response"
    assert (results[1].error.code, len(results[1].error.details)) == (DENIED.value[0], 0)
    results = caller.call("BatchGet", pb.BatchGetRequest(requests=[requests.get(key(n)) for n in ("other", "llama")]))
    assert results.results[0].error.code == DENIED.value[0]
    assert results.results[1].response.HasField("record")
    assert theirs.capabilities().slots_free == 6


def test_the_admin_service(store: LocalStore, connect: Connect) -> None:
    admin, observer, llama = (connect(store, token) for token in (TOKENS["admin"], TOKENS["observer"], LLAMA))
    for namespace in ("", "llama", "other"):
        Steps(admin).put_once(key(namespace))

    def listed(caller: Caller, **fields: Any) -> set[str]:
        answer = caller.call("ListHandoffs", admin_pb2.ListHandoffsRequest(**fields))
        return {handoff.key.namespace for handoff in answer.handoffs}

    assert listed(observer) == {"", "llama", "other"}
    assert listed(llama) == {"llama"}  # what it may see of all
    assert listed(llama, namespace="llama") == {"llama"}
    assert bare(llama, "ListHandoffs", admin_pb2.ListHandoffsRequest(namespace="other")) is DENIED
    assert bare(llama, "GetHandoff", admin_pb2.GetHandoffRequest(key=key("other"))) is DENIED
    assert bare(llama, "GetHandoff", admin_pb2.GetHandoffRequest(key=key("", None))) is DENIED
    shown = observer.call("GetHandoff", admin_pb2.GetHandoffRequest(key=key("llama")))
    assert shown.handoff.state == admin_pb2.HANDOFF_STATE_PUBLISHED
    contents = admin_pb2.GetHandoffRequest(key=key("llama"), include_record=True)
    assert bare(observer, "GetHandoff", contents) is DENIED
    assert admin.call("GetHandoff", contents).record == records.record()


def test_contents_need_the_role_and_the_setting(start: Start, token_file: Path, connect: Connect) -> None:
    store = start(token_file=str(token_file), admin_contents=False)
    admin = connect(store, TOKENS["admin"])
    Steps(admin).put_once(1)
    with pytest.raises(CallFailed) as caught:
        admin.call("GetHandoff", admin_pb2.GetHandoffRequest(key=key(""), include_record=True))
    assert caught.value.reason == "INVALID_REQUEST"


def test_health_and_reflection_are_open(store: LocalStore) -> None:
    channel = store.channel()
    health = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="unknown"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    request = reflection_pb2.ServerReflectionRequest(list_services="*")
    answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
    services = {service.name for service in next(answers).list_services_response.service}
    assert "pd_handoff.v1.MetadataStore" in services


def test_a_session_loses_what_its_token_loses(store: LocalStore, connect: Connect, token_file: Path) -> None:
    caller = connect(store, TOKENS["prefill"], kind="session")
    Steps(caller).put_once(1)
    access_file(token_file, f"prefill-0 prefill llama {TOKENS['prefill']}")

    def codes() -> set[str]:
        found = set()
        for namespace in ("", "llama"):
            try:
                caller.call("Reserve", requests.reserve(key(namespace, 2)))
            except CallFailed as error:
                found.add(f"{namespace}:{error.code.name}")
        return found

    eventually(lambda: codes() == {":PERMISSION_DENIED"}, "the token is good for one namespace only")
    access_file(token_file, f"other prefill * {TOKENS['decode']}")
    eventually(lambda: "llama:UNAUTHENTICATED" in codes(), "the token is good for nothing")
    assert bare(connect(store, TOKENS["prefill"]), "Capabilities", b"") is UNAUTHENTICATED
    assert Steps(connect(store, TOKENS["decode"])).capabilities().slots_total == 8


def silent(channel: Any, methods: list[str], silence: queue.SimpleQueue[bytes | None], **given: Any) -> list[Any]:
    """Calls that are opened, with their metadata, and send nothing until there is a None for each in the queue."""
    return [channel.stream_unary(method).future(iter(silence.get, None), timeout=60, **given) for method in methods]


def test_a_stranger_need_not_be_listened_to(store: LocalStore, transport: str, connect: Connect) -> None:
    """Calls that are opened and send nothing: refused at once on the fast transport, and others served on both."""
    channel: Any = store.channel()
    silence: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    methods = [f"/pd_handoff.v1.MetadataStore/{method}" for method in ("Get", "Put", "Capabilities")]
    methods += [f"/pd_handoff.v1.MetadataStoreAdmin/{method}" for method in ("ListHandoffs", "GetHandoff")]
    opened = silent(channel, methods * 8, silence)
    try:
        health = health_pb2_grpc.HealthStub(channel)
        assert (
            health.Check(health_pb2.HealthCheckRequest(), timeout=20).status == health_pb2.HealthCheckResponse.SERVING
        )
        if transport == "fast":
            assert all(call.exception(20).code() is UNAUTHENTICATED for call in opened)
        connect(store, TOKENS["admin"]).call("ListHandoffs", admin_pb2.ListHandoffsRequest())
    finally:
        for call in opened:
            call.cancel()
            silence.put(None)


def test_callers_that_say_nothing_hold_nobody_up(store: LocalStore, connect: Connect) -> None:
    """Not even those who may call: the admin service gives a worker only to a call whose message is here."""
    channel: Any = store.channel()
    silence: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    metadata = (("authorization", f"Bearer {TOKENS['observer']}"),)
    methods = [f"/pd_handoff.v1.MetadataStoreAdmin/{method}" for method in ("ListHandoffs", "GetHandoff")]
    opened = silent(channel, methods * 8, silence, metadata=metadata)
    try:
        admin = connect(store, TOKENS["admin"])
        Steps(admin).put_once(1)
        assert len(admin.call("ListHandoffs", admin_pb2.ListHandoffsRequest()).handoffs) == 1
        assert not any(call.done() for call in opened)
    finally:
        for call in opened:
            call.cancel()
            silence.put(None)
