"""Commands in a process of their own, forked from one that has imported what they need.

Importing torch is most of a store's start. One process per test process imports it, and gRPC, and uses neither: gRPC
does not survive a fork once it has started. Only after `enable` is anything forked. Before, and where the environment
changes how an interpreter starts, `begin` starts a new interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from .waits import patient

START_SECONDS: Final = patient(100.0)
"""Given to a start: importing torch on a busy machine is most of it."""

_ROOT: Final = Path(__file__).resolve().parents[2]
_SUBREAPER: Final = 36  # of prctl: processes that lost their parent become children of this one
_LARGEST: Final = 1 << 20  # bytes of a request
_LATE: Final = ("PD_HANDOFF_",)  # what the names of variables begin with that nothing reads as it loads
_PREPARED: Final = ("GRPC_EXPERIMENTS", "GRPC_VERBOSITY")  # what a store sets before gRPC loads
_MODULES: Final = (
    "pd_handoff_server.app",
    "pd_handoff_server.build",
    "pd_handoff.cli.serve",
    "pd_handoff.cli.commands",
)


def command(name: str) -> str:
    """A command of the environment that the tests run in."""
    return str(Path(sysconfig.get_path("scripts")) / name)


# -- in a test's process ----------------------------------------------------------------------------------------------


class Process(Protocol):
    """As much of `subprocess.Popen` as tests use."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def returncode(self) -> Any:
        """Its exit status as `poll` or `wait` saw it, None before."""

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended. Raises TimeoutExpired after `timeout` seconds."""

    def send_signal(self, number: int, /) -> None:
        """Send it a signal, unless it has ended."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Forked:
    """A process that was forked for this one, and is its child. See `Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """See `Process`."""
        if self.returncode is None and self._ended(0):
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """See `Process`."""
        if self.returncode is None:
            if not self._ended(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._end)
        return self.returncode

    def _ended(self, timeout: float | None) -> bool:
        look = select.poll()  # unlike select(), it takes descriptors above 1023
        look.register(self._end, select.POLLIN)
        return bool(look.poll(None if timeout is None else timeout * 1000))

    def send_signal(self, number: int) -> None:
        """See `Process`."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """See `Process`."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """See `Process`."""
        self.send_signal(signal.SIGKILL)


class _Source:
    """The process that is copied, until this one ends."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(START_SECONDS)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.preloaded", str(other.fileno())],
                cwd=_ROOT,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # it has to have one thread when it forks
                pass_fds=[other.fileno()],
            )
        self._lock = threading.Lock()
        atexit.register(self.close)

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """The number of the new process, which is a child of this one."""
        with self._lock:
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            answer = self._control.recv(64)
        if not answer:
            raise RuntimeError(f"the process that forks has ended: {self._process.wait(START_SECONDS)}")
        return int(answer)

    def close(self) -> None:
        """End it."""
        self._control.close()
        self._process.wait(START_SECONDS)


class _Use:
    """Whether processes are forked, and from what."""

    enabled = False
    source: _Source | None = None
    lock = threading.Lock()


def enable() -> None:
    """Fork from now on, where that makes no difference."""
    _Use.enabled = True


def _network(whose: str) -> str:
    return os.readlink(f"/proc/{whose}/ns/net")


_HOME: Final = _network("self")
"""The network namespace that the copies live in; a test in the main thread may have entered another since."""


def begin(
    entry: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    fresh: bool = False,
    streams: tuple[int, int, int],
) -> Process:
    """Start the function `entry`, "module:name", which reads `sys.argv`, and let it end the process.

    `environment` goes over this process's own. `fresh` asks for a new interpreter. So does a variable that one reads as
    it starts, and a thread in a network namespace of its own. `streams` are descriptors of its standard streams, which
    stay the caller's to close.
    """
    entirely = {**os.environ, **environment}
    alike = all(name.startswith(_LATE) for name in environment) and _network("thread-self") == _HOME
    if fresh or not alike or not _Use.enabled:
        module = entry.partition(":")[0]
        program = [command("pd-handoff")] if module == "pd_handoff.cli" else [sys.executable, "-m", module]
        stdin, stdout, stderr = streams
        return subprocess.Popen(
            [*program, *arguments],
            env=entirely,
            cwd=_ROOT if module.startswith("tests.") else None,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
    with _Use.lock:
        _Use.source = _Use.source or _Source()
    request = {"entry": entry, "arguments": arguments, "environment": entirely, "directory": os.getcwd()}
    return Forked(_Use.source.fork(request, streams))


class Talker:
    """A process that reads lines and writes lines. Started as by `begin`.

    Attributes:
        stdin, stdout: the lines to it, and from it.
    """

    def __init__(self, entry: str, *arguments: str) -> None:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        try:
            self._process = begin(entry, arguments, {}, streams=(theirs_in, theirs_out, 2))
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self.stdin = os.fdopen(ours_in, "w", buffering=1)
        self.stdout = os.fdopen(ours_out)
        self.pid = self._process.pid
        self.poll, self.wait = self._process.poll, self._process.wait
        self.send_signal, self.kill = self._process.send_signal, self._process.kill


def run(
    entry: str, arguments: Sequence[str], environment: Mapping[str, str], *, fresh: bool = False, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `entry` to its end; see `begin`. Raises TimeoutExpired after START_SECONDS, and kills it."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        streams = given.fileno(), out.fileno(), err.fileno()
        process = begin(entry, arguments, environment, fresh=fresh, streams=streams)
        try:
            code = process.wait(START_SECONDS)
        finally:
            process.kill()
            process.wait()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([entry, *arguments], code, out.read().decode(), err.read().decode())


# -- the process that is copied ---------------------------------------------------------------------------------------


def _load() -> None:
    """Import what stores and clients import, and start nothing."""
    from pd_handoff_server.process import runtime  # noqa: PLC0415 - before gRPC loads

    runtime.prepare()
    for name in _MODULES:
        importlib.import_module(name)
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        raise RuntimeError(f"{len(threads)} threads are running: a copy would lack them")
    gc.collect()
    gc.freeze()  # a copy's collector leaves shared pages alone


def _become(entry: str, arguments: list[str], environment: dict[str, str], directory: str, streams: list[int]) -> None:
    """Run the command in this process, and exit."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(directory)
    kept = {name: value for name, value in os.environ.items() if name in _PREPARED}
    os.environ.clear()
    os.environ.update(kept | environment)
    module, _, name = entry.partition(":")
    sys.argv = [module, *arguments]
    code: Any = 1
    try:
        code = getattr(importlib.import_module(module), name)()
    except SystemExit as end:
        code = end.code
    except BaseException:  # as an interpreter ends: the process that forks must not go on in the copy
        traceback.print_exc()
    # An interpreter's orderly end, without taking apart all that was imported: that costs more than most commands.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _serve(control: socket.socket) -> None:
    """Fork for every request, until nobody is there to ask."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _LARGEST, 3)
        if not data:
            return
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child:
                os.write(writing, str(child).encode())
                os._exit(0)
            for descriptor in (control.detach(), reading, writing):
                os.close(descriptor)
            _become(**json.loads(data), streams=descriptors)
        os.waitpid(between, 0)  # with its end the new process is the asking one's child
        control.send(os.read(reading, 64))
        for descriptor in (reading, writing, *descriptors):
            os.close(descriptor)


if __name__ == "__main__":
    _load()
    _serve(socket.socket(fileno=int(sys.argv[1])))
