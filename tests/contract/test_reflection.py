"""Reflection of both versions, with comments, and the health service's List."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest as Request
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionResponse as Response
from pd_handoff_server.transport.builtin_services import LISTS

from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.waits import PATIENCE

from .test_grpcurl import ADDRESS, run

pytestmark = pytest.mark.internals  # what it lists, and its transports, are this store's own

VERSIONS = ["grpc.reflection.v1", "grpc.reflection.v1alpha"]
STORE = "pd_handoff.v1.MetadataStore"


@pytest.fixture
def tcp(start: Start) -> LocalStore:
    """A store that grpcurl can reach."""
    return start(listen=("127.0.0.1:0",), real_time=True)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each version's package."""
    return str(request.param)


def ask(store: LocalStore, version: str, *requests: Request) -> Iterator[Response]:
    """Their answers, in order."""
    method: Any = store.channel().stream_stream(
        f"/{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=Request.SerializeToString,
        response_deserializer=Response.FromString,
    )
    return iter(method(iter(requests), timeout=PATIENCE))


def files(response: Response) -> list[descriptor_pb2.FileDescriptorProto]:
    """The files of an answer."""
    each = response.file_descriptor_response.file_descriptor_proto
    return [descriptor_pb2.FileDescriptorProto.FromString(one) for one in each]


def test_services_are_listed(store: LocalStore, version: str) -> None:
    (answer,) = ask(store, version, Request(host="h", list_services="*"))
    names = [service.name for service in answer.list_services_response.service]
    assert names == sorted(
        [STORE, f"{STORE}Admin", "grpc.health.v1.Health", *(f"{each}.ServerReflection" for each in VERSIONS)]
    )
    assert (answer.valid_host, answer.original_request.list_services) == ("h", "*")


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        (STORE, "pd_handoff/v1/metadata_store.proto"),
        (f"{STORE}.Put", "pd_handoff/v1/metadata_store.proto"),
        ("pd_handoff.v1.HandoffKey", "pd_handoff/v1/record.proto"),
        ("pd_handoff.v1.HandoffKey.room", "pd_handoff/v1/record.proto"),
        ("pd_handoff.v1.ErrorReason", "pd_handoff/v1/error_reason.proto"),
        ("pd_handoff.v1.ERROR_REASON_ARENA_FULL", "pd_handoff/v1/error_reason.proto"),
        ("pd_handoff.v1.ErrorReason.ERROR_REASON_ARENA_FULL", "pd_handoff/v1/error_reason.proto"),
        (".google.rpc.Status", "google/rpc/status.proto"),
        ("grpc.health.v1.Health.Check", "grpc_health/v1/health.proto"),
        ("grpc.reflection.v1.ServerReflection", "grpc/reflection/v1/reflection.proto"),
        ("grpc.reflection.v1.ServerReflectionRequest", "grpc/reflection/v1/reflection.proto"),
    ],
)
def test_every_kind_of_symbol_is_found(store: LocalStore, version: str, symbol: str, file: str) -> None:
    (answer,) = ask(store, version, Request(file_containing_symbol=symbol))
    found = files(answer)
    assert found[0].name == file
    names = {one.name for one in found}
    assert len(names) == len(found)
    assert all(set(one.dependency) <= names for one in found), "a file comes with all that it imports"


def test_comments_come_along(store: LocalStore, version: str) -> None:
    (answer,) = ask(store, version, Request(file_by_filename="pd_handoff/v1/record.proto"))
    located = files(answer)[0].source_code_info.location
    assert sum(bool(location.leading_comments) for location in located) > 30


def test_what_is_not_there_is_said_and_the_stream_goes_on(store: LocalStore, version: str) -> None:
    asked = [
        Request(file_containing_symbol="pd_handoff.v1.Nothing"),
        Request(file_by_filename="x" * 10_000),
        Request(),
        Request(all_extension_numbers_of_type="pd_handoff.v1.HandoffKey"),
        Request(file_containing_extension=reflection_pb2.ExtensionRequest(containing_type="x", extension_number=1)),
        Request(list_services=""),
    ]
    answers = list(ask(store, version, *asked))
    assert [one.WhichOneof("message_response") for one in answers] == [
        *["error_response"] * 3,
        "all_extension_numbers_response",
        "error_response",
        "list_services_response",
    ]
    assert [one.error_response.error_code for one in answers[:3]] == [5, 5, 3]
    assert "pd_handoff.v1.Nothing" in answers[0].error_response.error_message
    assert len(answers[1].error_response.error_message) < 200


@pytest.mark.parametrize(
    ("symbol", "shown"),
    [
        (f"{STORE}.Put", ["rpc Put ( .pd_handoff.v1.PutRequest )", "// "]),
        ("pd_handoff.v1.HandoffRecord", ["message HandoffRecord", "// "]),
        ("pd_handoff.v1.ErrorReason", ["ERROR_REASON_ARENA_FULL", "// "]),
        ("pd_handoff.v1.ErrorReason.ERROR_REASON_ARENA_FULL", ["ERROR_REASON_ARENA_FULL", "// "]),
    ],
)
def test_grpcurl_describes_it_with_its_comment(tcp: LocalStore, tmp_path: Path, symbol: str, shown: list[str]) -> None:
    done = run(f"grpcurl -plaintext {ADDRESS} describe {symbol}", tcp, tmp_path)
    assert done.returncode == 0, done.stderr
    for part in shown:
        assert part in done.stdout


def listed(store: LocalStore, request: bytes = b"") -> dict[str, int]:
    """Status by service, as List tells it."""
    method: Any = store.channel().unary_unary("/grpc.health.v1.Health/List")
    message: Any = health_pb2
    told = message.HealthListResponse.FromString(method(request, timeout=PATIENCE)).statuses
    return {name: one.status for name, one in told.items()}


def test_health_lists_every_service(store: LocalStore) -> None:
    if not LISTS:  # an older release of gRPC's health package
        with pytest.raises(grpc.RpcError) as refused:
            listed(store)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        return
    assert listed(store) == dict.fromkeys(("", STORE, f"{STORE}Admin"), health_pb2.HealthCheckResponse.SERVING)
    assert listed(store, b"\xff\xff") == listed(store)  # its request says nothing
    store.give_notice()
    assert set(listed(store).values()) == {health_pb2.HealthCheckResponse.NOT_SERVING}
