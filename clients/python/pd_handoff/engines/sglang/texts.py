"""Names and texts from outside, in a form that the store takes."""

from __future__ import annotations

import hashlib
import re

from pd_handoff._values.failure_text import text_of
from pd_handoff.model import Failure

LONGEST_NAME = 128  # bytes of an owner's name that is sent as it is; the store takes 256
_reason = re.compile("[A-Z][A-Z0-9_]{0,62}").fullmatch


def owner_of(process: str, rid: str) -> str:
    """The name under which `process` owns what it does for request `rid`: different for different rids, however long
    they are and whatever is in them."""
    raw = rid.encode("utf-8", "surrogatepass")
    name = process.encode() + b"/" + raw
    if len(name) <= LONGEST_NAME:
        try:
            return name.decode()
        except UnicodeDecodeError:  # a lone surrogate
            pass
    return f"{process}/sha256:{hashlib.sha256(raw).hexdigest()}"


def sendable(failure: Failure) -> Failure:
    """The failure, with what the store would refuse of it replaced."""
    status = failure.http_status if 100 <= failure.http_status <= 599 else 500
    reason = failure.reason if _reason(failure.reason) else "ABORTED"
    return Failure(status, reason, text_of(failure.message))
