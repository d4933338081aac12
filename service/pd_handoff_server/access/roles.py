"""Who calls, and what they may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CONTENTS: Final = "Contents"
"""Stands for GetHandoff with the record; no method of its own."""

_ANY = frozenset({"Capabilities", "Session"})
_PREFILL = _ANY | {"Reserve", "Put", "Abort", "Release", "BatchReserve", "BatchPut"}
_DECODE = _ANY | {"Get", "Release", "Abort", "BatchGet"}
_OBSERVER = _ANY | {"ListHandoffs", "GetHandoff"}

ROLES: Final[Mapping[str, frozenset[str]]] = {
    "prefill": _PREFILL,
    "decode": _DECODE,
    "observer": _OBSERVER,
    "admin": _PREFILL | _DECODE | _OBSERVER | {CONTENTS},
}
"""The methods of each role. A Session may be opened by all; each call in it is judged by itself."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Roles within namespaces, None for all of them."""

    roles: frozenset[str]
    namespaces: frozenset[str] | None


class Edition:
    """One reading of an access file.

    Attributes:
        over: set once a later one has taken its place.
    """

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


class Principal:
    """A caller that is known.

    Attributes:
        name: for events and for sharing limits; never told to others.
        edition: where it was read; once that is over, long-lived streams must ask again.
    """

    __slots__ = ("_reach", "edition", "grants", "name")

    def __init__(self, name: str, grants: tuple[Grant, ...], edition: Edition) -> None:
        self.name = name
        self.grants = grants
        self.edition = edition
        self._reach: dict[str, frozenset[str] | None] = {}
        for grant in grants:
            for role in grant.roles:
                for method in ROLES[role]:
                    self._widen(method, grant.namespaces)

    def _widen(self, method: str, namespaces: frozenset[str] | None) -> None:
        known = self._reach.get(method, frozenset())
        self._reach[method] = None if known is None or namespaces is None else known | namespaces

    def may(self, method: str) -> bool:
        """Whether the method may be called for any namespace at all."""
        return method in self._reach

    def permits(self, method: str, namespace: str) -> bool:
        """Whether the method may be called for this namespace."""
        namespaces = self._reach.get(method, frozenset())
        return namespaces is None or namespace in namespaces

    def namespaces(self, method: str) -> frozenset[str] | None:
        """Those for which the method may be called; None for all."""
        return self._reach.get(method, frozenset())
