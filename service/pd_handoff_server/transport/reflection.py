"""gRPC server reflection, v1 and v1alpha, with the comments of the schema.

gRPC's own servicer knows neither v1 nor methods nor values of enumerations, and its descriptors have lost the comments.
Both versions have the same messages on the wire. Answers are computed from the descriptor set that the schema's package
carries; nothing is remembered of a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

V1: Final = "grpc.reflection.v1.ServerReflection"
V1ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"

_SET: Final = ("pd_handoff.v1", "pd_handoff.v1.binpb")
_NOT_FOUND, _INVALID = grpc.StatusCode.NOT_FOUND.value[0], grpc.StatusCode.INVALID_ARGUMENT.value[0]


class Reflector:
    """Answers reflection requests. Safe for threads: nothing changes after it was made."""

    def __init__(self, services: Iterable[str]) -> None:
        """`services` are the names that are listed."""
        self._services = sorted(services)
        self._files = {file.name: file for file in _files()}
        self._symbols: dict[str, str] = {}
        for file in self._files.values():
            for symbol in _symbols(file):
                self._symbols[symbol] = file.name
        self._whole = {name: list(self._with_imports(name, {})) for name in self._files}

    def _with_imports(self, name: str, seen: dict[str, None]) -> Iterable[bytes]:
        """The file, serialized, then those that it imports, each once."""
        if name not in seen:
            seen[name] = None
            file = self._files[name]
            yield file.SerializeToString()
            for imported in file.dependency:
                yield from self._with_imports(imported, seen)

    def answer(self, request: reflection_pb2.ServerReflectionRequest) -> reflection_pb2.ServerReflectionResponse:
        """What is asked for, or an error_response."""
        response = reflection_pb2.ServerReflectionResponse(valid_host=request.host, original_request=request)
        asked = request.WhichOneof("message_request")
        if asked == "list_services":
            for name in self._services:
                response.list_services_response.service.add(name=name)
        elif asked == "file_by_filename":
            self._add(response, request.file_by_filename, f"no file {request.file_by_filename[:128]!r}")
        elif asked == "file_containing_symbol":
            symbol = request.file_containing_symbol.removeprefix(".")
            self._add(response, self._symbols.get(symbol, ""), f"no symbol {symbol[:128]!r}")
        elif asked is None:
            response.error_response.error_code = _INVALID
            response.error_response.error_message = "the request asks for nothing"
        elif asked == "all_extension_numbers_of_type" and request.all_extension_numbers_of_type in self._symbols:
            response.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
        else:
            response.error_response.error_code = _NOT_FOUND
            response.error_response.error_message = "the schema has no extensions"
        return response

    def _add(self, response: reflection_pb2.ServerReflectionResponse, name: str, problem: str) -> None:
        files = self._whole.get(name)
        if files is None:
            response.error_response.error_code = _NOT_FOUND
            response.error_response.error_message = problem
        else:
            response.file_descriptor_response.file_descriptor_proto.extend(files)

    def info(
        self, requests: Iterable[reflection_pb2.ServerReflectionRequest], context: Any
    ) -> Iterator[reflection_pb2.ServerReflectionResponse]:
        """ServerReflectionInfo of a synchronous server."""
        del context
        return map(self.answer, requests)


def read_request(data: bytes) -> reflection_pb2.ServerReflectionRequest:
    """A reflection request; one that is none asks for nothing, and is told so."""
    try:
        return reflection_pb2.ServerReflectionRequest.FromString(data)
    except DecodeError:
        return reflection_pb2.ServerReflectionRequest()


def _files() -> Iterable[descriptor_pb2.FileDescriptorProto]:
    package, name = _SET
    described = descriptor_pb2.FileDescriptorSet.FromString(resources.files(package).joinpath(name).read_bytes())
    for file in described.file:
        for message in file.message_type:
            _keep_names(message)
        yield file
    yield _plain(error_details_pb2.DESCRIPTOR)  # of the details that refusals carry
    yield _plain(health_pb2.DESCRIPTOR)
    alpha = _plain(reflection_pb2.DESCRIPTOR)
    yield alpha
    yield _renamed(alpha)


def _keep_names(message: descriptor_pb2.DescriptorProto) -> None:
    """Tools show the schema's own names of fields, as the documents do, and not those of JSON."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        _keep_names(nested)


def _plain(file: FileDescriptor) -> descriptor_pb2.FileDescriptorProto:
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    return proto


def _renamed(alpha: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """The file of v1, which is that of v1alpha under its own package."""
    text = alpha.SerializeToString()
    proto = descriptor_pb2.FileDescriptorProto.FromString(text)
    proto.name = "grpc/reflection/v1/reflection.proto"
    old, proto.package = f".{alpha.package}.", "grpc.reflection.v1"
    for message in proto.message_type:
        for field in message.field:
            field.type_name = field.type_name.replace(old, f".{proto.package}.")
    for service in proto.service:
        for method in service.method:
            method.input_type = method.input_type.replace(old, f".{proto.package}.")
            method.output_type = method.output_type.replace(old, f".{proto.package}.")
    return proto


def _symbols(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    """Every name of a file: messages, fields, enumerations, their values, services and methods."""
    package = f"{file.package}." if file.package else ""
    yield from _of_messages(package, file.message_type)
    yield from _of_enums(package, file.enum_type)
    for service in file.service:
        yield package + service.name
        for method in service.method:
            yield f"{package}{service.name}.{method.name}"


def _of_messages(scope: str, messages: Iterable[descriptor_pb2.DescriptorProto]) -> Iterator[str]:
    for message in messages:
        yield scope + message.name
        inner = f"{scope}{message.name}."
        yield from (inner + field.name for field in message.field)
        yield from (inner + oneof.name for oneof in message.oneof_decl)
        yield from _of_messages(inner, message.nested_type)
        yield from _of_enums(inner, message.enum_type)


def _of_enums(scope: str, enums: Iterable[descriptor_pb2.EnumDescriptorProto]) -> Iterator[str]:
    for enum in enums:
        yield scope + enum.name
        for value in enum.value:
            yield scope + value.name  # a value stands beside its enumeration, as in C++
            yield f"{scope}{enum.name}.{value.name}"
