"""Bearer tokens: what is sent as one, from which file, and over which wires."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pd_handoff
import pytest
from pd_handoff import aio, errors
from pd_handoff._transport import bearer
from pd_handoff.cli import exits, main
from pd_handoff.v1 import metadata_store_pb2 as pb

TLS = pd_handoff.tls_credentials()
UNSENDABLE = ["", " ", "to ken", "token\n", "to\x00ken", "t\u00f6ken", "\u2028", "a1 admin * adm-token-0123456789"]
HERE = [
    *("127.0.0.1:50071", "127.8.0.1:1", "localhost:1", "LOCALHOST:1", "[::1]:1", "unix:/run/socket", "/run/socket"),
    *("unix-abstract:socket", "dns:localhost:1", "dns:///127.0.0.1:1", "ipv4:127.0.0.1:1", "ipv6:[::1]:1"),
    "ipv4:127.0.0.1:1,127.0.0.2:1",
]
ELSEWHERE = [
    *("10.0.0.1:50071", "store:50071", "[2001:db8::1]:1", "127.0.0.1.example:1", "localhost.example:1", "0.0.0.0:1"),
    *("dns:///store:1", "dns://127.0.0.1/store:1", "ipv4:10.0.0.1:1", "ipv4:127.0.0.1:1,10.0.0.1:1"),
    "ipv6:[::2]:1",
]


@pytest.mark.parametrize("token", UNSENDABLE, ids=repr)
async def test_a_token_that_no_header_carries_is_refused_and_not_shown(token: str, connect: Any, store: Any) -> None:
    for kind in (pd_handoff.PrefillClient, pd_handoff.DecodeClient, pd_handoff.AdminClient, aio.DecodeClient):
        with pytest.raises(ValueError, match="one word of visible ASCII") as caught:
            kind("127.0.0.1:1", token=token)
        assert len(token) < 2 or token not in str(caught.value)
    with pytest.raises(errors.Unauthenticated, match="one word of visible ASCII"):
        await connect("DecodeClient", token=lambda: token).get(1)
    assert store.calls == []


def test_a_token_is_a_str() -> None:
    with pytest.raises(ValueError, match="must be a str, not bytes"):
        pd_handoff.DecodeClient("127.0.0.1:1", token=b"token")  # type: ignore[arg-type]


@pytest.mark.parametrize("target", HERE)
def test_a_token_may_stay_on_this_machine_in_plaintext(target: str) -> None:
    pd_handoff.PrefillClient(target, token="token").close()


@pytest.mark.parametrize("target", ELSEWHERE)
@pytest.mark.parametrize("token", ["token", lambda: "token"], ids=["fixed", "asked for"])
async def test_a_token_leaves_this_machine_only_over_tls_or_when_told_to(target: str, token: Any) -> None:
    for kind in (pd_handoff.PrefillClient, aio.PrefillClient):
        with pytest.raises(ValueError, match="in plaintext, which is refused") as caught:
            kind(target, token=token)
        assert target in str(caught.value)
        assert "insecure_token=True" in str(caught.value)
    pd_handoff.PrefillClient(target, token=token, credentials=TLS).close()
    pd_handoff.PrefillClient(target, token=token, insecure_token=True).close()
    pd_handoff.PrefillClient(target).close()  # without a token there is nothing to guard
    async with aio.PrefillClient(target, token=token, insecure_token=True):
        pass


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"a1 admin * adm-token-0123456789\n",
        b"# callers\na1 admin * adm-token-0123456789\nb2 decode * dec-token-0123456789\n",
        b"one\ntwo\n",
        "t\u00f6ken".encode(),
        b"token\0",
        b"\xff\xfe",
        b"x" * 20_000,
    ],
    ids=lambda content: repr(content[:12]),
)
def test_a_file_with_anything_but_one_token_is_refused_and_not_shown(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="expected one bearer token") as caught:
        bearer.token_in(path)
    assert str(path) in str(caught.value)
    assert "adm-token" not in str(caught.value)


def test_a_file_may_end_its_line(tmp_path: Path) -> None:
    for content in ("secret", "secret\n", " secret\r\n", "sha256:=+/~._-\n"):
        (tmp_path / "token").write_text(content)
        assert bearer.token_in(tmp_path / "token") == content.strip()


@pytest.fixture
def run(server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """run(arguments...) -> (exit code, stderr) of the command."""
    for name in ("TARGET", "NAMESPACE", "TOKEN_FILE", "BEARER_FILE", "INSECURE_TOKEN"):
        monkeypatch.delenv(f"PD_HANDOFF_{name}", raising=False)
    monkeypatch.setenv("PD_HANDOFF_TARGET", server.target)
    return lambda *arguments: (main(arguments), capsys.readouterr().err)


def test_the_command_sends_no_access_file(
    run: Any, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.script("Capabilities", pb.CapabilitiesResponse())
    access, token = tmp_path / "access", tmp_path / "token"
    access.write_text("a1 admin * adm-token-0123456789\n")
    token.write_text("secret\n")
    monkeypatch.setenv("PD_HANDOFF_TOKEN_FILE", str(access))  # the store's setting, and none of its callers'
    assert run("capabilities")[0] == 0
    assert "authorization" not in store.calls[0].metadata
    monkeypatch.setenv("PD_HANDOFF_BEARER_FILE", str(token))
    assert run("capabilities")[0] == 0
    assert store.calls[1].metadata["authorization"] == "Bearer secret"
    code, told = run("capabilities", "--bearer-file", str(access))
    assert (code, told.count("\n")) == (exits.USAGE, 1)
    assert f"{access}: expected one bearer token" in told
    assert "adm-token" not in told
    assert len(store.calls) == 2


def test_the_command_lets_no_token_out_in_plaintext_unless_told(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    call = ("capabilities", "--target", "0.0.0.0:1", "--timeout", "0.1", "--bearer-file", str(token))
    code, told = run(*call)
    assert (code, told.count("\n")) == (exits.USAGE, 1)
    assert "--insecure-token" in told
    assert run(*call, "--insecure-token")[0] == exits.UNAVAILABLE
    monkeypatch.setenv("PD_HANDOFF_INSECURE_TOKEN", "yes")
    assert run(*call)[0] == exits.UNAVAILABLE
    monkeypatch.setenv("PD_HANDOFF_INSECURE_TOKEN", "no")
    assert run(*call)[0] == exits.USAGE
    monkeypatch.setenv("PD_HANDOFF_INSECURE_TOKEN", "perhaps")
    assert "must be yes or no" in run(*call)[1]
