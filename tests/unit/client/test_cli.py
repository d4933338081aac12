"""The command: what it sends, prints and returns."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from pd_handoff import (
    CachedTokens,
    FinishReason,
    KvChecksum,
    Logprobs,
    Record,
    SamplingMask,
    SpeculativeState,
    Tensor,
    Token,
    errors,
)
from pd_handoff.cli import exits, main, output
from pd_handoff.tensor import DataType
from pd_handoff.v1 import admin_pb2, record_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support.waits import patient

RECORD = Record(
    tokens=[Token(5, -0.5, Logprobs([-0.5, -1.5], [5, 6]), Logprobs([-2.0], [9])), Token(6)],
    cached_tokens=CachedTokens(total=1000),
    sampling_mask=SamplingMask([1, 2, 3], truncated=True),
    speculative=SpeculativeState([0.5], [7], Tensor(DataType.BFLOAT16, (1, 2), bytes(4)), [-1]),
    kv_checksum=KvChecksum(255, 1),
    finish_reason=FinishReason.LENGTH,
    reasoning_tokens=3,
    customized_info=b"\x00\xff",
)
STAMP = Timestamp(seconds=1_900_000_000)
GOT = pb.GetResponse(record=RECORD.to_proto(), attempt=2, reserved_at=STAMP, published_at=STAMP, store_epoch="e")
RESERVED = pb.ReserveResponse(token=b"\x00\xffab", lease=Duration(seconds=60), store_epoch="e")


@pytest.fixture
def cli(server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """cli(arguments...) -> (exit code, stdout, stderr), against the scripted store."""
    for name in ("PD_HANDOFF_TARGET", "PD_HANDOFF_NAMESPACE", "PD_HANDOFF_BEARER_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PD_HANDOFF_TARGET", server.target)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def test_reserve(cli: Any, store: Any) -> None:
    store.script("Reserve", RESERVED)
    code, out, err = cli(
        *("reserve", "0xff", "--sample", "1", "--namespace", "ns", "--owner", "me", "--lease", "30", "--attempt", "2"),
        *("--expected-readers", "4", "--wait", "1.5", "--top-logprobs", "20", "--instance-id", "p0", "--epoch", "7"),
    )
    assert (code, err) == (0, "")
    assert "token        00ff6162\n" in out
    assert "lease        60 s\n" in out
    request = store.calls[0].request
    assert (request.key.room, request.key.sample, request.key.namespace) == (255, 1, "ns")
    assert (request.owner, request.lease.seconds, request.attempt, request.expected_readers) == ("me", 30, 2, 4)
    assert (request.max_wait.ToMilliseconds(), request.widths.top_logprobs) == (1500, 20)
    assert request.producer == pb.Producer(instance_id="p0", epoch=7)
    code, out, _ = cli("reserve", "7", "--json")
    found = json.loads(out)
    assert (code, found["token"], found["key"]["room"], found["lease"]) == (0, "00ff6162", 7, 60.0)
    assert not store.calls[1].request.HasField("widths")


def test_put_under_a_reservation(cli: Any, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.script("Put", pb.PutResponse(published_at=STAMP, store_epoch="e"))
    path = tmp_path / "record.json"
    path.write_text(RECORD.to_json())
    code, out, _ = cli("put", "7", "--token", "00FF6162", "--record", str(path))
    assert (code, out.split()[:2]) == (0, ["published_at", "2030-03-17T17:46:40+00:00"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(RECORD.to_json().encode())))
    assert cli("put", "7", "--token", "00ff6162", "--record", "-", "--json")[0] == 0
    expected = pb.PutRequest(key=record_pb2.HandoffKey(room=7), token=b"\x00\xffab", record=RECORD.to_proto())
    assert [call.request for call in store.calls] == [expected, expected]


def test_put_in_one_go(cli: Any, store: Any, tmp_path: Path) -> None:
    store.script("Put", pb.PutResponse(published_at=STAMP))
    path = tmp_path / "record.json"
    path.write_text('{"tokens": [{"token_id": 5}]}')
    assert cli("put", "7", "--owner", "me", "--record", str(path))[0] == 0
    request = store.calls[0].request
    assert (request.token, request.reserve.owner) == (b"", "me")


def test_get(cli: Any, store: Any, tmp_path: Path) -> None:
    store.script("Get", GOT)
    code, out, _ = cli("get", "7", "--wait", "2", "--consume", "--reader", "r0", "--attempt", "1", "--store-epoch", "e")
    assert code == 0
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert dict(lines) == {
        "attempt": "2",
        "reserved_at": "2030-03-17T17:46:40+00:00",
        "published_at": "2030-03-17T17:46:40+00:00",
        "store_epoch": "e",
        "tokens[0]": "id 5, logprob -0.5, 2 top logprobs, 1 listed logprobs",
        "tokens[1]": "id 6",
        "cached_tokens": "total 1000",
        "sampling_mask": "3 tokens, truncated",
        "speculative": "1 candidates, hidden states BFLOAT16 [1, 2], 1 sparse attention indices",
        "kv_checksum": "digest 00000000000000ff, layout 0000000000000001",
        "finish_reason": "LENGTH",
        "reasoning_tokens": "3",
        "customized_info": "2 bytes",
    }
    request = store.calls[0].request
    assert (request.reader_id, request.consume, request.attempt, request.max_wait.seconds) == ("r0", True, 1, 2)
    assert request.expected_store_epoch == "e"
    cli("get", "7")
    assert not store.calls[1].request.consume
    path = tmp_path / "out.json"
    assert cli("get", "7", "--output", str(path))[0] == 0
    assert Record.from_json(path.read_text()) == RECORD
    assert Record.from_json(cli("get", "7", "--output", "-")[1]) == RECORD
    found = json.loads(cli("get", "7", "--json")[1])
    assert Record.from_json(json.dumps(found["record"])) == RECORD


def test_abort_and_release(cli: Any, store: Any) -> None:
    store.script("Abort", pb.AbortResponse(ended=True), pb.AbortResponse(ended=False))
    store.script("Release", pb.ReleaseResponse())
    assert cli("abort", "7", "--http-status", "400", "--reason", "TOO_LONG", "--message", "m") == (0, "ended\n", "")
    assert cli("abort", "7", "--token", "00ff") == (0, "had ended already\n", "")
    assert cli("abort", "7", "--attempt", "0", "--json")[:2] == (0, '{\n  "ended": false\n}\n')
    assert cli("release", "7", "--token", "00ff") == (0, "released\n", "")
    assert json.loads(cli("release", "7", "--reader", "r0", "--json")[1]) == {"released": True}
    first, second, third = (call.request for call in store.of("Abort"))
    assert first.failure == pb.Failure(http_status=400, reason="TOO_LONG", message="m")
    assert not first.HasField("attempt")
    assert second.token == b"\x00\xff"
    assert third.HasField("attempt")
    assert [(call.request.token, call.request.reader_id) for call in store.of("Release")] == [
        (b"\x00\xff", ""),
        (b"", "r0"),
    ]


def test_list(cli: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = admin_pb2.Handoff(
        key=record_pb2.HandoffKey(room=7, namespace="ns"),
        state=admin_pb2.HANDOFF_STATE_RESERVED,
        owner="evil\x1b[2J",
        slot=3,
        age=Duration(seconds=1, nanos=500_000_000),
        expected_readers=4,
        readers_done=1,
    )
    store.script("ListHandoffs", admin_pb2.ListHandoffsResponse(handoffs=[entry]))
    code, out, _ = cli("list", "--state", "reserved", "--state", "CONSUMED", "--limit", "5")
    assert code == 0
    head, row, summary = out.splitlines()
    cells = [cell.strip() for cell in re.split(r"\s{2,}", row)]
    assert summary == "1 hand-off: 1 reserved; 0 waiting; oldest 1.5 s"
    assert dict(zip(head.split(), cells, strict=True)) == {
        "NAMESPACE": "ns",
        "ROOM": "7",
        "SAMPLE": "0",
        "ATTEMPT": "0",
        "STATE": "RESERVED",
        "AGE": "1.5 s",
        "EXPIRES": "0 s",
        "SLOT": "3",
        "READERS": "1/4",
        "WAITING": "0",
        "OWNER": "evil\\x1b[2J",
    }
    request = store.calls[0].request
    assert not request.HasField("namespace")
    assert (list(request.states), request.page_size) == ([1, 3], 5)
    monkeypatch.setenv("PD_HANDOFF_NAMESPACE", "ns")
    (found,) = json.loads(cli("list", "--json")[1])
    assert (found["state"], found["slot"], found["published_at"]) == ("RESERVED", 3, None)
    assert store.calls[1].request.namespace == "ns"


def test_capabilities(cli: Any, store: Any) -> None:
    store.script(
        "Capabilities",
        pb.CapabilitiesResponse(
            limits=pb.Widths(top_logprobs=128),
            row_bytes=85824,
            slots_total=4,
            hidden_state_dtypes=[1, 3],  # type: ignore[list-item]
        ),
    )
    code, out, _ = cli("capabilities")
    assert code == 0
    assert "max top_logprobs           128\n" in out
    assert "row_bytes                  85824 (83.8 KiB)\n" in out
    assert "hidden_state_dtypes        FLOAT32, BFLOAT16\n" in out
    assert json.loads(cli("capabilities", "--json", "--tokens", "2")[1])["limits"]["top_logprobs"] == 128
    assert store.calls[1].request.required.tokens == 2


CODES = [
    ("RESOURCE_EXHAUSTED", "TOP_LOGPROBS_OVERFLOW", exits.OVER_LIMIT),
    ("RESOURCE_EXHAUSTED", "FIELD_OVERFLOW", exits.OVER_LIMIT),
    ("RESOURCE_EXHAUSTED", "ARENA_FULL", exits.FULL),
    ("RESOURCE_EXHAUSTED", "TOO_MANY_WAITERS", exits.FULL),
    ("INVALID_ARGUMENT", "INVALID_REQUEST", exits.USAGE),
    ("NOT_FOUND", "HANDOFF_NOT_FOUND", exits.NOT_THERE),
    ("DEADLINE_EXCEEDED", "RECORD_NOT_READY", exits.NOT_THERE),
    ("ABORTED", "HANDOFF_ABORTED", exits.ENDED),
    ("ABORTED", "HANDOFF_EXPIRED", exits.ENDED),
    ("ABORTED", "STALE_RESERVATION", exits.ENDED),
    ("FAILED_PRECONDITION", "STORE_RESTARTED", exits.ENDED),
    ("ALREADY_EXISTS", "HANDOFF_EXISTS", exits.CONFLICT),
    ("FAILED_PRECONDITION", "REQUEST_MISMATCH", exits.CONFLICT),
    ("UNAVAILABLE", "DRAINING", exits.UNAVAILABLE),
    ("UNAVAILABLE", "", exits.UNAVAILABLE),
    ("DEADLINE_EXCEEDED", "", exits.UNAVAILABLE),
    ("UNAUTHENTICATED", "", exits.CREDENTIALS),
    ("PERMISSION_DENIED", "", exits.CREDENTIALS),
    ("UNIMPLEMENTED", "", exits.WRONG_STORE),
    ("FAILED_PRECONDITION", "SCHEMA_MISMATCH", exits.WRONG_STORE),
    ("INTERNAL", "INTERNAL", exits.OTHER),
]


@pytest.mark.parametrize(("code", "reason", "expected"), CODES)
def test_exit_codes(code: str, reason: str, expected: int, cli: Any, store: Any, refusal: Any) -> None:
    store.script("Get", refusal(code, reason, "two\nlines"))
    got, out, err = cli("get", "7")
    assert (got, out) == (expected, "")
    assert err.startswith("pd-handoff: ")
    assert err.count("\n") == 1
    got, out, err = cli("get", "7", "--json")
    assert (got, out) == (expected, "")
    error = json.loads(err)["error"]
    assert (error["code"], error["exit_code"]) == (code, expected)


def test_every_exception_has_its_exit_code() -> None:
    known = {errors.StoreInternalError, errors.ClientClosed}  # these are "another error"
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HandoffError)}
    assert {kind for kind in kinds if exits.code_of(kind("")) == exits.OTHER} == known | {errors.HandoffError}
    for number in range(1, 11):
        assert f"\n  {number:<3} " in exits.EXPLAINED


def test_an_abort_is_told_with_its_failure(cli: Any, store: Any, refusal: Any) -> None:
    metadata = {"http_status": "400", "failure_reason": "INPUT_TOO_LONG"}
    store.script("Get", refusal("ABORTED", "HANDOFF_ABORTED", "input too long", metadata=metadata))
    _, _, err = cli("get", "7")
    assert err == "pd-handoff: HANDOFF_ABORTED: aborted with HTTP status 400, reason INPUT_TOO_LONG: input too long\n"


USAGE = [
    ["put", "7", "--record", "/nonexistent/record.json"],
    ["put", "7", "--token", "xyz", "--record", "@"],
    ["put", "7", "--token", "", "--record", "@"],
    ["get", "7", "--bearer-file", "/nonexistent/token"],
    ["get", "7", "--tls-cert", "/nonexistent/cert"],
    ["get", "7", "--timeout", "0"],
    ["get", "7", "--retry", "-1"],
    ["get", "7", "--target", "http://host:1"],
    ["get", "7", "--target", "unix:" + "x" * 108],
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_wrong_usage(arguments: list[str], cli: Any, store: Any, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("{}")
    code, out, err = cli(*(str(path) if argument == "@" else argument for argument in arguments))
    assert (code, out, err.count("\n")) == (exits.USAGE, "", 1)
    assert store.calls == []


ARGUMENTS = [
    ([], "COMMAND"),
    (["get"], "ROOM"),
    (["get", "room"], "argument ROOM: must be an integer from 0 to 2**64 - 1, not 'room'"),
    (["get", "-1"], "argument ROOM: must be an integer from 0 to 2**64 - 1, not '-1'"),
    (["get", str(2**64)], f"argument ROOM: must be an integer from 0 to 2**64 - 1, not '{2**64}'"),
    (["get", "7", "--sample", "1.5"], "argument --sample: must be an integer from 0 to 2**32 - 1, not '1.5'"),
    (["release", "7"], "--token --reader"),
    (["list", "--state", "GONE"], "GONE"),
    (["nope"], "nope"),
    (["get", "7", "--wiat", "3"], "--wiat"),
]


@pytest.mark.parametrize(("arguments", "told"), ARGUMENTS, ids=str)
def test_wrong_arguments(arguments: list[str], told: str, cli: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli(*arguments)
    assert caught.value.code == exits.USAGE
    err = capsys.readouterr().err
    assert err.startswith("pd-handoff: USAGE: ")
    assert err.count("\n") == 1
    assert told in err
    with pytest.raises(SystemExit) as caught:
        cli(*arguments, "--json")
    assert caught.value.code == exits.USAGE
    found = capsys.readouterr()
    error = json.loads(found.err)["error"]
    assert (found.out, error["reason"], error["code"], error["exit_code"]) == ("", "USAGE", "INVALID_ARGUMENT", 2)
    assert told in error["message"]


@pytest.mark.parametrize(
    ("code", "reason", "hint"),
    [
        ("UNAVAILABLE", "", "--retry"),
        ("UNAVAILABLE", "DRAINING", "--retry"),
        ("NOT_FOUND", "HANDOFF_NOT_FOUND", "--wait"),
        ("DEADLINE_EXCEEDED", "RECORD_NOT_READY", "--wait"),
        ("RESOURCE_EXHAUSTED", "ARENA_FULL", "--wait"),
        ("DEADLINE_EXCEEDED", "", "--timeout"),
    ],
)
def test_an_error_hints_at_the_option_that_helps(
    code: str, reason: str, hint: str, cli: Any, store: Any, refusal: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    store.script("Get", refusal(code, reason, "told"))
    err = cli("get", "7")[2]
    assert f"{hint} SECONDS" in err or f"raise {hint}" in err
    assert hint in json.loads(cli("get", "7", "--json")[2])["error"]["hint"]
    with pytest.raises(SystemExit):
        cli("get", "--help")
    assert hint in capsys.readouterr().out


def test_a_record_that_is_none(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text('{"tokens": [{"id": 5}]}')
    code, _, err = cli("put", "7", "--record", str(path))
    assert code == exits.USAGE
    assert "record.tokens[0].id: no such field; did you mean token_id?" in err


def test_the_bearer_token_comes_from_a_file(cli: Any, store: Any, tmp_path: Path) -> None:
    store.script("Get", GOT)
    path = tmp_path / "token"
    path.write_text("secret\n")
    assert cli("get", "7", "--bearer-file", str(path))[0] == 0
    assert store.calls[0].metadata["authorization"] == "Bearer secret"


def test_help_tells_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["get", "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        assert "exit codes:" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "plan"])
def test_the_servers_own_commands_get_their_arguments(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, list[str]]] = []
    app = ModuleType("pd_handoff_server.app")

    def entry(name: str, code: int) -> Callable[..., int]:
        def run(argv: list[str], refuse: Callable[[str], int] | None = None) -> int:
            if refuse is not None:
                return refuse("told")
            seen.append((name, argv))
            return code

        return run

    vars(app).update(serve_main=entry("serve", 3), plan_main=entry("plan", 4))
    runtime = ModuleType("pd_handoff_server.process.runtime")
    vars(runtime)["prepare"] = lambda: seen.append(("prepare", []))
    process = ModuleType("pd_handoff_server.process")
    vars(process)["runtime"] = runtime
    server = ModuleType("pd_handoff_server")
    vars(server).update(app=app, process=process)
    monkeypatch.setattr("pd_handoff.cli.serve._PARTS", ())
    monkeypatch.setitem(sys.modules, "pd_handoff_server", server)
    monkeypatch.setitem(sys.modules, "pd_handoff_server.process", process)
    monkeypatch.setitem(sys.modules, "pd_handoff_server.app", app)
    assert main([command, "--help", "--slots", "4"]) == {"serve": 3, "plan": 4}[command]
    prepared: list[tuple[str, list[str]]] = [("prepare", [])] if command == "serve" else []
    assert seen == [*prepared, (command, ["--help", "--slots", "4"])]
    if command == "plan":
        assert main([command, "--json"]) == exits.USAGE
        error = json.loads(capsys.readouterr().err)["error"]
        assert (error["reason"], error["message"]) == ("USAGE", "told")


@pytest.mark.parametrize("missing", ["structlog", "torch", "pd_handoff_server"])
def test_a_missing_server_is_told_with_its_cure(missing: str) -> None:
    script = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Refuse())
from pd_handoff.cli import main
sys.exit(main(["serve", "--listen", "127.0.0.1:0"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"pd-handoff: `serve` needs the server, of which {missing} is not installed here: "
        "pip install 'pd-handoff[server]'\n"
    )


def test_a_reader_of_the_output_that_leaves(server: Any, store: Any) -> None:
    store.script("Get", GOT)
    command = [sys.executable, "-m", "pd_handoff.cli", "get", "7", "--target", server.target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(30)) == (b"", 0)


def test_sizes_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert [output.size(count) for count in (0, 1023, 1024, 3 << 20, 5 << 40)] == [
        "0",
        "1023",
        "1024 (1.0 KiB)",
        "3145728 (3.0 MiB)",
        "5497558138880 (5.0 TiB)",
    ]
    output.show_table(("A", "B"), [])
    output.show_table(("A", "B"), [("x", 1), ("long", 100)])
    assert capsys.readouterr().out == "A  B\nA       B\nx       1\nlong  100\n"
