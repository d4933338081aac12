"""All that watches a store, put together from the settings. What is not asked for costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pd_handoff_server.access.authenticator import Approach, Denied
from pd_handoff_server.config import Settings
from pd_handoff_server.handlers.call import NoteItem, Wrap
from pd_handoff_server.handlers.store import Calls
from pd_handoff_server.lifecycle import Clock, Observer
from pd_handoff_server.store.interface import Store

from .events import CourseLog, EventLog
from .exposition import Sources
from .metrics import CallMetrics, Lives
from .scrape import Scrape
from .trace import following


class TelemetryError(Exception):
    """Something to watch with is missing; the message says what to install."""


class Telemetry:
    """Events always; metrics and spans where they are asked for.

    Attributes:
        events: the log.
        observers: for the lifecycle.
        wraps: for the handlers, the first one innermost.
        note_item: for the items of batches.
        note_refused: for what is refused before it is a call.
    """

    def __init__(self, settings: Settings, clock: Clock, log: Any) -> None:
        """Raises TelemetryError, and AddressError for the metrics' port."""
        self.events = CourseLog(log) if settings.log_level == "debug" else EventLog(log)
        self.observers: Sequence[Observer] = (self.events,)
        self.wraps: Sequence[Wrap] = (following,)
        self.note_item: NoteItem | None = None
        self.note_refused: NoteItem | None = None
        self._sources: Sources | None = None
        self._scrape: Scrape | None = None
        self._spans: Any = None
        if settings.metrics_listen:
            self._sources = Sources(Lives(clock), CallMetrics(), events_held_back=lambda: self.events.held_back)
            self._scrape = Scrape(settings.metrics_listen, self._sources)
            self.observers = (self.events, self._sources.lives)
            self.wraps = (self._sources.calls.wrap, following)
            self.note_item = self._sources.calls.note_item
            self.note_refused = self._sources.calls.note_refused
        if settings.otlp_endpoint:
            self._spans = _spans(settings.otlp_endpoint)
            self.wraps = (*self.wraps, self._spans.wrap)

    @property
    def metrics_address(self) -> str | None:
        """Where the metrics are, with the port that was chosen for 0; None without."""
        return None if self._scrape is None else self._scrape.address

    def denied(self, method: str, approach: Approach, denied: Denied) -> None:
        """A caller was not let in."""
        self.events.denied(method, approach, denied)
        if self._sources is not None:
            self._sources.calls.note_refused(method.rpartition("/")[2], denied.code.name)

    def start(self) -> None:
        """The process lives: let it be scraped."""
        if self._scrape is not None:
            self._scrape.start()

    def serving(self, store: Store, calls: Calls, unread: Callable[[], int]) -> None:
        """The store is ready; `unread` tells how many bytes of answers are not out."""
        if self._sources is not None:
            self._sources.store = store
            self._sources.sessions = lambda: calls.sessions
            self._sources.unread = unread
            self._sources.serving = True

    def draining(self) -> None:
        """The store takes nothing new."""
        if self._sources is not None:
            self._sources.serving = False

    def stop(self) -> None:
        """Let the port go, and send what is left."""
        if self._sources is not None:
            self._sources.store = None
        if self._scrape is not None:
            self._scrape.stop()
        if self._spans is not None:
            self._spans.stop()


def _spans(endpoint: str) -> Any:
    try:
        from .spans import Spans  # noqa: PLC0415 - an extra that may be missing
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise TelemetryError("--otlp-endpoint needs OpenTelemetry: pip install 'pd-handoff[otel]'") from None
    return Spans(endpoint)
