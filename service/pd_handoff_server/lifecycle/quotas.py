"""How many slots a namespace may hold, where that is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from .admission import Plan
from .model import Handoff, Spec, State


class Quotas:
    """Slots held by namespace, of the namespaces that have a limit.

    Hand-offs that are CONSUMED do not count: whoever needs their slots can have them.

    Attributes:
        limits: by namespace.
        held: by namespace; only of those with a limit.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = dict(limits)
        self.held = dict.fromkeys(self.limits, 0)

    def take(self, namespace: str) -> None:
        """A hand-off took a slot."""
        if namespace in self.held:
            self.held[namespace] += 1

    def give(self, namespace: str) -> None:
        """A hand-off gave its slot back, or was consumed."""
        if namespace in self.held:
            self.held[namespace] -= 1

    def has_room(self, namespace: str, wanted: int = 1) -> bool:
        """Whether so many more slots would be within the limit."""
        limit = self.limits.get(namespace)
        return limit is None or self.held[namespace] + wanted <= limit

    def of(self, specs: Iterable[Spec]) -> tuple[str, ...]:
        """The namespaces of these that have a limit, each once."""
        return tuple(dict.fromkeys(spec.key[0] for spec in specs if spec.key[0] in self.limits))

    def hopeless(self, specs: Iterable[Spec]) -> tuple[str, int] | None:
        """The namespace whose limit these exceed by themselves, however long one waits, and how many they are of it."""
        wanted = Counter(spec.key[0] for spec in specs)
        over = ((name, number) for name, number in wanted.items() if number > self.limits.get(name, number))
        return next(over, None)

    def exceeded(self, plans: Sequence[Plan], outdated: Callable[[Spec], Iterable[Handoff]]) -> str | None:
        """The namespace that these together would take over its limit; `outdated` are those that a Spec ends."""
        wanted: dict[str, int] = {}
        freed: dict[str, set[int]] = {}
        for plan in plans:
            if plan.kept is not None:
                continue
            namespace = plan.spec.key[0]
            wanted[namespace] = wanted.get(namespace, 0) + 1
            given = freed.setdefault(namespace, set())
            given.update(handoff.slot for handoff in outdated(plan.spec))
            if plan.replaces is not None and plan.replaces.state is not State.CONSUMED:
                given.add(plan.replaces.slot)
        for namespace, number in wanted.items():
            if not self.has_room(namespace, number - len(freed[namespace])):
                return namespace
        return None
