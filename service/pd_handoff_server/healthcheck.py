"""`python -m pd_handoff_server.healthcheck [ADDRESS]`: exit code 0 while a store serves.

For probes that have no certificate: health is open to everybody, on a Unix socket also beside mutual TLS.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SECONDS: Final = 3.0
DEFAULT: Final = "127.0.0.1:50071"


def main(argv: Sequence[str]) -> int:
    """Ask once. The address is the first plaintext one of PD_HANDOFF_LISTEN when none is given."""
    listen = os.environ.get("PD_HANDOFF_LISTEN", "").split(",")
    sockets = [address.strip() for address in listen if address.strip().startswith("unix:")]
    address = argv[0] if argv else next(iter(sockets), DEFAULT)
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        except grpc.RpcError as error:
            print(f"{address}: no answer: {error.code().name}", file=sys.stderr)
            return 1
    print(f"{address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")
    return int(answer.status != health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
