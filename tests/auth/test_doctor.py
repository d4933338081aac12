"""`pd-handoff doctor` against real stores: what is well, and for each thing that is not, the line and its cure."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pd_handoff.cli import doctor, exits, main
from pd_handoff_server.handlers.capabilities import SCHEMA_FINGERPRINT

from tests.support.credentials import Authority, access_file
from tests.support.fixtures import Start

from .conftest import TOKENS

ORDER = ["name", "connection", "tls", "token", "schema", "limits", "slots", "arena file", "role", "clock", "hand-off"]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """ask(arguments...) -> (exit code, {check: finding}) of the command."""
    for name in ("PD_HANDOFF_TARGET", "PD_HANDOFF_NAMESPACE", "PD_HANDOFF_BEARER_FILE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
        code = main(["doctor", *arguments, "--json", "--timeout", "20"])
        out = capsys.readouterr().out  # the store in this process writes its log there, too
        found = json.JSONDecoder().raw_decode(out, out.index('{\n  "target"'))[0]["checks"]
        return code, {finding["check"]: finding for finding in found}

    return run


@pytest.fixture(scope="session")
def transport() -> str:
    """One is enough: what is tested is the command."""
    return "fast"


def bearer(tmp_path: Path, role: str) -> list[str]:
    (tmp_path / role).write_text(TOKENS[role])
    return ["--bearer-file", str(tmp_path / role)]


def test_all_well(start: Start, ask: Any) -> None:
    store = start(real_time=True)
    code, found = ask(store.target)
    assert code == 0
    assert [name for name in found if name != "engine"] == ORDER
    assert {finding["level"] for finding in found.values()} <= {"ok", "info"}
    assert found["role"]["text"] == "prefill, decode, observer in namespace 'doctor'"
    assert "read back as it was put" in found["hand-off"]["text"]


def test_the_lines_for_people(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    store = start(real_time=True)
    assert main(["doctor", store.target, "--no-hand-off"]) == 0
    *lines, last = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]
    assert [line.split()[1] for line in lines[:3]] == ["name", "connection", "tls"]
    assert last == f"{store.target}: all well, 0 warned"
    assert any(line.startswith("skip  hand-off") for line in lines)


def test_the_schema_is_told_as_the_store_tells_it() -> None:
    assert doctor.fingerprint() == SCHEMA_FINGERPRINT


def test_no_such_socket(ask: Any, tmp_path: Path) -> None:
    code, found = ask(f"unix:{tmp_path}/none")
    assert (code, found["name"]["level"]) == (exits.UNAVAILABLE, "FAIL")
    assert f"--listen unix:{tmp_path}/none" in found["name"]["cure"]
    assert found["hand-off"]["level"] == "skip"


def test_nobody_listens(ask: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    code, found = ask(f"127.0.0.1:{port}")
    assert (code, found["connection"]["level"]) == (exits.UNAVAILABLE, "FAIL")
    assert "start the store" in found["connection"]["cure"]


def test_limits_and_arena_file(start: Start, ask: Any, tmp_path: Path) -> None:
    store = start(real_time=True, arena_file=str(tmp_path / "arena"))
    code, found = ask(store.target, "--top-logprobs", "129", "--arena-file", str(tmp_path / "arena"))
    assert (code, found["limits"]["level"]) == (exits.OVER_LIMIT, "FAIL")
    assert "clamp it to 128" in found["limits"]["text"]
    assert found["arena file"]["level"] in ("ok", "warn")
    assert str(tmp_path / "arena") in found["arena file"]["text"]


@pytest.mark.parametrize(
    ("role", "may", "handed"),
    [("prefill", "prefill", "skip"), ("decode", "decode", "skip"), ("admin", "prefill, decode, observer", "ok")],
)
def test_roles(role: str, may: str, handed: str, start: Start, ask: Any, tmp_path: Path, token_file: Path) -> None:
    store = start(real_time=True, token_file=str(token_file))
    code, found = ask(store.target, *bearer(tmp_path, role))
    assert code == 0
    assert found["role"]["text"] == f"{may} in namespace 'doctor'"
    assert found["hand-off"]["level"] == handed


def test_a_token_that_is_missing_or_wrong(start: Start, ask: Any, tmp_path: Path, token_file: Path) -> None:
    store = start(real_time=True, token_file=str(token_file))
    code, found = ask(store.target)
    assert (code, found["token"]["level"]) == (exits.CREDENTIALS, "FAIL")
    assert found["token"]["cure"] == "give --bearer-file FILE"
    (tmp_path / "wrong").write_text("wrong-token-0123456789")
    assert "--token-file" in ask(store.target, "--bearer-file", str(tmp_path / "wrong"))[1]["token"]["cure"]


def test_a_namespace_that_is_not_granted(start: Start, ask: Any, tmp_path: Path) -> None:
    only = access_file(tmp_path / "tokens", f"llama-0 prefill,decode llama {TOKENS['prefill']}")
    store = start(real_time=True, token_file=str(only))
    code, found = ask(store.target, *bearer(tmp_path, "prefill"))
    assert (code, found["role"]["level"]) == (exits.CREDENTIALS, "FAIL")
    assert "--namespace" in found["role"]["cure"]
    assert ask(store.target, *bearer(tmp_path, "prefill"), "--namespace", "llama")[0] == 0


def test_tls(start: Start, ask: Any, authority: Authority, tmp_path: Path) -> None:
    store = start(real_time=True, **authority.settings())
    assert ask(store.target, "--tls-ca", str(authority.ca))[1]["tls"]["text"].startswith("TLSv1.")
    assert ask(store.target)[1]["tls"]["text"] == "the store speaks TLS"
    other = Authority(tmp_path, "other")
    assert "did not sign it" in ask(store.target, "--tls-ca", str(other.ca))[1]["tls"]["cure"]
    wrong = ask(store.target, "--tls-ca", str(authority.ca), "--tls-name", "elsewhere.example")
    assert "--tls-name" in wrong[1]["tls"]["cure"]


def test_mutual_tls(start: Start, ask: Any, authority: Authority) -> None:
    store = start(real_time=True, **authority.settings(mutual=True))
    tls = ask(store.target, "--tls-ca", str(authority.ca))[1]["tls"]
    assert (tls["level"], "--tls-cert and --tls-key" in tls["cure"]) == ("FAIL", True)
    pair = ["--tls-cert", str(authority.cert), "--tls-key", str(authority.key)]
    assert ask(store.target, "--tls-ca", str(authority.ca), *pair)[1]["hand-off"]["level"] == "ok"


def test_tls_to_a_store_in_plaintext(start: Start, ask: Any, authority: Authority) -> None:
    store = start(real_time=True, listen=("localhost:0",))
    tls = ask(store.target, "--tls-ca", str(authority.ca))[1]["tls"]
    assert (tls["level"], "leave out the --tls options" in tls["cure"]) == ("FAIL", True)


@pytest.fixture
def web() -> Iterator[str]:
    """Something that speaks HTTP/1 and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    opened, _ = listening.accept()
                except OSError:
                    return
                with opened:
                    opened.recv(1000)
                    opened.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def test_the_port_of_a_web_server(ask: Any, web: str) -> None:
    tls = ask(web)[1]["tls"]
    assert (tls["text"], "--metrics-listen" in tls["cure"]) == ("a plain HTTP server answers", True)
