"""`protos` and `completion`: files for other compilers, and scripts that shells take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from pd_handoff.cli import completion, main
from pd_handoff.cli.arguments import parser
from pd_handoff_server import config

COMMANDS = [
    *("serve", "hello", "capabilities", "reserve", "put", "get", "abort", "release", "list", "top", "doctor"),
    *("protos", "completion", "plan"),
]


def test_protos_are_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["protos", "--out", str(tmp_path / "new"), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["written"]
    names = {str(Path(path).relative_to(tmp_path / "new")) for path in written}
    assert {f"pd_handoff/v1/{name}.proto" for name in ("admin", "error_reason", "metadata_store", "record")} < names
    assert "google/rpc/status.proto" in names
    files = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "new/pd_handoff.v1.binpb").read_bytes())
    assert "pd_handoff/v1/metadata_store.proto" in {file.name for file in files.file}


def test_completion_knows_every_command_and_setting() -> None:
    found = {command.name: command for command in completion.commands_of(parser())}
    assert list(found) == COMMANDS
    flags = {flag for option in found["serve"].options for flag in option.flags}
    assert {config.flag(spec) for spec in config.Settings.__dataclass_fields__} <= flags
    assert "--max-running-requests" in {flag for option in found["plan"].options for flag in option.flags}


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["do"], ["doctor"]),
        (["list", "--st"], ["--state"]),
        (["list", "--state", "PUB"], ["PUBLISHED"]),
        (["completion", "z"], ["zsh"]),
        (["serve", "--max-top"], ["--max-top-logprobs"]),
        (["serve", "--transport", "a"], ["auto", "aio"]),
    ],
    ids=str,
)
def test_bash_completes(typed: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = " ".join(["pd-handoff", *typed])
    asked = f'COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _pd_handoff; printf "%s\\n" "${{COMPREPLY[@]}}"'
    text = script("bash", capsys) + "\n" + asked
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout.split(), done.stderr) == (expected, "")


def test_zsh_and_fish_name_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("zsh", "fish"):
        text = script(shell, capsys)
        assert all(name in text for name in COMMANDS)
        assert "--max-top-logprobs" in text or "-l max-top-logprobs" in text


def test_the_servers_settings_each_have_one_heading(capsys: pytest.CaptureFixture[str]) -> None:
    grouped = [name for names in config.GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) <= set(config.Settings.__dataclass_fields__)
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    told = capsys.readouterr().out
    assert all(f"\n{title}:\n" in told for title in config.GROUPS)


def test_where_there_is_no_server_completion_leaves_its_settings_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pd_handoff_server", None)
    found = {command.name: command for command in completion.commands_of(parser())}
    assert found["serve"].options == ()
