"""Case 42: file descriptors that run out cost no caller its access, and no token outlives its revocation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pd_handoff_server.process import descriptors

from tests.support.waits import PATIENCE


@pytest.mark.parametrize(
    ("wanted", "addresses", "limit", "fit"),
    [
        (4096, 1, 1_048_576, 4096),
        (4096, 1, 256, 160),
        (4096, 2, 256, 80),
        (100, 1, 256, 100),
        (4096, 3, 64, 1),
        (4096, 1, -1, 4096),  # RLIM_INFINITY
    ],
)
def test_connections_fit_into_the_descriptors(wanted: int, addresses: int, limit: int, fit: int) -> None:
    assert descriptors.fitting(wanted, addresses, limit) == fit


def in_a_process(limits: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script with these (soft, hard) limits of open files."""
    head = f"import resource, sys\nresource.setrlimit(resource.RLIMIT_NOFILE, {limits})\n"
    command = [sys.executable, "-c", head + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_the_soft_limit_becomes_the_hard_one() -> None:
    script = "from pd_handoff_server.process import descriptors\nprint(descriptors.raise_limit())"
    done = in_a_process("(100, 300)", script)
    assert done.stdout.strip() == "300", done.stderr


def test_an_access_file_is_read_when_no_descriptor_is_left(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("first")
    path.chmod(0o600)
    script = """
import os
from pathlib import Path
from pd_handoff_server.access import watched_files
path = sys.argv[1]
print(watched_files.read(path).data.decode())
Path(path).write_text("second")
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for _ in range(3):
    print(watched_files.read(path).data.decode())
"""
    done = in_a_process("(64, 64)", script, str(path))
    assert done.stdout.split() == ["first", "second", "second", "second"], done.stderr


def test_a_store_says_that_it_lowers_its_connections_and_serves() -> None:
    script = """
import asyncio, threading
from pd_handoff_server import app, config
from pd_handoff_server.telemetry.events import configure
configure("json", "info")
async def start(self, settle=None):
    print(self.settings.max_connections)
    raise SystemExit(0)
app.App.start = start
asyncio.run(app.serve(config.Settings(listen=("127.0.0.1:0",))))
"""
    done = in_a_process("(128, 200)", script)
    assert done.stdout.strip().endswith("104"), done.stderr
    told = done.stdout + done.stderr
    assert '"event": "connections_lowered"' in told
    assert '"max_connections": 104' in told
    assert '"wanted": 4096' in told
