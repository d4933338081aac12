"""The reader of requests in C, which the server also works without (docs/adr/0006).

It answers for a request that is written as every serializer writes it and has nothing wrong with it; any other goes
the way through protobuf and Python, which finds the words. So it can be left out, and nothing but time is lost.
"""

from __future__ import annotations

from importlib.util import find_spec

from .fallback import Absent
from .fallback import Reader as Reader


class NativeError(Exception):
    """The reader is required and cannot be used; the message says why, and what to do."""


def load(schema: str, wish: str = "auto") -> Reader:
    """The reader for the schema of this fingerprint; `Absent` where there is none, or `wish` is off.

    Raises NativeError when `wish` is required and there is none.
    """
    if wish == "off":
        return Absent("switched off")
    try:
        from . import _scan  # noqa: PLC0415 - may not have been built
    except ImportError as error:
        why = "not built" if find_spec(f"{__name__}._scan") is None else f"unusable ({error})"
    else:
        if schema == _scan.SCHEMA:
            return _scan
        why = f"built for schema {_scan.SCHEMA}, while this is {schema}"
    if wish == "required":
        raise NativeError(f"the reader in C is {why}; install pd-handoff anew where a C compiler is")
    return Absent(why)


def why_not(reader: Reader) -> str | None:
    """Why Python reads all; None when it does not."""
    return reader.why if isinstance(reader, Absent) else None
