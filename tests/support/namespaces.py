"""A namespace of its own for each test that shares a store with others: requests go in, answers come out.

Tests write the namespaces that they mean. Within a `Scope` each of them is replaced on its way to the store, and put
back on its way from there. Outside, and in requests that are bytes, nothing is changed.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from pd_handoff.v1 import record_pb2 as rp

M = TypeVar("M", bound=Message)

_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]{0,128}")
_RUN: Final = secrets.token_hex(4)
_serials = itertools.count()


class Scope:
    """The namespaces of one test.

    Attributes:
        keys: the keys that requests have named, as the store knows them.
    """

    def __init__(self) -> None:
        self._prefix = f"t{_RUN}.{next(_serials)}."
        self._meant: dict[str, str] = {}
        self.keys: dict[bytes, rp.HandoffKey] = {}

    def outward(self, namespace: str) -> str:
        """What the store is told. An illegal one stays as it is; a long one keeps its length."""
        if not _LEGAL.fullmatch(namespace):
            return namespace
        fits = len(self._prefix) + len(namespace) <= 128
        other = self._prefix + (namespace if fits else namespace[len(self._prefix) :])
        self._meant[other] = namespace
        return other

    def inward(self, namespace: str) -> str:
        """What the test meant by it."""
        return self._meant.get(namespace, namespace)

    def note(self, key: rp.HandoffKey) -> None:
        """Remember a key, so that it can be given up after the test."""
        self.keys[key.SerializeToString()] = key


_current: list[Scope] = []


@contextlib.contextmanager
def scope() -> Iterator[Scope]:
    """Replace namespaces until the block ends."""
    mine = Scope()
    _current.append(mine)
    try:
        yield mine
    finally:
        _current.remove(mine)


def outgoing(request: M) -> M:
    """The request as it is sent."""
    if not _current:
        return request
    mine = _current[-1]
    copy = type(request)()
    copy.CopyFrom(request)
    if copy.DESCRIPTOR.name == "ListHandoffsRequest":
        message: Any = copy
        message.namespace = mine.outward(message.namespace)  # all that a test can see are its own
    for key in _replace(copy, mine.outward):
        mine.note(key)
    return copy


def incoming(answer: M) -> M:
    """The answer as the test is to see it."""
    if _current:
        for _ in _replace(answer, _current[-1].inward):
            pass
    return answer


def _replace(message: Any, change: Callable[[str], str]) -> Iterator[rp.HandoffKey]:
    """Change the namespaces of all keys in it, and yield the keys."""
    if isinstance(message, rp.HandoffKey):
        message.namespace = change(message.namespace)
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in [value] if isinstance(value, Message) else value:
            yield from _replace(each, change)
