"""An error as its type and where it happened. Its text is left out: it may quote what a caller sent."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

_MOST: Final = 40


def frames_of(error: BaseException) -> str:
    """One line a frame, outermost first, then the type; causes before what they caused, at most 8 of them."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain and len(chain) < 8:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n".join(line for one in reversed(chain) for line in _lines(one))


def _lines(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)[-_MOST:]
    places = [f"{_short(frame.filename)}:{frame.lineno} in {frame.name}" for frame in frames]
    return [*places, f"{type(error).__module__}.{type(error).__qualname__}"]


def _short(path: str) -> str:
    return "/".join(Path(path).parts[-3:])
