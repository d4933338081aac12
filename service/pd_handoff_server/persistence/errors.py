"""Why an arena file cannot be used."""

from __future__ import annotations


class ArenaFileError(Exception):
    """The store must not start with this file, and has changed nothing in it; the message says what to do."""


class DamageError(Exception):
    """A part of the file is not what was written; the message names the part."""
