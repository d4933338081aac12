"""Simulates a later gRPC whose private functions have other signatures."""

from __future__ import annotations

from typing import Any


def one_argument_fewer(*_: object, **__: object) -> Any:
    """What has another signature in a later release."""
    raise TypeError("takes exactly 1 positional argument fewer")


class Changed:
    """An object of gRPC in which what is named has another signature."""

    def __init__(self, real: Any, name: str) -> None:
        self._real = real
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return one_argument_fewer if name == self._name else getattr(self._real, name)
