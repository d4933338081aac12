"""TLS and mutual TLS, with certificates that are read again when they change."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable

import grpc

from . import watched_files
from .watched_files import Doubt, FileError, Renewal

Fetcher = Callable[[], grpc.ServerCertificateConfiguration | None]
Credentials = Callable[[], grpc.ServerCredentials]
"""Makes the credentials of one port."""


class CertificateError(FileError):
    """Certificates that cannot be used; the message names the files, and shows nothing of the key."""


class Certificates:
    """The store's certificate and key, and for mutual TLS the authorities that sign its callers' certificates.

    The files are looked at whenever somebody connects. Files that do not fit together, such as a certificate that is
    newer than its key, change nothing, and are looked at again with later connections.
    """

    def __init__(
        self,
        cert: str,
        key: str,
        client_ca: str | None,
        told: Callable[[str, Exception | None], None],
        doubt: Doubt = lambda path, what: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Paths of PEM files; without `client_ca` callers need no certificate.

        `told` gets the path of the certificate whenever the files were read again, with what was wrong with them;
        `doubt` is told of a file that is used and looks wrong. Raises FileError.
        """
        self._renewal = Renewal([path for path in (cert, key, client_ca) if path], clock)
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._told = told
        self._doubt = doubt
        self._lock = threading.Lock()
        self._load()

    def credentials(self) -> grpc.ServerCredentials:
        """For one secure port: each needs its own, since gRPC asks for what is new to the port."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self.fetcher(),  # type: ignore[arg-type]  # the stubs do not know that None is legal
            require_client_authentication=self._client_ca is not None,
        )

    def fetcher(self) -> Fetcher:
        """What gRPC calls at each handshake of one port: what the port does not know yet, or None."""
        known = self._configuration

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal known
            current = self._renewed()
            if current is known:
                return None
            known = current
            return current

        return fetch

    def _renewed(self) -> grpc.ServerCertificateConfiguration:
        """What is in force, after a look at the files."""
        with self._lock:
            try:
                if self._renewal.attempt(self._load):
                    self._told(self._cert, None)
            except FileError as error:
                self._told(self._cert, error)
            return self._configuration

    def _load(self) -> None:
        chain, key = watched_files.read(self._cert).data, watched_files.read(self._key)
        roots = watched_files.read(self._client_ca).data if self._client_ca else None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # gRPC would take a key of another certificate and then fail every handshake.
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (ssl.SSLError, ValueError, OSError):
            raise CertificateError(
                f"{self._cert} and {self._key} are not a certificate and its key, in PEM; put both there, of one pair, "
                "the key without a passphrase"
            ) from None
        if roots is not None:
            try:
                context.load_verify_locations(cadata=roots.decode("ascii"))
            except (ssl.SSLError, ValueError):
                raise CertificateError(f"{self._client_ca} holds no certificates in PEM; put one there") from None
        self._configuration = grpc.ssl_server_certificate_configuration([(key.data, chain)], roots)
        if key.open_to_all:
            self._doubt(self._key, key.open_to_all)


def _no_password() -> str:
    raise ValueError("keys with a passphrase are not supported")
