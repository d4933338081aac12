"""Settings of the server's channels, the same on every transport."""

from __future__ import annotations

from typing import Final

ChannelArguments = list[tuple[str, int]]

CUT: Final = 1.0
"""Seconds that calls which are cut off get to end, where nothing else is said."""


def channel_arguments(max_message: int, connections: int, streams: int) -> ChannelArguments:
    """For a server that takes and sends messages of up to `max_message` bytes, over so many connections to each address
    and so many calls in flight on each."""
    return [
        ("grpc.so_reuseport", 0),  # else two stores would share a port and split its connections
        ("grpc.max_receive_message_length", max_message),
        ("grpc.max_send_message_length", max_message),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.max_concurrent_streams", streams),
        ("grpc.max_allowed_incoming_connections", connections),
        # Calls that have come and are not taken up yet. By default gRPC drops some from 1,000 on, whoever made them: so
        # one connection that opens and resets streams would cost others their calls.
        ("grpc.server.max_pending_requests", 2 * streams),
        ("grpc.server.max_pending_requests_hard_limit", 4 * streams),
        ("grpc.server_handshake_timeout_ms", 20_000),
        # Engines ping every few seconds to notice a dead store; the default policy would answer with GOAWAY.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 30_000),  # half-open peers are noticed within 50 s
        ("grpc.keepalive_timeout_ms", 20_000),
        (
            "grpc.max_connection_idle_ms",
            600_000,
        ),  # without a call; clients connect again by themselves
    ]
