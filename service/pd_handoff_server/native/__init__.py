"""The reader of requests in C, which the server also works without (docs/adr/0006).

It answers for a request that is written as every serializer writes it and has nothing wrong with it; any other goes
the way through protobuf and Python, which finds the words. So it can be left out, and nothing but time is lost.
"""

from __future__ import annotations

import os
from typing import Final

from .python import Absent
from .python import Reader as Reader

VARIABLE: Final = "PD_HANDOFF_NATIVE"
"""`auto` (the default): use it where it was built; `off`; or `required`."""


class NativeError(Exception):
    """The reader was required and cannot be used; the message says why, and what to do."""


def load(schema: str) -> Reader:
    """The reader for the schema of this fingerprint; `Absent` where there is none, or it is switched off.

    Raises NativeError for a bad setting, and when it is required and there is none.
    """
    wish = os.environ.get(VARIABLE) or "auto"
    if wish not in {"auto", "off", "required"}:
        raise NativeError(f"{VARIABLE} must be auto, off or required, is {wish!r}")
    if wish == "off":
        return Absent("switched off")
    try:
        from . import _scan  # noqa: PLC0415 - may not have been built
    except ImportError as error:
        why = f"not built ({error})"
    else:
        if schema == _scan.SCHEMA:
            return _scan
        why = f"built for schema {_scan.SCHEMA}, this is {schema}"
    if wish == "required":
        raise NativeError(
            f"{VARIABLE}=required, but the reader in C is {why}; reinstall pd-handoff where a C compiler is"
        )
    return Absent(why)
