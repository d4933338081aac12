"""A store, an undivided SGLang, and a prefill and a decode server of SGLang, each in processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from pd_handoff import DecodeClient
from pd_handoff.errors import HandoffError

from tests.support.waits import eventually

HERE = Path(__file__).parent
STARTS = 900.0
"""Seconds for a server to come up; 80 on an idle machine of two cores, most of it imports and not SGLang's doing."""
STORE, UNDIVIDED, PREFILL, DECODE, BOOTSTRAP = 51571, 31000, 31001, 31002, 31998
TARGET = f"127.0.0.1:{STORE}"
TOP_LOGPROBS = 20
"""The store's limit."""

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # The path that sends a cached prefix early records a CUDA event.
    "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0",
}
PAIR = {
    "PD_HANDOFF_TARGET": TARGET,
    "SGLANG_HOST_IP": "127.0.0.1",
    "HOST_IP": "127.0.0.1",
    "MC_FORCE_TCP": "1",
    "MOONCAKE_PROTOCOL": "tcp",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "60",
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "60",
}
# The share of memory is of the whole machine; the number of tokens is what bounds the cache.
OPTIONS = [
    *("--device", "cpu", "--host", "127.0.0.1", "--dtype", "float32", "--mem-fraction-static", "0.6"),
    *("--max-total-tokens", "4096", "--max-running-requests", "16", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--skip-server-warmup", "--watchdog-timeout", "600"),
]
SPLIT = ["--disaggregation-transfer-backend", "mooncake_tcp", "--disaggregation-bootstrap-port", str(BOOTSTRAP)]


class Server:
    """One of them. It is a process group of its own, which ends with it whatever it is doing.

    Attributes:
        log: file with all that it has said.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command, self._environment = list(command), dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where its HTTP server listens."""
        return f"http://127.0.0.1:{ {'undivided': UNDIVIDED, 'prefill': PREFILL, 'decode': DECODE}[self.name] }"

    def start(self, **variables: str) -> None:
        """Begins to start it, with these variables besides its own. The run's own settings of this project stay behind:
        the adapter takes any that it finds without a target for a mistake."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PD_HANDOFF_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**inherited, **self._environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Returns when it serves. Raises AssertionError with the end of its log when it ended instead."""

        def serves() -> bool:
            assert self.runs(), f"{self.name} ended: {self.tail()}"
            return self.healthy()

        eventually(serves, f"{self.name} serves", STARTS)

    def runs(self) -> bool:
        """Whether its first process has not ended."""
        return self._process is not None and self._process.poll() is None

    def healthy(self) -> bool:
        """Whether it answers."""
        if self.name == "store":
            try:
                with DecodeClient(TARGET, timeout=1.0) as client:
                    client.capabilities()
            except HandoffError:
                return False
            return True
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=20) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def exit_status(self, seconds: float) -> int:
        """Waits for its end."""
        assert self._process is not None
        return self._process.wait(seconds)

    def signal(self, number: int) -> None:
        """To all of its processes."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """Ends it, with all its processes, even stopped ones."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(15.0)
        self.signal(signal.SIGKILL)
        self._process.wait(30.0)
        self._process = None

    def tail(self, size: int = 3000) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-size:]


def servers(folder: Path, model: Path, libraries: str) -> dict[str, Server]:
    """All four, not started yet. `libraries` is a search path for what Mooncake loads."""
    engine = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server", "--model-path", str(model), *OPTIONS]
    common = {
        **ENVIRONMENT,
        "LD_LIBRARY_PATH": libraries,
        "PYTHONPATH": str(HERE / "standins"),
        "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
    }
    pair = {**common, **PAIR}
    serve = [str(Path(sysconfig.get_path("scripts")) / "pd-handoff"), "serve", "--listen", TARGET]
    limits = ["--slots", "64", "--max-top-logprobs", str(TOP_LOGPROBS)]
    decode = ["--disaggregation-mode", "decode", "--disaggregation-decode-retraction-backup", "cpu_tensor"]
    return {
        "store": Server("store", [*serve, *limits], {}, folder),
        "undivided": Server("undivided", [*engine, "--port", str(UNDIVIDED)], common, folder),
        "prefill": Server(
            "prefill",
            [*engine, "--port", str(PREFILL), "--disaggregation-mode", "prefill", *SPLIT],
            pair,
            folder,
        ),
        "decode": Server("decode", [*engine, "--port", str(DECODE), *decode, *SPLIT], pair, folder),
    }
