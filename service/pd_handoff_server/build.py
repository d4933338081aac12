"""The embedded store put together from its parts."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import structlog

from . import config
from .arena.arena import Arena
from .arena.heap import Heap
from .arena.layout import Layout
from .config import Settings
from .lifecycle import Clock, Lifecycle, Observer, Pages, Quotas, TokenMint
from .persistence.file import allocated
from .persistence.persistence import Persistence
from .process.memory import available, check_fits
from .store.embedded import EmbeddedStore
from .store.ticker import Ticker
from .telemetry.frames import frames_of


def build_store(settings: Settings, clock: Clock, observers: Sequence[Observer] = ()) -> tuple[EmbeddedStore, Ticker]:
    """Allocate the arena and join the store's parts, with the timer that it needs.

    Raises ArenaTooLargeError, and with an arena file ArenaFileError.
    """
    layout = Layout(settings.limits())
    policy = settings.policy()
    held = allocated(settings.arena_file) if settings.arena_file else 0
    room = available()
    heap = settings.heap()
    check_fits(layout, settings.slots, None if room is None else room + held, heap)
    kept = None
    if settings.arena_file:
        log = structlog.get_logger()
        kept = Persistence(settings.arena_file, layout, settings.slots, policy, complain=log.error)
    epoch = secrets.token_hex(8) if kept is None else kept.epoch
    pages = Heap(heap) if heap.pages else None
    arena = Arena(settings.slots, layout, heap=pages) if kept is None else kept.arena
    watching = observers if kept is None else (kept.journal, *observers)
    lifecycle = Lifecycle(
        settings.slots,
        policy,
        clock,
        TokenMint(epoch),
        arena,
        watching,
        Quotas(settings.quotas()),
        Pages(heap.pages, heap.page_bytes),
    )
    if kept is not None:
        _adopt(kept, lifecycle, clock, settings.arena_file)
    store = EmbeddedStore(
        arena,
        lifecycle,
        clock,
        epoch=epoch,
        max_wait=config.nanoseconds(settings.max_wait),
        max_waiters=settings.max_waiters,
        max_waiting_bytes=settings.max_waiting_bytes,
    )
    ticker = Ticker(store, clock, _timer_failed)
    store.alarm = store.hand_over = ticker.wake
    if kept is not None:
        store.commit, store.release_memory = kept.journal.commit, kept.close
    return store, ticker


def _timer_failed(error: Exception) -> None:
    structlog.get_logger().error("ticker_failed", exception=frames_of(error))


def _adopt(kept: Persistence, lifecycle: Lifecycle, clock: Clock, path: str) -> None:
    try:
        report = kept.adopt(lifecycle, clock)
    except BaseException:
        kept.close()
        raise
    log = structlog.get_logger()
    if kept.former_mode:
        log.warning(
            "arena_file_permissions_narrowed",
            path=path,
            was=f"{kept.former_mode:04o}",
        )
    journal = kept.journal
    log.info("arena_file", path=path, tombstones=journal.outcomes.kept, producers=journal.producers.kept)
    if report.former_boot:
        log.warning("arena_file_of_earlier_boot", path=path, note="its records are gone; starting empty")
    elif not report.fresh:
        log.info("recovered", path=path, **report.counts())
