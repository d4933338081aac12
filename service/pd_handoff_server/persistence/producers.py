"""Producers' epochs in the file: a log in one of two halves; when it is full, what still counts moves to the other."""

from __future__ import annotations

from collections import OrderedDict

from pd_handoff_server.lifecycle.fair_order import FairOrder

from . import codec
from .codec import Producer
from .errors import DamageError
from .layout import Region
from .redo import Write

Instance = tuple[str, str]
_PIECE = 4096  # bytes of a write: all that are forgotten at one moment may be too many for the redo region


def _namespace(instance: Instance) -> str:
    return instance[0]


class ProducerLog:
    """The highest epoch of each instance, in the order in which they were last raised.

    Attributes:
        half, used: which half is in use, and the bytes used in it.
    """

    def __init__(self, memory: memoryview, region: Region, capacity: int) -> None:
        self._memory = memory
        self._offset = region.offset
        self._room = region.size // 2
        self._capacity = capacity
        self.half = self.used = 0
        self._epochs: OrderedDict[Instance, int] = OrderedDict()
        self._news: list[bytes] = []

    def raise_epoch(self, namespace: str, instance_id: str, epoch: int) -> None:
        """Note a higher epoch, for the next commit."""
        self._raise((namespace, instance_id), epoch)
        self._news.append(codec.pack_producer(namespace, instance_id, epoch))

    def _raise(self, instance: Instance, epoch: int) -> None:
        self._epochs[instance] = epoch
        self._epochs.move_to_end(instance)
        while len(self._epochs) > self._capacity:
            self._epochs.popitem(last=False)

    def forget(self, namespace: str, instance_id: str) -> None:
        """Note that an instance is no longer remembered, for the next commit."""
        if self._epochs.pop((namespace, instance_id), None) is not None:
            self._news.append(codec.pack_producer(namespace, instance_id, None))

    def commit(self) -> list[Write]:
        """What makes the notes last, in pieces; `half` and `used` are to be kept with it."""
        if not self._news:
            return []
        data = b"".join(self._news)
        self._news.clear()
        if self.used + len(data) > self._room:
            self._move()
            return []
        at = self._offset + self.half * self._room + self.used
        self.used += len(data)
        return [(at + start, data[start : start + _PIECE]) for start in range(0, len(data), _PIECE)]

    def _move(self) -> None:
        """Write what counts to the idle half, which nothing refers to until the control block does.

        When they take more than three quarters of a half, the namespace that has most loses those raised longest ago:
        so the next move is far off.
        """
        kept: FairOrder[Instance] = FairOrder(_namespace)
        entries: dict[Instance, bytes] = {}
        for instance, epoch in self._epochs.items():
            entries[instance] = codec.pack_producer(*instance, epoch)
            kept.add(instance)
        size = sum(map(len, entries.values()))
        while size > self._room * 3 // 4:
            surplus = kept.surplus()
            kept.remove(surplus)
            size -= len(entries[surplus])
        self.half = 1 - self.half
        start = self._offset + self.half * self._room
        self._memory[start : start + size] = b"".join(entries[instance] for instance in kept)
        self.used = size

    @property
    def kept(self) -> int:
        """How many instances have room, however long their names are."""
        return min(self._capacity, self._room * 3 // 4 // codec.PRODUCER_MOST)

    def load(self, half: int, used: int) -> list[Producer]:
        """Read what a former process left; returns it, raised longest ago first. Raises DamageError."""
        if half not in (0, 1) or used > self._room:
            raise DamageError("the producers' epochs")
        self.half, self.used = half, used
        start = self._offset + half * self._room
        log = self._memory[start : start + used]
        at = 0
        while at < used:
            size, instance, epoch = codec.unpack_producer(log[at:])
            if epoch is None:
                self._epochs.pop(instance, None)
            else:
                self._raise(instance, epoch)
            at += size
        return list(self._epochs.items())
