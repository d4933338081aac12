"""The store as a program: parts put together, started, drained and ended."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from . import __version__, config
from . import parser as native
from .access.setup import secure
from .access.watched_files import FileError
from .arena.layout import Layout
from .config import ConfigError, Settings
from .handlers.admin import Admin
from .handlers.authorization import authorized
from .handlers.call import Wrap
from .handlers.capabilities import SCHEMA_FINGERPRINT, Describer, max_message_bytes
from .handlers.send_budget import Unread
from .handlers.store import Calls
from .lifecycle import Clock, SystemClock
from .parser import NativeError
from .persistence.errors import ArenaFileError
from .plan import plan_main
from .process import descriptors, runtime
from .process.heap import keep_lean
from .process.memory import ArenaTooLargeError
from .store.interface import Store
from .store.ticker import Ticker
from .telemetry.events import configure
from .telemetry.hub import Telemetry, TelemetryError
from .transport.addresses import AddressError
from .transport.channel_options import channel_arguments
from .transport.choose import TransportError, make_transport
from .transport.gate import Gate
from .transport.ports import Ports
from .transport.serving_thread.selftest import probe

__all__ = ["App", "plan_main", "serve", "serve_main"]

EXIT_OK, EXIT_USAGE, EXIT_FAILED = 0, 2, 1
FEATURES = ("session",)
_LARGEST_MESSAGE = (1 << 31) - 1
_LAST = 1.5  # seconds at most of a grace period that are kept for its end
_CUT = 0.7  # the part of them in which calls are cut off


class App:
    """One store with its server."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        """`clock` is the machine's, unless a test turns its own."""
        self.settings = settings
        self.log = structlog.get_logger()
        self.clock: Clock = SystemClock() if clock is None else clock
        self.telemetry = Telemetry(settings, self.clock, self.log)
        self.events = self.telemetry.events
        self.security = secure(settings, self.events.renewed_file, self.events.doubtful_file, self.telemetry.denied)
        self.gate = Gate(self.security.authorizer, Unread(settings.max_unread_bytes))
        self.max_message = max_message_bytes(Layout(settings.limits()), settings.max_batch)
        ports = Ports(settings.listen, self.security.credentials)
        arguments = channel_arguments(self.max_message, settings.max_connections, settings.max_streams)
        self.server = make_transport(settings.transport, ports, self.gate, arguments, self.events.refused, self.log)
        self.reader = native.load(SCHEMA_FINGERPRINT, settings.native)
        self.store: Store | None = None
        self.ticker: Ticker | None = None

    def _features(self) -> tuple[str, ...]:
        kept = ("arena-file",) if self.settings.arena_file else ()
        states = ("engine_state",) if self.settings.max_engine_state_bytes else ()
        heap = ("attachments",) if self.settings.heap().pages else ()
        return (*FEATURES, *states, *heap, f"transport-{self.server.name}", *kept)

    def _authorisation(self) -> tuple[Wrap, ...]:
        authorizer = self.security.authorizer
        return () if authorizer is None else (authorized(authorizer),)

    def _build(self) -> tuple[Store, Ticker]:
        # Torch takes a second to import; probes get their NOT_SERVING meanwhile.
        from .build import build_store  # noqa: PLC0415

        return build_store(self.settings, self.clock, self.telemetry.observers)

    async def start(self, settle: Callable[[], None] = lambda: None) -> list[str]:
        """Listen, allocate, settle, and be SERVING; returns the addresses. Raises AddressError and others."""
        began = time.monotonic()
        self.telemetry.start()
        addresses = await self.server.start()
        store, ticker = await asyncio.get_running_loop().run_in_executor(None, self._build)
        ticker.start()
        self.store, self.ticker = store, ticker
        describer = Describer(__version__, self.settings.max_batch, self.max_message, self._features())
        unread, wraps = self.gate.unread, (*self._authorisation(), *self.telemetry.wraps)
        calls = Calls(
            store,
            describer,
            self.settings.max_batch,
            wraps,
            self.telemetry.note_item,
            self.events.refused,
            unread,
            self.telemetry.note_refused,
            self.reader,
        )
        admin = Admin(store, contents=self.settings.admin_contents, wraps=(unread.wrap, *wraps))
        self.gate.open(calls, admin)
        self.telemetry.serving(store, calls, lambda: unread.held)
        settle()
        await self.server.ready()
        facts = store.facts()
        why = native.why_not(self.reader)
        if why is not None and self.settings.native != "off":
            problem = f"the reader in C is {why}: a Put takes the store 2 to 3 times as long"
            self.log.warning("parser_fallback", problem=problem)
        self.log.info(
            "serving",
            addresses=addresses,
            slots=facts.slots_total,
            row_bytes=facts.row_bytes,
            arena_bytes=facts.row_bytes * facts.slots_total,
            store_epoch=facts.epoch,
            version=__version__,
            metrics=self.telemetry.metrics_address,
            reader="C" if why is None else "Python",
            seconds=round(time.monotonic() - began, 3),
        )
        return addresses

    async def stop(self) -> None:
        """Drain: tell probes and callers, wake whoever waits, let calls in flight finish, and end."""
        self.log.info("draining", grace=self.settings.grace)
        self.telemetry.draining()
        await self.server.drain()
        if self.store is not None:
            self.store.drain()
        grace, last = parts(self.settings.grace)
        notice = min(self.settings.drain_notice, grace)
        await asyncio.sleep(notice)
        await self.server.stop(grace - notice, last * _CUT)
        if self.ticker is not None:
            self.ticker.stop()
        self.telemetry.stop()
        if self.store is not None:
            self.store.close()
        self.log.info("stopped", events_held_back=self.events.held_back)


def parts(grace: float) -> tuple[float, float]:
    """How long calls in flight may take, and what is kept of a grace period for what comes after, in seconds.

    That is to cut off those that are left, whose callers perhaps do not read, to close the arena, and to exit.
    """
    last = min(_LAST, grace / 4)
    return grace - last, last


def _with_room_for_connections(settings: Settings) -> Settings:
    """With every file descriptor that the system grants, and no more connections than fit into them."""
    limit = descriptors.raise_limit()
    fit = descriptors.fitting(settings.max_connections, len(settings.listen), limit)
    if fit == settings.max_connections:
        return settings
    structlog.get_logger().warning(
        "connections_lowered",
        max_connections=fit,
        wanted=settings.max_connections,
        descriptors=limit,
        problem="the limit of open files is too low for --max-connections; raise it (ulimit -Hn, LimitNOFILE=)",
    )
    return replace(settings, max_connections=fit)


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns an exit code."""
    settings = _with_room_for_connections(settings)
    if settings.transport != "aio":
        await asyncio.to_thread(probe)  # which waits for calls of its own; App asks for the verdict
    try:
        app = App(settings)
    except (AddressError, FileError, NativeError, TelemetryError, TransportError) as error:
        structlog.get_logger().error("refused_to_start", error=str(error))
        return EXIT_FAILED
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    try:
        await app.start(runtime.settle)
    except (AddressError, ArenaFileError, ArenaTooLargeError) as error:
        app.log.error("refused_to_start", error=str(error))
        await app.server.stop(0)
        app.telemetry.stop()
        return EXIT_FAILED
    lean = asyncio.ensure_future(keep_lean())
    await ending.wait()
    lean.cancel()
    await app.stop()
    return EXIT_OK


def serve_main(argv: Sequence[str]) -> int:
    """`pd-handoff serve`."""
    parser = config.Parser(
        prog="pd-handoff serve",
        usage="pd-handoff serve [--SETTING VALUE ...]",
        allow_abbrev=False,
        epilog="Exit codes: 0 drained and stopped; 1 refused to start (the log says why); 2 a bad setting.",
        description="Run the store. Each flag can also be set by the environment variable named with it.",
    )
    config.add_arguments(parser)
    try:
        settings = config.load(vars(parser.parse_args(list(argv))))
        _check_messages(settings)
    except ConfigError as error:
        print(f"pd-handoff serve: {error}", file=sys.stderr)
        return EXIT_USAGE
    configure(settings.log_format, settings.log_level)
    for sentence in config.unknown_variables():
        structlog.get_logger().warning("unknown_variable", problem=sentence)
    return asyncio.run(serve(settings))


def _check_messages(settings: Settings) -> None:
    """Raises ConfigError when the largest legal batch would be a message that gRPC cannot carry."""
    layout = Layout(settings.limits())
    size = max_message_bytes(layout, settings.max_batch)
    if size > _LARGEST_MESSAGE:
        raise ConfigError(
            f"--max-batch {settings.max_batch} records of up to {layout.image_bytes:,} bytes, or one with "
            f"{layout.limits.attachment_bytes:,} bytes of attachments, need messages of {size:,} bytes, and gRPC "
            f"carries at most {_LARGEST_MESSAGE:,}; lower --max-batch, the widths of a row, or --max-attachment-bytes"
        )
