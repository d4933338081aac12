"""Every command and snippet of the pages that teach, run as it stands against a real store.

A comment `<!-- run: GROUP -->` stands above each block. Blocks of a group share a store and a directory, in the order
of the page; `alone` and `plan` need no store. `<!-- shown: WHY -->` stands above a block that cannot run here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import Launch, launch, sockets
from tests.support.process import command

__all__ = ["launch", "sockets"]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("*/*.md"))]
# Pages that only describe; their blocks have tests of their own.
ELSEWHERE = {"docs/grpcurl.md", "docs/client.md", "docs/gateway.md", "docs/languages.md", "docs/adr"}
ELSEWHERE |= {"docs/protocol.md", "docs/threat-model.md", "docs/engines/sglang.md", "docs/engines/vllm.md"}
# What the store of a group is started with.
SETTINGS: dict[str, dict[str, Any]] = {"engine": {"max_engine_state_bytes": 65536}}
# A user's own generated code, which is not installed here; page -> what is run before its blocks.
GENERATED = {
    "docs/engines/openengine.md": f"""\
import sys, types
sys.path.insert(0, {str(ROOT)!r})
from tests.support import engine_samples
sys.modules["openengine"] = types.ModuleType("openengine")
sys.modules["openengine.v1"] = package = types.ModuleType("openengine.v1")
package.kv_pb2 = engine_samples
"""
}
_BLOCK = re.compile(
    r"^( *)(?:<!-- (run|shown): (.*?) -->\n+ *)?```(python|console)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL
)
_PRINTS = re.compile(r"\s*(?:It|The script) prints `([^`]+)`")
_DEFAULT = """\
import sys
from pd_handoff._calls.base_client import BaseClient
made = BaseClient.__init__
# The store of this test stands at the address that the pages use, which may be taken here.
BaseClient.__init__ = lambda self, target="127.0.0.1:50071", **others: made(
    self, sys.argv[1] if target == "127.0.0.1:50071" else target, **others
)
exec(compile(sys.stdin.read(), "snippet", "exec"), {"__name__": "__main__"})
"""


@dataclass(frozen=True)
class Block:
    """One fenced block, the group that its comment names, and what the text says that it prints."""

    page: str
    line: int
    verb: str
    group: str
    language: str
    text: str
    prints: str | None


def blocks_of(path: Path) -> list[Block]:
    text, page = path.read_text(), str(path.relative_to(ROOT))
    found = []
    for match in _BLOCK.finditer(text):
        indent, verb, group, language, body = match.groups()
        said = _PRINTS.match(text, match.end())
        lines = "\n".join(line.removeprefix(indent) for line in body.splitlines())
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, verb or "", group or "", language, lines, said[1] if said else None))
    return found


ALL = [
    block
    for path in PAGES
    if not any(str(path.relative_to(ROOT)).startswith(other) for other in ELSEWHERE)
    for block in blocks_of(path)
]
GROUPS = sorted({(block.page, block.group) for block in ALL if block.verb == "run"})


def test_every_block_is_run_or_says_why_not() -> None:
    assert [f"{block.page}:{block.line}" for block in ALL if not block.verb] == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("page", "group"), GROUPS, ids=str)
def test_blocks(page: str, group: str, launch: Launch, tmp_path: Path) -> None:
    target = "" if group in ("alone", "plan") else launch(slots=16, **SETTINGS.get(group, {})).target
    for block in ALL:
        if (block.page, block.group, block.verb) == (page, group, "run"):
            if block.language == "python":
                run_python(block, target, tmp_path)
            else:
                run_console(block, target, tmp_path)


def run_python(block: Block, target: str, directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GENERATED.get(block.page, "") + _DEFAULT, target],
        input=block.text,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=directory,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{block.page}:{block.line}"
    if block.prints is not None:
        assert done.stdout.strip() == block.prints, f"{block.page}:{block.line}"


def run_console(block: Block, target: str, directory: Path) -> None:
    path = os.pathsep.join([str(Path(command("pd-handoff")).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PD_HANDOFF_TARGET": target, "COLUMNS": "160"}
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        asked, expected = re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
        done = subprocess.run(
            ["bash", "-c", asked],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            cwd=directory,
            env=environment,
            check=False,
        )
        wanted = re.escape(" ".join(expected.split())).replace(re.escape("..."), ".*")
        shown = " ".join(done.stdout.split())
        assert re.fullmatch(wanted, shown), f"{block.page}:{block.line}: $ {asked}\n{done.stdout}"


def test_hello_shows_one_hand_off_and_one_refusal() -> None:
    done = subprocess.run([command("pd-handoff"), "hello"], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "decode   got token 42, logprob -0.5, 2 top logprobs" in done.stdout
    assert "prefill  asked for 129 top logprobs: TOP_LOGPROBS_OVERFLOW" in done.stdout
