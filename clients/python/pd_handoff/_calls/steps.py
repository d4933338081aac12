"""One implementation, two faces: each call is a generator of steps, which a blocking or an asyncio driver carries out.

A step is answered with what it produced; a HandoffError that it raised is thrown into the generator, which decides what
is next. So requests, answers and retry rules stand once, and know neither threads nor event loops.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import Message

from pd_handoff.errors import HandoffError

T = TypeVar("T")


class Send(NamedTuple):
    """Make one call; `timeout` in seconds is its deadline."""

    method: str
    request: Message
    timeout: float


class Pause(NamedTuple):
    """Wait."""

    seconds: float


Steps: TypeAlias = Generator[Send | Pause, Any, T]


def run(steps: Steps[T], call: Callable[[str, Message, float], Message], sleep: Callable[[float], object]) -> T:
    """Carries out `steps` in this thread."""
    try:
        step = steps.send(None)
        while True:  # ends with the generator
            try:
                answer = call(*step) if type(step) is Send else sleep(step[0])  # type: ignore[arg-type]
            except HandoffError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value


async def arun(
    steps: Steps[T],
    call: Callable[[str, Message, float], Awaitable[Message]],
    sleep: Callable[[float], Awaitable[object]],
) -> T:
    """Carries out `steps` in this task."""
    try:
        step = steps.send(None)
        while True:  # ends with the generator
            try:
                answer = await (call(*step) if type(step) is Send else sleep(step[0]))  # type: ignore[arg-type]
            except HandoffError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value
