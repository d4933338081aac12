"""The files that say which credential may do what."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import grpc
import pytest
from pd_handoff_server.access.authenticator import Denied
from pd_handoff_server.access.authorizer import AccessError, AccessFile, Authorizer
from pd_handoff_server.access.roles import CONTENTS, ROLES, Principal
from pd_handoff_server.access.watched_files import FileError

from tests.support.credentials import access_file

SECRET = "a-secret-of-some-length"
DIGEST = hashlib.sha256(SECRET.encode()).digest()


def read(path: Path, *lines: str, tokens: bool = True) -> Mapping[bytes, Principal]:
    return AccessFile(str(access_file(path, *lines)), tokens=tokens).principals


def test_a_token_in_plain_text_or_as_its_digest(tmp_path: Path) -> None:
    plain = read(tmp_path / "a", f"p prefill * {SECRET}")
    hashed = read(tmp_path / "b", "# comment", "", f"  p\tprefill  *  sha256:{DIGEST.hex()}  ")
    assert list(plain) == list(hashed) == [DIGEST]
    assert plain[DIGEST].name == "p"


def test_lines_of_one_credential_add_up(tmp_path: Path) -> None:
    principal = read(tmp_path / "a", f"p prefill a {SECRET}", f"p decode b,c {SECRET}", f"p decode d {SECRET}")[DIGEST]
    assert principal.permits("Put", "a")
    assert not principal.permits("Put", "b")
    assert principal.namespaces("Get") == frozenset({"b", "c", "d"})
    assert principal.namespaces("Abort") == frozenset({"a", "b", "c", "d"})
    assert not principal.permits("Get", "a")
    assert not principal.may("ListHandoffs")


def test_all_namespaces_and_the_empty_one(tmp_path: Path) -> None:
    found = read(tmp_path / "a", 'one decode "",b', "two decode *", tokens=False)
    assert found[b"one"].namespaces("Get") == frozenset({"", "b"})
    assert found[b"two"].namespaces("Get") is None
    assert found[b"two"].permits("Get", "anything")
    assert not found[b"two"].permits("Put", "")


def test_roles_are_those_of_the_documentation() -> None:
    own = {role: methods - {"Capabilities", "Session"} for role, methods in ROLES.items()}
    assert all(methods >= {"Capabilities", "Session"} for methods in ROLES.values())
    assert own["prefill"] == {"Reserve", "Put", "Abort", "Release", "BatchReserve", "BatchPut"}
    assert own["decode"] == {"Get", "Release", "Abort", "BatchGet"}
    assert own["observer"] == {"ListHandoffs", "GetHandoff"}
    assert own["admin"] == own["prefill"] | own["decode"] | own["observer"] | {CONTENTS}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("p prefill *", "must be NAME ROLES NAMESPACES TOKEN"),
        (f"p prefill * {SECRET} more", "must be NAME ROLES NAMESPACES TOKEN"),
        (f"p chef * {SECRET}", "unknown role 'chef'"),
        (f"p prefill a/b {SECRET}", "'a/b' is no namespace"),
        ("p prefill * short", "too short"),
        ("p prefill * sha256:123", "64 hex digits"),
        (f"q prefill * {SECRET}", "belongs to another name"),
    ],
)
def test_a_bad_line_is_named_and_shows_no_secret(line: str, what: str, tmp_path: Path) -> None:
    path = access_file(tmp_path / "a", f"p prefill * {SECRET}", line)
    with pytest.raises(AccessError, match=f"a, line 2: .*{what}") as caught:
        AccessFile(str(path), tokens=True)
    assert SECRET not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot read .*missing: No such file .*; put a readable file there"):
        AccessFile(str(tmp_path / "missing"), tokens=True)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AccessError, match=r"cannot read .*binary: it is no text in UTF-8"):
        AccessFile(str(tmp_path / "binary"), tokens=True)


class Came:
    """An approach of somebody."""

    def __init__(self, *headers: str | bytes, **names: list[bytes]) -> None:
        self.metadata = [("authorization", header) for header in headers]
        self._names = names

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1234"

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return self._names


class Door:
    """An Authorizer over two files, with a clock to turn."""

    def __init__(self, tmp_path: Path) -> None:
        self.now = 0.0
        self.told: list[tuple[str, Exception | None]] = []
        self.denied: list[tuple[str, grpc.StatusCode]] = []
        self.tokens = access_file(tmp_path / "tokens", f"p prefill * {SECRET}")
        self.names = access_file(tmp_path / "names", "decode-0 decode *", "decode-1 observer *", "cn prefill *")
        self.authorizer = Authorizer(
            AccessFile(str(self.tokens), tokens=True),
            AccessFile(str(self.names), tokens=False),
            lambda path, error: self.told.append((path, error)),
            lambda method, approach, denied: self.denied.append((method, denied.code)),
            lambda: self.now,
        )

    def code(self, came: Came, method: str = "/s/Capabilities") -> grpc.StatusCode | None:
        try:
            self.authorizer(method, came)
        except Denied as denied:
            return denied.code
        return None


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("came", "code"),
    [
        (Came(f"Bearer {SECRET}"), None),
        (Came(f"bearer {SECRET}"), None),
        (Came(f"Bearer {SECRET}".encode()), None),
        (Came(), UNAUTHENTICATED),
        (Came(f"Basic {SECRET}"), UNAUTHENTICATED),
        (Came(SECRET), UNAUTHENTICATED),
        (Came("Bearer "), UNAUTHENTICATED),
        (Came(f"Bearer {SECRET}x"), UNAUTHENTICATED),
        (Came(f"Bearer {SECRET}"[:-1]), UNAUTHENTICATED),
        (Came(f"Bearer {DIGEST.hex()}"), UNAUTHENTICATED),
        (Came(f"Bearer sha256:{DIGEST.hex()}"), UNAUTHENTICATED),
        (Came(f"Bearer {SECRET}", f"Bearer {SECRET}"), UNAUTHENTICATED),
        (Came("Bearer wrong", x509_subject_alternative_name=[b"decode-0"], peer_dns=[b"decode-0"]), UNAUTHENTICATED),
        (Came(x509_subject_alternative_name=[b"decode-0"], peer_dns=[b"decode-0"]), None),
        (Came(x509_subject_alternative_name=[b"other", b"decode-0"], peer_dns=[b"other", b"decode-0"]), None),
        (Came(x509_subject_alternative_name=[b"other"], peer_dns=[b"other"]), UNAUTHENTICATED),
        (Came(x509_common_name=[b"cn"]), None),
        # Only DNS names and URIs are names; those with a colon are URIs.
        (Came(x509_subject_alternative_name=[b"decode-0"], peer_email=[b"decode-0"]), UNAUTHENTICATED),
        (Came(x509_subject_alternative_name=[b"decode-0"], peer_ip=[b"decode-0"]), UNAUTHENTICATED),
        (Came(x509_subject_alternative_name=[b"decode-0"], peer_uri=[b"decode-0"]), UNAUTHENTICATED),
        (Came(x509_subject_alternative_name=[b"a@b"], peer_email=[b"a@b"], x509_common_name=[b"cn"]), UNAUTHENTICATED),
        # Names of the subject count only where there are no alternative ones.
        (
            Came(x509_subject_alternative_name=[b"other"], peer_dns=[b"other"], x509_common_name=[b"cn"]),
            UNAUTHENTICATED,
        ),
    ],
)
def test_who_is_known(came: Came, code: grpc.StatusCode | None, door: Door) -> None:
    assert door.code(came) is code
    assert door.denied == ([] if code is None else [("/s/Capabilities", code)])


def test_names_of_one_certificate_add_up(door: Door) -> None:
    both = Came(x509_subject_alternative_name=[b"decode-1", b"decode-0"], peer_dns=[b"decode-1", b"decode-0"])
    assert door.code(both, "/s/Get") is None
    assert door.code(both, "/s/ListHandoffs") is None
    assert door.code(both, "/s/Put") is DENIED


def test_files_are_looked_at_once_a_second(door: Door) -> None:
    came = Came("Bearer another-secret-long-enough")
    assert door.code(came) is UNAUTHENTICATED
    known = door.authorizer.principal(Came(f"Bearer {SECRET}"))
    access_file(door.tokens, "q decode * another-secret-long-enough")
    assert door.code(came) is UNAUTHENTICATED
    assert not known.edition.over
    door.now += 1.1
    assert door.code(came) is None
    assert known.edition.over
    assert door.code(Came(f"Bearer {SECRET}")) is UNAUTHENTICATED
    assert door.told == [(str(door.tokens), None)]


def test_a_broken_file_changes_nothing_until_it_is_mended(door: Door) -> None:
    access_file(door.tokens, "nonsense")
    for _ in range(3):
        door.now += 1.1
        assert door.code(Came(f"Bearer {SECRET}")) is None
    assert len(door.told) == 1
    assert isinstance(door.told[0][1], AccessError)
    os.unlink(door.tokens)
    door.now += 1.1
    assert door.code(Came(f"Bearer {SECRET}")) is None
    access_file(door.tokens, "q decode * another-secret-long-enough")
    door.now += 1.1
    assert door.code(Came("Bearer another-secret-long-enough")) is None
