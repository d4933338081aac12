"""How far one gets to a store, step by step: the name, the connection, TLS, and what speaks at the other end."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass

# What an HTTP/2 client sends first: the preface and an empty SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS = 4
_HEAD = 9  # bytes of a frame before its contents
_DAY = 86_400.0
_HTTP_CURE = "use the port of --listen, not that of --metrics-listen"
# Of OpenSSL's X509_V_ERR_*: why a certificate was refused.
_EXPIRED, _NOT_YET, _WRONG_NAME, _WRONG_ADDRESS = 10, 9, 62, 64


class UnreachableError(Exception):
    """One step failed; `cure` says what to do."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(message)
        self.cure = cure


@dataclass(frozen=True)
class Address:
    """Where a store listens: a path of a Unix socket, or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0


def address_of(target: str) -> Address | None:
    """The address in a target of gRPC's form; None for forms that only gRPC can resolve."""
    scheme, _, rest = target.partition(":")
    if scheme == "unix":
        return Address(path=rest.removeprefix("//"))
    if scheme in ("ipv4", "ipv6", "unix-abstract"):
        return None
    if scheme == "dns":
        target = rest.rpartition("/")[2]
    host, _, port = target.rpartition(":")
    return Address(host=host.strip("[]"), port=int(port)) if port.isdecimal() else None


def resolve(address: Address) -> str:
    """What the name stands for. Raises UnreachableError."""
    if address.path:
        try:
            kind = os.stat(address.path).st_mode
        except OSError as error:
            cure = f"start a store there (`pd-handoff serve --listen unix:{address.path}`), or name another TARGET"
            raise UnreachableError(f"{address.path}: {error.strerror}", cure) from None
        if not stat.S_ISSOCK(kind):
            raise UnreachableError(f"{address.path} is no socket", "name the path that the store listens on")
        return f"{address.path} is a socket"
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UnreachableError(
            f"{address.host}: {error.strerror or error}", "correct the name, or its DNS entry"
        ) from None
    return f"{address.host} is {', '.join(dict.fromkeys(str(each[4][0]) for each in found))}"


def connect(address: Address, seconds: float) -> tuple[socket.socket, float]:
    """A connection, and how long it took. Raises UnreachableError."""
    began = time.monotonic()
    where = address.path or f"{address.host}:{address.port}"
    try:
        if address.path:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            opened.settimeout(seconds)
            opened.connect(address.path)
        else:
            opened = socket.create_connection((address.host, address.port), seconds)
    except TimeoutError:
        raise UnreachableError(
            f"{where} does not answer within {seconds:g} s", "let TCP to this port through the firewalls on the way"
        ) from None
    except PermissionError as error:
        raise UnreachableError(f"{where}: {error.strerror}", "run as a user that may write to the socket") from None
    except OSError as error:
        cure = "start the store, or correct the host and port"
        raise UnreachableError(f"{where}: {error.strerror or error}", cure) from None
    return opened, time.monotonic() - began


def greet(opened: socket.socket) -> str:
    """Looks whether the other end speaks HTTP/2 in plaintext. Raises UnreachableError where it does not."""
    start: bytes | None = b""
    try:
        opened.sendall(_PREFACE)
        start = _first(opened)
    except TimeoutError:
        start = None
    except OSError:
        pass  # closed or reset
    if start is None:
        raise UnreachableError("connected, but no answer", "look whether the store hangs, or a proxy is in between")
    if len(start) >= _HEAD and start[3] == _SETTINGS and not start.startswith(b"HTTP"):
        return "plaintext"
    if start.startswith(b"HTTP/1"):
        raise UnreachableError("a plain HTTP server answers", _HTTP_CURE)
    raise UnreachableError("the other end closes a connection in plaintext", "")


def greet_otherwise(address: Address, seconds: float) -> UnreachableError:
    """What the other end speaks that closed a plaintext HTTP/2 connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only whether it is TLS
    context.set_alpn_protocols(["h2"])
    try:
        opened, _ = connect(address, seconds)
        with opened, context.wrap_socket(opened):
            return UnreachableError("the store speaks TLS", "give --tls-ca FILE of its authority, or --tls")
    except (OSError, UnreachableError):
        pass
    try:
        opened, _ = connect(address, seconds)
        with opened:
            opened.sendall(b"GET / HTTP/1.0\r\n\r\n")
            if _first(opened).startswith(b"HTTP/"):
                return UnreachableError("a plain HTTP server answers", _HTTP_CURE)
    except (OSError, UnreachableError):
        pass
    return UnreachableError("neither gRPC nor TLS is spoken there", "correct the port")


def secure(
    opened: socket.socket,
    name: str,
    ca: str | None,
    pair: tuple[str, str] | None,
) -> tuple[str, float | None]:
    """Does the TLS handshake; returns what was agreed, and the days until the certificate ends.

    Raises UnreachableError, and OSError for files that cannot be read."""
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    if pair is not None:
        context.load_cert_chain(*pair)
    try:
        tls = context.wrap_socket(opened, server_hostname=name)
        shown = tls.getpeercert() or {}
        agreed = f"{tls.version()}, certificate for {', '.join(_names(shown)) or 'nobody'}"
        # Since TLS 1.3 a refusal of our certificate comes after the handshake.
        if not _first(tls):
            raise UnreachableError("the store closes the connection after the handshake", _CLIENT_CERTIFICATE)
    except ssl.SSLCertVerificationError as error:
        raise _refused(error, name, ca) from None
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            raise UnreachableError(f"the store refuses: {error.reason}", _CLIENT_CERTIFICATE) from None
        raise UnreachableError(
            f"no TLS here: {error.reason}", "leave out the --tls options: it speaks plaintext"
        ) from None
    except TimeoutError:
        raise UnreachableError("the handshake does not end", "look whether this is the port of --listen") from None
    except OSError as error:
        cure = "leave out the --tls options, if it speaks plaintext"
        raise UnreachableError(f"the handshake breaks off: {error}", cure) from None
    end = shown.get("notAfter")
    return agreed, (ssl.cert_time_to_seconds(str(end)) - time.time()) / _DAY if end else None


_CLIENT_CERTIFICATE = "give --tls-cert and --tls-key of a certificate that its --tls-client-ca signed"


def _refused(error: ssl.SSLCertVerificationError, name: str, ca: str | None) -> UnreachableError:
    cures = {
        _EXPIRED: "renew the store's certificate",
        _NOT_YET: "set this machine's clock, or wait until the certificate is valid",
        _WRONG_NAME: f"give --tls-name with a name of the certificate, or issue one for {name}",
        _WRONG_ADDRESS: f"give --tls-name with a name of the certificate, or issue one for {name}",
    }
    other = f"{ca} did not sign it; give another file" if ca else "give --tls-ca FILE of the authority that signed it"
    return UnreachableError(f"certificate refused: {error.verify_message}", cures.get(error.verify_code, other))


def _names(shown: Mapping[str, object]) -> list[str]:
    found = shown.get("subjectAltName")
    return [str(value) for _, value in found] if isinstance(found, tuple) else []


def _first(opened: socket.socket) -> bytes:
    """The first bytes that come, at least a frame's head unless the other end closes."""
    start = b""
    while len(start) < _HEAD and (more := opened.recv(64)):
        start += more
    return start
