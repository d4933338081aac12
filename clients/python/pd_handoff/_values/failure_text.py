"""The text of a failure in a form that every store takes. Texts of users and of exceptions pass here on their way."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 1024
"""Bytes of a failure's message that a store keeps."""


def sendable(text: str) -> str:
    """`text` with a question mark for what UTF-8 cannot carry (a lone surrogate), cut at LONGEST bytes. Raises
    TypeError for anything but a str."""
    if not isinstance(text, str):
        raise TypeError(f"a failure's message must be a str, not {type(text).__name__}")
    # Cut first: a text of many megabytes is not encoded whole. No character takes less than a byte.
    return text[:LONGEST].encode("utf-8", "replace")[:LONGEST].decode("utf-8", "ignore")


def text_of(value: object) -> str:
    """What a foreign object says, such as an exception, sendable; the name of its type where it cannot say anything."""
    try:
        return sendable(str(value))
    except Exception:  # a foreign `__str__`; the abort matters more than its words
        return sendable(f"{type(value).__name__} without a text")
