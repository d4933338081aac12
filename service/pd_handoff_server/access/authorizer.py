"""Credentials: bearer tokens and certificate names, looked up in files that are read again when they change."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import grpc

from pd_handoff_server import refusal

from . import watched_files
from .authenticator import Approach, Denied
from .roles import ROLES, Edition, Grant, Principal
from .watched_files import Doubt, FileError, Renewal

_LEAST_TOKEN: Final = 16  # bytes of a token in plain text
_CHECK: Final = 1.0  # seconds between looks at the files
_namespace = re.compile(r"[A-Za-z0-9._-]{1,128}").fullmatch
_hash = re.compile(r"sha256:([0-9a-f]{64})").fullmatch

Deny = Callable[[str, Approach, Denied], None]
"""Told of each call that was not let in: its full method name, who came, and what they were answered."""


class AccessError(FileError):
    """An access file that cannot be used; the message names the file and line, and shows no secret."""


class AccessFile:
    """One line a credential: `NAME ROLES NAMESPACES [TOKEN]`, separated by blanks; `#` begins a comment line.

    ROLES are separated by commas. NAMESPACES too, `*` for all and `""` for the empty one. Several lines of one name add
    up. TOKEN is there in token files only: `sha256:` and 64 hex digits, or at least 16 characters in plain text.

    Attributes:
        principals: by digest of the token, or by name of the certificate.
    """

    def __init__(
        self,
        path: str,
        *,
        tokens: bool,
        doubt: Doubt = lambda path, what: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`doubt` is told of a file that is used and looks wrong. Raises FileError."""
        self.path = path
        self._tokens = tokens
        self._doubt = doubt
        self._renewal = Renewal([path], clock)
        self._edition = Edition()
        self.principals: Mapping[bytes, Principal] = {}
        self._read()

    def renew(self) -> bool:
        """Read the file again if it has changed; True when it was. Raises FileError: what was known stays."""
        return self._renewal.attempt(self._read)

    def _read(self) -> None:
        content = watched_files.read(self.path)
        try:
            text = content.data.decode()
        except UnicodeDecodeError:
            raise AccessError(f"cannot read {self.path}: it is no text in UTF-8; write one credential a line") from None
        edition = Edition()
        self.principals = self._parse(text, edition)
        self._edition.over, self._edition = True, edition
        if not self.principals:
            self._doubt(self.path, "has no credential in it: nobody is let in by it; write one a line")
        if self._tokens and content.open_to_all and _plain(text):
            self._doubt(self.path, f"holds tokens in plain text and {content.open_to_all}, or keep their sha256: alone")

    def _parse(self, text: str, edition: Edition) -> Mapping[bytes, Principal]:
        names: dict[bytes, str] = {}
        grants: dict[bytes, list[Grant]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            parts = line.split()
            if not parts or parts[0].startswith("#"):
                continue
            try:
                name, grant, credential = self._line(parts)
                if names.setdefault(credential, name) != name:
                    raise AccessError("this token belongs to another name already")
            except AccessError as error:
                raise AccessError(f"{self.path}, line {number}: {error}") from None
            grants.setdefault(credential, []).append(grant)
        return {credential: Principal(names[credential], tuple(given), edition) for credential, given in grants.items()}

    def _line(self, parts: Sequence[str]) -> tuple[str, Grant, bytes]:
        if len(parts) != (4 if self._tokens else 3):
            raise AccessError("must be NAME ROLES NAMESPACES" + (" TOKEN" if self._tokens else ""))
        name, roles = parts[0], frozenset(parts[1].split(","))
        if unknown := sorted(roles - set(ROLES)):
            raise AccessError(f"unknown role {unknown[0]!r}; there are {', '.join(ROLES)}")
        grant = Grant(roles, _namespaces(parts[2]))
        return name, grant, _digest_in(parts[3]) if self._tokens else name.encode()


def _plain(text: str) -> bool:
    """Whether a token file holds a token itself, and not its digest alone."""
    lines = (line.split() for line in text.splitlines())
    return any(len(parts) == 4 and not parts[0].startswith("#") and not _hash(parts[3]) for parts in lines)


def _namespaces(text: str) -> frozenset[str] | None:
    if text == "*":
        return None
    names = frozenset("" if name == '""' else name for name in text.split(",") if name)
    for name in names:
        if name and not _namespace(name):
            raise AccessError(f'{name!r} is no namespace; give names, "" for the empty one, or * for all')
    return names


def _digest_in(text: str) -> bytes:
    if match := _hash(text):
        return bytes.fromhex(match[1])
    if text.startswith("sha256:"):
        raise AccessError("sha256: must be followed by 64 hex digits in lower case")
    if len(text) < _LEAST_TOKEN:
        raise AccessError(f"the token is too short to be safe; take at least {_LEAST_TOKEN} random characters")
    return hashlib.sha256(text.encode()).digest()


def _names(context: Mapping[str, Sequence[bytes]]) -> list[bytes]:
    """The names in a certificate that an access file can mean: DNS names and URIs, else the common name.

    An e-mail address or IP address with the same spelling is another name: authorities check those in other ways. A
    URI has a scheme, so a listed name with a colon is a URI, and any other a DNS name.
    """
    if not context.get("x509_subject_alternative_name"):
        return list(context.get("x509_common_name") or ())
    names = [name for name in context.get("peer_dns") or () if b":" not in name]
    return names + [name for name in context.get("peer_uri") or () if b":" in name]


def _nobody() -> Denied:
    return Denied(grpc.StatusCode.UNAUTHENTICATED, refusal.unauthenticated().message)


class Authorizer:
    """Knows callers by bearer token or by certificate. A `Guard`; `judge` is for the calls inside a stream.

    A token that is sent decides alone: a wrong one is refused even beside a good certificate.
    """

    def __init__(
        self,
        tokens: AccessFile | None,
        certificates: AccessFile | None,
        told: Callable[[str, Exception | None], None],
        denied: Deny,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`told` gets the path of each file that was read again, with what was wrong with it."""
        self._denied = denied
        self._files = [file for file in (tokens, certificates) if file is not None]
        self._by_token = tokens
        self._by_name = certificates
        self._told = told
        self._clock = clock
        self._next = clock() + _CHECK
        self._lock = threading.Lock()

    def __call__(self, method: str, approach: Approach) -> Principal:
        """The caller of a method, given with its service. Raises Denied."""
        try:
            principal = self.principal(approach)
            if not principal.may(method.rpartition("/")[2]):
                message = refusal.permission_denied().message
                raise Denied(grpc.StatusCode.PERMISSION_DENIED, message, principal.name)
        except Denied as denied:
            self._denied(method, approach, denied)
            raise
        return principal

    def principal(self, approach: Approach) -> Principal:
        """Who calls. Raises Denied UNAUTHENTICATED."""
        self.refresh()
        bearers = [value for key, value in approach.metadata if key == "authorization"]
        if bearers:
            if self._by_token is None or len(bearers) > 1:
                raise _nobody()
            return self._of_token(self._by_token.principals, bearers[0])
        if self._by_name is not None:
            return self._of_certificate(self._by_name.principals, approach)
        raise _nobody()

    @staticmethod
    def _of_token(known: Mapping[bytes, Principal], header: str | bytes) -> Principal:
        text = header.encode() if isinstance(header, str) else header
        scheme, _, token = text.partition(b" ")
        if scheme.lower() != b"bearer":
            raise _nobody()
        # Digests are looked up, never tokens: how long that takes tells nothing of a token that is nearly right.
        principal = known.get(hashlib.sha256(token.strip()).digest())
        if principal is None:
            raise _nobody()
        return principal

    @staticmethod
    def _of_certificate(known: Mapping[bytes, Principal], approach: Approach) -> Principal:
        names = _names(approach.auth_context())
        found = [known[name] for name in names if name in known]
        if not found:
            raise _nobody()
        if len(found) == 1:
            return found[0]
        grants = tuple(grant for principal in found for grant in principal.grants)
        return Principal(found[0].name, grants, found[0].edition)

    def refresh(self) -> None:
        """Look at the files, at most once a second. Broken ones change nothing."""
        if self._clock() < self._next:
            return
        with self._lock:
            if self._clock() < self._next:
                return
            self._next = self._clock() + _CHECK
            for file in self._files:
                try:
                    if file.renew():
                        self._told(file.path, None)
                except FileError as error:
                    self._told(file.path, error)

    def judge(self, method: str, principal: Principal | None, approach: Approach | None) -> Principal:
        """Judge a call by its role; returns its caller as the access files know it now.

        Raises Refusal UNAUTHENTICATED for a call without a caller, or whose credentials are no longer valid (a
        long-lived stream outlives them); PERMISSION_DENIED for a role that does not allow the method.
        """
        if principal is None:
            raise refusal.unauthenticated()
        self.refresh()
        if principal.edition.over:
            principal = self._again(approach)
        if not principal.may(method):
            raise refusal.permission_denied(principal.name)
        return principal

    def _again(self, approach: Approach | None) -> Principal:
        if approach is None:
            raise refusal.unauthenticated()
        try:
            return self.principal(approach)
        except Denied:
            raise refusal.unauthenticated() from None
