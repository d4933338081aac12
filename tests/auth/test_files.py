"""Files that decide who gets in: whose permissions are taken, and when they are read again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from pd_handoff_server.access import watched_files
from pd_handoff_server.access.authorizer import AccessFile
from pd_handoff_server.access.tls import Certificates
from pd_handoff_server.access.watched_files import FileError, Renewal

from tests.support.credentials import Authority, access_file, replace
from tests.support.fixtures import Launch
from tests.support.process import run_serve

SECRET = "a-secret-of-some-length"
OTHER = "another-secret-of-some-length"


class Told:
    """What files had to say."""

    def __init__(self) -> None:
        self.read: list[Exception | None] = []
        self.doubts: list[str] = []

    def renewed(self, path: str, error: Exception | None) -> None:
        assert path
        self.read.append(error)

    def doubt(self, path: str, what: str) -> None:
        assert path
        self.doubts.append(what)


def known(file: AccessFile, secret: str) -> bool:
    return hashlib.sha256(secret.encode()).digest() in file.principals


# -- permissions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
@pytest.mark.parametrize("tokens", [True, False])
def test_an_access_file_that_others_can_write_is_refused(tmp_path: Path, mode: int, tokens: bool) -> None:
    path = access_file(tmp_path / "a", f"p prefill * {SECRET if tokens else ''}")
    path.chmod(mode)
    with pytest.raises(FileError, match=f"can be written by other users .mode {mode:04o}.*chmod go-w {path}") as caught:
        AccessFile(str(path), tokens=tokens)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("which", ["cert", "key", "ca"])
def test_files_of_tls_that_others_can_write_are_refused(tmp_path: Path, which: str) -> None:
    authority, told = Authority(tmp_path), Told()
    path: Path = getattr(authority, which)
    path.chmod(0o660)
    with pytest.raises(FileError, match=f"{path} can be written by other users .*chmod go-w {path}"):
        Certificates(str(authority.cert), str(authority.key), str(authority.ca), told.renewed)


def test_the_command_refuses_what_others_can_write(tmp_path: Path) -> None:
    path = access_file(tmp_path / "t", f"p prefill * {SECRET}")
    path.chmod(0o666)
    ended = run_serve("--listen", "127.0.0.1:0", "--log-format", "json", "--token-file", str(path))
    assert ended.returncode == 1
    assert f"chmod go-w {path}" in ended.stderr


def test_what_became_writable_changes_nothing_until_it_is_mended(tmp_path: Path) -> None:
    path = access_file(tmp_path / "a", f"p prefill * {SECRET}")
    file = AccessFile(str(path), tokens=True)
    access_file(path, f"p prefill * {OTHER}")
    path.chmod(0o666)
    with pytest.raises(FileError, match="chmod go-w"):
        file.renew()
    assert known(file, SECRET)
    path.chmod(0o600)  # moves neither its time of modification nor its size
    assert file.renew()
    assert known(file, OTHER)
    assert not known(file, SECRET)
    assert not file.renew()


def test_a_key_that_became_writable_changes_nothing_until_it_is_mended(tmp_path: Path) -> None:
    authority, told = Authority(tmp_path), Told()
    certificates = Certificates(str(authority.cert), str(authority.key), None, told.renewed)
    fetch = certificates.fetcher()
    authority.install(authority.issue("localhost"))
    authority.key.chmod(0o666)
    assert fetch() is None
    assert len(told.read) == 1
    authority.key.chmod(0o600)
    assert fetch() is not None
    assert fetch() is None
    assert told.read[1:] == [None]


def test_what_looks_wrong_and_is_used(tmp_path: Path) -> None:
    told = Told()
    path = access_file(tmp_path / "a", f"p prefill * {SECRET}")
    path.chmod(0o640)
    AccessFile(str(path), tokens=True, doubt=told.doubt)
    assert not told.doubts
    path.chmod(0o644)
    AccessFile(str(path), tokens=True, doubt=told.doubt)
    assert "tokens in plain text" in told.doubts[-1]
    assert f"chmod o-r {path}" in told.doubts[-1]
    access_file(path, f"# {SECRET}", f"p prefill * sha256:{hashlib.sha256(SECRET.encode()).hexdigest()}").chmod(0o644)
    AccessFile(str(path), tokens=True, doubt=told.doubt)  # what it shows opens nothing
    assert len(told.doubts) == 1
    file = AccessFile(str(access_file(path, "# nobody")), tokens=True, doubt=told.doubt)
    assert "nobody is let in" in told.doubts[-1]
    access_file(path, "", "# still nobody")
    assert file.renew()
    assert len(told.doubts) == 3
    authority = Authority(tmp_path)
    authority.key.chmod(0o644)
    authority.cert.chmod(0o644)
    Certificates(str(authority.cert), str(authority.key), None, told.renewed, told.doubt)
    assert told.doubts[3:] == [f"can be read by every user of this machine (mode 0644); chmod o-r {authority.key}"]


def test_the_log_has_what_looks_wrong(launch: Launch, tmp_path: Path) -> None:
    path = access_file(tmp_path / "t", "# nobody")
    store = launch(token_file=str(path))
    (told,) = [event for event in store.events if event["event"] == "access_file_doubtful"]
    assert told["level"] == "warning"
    assert told["path"] == str(path)
    assert "nobody is let in" in told["what"]


def test_a_file_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = access_file(tmp_path / "a", "#" * 1000)
    monkeypatch.setattr(watched_files, "_LARGEST", 1000)
    with pytest.raises(FileError, match=f"{path}: it is larger than 1,000 bytes"):
        watched_files.read(str(path))


# -- reading again -----------------------------------------------------------------------------------------------------


class Reader:
    """Reads a file, or fails, as the test says."""

    def __init__(self) -> None:
        self.trouble = ""
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        if self.trouble:
            raise FileError(self.trouble)


class Turned:
    """A clock to turn."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def attempt(renewal: Renewal, read: Callable[[], None]) -> bool | str:
    try:
        return renewal.attempt(read)
    except FileError as error:
        return str(error)


def test_a_failure_is_tried_again_though_nothing_of_the_file_changes(tmp_path: Path) -> None:
    """As when a directory above it could not be entered."""
    clock, read = Turned(), Reader()
    path = access_file(tmp_path / "a", "one")
    renewal = Renewal([str(path)], clock)
    assert attempt(renewal, read) is False
    assert read.count == 0
    access_file(path, "two")
    read.trouble = "permission denied"
    assert attempt(renewal, read) == "permission denied"
    assert attempt(renewal, read) is False  # within the second not even tried
    assert read.count == 1
    clock.now += 1.1
    assert attempt(renewal, read) is False  # tried, and the same trouble is not told again
    assert read.count == 2
    clock.now += 1.1
    read.trouble = ""
    assert attempt(renewal, read) is True
    assert attempt(renewal, read) is False
    assert read.count == 3


def test_trouble_that_lasts_is_told_once_a_minute_and_new_trouble_at_once(tmp_path: Path) -> None:
    clock, read = Turned(), Reader()
    path = access_file(tmp_path / "a", "one")
    renewal = Renewal([str(path)], clock)
    path.unlink()
    read.trouble = "gone"
    told: list[bool | str] = []
    while clock.now < 225:
        told.append(attempt(renewal, read))
        clock.now += 1.25
    assert told.count("gone") == 3  # in 125 seconds
    read.trouble = "another"
    assert attempt(renewal, read) == "another"


def test_a_change_of_owner_or_mode_is_a_change(tmp_path: Path) -> None:
    read = Reader()
    path = access_file(tmp_path / "a", "one")
    before = path.stat().st_ctime_ns
    renewal = Renewal([str(path)], Turned())
    while path.stat().st_ctime_ns == before:  # until the file system's clock has ticked
        path.chmod(0o640)
    assert attempt(renewal, read) is True
    replace(path, b"two")
    assert attempt(renewal, read) is True
    assert attempt(renewal, read) is False
