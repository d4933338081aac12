"""What went wrong, what to do about it, and an exit code of its own: connections, variables, flags, waits."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from pd_handoff import DecodeClient, errors, tls_credentials
from pd_handoff.cli import exits, main
from pd_handoff.retries import NO_RETRIES
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import metadata_store_pb2_grpc

from tests.support.credentials import Authority

PATIENCE = 25.0


class Silent(ThreadingHTTPServer):
    """Any web server: what it makes of a store's callers is its own."""

    def handle_error(self, *_: Any) -> None:
        pass


class Page(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def ends(authority: Authority, store: Any) -> Iterator[dict[str, str]]:
    """What may be at the other end -> its address."""
    store.script("Get", pb.GetResponse())
    server = grpc.server(ThreadPoolExecutor(2))
    metadata_store_pb2_grpc.add_MetadataStoreServicer_to_server(store, server)
    pair = (authority.key.read_bytes(), authority.cert.read_bytes())
    plain = server.add_insecure_port("127.0.0.1:0")
    tls = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    web = Silent(("127.0.0.1", 0), Page)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    ports = {"plain": plain, "tls": tls, "http": web.server_port}
    yield {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    web.shutdown()
    server.stop(None).wait(PATIENCE)


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code and the one line for people; and the same for scripts."""
    code = main(arguments)
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert main([*arguments, "--json"]) == code
    error: dict[str, Any] = json.loads(capsys.readouterr().err)["error"]
    assert error["exit_code"] == code
    return code, line, error


ENDS = [
    ("plain", True, "no TLS here", "leave out the --tls options"),
    ("tls", False, "the store speaks TLS", "give --tls-ca FILE"),
    ("http", False, "a plain HTTP server answers", "use the port of --listen"),
]


@pytest.mark.parametrize(("end", "secured", "what", "cure"), ENDS, ids=[row[0] for row in ENDS])
def test_what_answers_otherwise_is_told_apart(
    end: str,
    secured: bool,
    what: str,
    cure: str,
    ends: dict[str, str],
    authority: Authority,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--tls-ca", str(authority.ca)) if secured else ()
    code, line, error = fails(capsys, "get", "7", "--target", ends[end], *options)
    assert code == exits.MISMATCH
    assert line.startswith(f"pd-handoff: MISMATCH: {ends[end]}: {what}")
    assert cure in line
    assert error["reason"] == "MISMATCH"
    assert cure in error["hint"]
    assert "pd-handoff serve" not in line


def test_nobody_there_is_no_mismatch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, line, _ = fails(capsys, "get", "7", "--target", f"unix:{tmp_path}/none")
    assert code == exits.UNAVAILABLE
    assert "start one with `pd-handoff serve`" in line


def test_python_says_so_too(ends: dict[str, str], authority: Authority) -> None:
    options: dict[str, Any] = {"session": "never", "retries": NO_RETRIES}
    cases = [
        ("plain", tls_credentials(ca=authority.root), "speaks no TLS: leave out credentials"),
        ("tls", tls_credentials(), "certificate is not signed by the given authority"),
    ]
    for end, credentials, words in cases:
        client = DecodeClient(ends[end], credentials=credentials, **options)
        with client, pytest.raises(errors.StoreUnavailable, match=words):
            client.get(1)


@pytest.mark.parametrize(
    ("code", "reason"),
    [("NOT_FOUND", "HANDOFF_NOT_FOUND"), ("DEADLINE_EXCEEDED", "RECORD_NOT_READY")],
)
def test_a_wait_is_not_advised_to_wait(
    code: str, reason: str, store: Any, server: Any, refusal: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    store.script("Get", refusal(code, reason))
    for options, advised in (((), True), (("--wait", "2"), False)):
        found, line, error = fails(capsys, "get", "7", "--target", server.target, *options)
        assert found == exits.NOT_THERE
        assert ("--wait" in line) == ("--wait" in error["hint"]) == advised


FLAGS = [
    (["get", "7", "--wiat", "3"], "--wiat", "did you mean --wait?", "see `pd-handoff get --help`"),
    (
        ["reserve", "7", "--top-logprob", "3"],
        "--top-logprob",
        "did you mean --top-logprobs?",
        "pd-handoff reserve --help",
    ),
    (["relase", "7"], "'relase'", "did you mean release?", "see `pd-handoff --help`"),
]


@pytest.mark.parametrize(("arguments", "wrong", "meant", "where"), FLAGS, ids=[row[1] for row in FLAGS])
def test_a_mistyped_word_is_one_line_with_what_was_meant(
    arguments: list[str], wrong: str, meant: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    line = capsys.readouterr().err
    assert caught.value.code == exits.USAGE
    assert line.count("\n") == 1
    for part in (wrong, meant, where):
        assert part in line


def test_a_variable_that_nobody_reads(
    store: Any, server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.script("Get", pb.GetResponse())
    for name in ("PD_HANDOFF_TARGETS", "PD_HANDOFF_SLOTS", "PD_HANDOFF_MY_OWN"):  # the second is the store's
        monkeypatch.setenv(name, "x")
    assert main(["get", "7", "--target", server.target]) == exits.OK
    assert capsys.readouterr().err == "pd-handoff: PD_HANDOFF_TARGETS has no effect; did you mean PD_HANDOFF_TARGET?\n"
