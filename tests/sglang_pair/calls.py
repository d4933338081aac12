"""Requests: to the pair (the same JSON to prefill and decode, at once) or to the undivided engine."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.sglang_pair.servers import BOOTSTRAP, DECODE, PREFILL, UNDIVIDED

T = TypeVar("T")
PATIENCE = 180.0


@dataclass(frozen=True)
class Answer:
    """HTTP status and parsed body; 0 and the error's text where the connection ended without one."""

    status: int
    body: Any

    @property
    def words(self) -> str:
        """An error's message."""
        return json.dumps(self.body)


def post(port: int, body: Mapping[str, Any], path: str = "/generate", timeout: float = PATIENCE) -> Answer:
    """One request."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return Answer(answer.status, json.load(answer))
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        try:
            return Answer(error.code, json.loads(text))
        except ValueError:
            return Answer(error.code, text)
    except OSError as error:
        return Answer(0, repr(error))


def at_once(*calls: Callable[[], T]) -> list[T]:
    """The results of several calls made at the same time, in their order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def new_room() -> int:
    """A room that no other request has."""
    return random.getrandbits(62) + 1


def in_room(body: Mapping[str, Any], room: Any) -> dict[str, Any]:
    """The body as a router of SGLang's sends it to both sides."""
    hosts: Any = ["127.0.0.1"] * len(room) if isinstance(room, list) else "127.0.0.1"
    ports: Any = [BOOTSTRAP] * len(room) if isinstance(room, list) else BOOTSTRAP
    return {**body, "bootstrap_host": hosts, "bootstrap_port": ports, "bootstrap_room": room}


@dataclass(frozen=True)
class Both:
    """What the two sides answered; decode's is the user's."""

    prefill: Answer
    decode: Answer

    @property
    def statuses(self) -> tuple[int, int]:
        """Prefill's and decode's."""
        return self.prefill.status, self.decode.status


def pair(body: Mapping[str, Any], room: Any = None, path: str = "/generate", timeout: float = PATIENCE) -> Both:
    """One request through the pair."""
    full = in_room(body, new_room() if room is None else room)
    return Both(
        *at_once(lambda: post(PREFILL, full, path, timeout), lambda: post(DECODE, full, path, timeout)),
    )


def undivided(body: Mapping[str, Any], path: str = "/generate") -> Answer:
    """The same to the engine that does both."""
    return post(UNDIVIDED, body, path)


def flush() -> None:
    """Empties the prefix caches: a prompt that is read from a cache has other last bits than one computed whole."""
    for port in (PREFILL, DECODE, UNDIVIDED):
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/flush_cache", b""), timeout=60):
            pass
