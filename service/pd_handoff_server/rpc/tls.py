"""TLS and mutual TLS, with certificates that are read again when they change."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import grpc


class CertificateError(Exception):
    """Certificates that cannot be used; the message names the files, and shows nothing of the key."""


class Certificates:
    """The store's certificate and key, and for mutual TLS the authorities that sign its callers' certificates.

    The files are looked at whenever somebody connects. Files that do not fit together, such as a certificate that is
    newer than its key, change nothing, and are looked at again with the next connection.
    """

    def __init__(
        self, cert: str, key: str, client_ca: str | None, told: Callable[[str, Exception | None], None]
    ) -> None:
        """Paths of PEM files; without `client_ca` callers need no certificate.

        `told` gets the path of the certificate whenever the files were read again, with what was wrong with them.
        Raises CertificateError.
        """
        self._paths = [path for path in (cert, key, client_ca) if path]
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._told = told
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._initial = self._load()

    def credentials(self) -> grpc.ServerCredentials:
        """For a secure port."""
        return grpc.dynamic_ssl_server_credentials(
            self._initial,
            self._renewed,  # type: ignore[arg-type]  # the stubs do not know that None is legal
            require_client_authentication=self._client_ca is not None,
        )

    def _stamps(self) -> list[tuple[int, ...] | None]:
        return [_stamp(path) for path in self._paths]

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """What gRPC asks for at each handshake; None: as before."""
        with self._lock:
            stamps = self._stamps()
            if stamps == self._seen:
                return None
            self._seen = stamps
            try:
                configuration = self._load()
            except CertificateError as error:
                self._told(self._cert, error)
                return None
        self._told(self._cert, None)
        return configuration

    def _load(self) -> grpc.ServerCertificateConfiguration:
        try:
            chain, key = Path(self._cert).read_bytes(), Path(self._key).read_bytes()
            roots = Path(self._client_ca).read_bytes() if self._client_ca else None
        except OSError as error:
            raise CertificateError(f"cannot read {error.filename}: {error.strerror}") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # gRPC would take a key of another certificate and then fail every handshake.
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (ssl.SSLError, ValueError, OSError):
            raise CertificateError(f"{self._cert} and {self._key} are not a certificate and its key, in PEM") from None
        if roots is not None:
            try:
                context.load_verify_locations(cadata=roots.decode("ascii"))
            except (ssl.SSLError, ValueError):
                raise CertificateError(f"{self._client_ca} holds no certificates in PEM") from None
        return grpc.ssl_server_certificate_configuration([(key, chain)], roots)


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def _no_password() -> str:
    raise ValueError("keys with a passphrase are not supported")
