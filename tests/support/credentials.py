"""Certificates, tokens and access files for tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Identity(NamedTuple):
    """A certificate and its key, in PEM."""

    chain: bytes
    key: bytes


class Authority:
    """Signs certificates; its own, and one for a store, lie in a directory.

    Attributes:
        root: its certificate, in PEM.
        ca, cert, key: paths for `--tls-client-ca`, `--tls-cert` and `--tls-key`.
    """

    def __init__(self, directory: Path, name: str = "store") -> None:
        self._ca = trustme.CA()
        self.root = self._ca.cert_pem.bytes()
        self.ca, self.cert, self.key = (directory / f"{name}.{kind}.pem" for kind in ("ca", "cert", "key"))
        replace(self.ca, self.root)
        self.install(self.issue("localhost", "127.0.0.1"))

    def issue(self, *names: str, common_name: str | None = None, expired: bool = False) -> Identity:
        """A certificate for these names, valid from long ago, to yesterday or for long."""
        until = datetime.now(timezone.utc) + timedelta(days=-1 if expired else 365)
        certificate = self._ca.issue_cert(*names, common_name=common_name, not_after=until)
        return Identity(certificate.cert_chain_pems[0].bytes(), certificate.private_key_pem.bytes())

    def issue_uri(self, uri: str) -> Identity:
        """A certificate for a URI, such as a SPIFFE id."""
        return self.issue_other(x509.UniformResourceIdentifier(uri))

    def issue_other(self, name: x509.GeneralName) -> Identity:
        """A certificate for a name of any kind."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.load_pem_x509_certificate(self.root)
        signer = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        now = datetime.now(timezone.utc)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([name]), critical=True)
            .sign(signer, hashes.SHA256())
        )
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        return Identity(certificate.public_bytes(pem), secret)

    def install(self, identity: Identity) -> None:
        """Put a store's certificate and key in their place, each whole, one after the other."""
        replace(self.cert, identity.chain)
        replace(self.key, identity.key)

    def settings(self, *, mutual: bool = False) -> dict[str, Any]:
        """Settings of a store with its certificate; `mutual` asks callers for theirs."""
        given: dict[str, Any] = {"tls_cert": str(self.cert), "tls_key": str(self.key), "listen": ("localhost:0",)}
        return {**given, "tls_client_ca": str(self.ca)} if mutual else given


def replace(path: Path, content: bytes) -> None:
    """Put a whole file in the place of another, so that nobody reads half of it."""
    fresh = path.with_name(path.name + ".new")
    fresh.touch(0o600)
    fresh.write_bytes(content)
    os.replace(fresh, path)


def access_file(path: Path, *lines: str) -> Path:
    """An access file of these lines."""
    replace(path, "\n".join(lines).encode() + b"\n")
    return path


def secure_channel(target: str, authority: Authority | None, identity: Identity | None = None) -> grpc.Channel:
    """A connection of its own over TLS, showing a certificate if there is one."""
    credentials = grpc.ssl_channel_credentials(
        None if authority is None else authority.root, identity and identity.key, identity and identity.chain
    )
    return grpc.secure_channel(target, credentials, [("grpc.use_local_subchannel_pool", 1)])


class _Details(NamedTuple):
    method: Any
    timeout: Any
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Adding(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Sends these metadata with each call."""

    def __init__(self, extra: Sequence[tuple[str, str]]) -> None:
        self._extra = tuple(extra)

    def _with(self, details: Any) -> Any:
        return _Details(
            details.method,
            details.timeout,
            (*(details.metadata or ()), *self._extra),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """See grpc."""
        return continuation(self._with(client_call_details), request)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """See grpc."""
        return continuation(self._with(client_call_details), request_iterator)


def sending(channel: grpc.Channel, *metadata: tuple[str, str]) -> grpc.Channel:
    """The channel, with these metadata on each call."""
    return grpc.intercept_channel(channel, _Adding(metadata))


def bearing(channel: grpc.Channel, token: str) -> grpc.Channel:
    """The channel, with a bearer token on each call."""
    return sending(channel, ("authorization", f"Bearer {token}"))
