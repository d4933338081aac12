"""The embedded store put together from its parts."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from . import config
from .arena.arena import Arena
from .arena.layout import Layout
from .config import Settings
from .lifecycle import Clock, Lifecycle, Observer, TokenMint
from .memory import available, check_fits
from .store.embedded import EmbeddedStore
from .store.ticker import Ticker


def build_store(settings: Settings, clock: Clock, observers: Sequence[Observer] = ()) -> tuple[EmbeddedStore, Ticker]:
    """Allocate the arena and join the store's parts, with the timer that it needs. Raises ArenaTooLargeError."""
    layout = Layout(settings.limits())
    check_fits(layout, settings.slots, available())
    epoch = secrets.token_hex(8)
    arena = Arena(settings.slots, layout)
    lifecycle = Lifecycle(settings.slots, settings.policy(), clock, TokenMint(epoch), arena, observers)
    store = EmbeddedStore(
        arena,
        lifecycle,
        clock,
        epoch=epoch,
        max_wait=config.nanoseconds(settings.max_wait),
        max_waiters=settings.max_waiters,
    )
    ticker = Ticker(store, clock)
    store.alarm = ticker.wake
    return store, ticker
