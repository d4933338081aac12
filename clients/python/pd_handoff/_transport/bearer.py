"""Bearer tokens: what one may look like, where one may come from, and where one may go."""

from __future__ import annotations

import os
import re

_sendable = re.compile("[!-~]+").fullmatch
_loopback = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|\[::1\]", re.IGNORECASE).fullmatch
_LONGEST_FILE = 16 << 10  # bytes; a store takes no more metadata than that


def check_token(token: str) -> str:
    """The token itself. Raises ValueError, which does not show it, for what no header of a call can carry."""
    if not isinstance(token, str):
        raise ValueError(f"a bearer token must be a str, not {type(token).__name__}")
    if not _sendable(token):
        raise ValueError(
            "a bearer token must be one word of visible ASCII characters; this one is empty, or has a blank, a line "
            "break, a control character or one beyond ASCII in it"
        )
    return token


def token_in(file: str | os.PathLike[str]) -> str:
    """The one token that a file holds, without the blanks and line breaks around it. Raises OSError, and ValueError for
    a file with anything else in it."""
    with open(file, "rb") as opened:
        raw = opened.read(_LONGEST_FILE + 1)
    words = raw.split()
    if len(words) == 1 and len(raw) <= _LONGEST_FILE:
        try:
            return check_token(words[0].decode("ascii"))
        except ValueError:
            pass
    raise ValueError(
        f"{os.fspath(file)}: expected one bearer token, a single word of visible ASCII characters, and nothing else "
        "(the store's access file, `serve --token-file`, is not for callers)"
    )


def check_way(target: str, *, encrypted: bool, insecure: bool) -> None:
    """Raises ValueError where a token would leave this machine for all on the way to read. `target` is in gRPC's form;
    `insecure` says that the caller wants that."""
    if not (encrypted or insecure or stays_here(target)):
        raise ValueError(
            f"a bearer token would go to {target} in plaintext, which is refused beyond loopback and Unix sockets; use "
            "TLS, or say insecure_token=True (--insecure-token, PD_HANDOFF_INSECURE_TOKEN=yes) if nobody else can "
            "listen on the way"
        )


def stays_here(target: str) -> bool:
    """Whether every address of a target, in gRPC's form, is a Unix socket or of the loopback interface."""
    scheme, _, rest = target.partition(":")
    if scheme in ("unix", "unix-abstract"):
        return True
    if scheme == "dns":
        target = rest.rpartition("/")[2]
    elif scheme in ("ipv4", "ipv6"):
        target = rest
    return all(_loopback(address.rpartition(":")[0] or address) for address in target.split(","))


def says_yes(variable: str) -> bool:
    """Whether an environment variable is set to 1, true, yes or on. Raises ValueError for anything but these, their
    opposites, and nothing."""
    text = os.environ.get(variable, "")
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise ValueError(f"{variable} must be yes or no, is {text!r}")
