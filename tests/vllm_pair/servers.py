"""Real servers for the pair: the store, and vLLM in three roles. All listen on loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.waits import eventually

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(os.environ.get("PD_HANDOFF_VLLM_VENV", ROOT / ".venv-vllm")).absolute()
HOST = "127.0.0.1"
START_SECONDS = 600.0
ANSWER_SECONDS = 300.0
MODEL = "tiny"
LIMIT = 24
"""Top logprobs that the store takes."""
ENGINE_LIMIT = 30
"""Top logprobs that vLLM takes."""
PREFILL_LENGTH, DECODE_LENGTH = 1024, 2048
"""Longest prompts with their answers: one that prefill refuses fits decode."""
LEASE = 10.0
"""Seconds after which decode takes a silent prefill for lost."""

# Of the CPU build: few threads, no pinning to cores that other processes use, no network. No compiler: the sampler's
# first logprobs would start one, and its probes have hung for longer than an engine waits for its worker.
_CPU = {
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_HOST_IP": HOST,
    "GLOO_SOCKET_IFNAME": "lo",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "lo",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
}


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Server:
    """A process with a log, and a way to see that it serves."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.port = free_port()
        self.log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str | Path]:
        """What is run."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Beside this process's own."""
        return {}

    def serves(self) -> bool:
        """Whether it answers."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts it, without waiting."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PD_HANDOFF_")},
            **self.environment(),
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(part) for part in self.command()],
                env=environment,
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Returns once it serves. Raises AssertionError, with the end of its log, when it ends or takes too long."""

        def serves() -> bool:
            assert self.alive, f"{self.name} ended; its log ends with\n{self.tail()}"
            return self.serves()

        eventually(serves, f"{self.name} serves", START_SECONDS, every=0.25)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def tail(self, characters: int = 4000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-characters:]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Ends it with all its children, and waits for that."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):  # children that outlived it
            os.killpg(process.pid, signal.SIGKILL)


class Store(Server):
    """`pd-handoff serve` of this checkout."""

    def __init__(self, directory: Path, **settings: object) -> None:
        super().__init__("store", directory)
        self.settings = settings
        self._metrics = free_port()

    def waiters(self) -> int:
        """How many reads wait in it."""
        connection = http.client.HTTPConnection(HOST, self._metrics, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        return round(
            sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith('pd_handoff_waiters{kind="record"'))
        )

    @property
    def target(self) -> str:
        """For clients."""
        return f"{HOST}:{self.port}"

    def command(self) -> Sequence[str | Path]:
        """What is run."""
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.settings.items()]
        return [
            ROOT / ".venv/bin/pd-handoff",
            "serve",
            "--listen",
            self.target,
            "--log-format",
            "json",
            "--metrics-listen",
            f"{HOST}:{self._metrics}",
            *flags,
        ]

    def serves(self) -> bool:
        """Whether it answers."""
        with grpc.insecure_channel(self.target) as channel, contextlib.suppress(grpc.RpcError):
            stub = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False


class Vllm(Server):
    """`vllm serve` with the model of random weights.

    Args:
        connector: the KV connector's name, or None for an undivided server.
        role: "prefill" or "decode" with a connector.
        length: --max-model-len.
        store: where hand-offs go.
        with_module: whether the connector comes from pd_handoff.engines.vllm.
        middleware: classes for --middleware.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        connector: str | None = None,
        role: str = "",
        length: int = DECODE_LENGTH,
        store: Store | None = None,
        with_module: bool = False,
        middleware: Sequence[str] = (),
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name, directory)
        self._side_channel = free_port()
        self._length = length
        self._store = store
        self._middleware = middleware
        self._transfer: dict[str, Any] | None = None
        if connector is not None:
            role_of = {"prefill": "kv_producer", "decode": "kv_consumer"}
            self._transfer = {"kv_connector": connector, "kv_role": role_of[role], "kv_buffer_device": "cpu"}
            if with_module:
                self._transfer["kv_connector_module_path"] = "pd_handoff.engines.vllm"
            if extra:
                self._transfer["kv_connector_extra_config"] = extra

    def command(self) -> Sequence[str | Path]:
        """What is run. Blocks of 32 tokens: the CPU build refuses smaller ones."""
        command: list[str | Path] = [
            *(VENV / "bin/vllm", "serve", VENV / "model", "--served-model-name", MODEL),
            *("--host", HOST, "--port", str(self.port), "--dtype", "float32", "--enforce-eager"),
            *("--max-model-len", str(self._length), "--max-num-seqs", "8", "--block-size", "32"),
            *("--max-logprobs", str(ENGINE_LIMIT), "--no-enable-prefix-caching", "--generation-config", "vllm"),
        ]
        if self._transfer is not None:
            command += ["--kv-transfer-config", json.dumps(self._transfer)]
        for name in self._middleware:
            command += ["--middleware", name]
        return command

    def environment(self) -> dict[str, str]:
        """Beside this process's own."""
        cache = self.log.parent / "cache"
        made = {
            **_CPU,
            "HOME": str(cache),
            "XDG_CACHE_HOME": str(cache),
            "VLLM_CACHE_ROOT": str(cache / "vllm"),
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self._side_channel),
            "PYTHONPATH": str(ROOT / "clients/python"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        if self._store is not None:
            made |= {
                "PD_HANDOFF_TARGET": self._store.target,
                "PD_HANDOFF_LEASE": str(LEASE),
                "PD_HANDOFF_DECODE_WAIT": "60",
                "PD_HANDOFF_LIMITS_REFRESH": "5",
            }
        return made

    def serves(self) -> bool:
        """Whether /health answers 200."""
        return self.get("/health")[0] == 200

    # -- requests ------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> tuple[int, str]:
        """Status and text; status 0 where nothing answers."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError as error:
            return 0, repr(error)
        finally:
            connection.close()

    def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and decoded answer; status 0 where nothing answers."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            text = answer.read().decode()
        except OSError as error:
            return 0, repr(error)
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer. Raises AssertionError for another status than 200."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, (answer.status, answer.read())
            for line in answer:
                text = line.decode().strip()
                if text.startswith("data: ") and text != "data: [DONE]":
                    yield json.loads(text[6:])
        finally:
            connection.close()

    def begin(self, path: str, body: dict[str, Any]) -> socket.socket:
        """A request whose client can leave: close the socket."""
        raw = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n"
        )
        connection = socket.create_connection((HOST, self.port), ANSWER_SECONDS)
        connection.sendall(head.encode() + b"Connection: close\r\n\r\n" + raw)
        return connection

    def counters(self) -> dict[str, float]:
        """What /metrics says of KV transfers, and of where prompt tokens came from."""
        found: dict[str, float] = {}
        for line in self.get("/metrics")[1].splitlines():
            name, _, rest = line.partition("{")
            labels, _, value = rest.rpartition("} ")
            if name == "vllm:nixl_xfer_time_seconds_count":
                found["transfers"] = float(value)
            elif name == "vllm:prompt_tokens_by_source_total":
                found[labels.partition('source="')[2].partition('"')[0]] = float(value)
        return found
