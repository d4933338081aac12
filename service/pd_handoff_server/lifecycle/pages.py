"""How much of the heap hand-offs hold, in pages. Which pages these are is the business of the heap itself."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from .model import Handoff

HEAP_LINE: Final = "*heap"
"""The line of those that wait for pages, among those of namespaces; no namespace has such a name."""


class Pages:
    """Pages held by hand-offs: declared at Reserve, or taken at Put.

    Those of CONSUMED hand-offs are lent: whoever needs them can have them, oldest first.

    Attributes:
        total: how many there are.
        page_bytes: bytes of each.
        free: how many nobody holds.
        lent: how many consumed hand-offs hold.
        consumed: consumed hand-offs with pages by slot, oldest first.
    """

    def __init__(self, total: int = 0, page_bytes: int = 4096) -> None:
        self.total = total
        self.page_bytes = page_bytes
        self.free = total
        self.lent = 0
        self.consumed: OrderedDict[int, Handoff] = OrderedDict()

    @property
    def available(self) -> int:
        """How many a Reserve or a Put could have."""
        return self.free + self.lent

    @property
    def in_use(self) -> int:
        """How many nobody else could have."""
        return self.total - self.available

    def take(self, number: int) -> None:
        """A hand-off holds so many more. Raises RuntimeError when there are fewer: never two owners."""
        if number > self.free:
            raise RuntimeError(f"{number} pages are wanted and {self.free} are free")
        self.free -= number

    def give(self, number: int) -> None:
        """A hand-off holds so many fewer. Raises RuntimeError when it did not hold them."""
        if self.free + number > self.total:
            raise RuntimeError(f"{number} pages freed twice")
        self.free += number

    def lend(self, handoff: Handoff) -> None:
        """A hand-off that holds some was consumed."""
        self.consumed[handoff.slot] = handoff
        self.lent += handoff.pages

    def end(self, handoff: Handoff) -> None:
        """A hand-off that holds some has ended."""
        if self.consumed.pop(handoff.slot, None) is not None:
            self.lent -= handoff.pages
        self.give(handoff.pages)
        handoff.pages = 0
