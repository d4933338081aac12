"""Who gets in: certificates and access files, put together from the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pd_handoff_server.config import Settings

from .authorizer import AccessFile, Authorizer, Deny
from .tls import Certificates, Credentials
from .watched_files import Doubt

Told = Callable[[str, Exception | None], None]
"""(path of a file that was read again, what was wrong with it)."""


@dataclass(frozen=True, slots=True)
class Security:
    """What a store asks of those who connect. Without settings: nothing.

    Attributes:
        credentials: makes those of a TCP address; None is plaintext.
        authorizer: None lets everybody who can connect do everything.
    """

    credentials: Credentials | None
    authorizer: Authorizer | None


def secure(settings: Settings, told: Told, doubt: Doubt, denied: Deny) -> Security:
    """Read what the settings name. Raises FileError."""
    credentials = None
    if settings.tls_cert:
        client_ca = settings.tls_client_ca or None
        credentials = Certificates(settings.tls_cert, settings.tls_key, client_ca, told, doubt).credentials
    tokens = AccessFile(settings.token_file, tokens=True, doubt=doubt) if settings.token_file else None
    names = AccessFile(settings.tls_roles, tokens=False, doubt=doubt) if settings.tls_roles else None
    authorizer = None if tokens is None and names is None else Authorizer(tokens, names, told, denied)
    return Security(credentials, authorizer)
