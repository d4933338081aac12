"""The store as a program: parts put together, started, drained and ended."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Callable, Sequence

import structlog

from . import __version__, config, native, process
from .arena.layout import Layout
from .config import ConfigError, Settings
from .heap import keep_lean
from .lifecycle import Clock, SystemClock
from .memory import ArenaTooLargeError
from .native import NativeError
from .persistence.errors import ArenaFileError
from .plan import plan_main
from .rpc.admin import Admin
from .rpc.calls import Calls
from .rpc.capabilities import SCHEMA_FINGERPRINT, Describer, max_message_bytes
from .rpc.files import FileError
from .rpc.gate import Gate
from .rpc.ports import Ports
from .rpc.settings import channel_arguments
from .rpc.sockets import AddressError
from .rpc.transport import TransportError, make_transport
from .rpc.unread import Unread
from .security import secure
from .store.interface import Store
from .store.ticker import Ticker
from .telemetry.events import configure
from .telemetry.hub import Telemetry, TelemetryError

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
        return (*FEATURES, f"transport-{self.server.name}")

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
        unread, wraps = self.gate.unread, (*self.security.wraps, *self.telemetry.wraps)
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
            self.log.warning("python reads", problem=problem)
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
        self.log.info("stopped")


def parts(grace: float) -> tuple[float, float]:
    """How long calls in flight may take, and what is kept of a grace period for what comes after, in seconds.

    That is to cut off those that are left, whose callers perhaps do not read, to close the arena, and to exit.
    """
    last = min(_LAST, grace / 4)
    return grace - last, last


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns an exit code."""
    try:
        app = App(settings)
    except (AddressError, FileError, NativeError, TelemetryError, TransportError) as error:
        structlog.get_logger().error("refused to start", error=str(error))
        return EXIT_FAILED
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    try:
        await app.start(process.settle)
    except (AddressError, ArenaFileError, ArenaTooLargeError) as error:
        app.log.error("refused to start", error=str(error))
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
    parser = argparse.ArgumentParser(
        prog="pd-handoff serve",
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
    return asyncio.run(serve(settings))


def _check_messages(settings: Settings) -> None:
    """Raises ConfigError when the largest legal batch would be a message that gRPC cannot carry."""
    layout = Layout(settings.limits())
    size = max_message_bytes(layout, settings.max_batch)
    if size > _LARGEST_MESSAGE:
        raise ConfigError(
            f"--max-batch {settings.max_batch} records of up to {layout.image_bytes:,} bytes need messages of "
            f"{size:,} bytes, and gRPC carries at most {_LARGEST_MESSAGE:,}; lower --max-batch, or the widths of a row"
        )
