"""Who has which slot."""

from __future__ import annotations

from collections import deque


class Slots:
    """Hands out slots, longest unused first; a slot's generation grows each time it comes back."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.generations = [0] * total
        self._free: deque[int] = deque(range(total))
        self._taken = bytearray(total)
        self.quarantined: set[int] = set()

    @property
    def free(self) -> int:
        """How many could be taken now."""
        return len(self._free)

    def take(self) -> int:
        """A free slot. Raises IndexError when there is none."""
        slot = self._free.popleft()
        self._taken[slot] = 1
        return slot

    def give_back(self, slot: int) -> int:
        """Free a slot and return its new generation. Raises RuntimeError when it was not taken: never two owners."""
        if not self._taken[slot]:
            raise RuntimeError(f"slot {slot} freed twice")
        self._taken[slot] = 0
        self.generations[slot] += 1
        if slot not in self.quarantined:
            self._free.append(slot)
        return self.generations[slot]

    def quarantine(self, slot: int) -> None:
        """Never hand this slot out again; a taken one is withheld when it comes back."""
        if slot in self.quarantined:
            return
        self.quarantined.add(slot)
        if not self._taken[slot]:
            self._free.remove(slot)

    def adopt(self, generations: list[int], taken: set[int]) -> None:
        """Go on from an earlier process: its generations, and the slots that its live hand-offs hold."""
        self.generations = list(generations)
        self._free = deque(slot for slot in range(self.total) if slot not in taken and slot not in self.quarantined)
        self._taken = bytearray(1 if slot in taken else 0 for slot in range(self.total))
