"""The store process, started as an operator would: by its command."""

from __future__ import annotations

import subprocess
import sysconfig
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


class Store:
    """A `pd-handoff serve` on a Unix socket in a directory of its own."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.target = f"unix:{directory / 'store.sock'}"
        command = [str(Path(sysconfig.get_path("scripts")) / "pd-handoff"), "serve", "--listen", self.target, *flags]
        with (directory / "store.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_until_serving(self, seconds: float) -> None:
        """Watch its health. Raises RuntimeError when it ends or takes longer."""
        deadline = time.monotonic() + seconds
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)]
        with grpc.insecure_channel(self.target, options) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while time.monotonic() < deadline and self.process.poll() is None:
                try:
                    for answer in health.Watch(health_pb2.HealthCheckRequest(), timeout=1, wait_for_ready=True):
                        if answer.status == health_pb2.HealthCheckResponse.SERVING:
                            return
                except grpc.RpcError:
                    continue  # not listening yet, or not ready
        raise RuntimeError("the store is not serving")

    def stop(self) -> int:
        """SIGTERM, which drains it; returns its exit status. Bounded."""
        self.process.terminate()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)
