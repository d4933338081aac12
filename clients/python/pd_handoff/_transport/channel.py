"""How a store is reached: addresses, channel settings, credentials. Shared by both faces."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import grpc

from pd_handoff._transport import bearer
from pd_handoff.errors import Unauthenticated
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

Metadata: TypeAlias = Sequence[tuple[str, str]]
Option: TypeAlias = tuple[str, Any]

_LONGEST_SOCKET_PATH = 107  # bytes; the kernel keeps 108 for an address, and one of them ends it
DEFAULT_TARGET = "127.0.0.1:50071"

_OPTIONS: dict[str, Any] = {
    # The store's limit is what counts; ours would only turn its clear refusal into gRPC's.
    "grpc.max_send_message_length": -1,
    "grpc.max_receive_message_length": -1,
    # A dead peer ends a waiting Get within 15 s instead of at its deadline. Pings only while calls are open.
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 5_000,
    "grpc.keepalive_permit_without_calls": 0,
    "grpc.http2.max_pings_without_data": 0,
    # Back soon after a restart of the store; the default grows to two minutes.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 5_000,
    "grpc.max_reconnect_backoff_ms": 1_000,
    # A store that comes back behind the same name at another address is found within the retry budget; the default
    # waits 30 s from one look at a name to the next.
    "grpc.dns_min_time_between_resolutions_ms": 500,
    # One retry policy: ours. And no proxy from the environment between a node and its store.
    "grpc.enable_retries": 0,
    "grpc.enable_http_proxy": 0,
}

METHODS: dict[str, tuple[str, Any]] = {
    method.name: (f"/{service.full_name}/{method.name}", getattr(schema, method.output_type.name))
    for schema, service in (
        (pb, pb.DESCRIPTOR.services_by_name["MetadataStore"]),
        (admin_pb2, admin_pb2.DESCRIPTOR.services_by_name["MetadataStoreAdmin"]),
    )
    for method in service.methods
    if not method.client_streaming
}
"""Path and class of the answer of each call, by its name."""
_LARGEST_PORT = 65535
_digits = re.compile("[0-9]{1,5}").fullmatch


def target_of(address: str) -> str:
    """gRPC's form of `host:port`, `unix:PATH`, or an absolute path of a socket; what gRPC names by `dns:`, `ipv4:`,
    `ipv6:` or `unix-abstract:` as it is. Raises ValueError for anything else, and for a path that the kernel cannot
    take."""
    if address.startswith("/"):
        address = f"unix:{address}"
    if address.startswith("unix:"):
        size = len(os.fsencode(address.removeprefix("unix:").removeprefix("//")))
        if not 1 <= size <= _LONGEST_SOCKET_PATH:
            raise ValueError(
                f"target {address!r}: the path of a Unix socket has 1 to {_LONGEST_SOCKET_PATH} bytes, not {size}"
            )
        return address
    if address.startswith(("dns:", "ipv4:", "ipv6:", "unix-abstract:")):
        return address  # gRPC's own forms
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    # Without a port gRPC would take 443, and of a larger one what is left of its 16 bits.
    if (
        not host
        or not _digits(port)
        or not 1 <= int(port) <= _LARGEST_PORT
        or (":" in host and not bracketed)
        or "/" in address
    ):
        raise ValueError(f"target {address!r}: give host:port (port from 1 to 65535) or unix:PATH")
    return address


def options_of(extra: Iterable[Option]) -> list[Option]:
    """The channel's options; what the caller gives wins."""
    return list({**_OPTIONS, **dict(extra)}.items())


def open_channel(target: str, credentials: grpc.ChannelCredentials | None, settings: Sequence[Option]) -> grpc.Channel:
    """A channel for threads."""
    if credentials is None:
        return grpc.insecure_channel(target, settings)
    return grpc.secure_channel(target, credentials, settings)


def methods_of(channel: Any) -> dict[str, Callable[..., Any]]:
    """The channel's callables by method name, made once; they take `_encoded.Encoded` for a message."""
    serialized = operator.methodcaller("SerializeToString")
    return {name: channel.unary_unary(path, serialized, answer.FromString) for name, (path, answer) in METHODS.items()}


class CallMetadata:
    """What goes with each call: the bearer token and whatever the caller adds, such as a traceparent. Raises ValueError
    for a token that cannot be sent; Unauthenticated, in a call, for one that comes only then."""

    def __init__(self, token: str | Callable[[], str] | None, extra: Callable[[], Metadata] | None) -> None:
        self.differs = extra is not None
        """Whether each call may carry something of its own, which one stream for all cannot."""
        self.changes = callable(token)
        """Whether who calls may be told differently by each call."""
        self._token = token
        self._extra = extra
        if not (token is None or callable(token)):
            bearer.check_token(token)
        self._fixed = self._bearer(token) if extra is None and not callable(token) else None

    def __call__(self) -> Metadata | None:
        """For one call; None is none."""
        if self._token is None and self._extra is None:
            return None
        if self._fixed is not None:
            return self._fixed
        token = self._token() if callable(self._token) else self._token
        return (*self._bearer(token), *(self._extra() if self._extra is not None else ()))

    def credentials(self) -> Metadata | None:
        """The part that says who calls."""
        if not callable(self._token):
            return self._fixed
        return self._bearer(self._token())

    @staticmethod
    def _bearer(token: Any) -> Metadata:
        if token is None:
            return ()
        try:
            return (("authorization", f"Bearer {bearer.check_token(token)}"),)
        except ValueError as error:
            raise Unauthenticated(str(error)) from None


def tls_credentials(
    *, ca: bytes | None = None, certificate: bytes | None = None, key: bytes | None = None
) -> grpc.ChannelCredentials:
    """Credentials for a store behind TLS, from PEM bytes: the authority that signed the store's certificate (None:
    those of the machine), and for mutual TLS this side's own certificate and key."""
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=certificate)
