"""The sessions with grpcurl that README and docs/grpcurl.md show, run again: each command, and what it answers."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.process import command
from tests.support.waits import patient

pytestmark = pytest.mark.internals

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:50071"

MASKS = [
    (r'"\d{4}-\d\d-\d\dT[^"]*Z"', '"(time)"'),
    (r'"[0-9a-f]{16}"', '"(hex)"'),
    (r'"(age|expires_in)": "[\d.]+s"', r'"\1": "(seconds)"'),
    (r'"token": "[A-Za-z0-9+/=]{40,}"', '"token": "(token)"'),
    (r'"(row_bytes|arena_bytes|max_message_bytes)": "\d+"', r'"\1": "(bytes)"'),
    (r'"server_version": "[^"]*"', '"server_version": "(version)"'),
    (r'"transport-[a-z]+"', '"(transport)"'),
    (r"[ \t]+", " "),
]
"""What differs from run to run."""


def sessions(page: str) -> list[tuple[str, str]]:
    """(command, answer) of each grpcurl command in the console blocks of a page."""
    found = []
    for block in re.findall(r"```console\n(.*?)\n```", (ROOT / page).read_text(), flags=re.DOTALL):
        for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = each.split("\n")
            end = next(end for end in range(1, len(lines) + 1) if whole("\n".join(lines[:end])))
            if each.startswith("grpcurl "):
                found.append(("\n".join(lines[:end]), "\n".join(lines[end:])))
    return found


def whole(text: str) -> bool:
    """Whether a command ends here: its quotes are closed, and no line is to follow."""
    try:
        shlex.split(text)
    except ValueError:
        return False
    return not text.endswith("\\")


def run(text: str, store: LocalStore, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a page against a store elsewhere."""
    words = [word.replace(ADDRESS, store.target) for word in shlex.split(text.replace("\\\n", " "))]
    return subprocess.run(
        [command(words[0]), *words[1:]],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
    )


def masked(text: str) -> str:
    """An answer without what differs from run to run."""
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text)
    return text.strip()


@pytest.fixture
def fresh(start: Start) -> LocalStore:
    """A store as `pd-handoff serve` starts it, but for its port."""
    return start(listen=("127.0.0.1:0",), slots=1024, real_time=True)


@pytest.mark.parametrize("page", ["docs/grpcurl.md", "README.md"])
def test_the_sessions_shown_are_those_that_run(page: str, fresh: LocalStore, tmp_path: Path) -> None:
    shown = sessions(page)
    assert len(shown) >= 4
    for text, answer in shown:
        done = run(text, fresh, tmp_path)
        assert masked(done.stdout + done.stderr) == masked(answer), text
        assert (done.returncode != 0) == answer.startswith("ERROR:")


@pytest.mark.wire
def test_what_operators_need_is_shown() -> None:
    commands = "\n".join(text for text, _ in sessions("docs/grpcurl.md"))
    for part in ("list", "describe", "Capabilities", "/Put", "/Get", "ListHandoffs", "GetHandoff", '"reserve"'):
        assert part in commands


def test_exit_status_and_every_message_described(fresh: LocalStore, tmp_path: Path) -> None:
    reserve = "pd_handoff.v1.MetadataStore/Reserve"
    wide = '{"key": {"room": 8}, "owner": "me", "widths": {"top_logprobs": 129}}'
    assert run(f"grpcurl -plaintext -d '{wide}' {ADDRESS} {reserve}", fresh, tmp_path).returncode == 64 + 8
    assert run(f"grpcurl -plaintext {ADDRESS} {reserve}", fresh, tmp_path).returncode == 64 + 3
    for name in ("HandoffRecord", "GetResponse", "SessionRequest", "ErrorReason", "Handoff", "MetadataStoreAdmin"):
        done = run(f"grpcurl -plaintext {ADDRESS} describe pd_handoff.v1.{name}", fresh, tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"{name} {{" in done.stdout
