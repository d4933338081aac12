"""`pd-handoff doctor`: what is between this machine and a working store, a line each."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pd_handoff._transport import channel
from pd_handoff.capabilities import Capabilities
from pd_handoff.cli import connect, exits, output, reach, screen
from pd_handoff.client import AdminClient, DecodeClient, PrefillClient
from pd_handoff.errors import Draining, HandoffError, PermissionDenied, Unauthenticated
from pd_handoff.model import Failure, Key, Widths
from pd_handoff.record import Record, Token
from pd_handoff.v1 import admin_pb2, error_reason_pb2, metadata_store_pb2, record_pb2

HELP = "check a store from here, step by step, and hand over one record"
DESCRIPTION = """\
Check everything between this machine and a working store: name, connection, TLS, token, schema, limits, role, clock,
arena file, engine. At the end one record of one token is reserved, put and read in a namespace of its own.
Each check is one line, with what to do about it. Exits with 0 when nothing failed; a warning is no failure."""

NAMESPACE = "doctor"
_ENGINES = ("sglang", "vllm")
_SKEW = 1.0
_SOON = 14.0
_FEW_FREE = 0.1
_TOKEN_ID = 42
_STYLES = {"ok": "green", "warn": "yellow", "FAIL": "red", "skip": "dim", "info": ""}


@dataclass(frozen=True)
class Finding:
    """One line. Levels: ok, warn, FAIL, skip, info.

    Attributes:
        code: the exit code that it stands for, when it failed.
    """

    check: str
    level: str
    text: str
    cure: str = ""
    code: int = exits.OTHER


def add(parser: argparse.ArgumentParser, widths: Callable[[argparse.ArgumentParser, str], None]) -> None:
    """Adds the command's own options."""
    parser.add_argument("address", nargs="?", metavar="TARGET", help="host:port or unix:PATH (default: --target)")
    parser.add_argument("--namespace", default=NAMESPACE, help=f"where the record is handed over (default {NAMESPACE})")
    parser.add_argument("--arena-file", metavar="FILE", help="of the store's, when it runs on this machine")
    parser.add_argument("--no-hand-off", action="store_true", help="look only: hand nothing over")
    widths(parser, "what your records need, compared with the store's limits")


def run(args: argparse.Namespace, needed: Widths | None) -> int:
    """Checks; returns the exit code."""
    args.target = args.address or args.target
    found: list[Finding] = []
    colour = screen.in_colour()
    for finding in check(args, needed):
        found.append(finding)
        if not args.json:
            print(line_of(finding, colour), flush=True)
    failed = [finding for finding in found if finding.level == "FAIL"]
    if args.json:
        output.show_json({"target": args.target, "checks": found, "ok": not failed})
    else:
        warned = sum(finding.level == "warn" for finding in found)
        print(f"{args.target}: " + (f"{len(failed)} failed" if failed else "all well") + f", {warned} warned")
    return failed[0].code if failed else exits.OK


def line_of(finding: Finding, colour: bool) -> str:
    """The line for people."""
    level = f"{finding.level:<5}"
    cure = f"; do: {finding.cure}" if finding.cure else ""
    text = output.cell(finding.text + cure)
    return f"{screen.styled(level, _STYLES[finding.level]) if colour else level} {finding.check:<11} {text}"


def check(args: argparse.Namespace, needed: Widths | None) -> Iterator[Finding]:
    """All checks in order; after one without which the next make no sense, those are skipped."""
    order = ["name", "connection", "tls", "token", "schema", "limits", "slots", "role", "clock", "hand-off"]
    for finding in _checks(args, needed):
        if finding.check in order:
            order.remove(finding.check)
        yield finding
        if finding.level == "FAIL" and finding.check in ("name", "connection", "tls", "token"):
            yield from (Finding(name, "skip", "not looked at") for name in order)
            break
    yield from _engines()


def _checks(args: argparse.Namespace, needed: Widths | None) -> Iterator[Finding]:
    address = reach.address_of(channel.target_of(args.target))
    if address is None:
        yield Finding("name", "skip", f"only gRPC can resolve {args.target}")
    else:
        yield from _reached(args, address)
    with connect.client(AdminClient, args) as client:
        try:
            capabilities = client.capabilities()
        except HandoffError as error:
            yield _credentials_refused(args, error)
            return
        yield Finding("token", "ok", "accepted" if args.bearer_file else "none sent, none asked for")
        yield _schema(capabilities)
        yield from _limits(capabilities, needed)
        yield from _arena(capabilities, args.arena_file)
        observes = _permitted(lambda: client.list_handoffs(namespace=args.namespace, limit=1))
    yield from _probe(args, observes)


def _reached(args: argparse.Namespace, address: reach.Address) -> Iterator[Finding]:
    step = "name"
    try:
        yield Finding(step, "ok", reach.resolve(address))
        step = "connection"
        opened, taken = reach.connect(address, args.timeout)
        with opened:
            yield Finding(step, "ok", f"made in {output.duration(taken)}")
            step = "tls"
            if not connect.encrypted(args):
                yield Finding(step, "ok", reach.greet(opened))
                return
            pair = (args.tls_cert, args.tls_key) if args.tls_cert and args.tls_key else None
            agreed, days = reach.secure(opened, args.tls_name or address.host, args.tls_ca, pair)
    except reach.UnreachableError as error:
        why = error if error.cure else reach.greet_otherwise(address, args.timeout)
        yield Finding(step, "FAIL", str(why), why.cure, exits.UNAVAILABLE)
        return
    if days is not None and days < _SOON:
        yield Finding("tls", "warn", f"{agreed}, valid for {days:.1f} days more", "renew the store's certificate")
    else:
        yield Finding("tls", "ok", agreed)


def _credentials_refused(args: argparse.Namespace, error: HandoffError) -> Finding:
    text, code = f"{error.reason}: {' '.join(error.message.split())}", exits.code_of(error)
    if isinstance(error, (Unauthenticated, PermissionDenied)):
        cure = "give --bearer-file FILE" if not args.bearer_file else "give a token that the store's --token-file lists"
        return Finding("token", "FAIL", text, cure, code)
    if isinstance(error, Draining):
        return Finding("token", "FAIL", text, "repeat this in some seconds: a start takes as long as torch loads", code)
    return Finding("token", "FAIL", text, "look at the store's log; is this the port of a store?", code)


def fingerprint() -> str:
    """The schema of this client, as a store reports its own: 16 hex digits."""
    digest = hashlib.sha256()
    for file in (record_pb2, error_reason_pb2, metadata_store_pb2, admin_pb2):
        digest.update(file.DESCRIPTOR.serialized_pb)
    return digest.hexdigest()[:16]


def _schema(capabilities: Capabilities) -> Finding:
    ours = fingerprint()
    if capabilities.schema_fingerprint == ours:
        return Finding("schema", "ok", f"{ours}, the same on both sides; store {capabilities.server_version}")
    text = f"the store ({capabilities.server_version}) has {capabilities.schema_fingerprint}, this client {ours}"
    return Finding("schema", "warn", text, "upgrade the older side; fields that one side lacks do not cross")


def _limits(capabilities: Capabilities, needed: Widths | None) -> Iterator[Finding]:
    limits = capabilities.limits
    try:
        if needed is not None:
            capabilities.require(needed)
        asked = "what you need fits" if needed is not None else f"top_logprobs {limits.top_logprobs}"
        yield Finding("limits", "ok", f"{asked}, tokens {limits.tokens}, row {output.size(capabilities.row_bytes)}")
    except HandoffError as error:
        yield Finding("limits", "FAIL", error.message, "", exits.code_of(error))
    free, total = capabilities.slots_free, capabilities.slots_total
    text = f"{output.number(free)} of {output.number(total)} free"
    if not free:
        yield Finding("slots", "FAIL", text, "raise --slots, or see what holds them: `pd-handoff top`", exits.FULL)
    elif free < _FEW_FREE * total:
        yield Finding("slots", "warn", text, "raise --slots, or see what holds them: `pd-handoff top`")
    else:
        yield Finding("slots", "ok", text)


def _arena(capabilities: Capabilities, file: str | None) -> Iterator[Finding]:
    if "arena-file" in capabilities.features:
        yield Finding("arena file", "ok", "in use: hand-offs outlive a restart of the store")
    else:
        cure = "serve --arena-file /dev/shm/pd-handoff.arena"
        yield Finding("arena file", "info", "none: a restart of the store loses what is in flight", cure)
    if file is None:
        return
    try:
        size = os.stat(file).st_size
    except OSError as error:
        yield Finding("arena file", "FAIL", f"{file}: {error.strerror}", "name the file of the store's --arena-file")
        return
    if size < capabilities.arena_bytes:
        text = f"{file} has {output.size(size)}, the arena {output.size(capabilities.arena_bytes)}"
        yield Finding("arena file", "FAIL", text, "name the file of this store's --arena-file")
    elif (kind := _file_system(file)) != "tmpfs":
        yield Finding("arena file", "warn", f"{file} lies on {kind or 'a disk'}", "put it in tmpfs, such as /dev/shm")
    else:
        yield Finding("arena file", "ok", f"{file}, {output.size(size)} in tmpfs")


def _file_system(file: str) -> str:
    """The kind of the file system, by the longest mount point that leads to the file."""
    path, best = os.path.realpath(file), ("", "")
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="replace")
    except OSError:
        return ""
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = point, kind
    return best[1]


def _permitted(call: Callable[[], Any]) -> bool:
    try:
        call()
    except PermissionDenied:
        return False
    return True


def _probe(args: argparse.Namespace, observes: bool) -> Iterator[Finding]:
    """Hands one record over, and says what these credentials may do."""
    if args.no_hand_off:
        yield Finding("role", "info", f"{'observer' if observes else 'no observer'}; the rest was not tried")
        yield Finding("hand-off", "skip", "not wanted")
        return
    key, record = Key(secrets.randbits(64)), Record(tokens=[Token(_TOKEN_ID, -0.5)])
    times: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        result = call()
        times[name] = time.monotonic() - began
        return result

    with connect.client(PrefillClient, args) as prefill, connect.client(DecodeClient, args) as decode:
        produces = reads = True
        step, got, before = "Reserve", None, time.time()
        try:
            try:
                held = timed("reserve", lambda: prefill.reserve(key, widths=Widths(tokens=1), lease=10))
                step = "Put"
                timed("put", lambda: prefill.put(held, record))
            except PermissionDenied:
                produces = False
            after, step = time.time(), "Get"
            try:
                got = timed("get", lambda: decode.get(key, max_wait=None))
            except PermissionDenied:
                reads = False
        except HandoffError as error:
            if not produces and step == "Get" and exits.code_of(error) == exits.NOT_THERE:
                yield _role(args, produces, reads, observes)
                yield Finding("hand-off", "skip", "these credentials may read, and nothing was put")
                return
            yield Finding("hand-off", "FAIL", f"{step}: {error.reason}: {error.message}", "", exits.code_of(error))
            return
        finally:
            if produces and not reads:  # nobody will read it
                prefill.abort(key, Failure(500, "DOCTOR", "a check of the store"))
    yield _role(args, produces, reads, observes)
    if got is None:
        yield Finding("hand-off", "skip", f"only {', '.join(times) or 'nothing'} may be done with these credentials")
        return
    yield _clock(before, after, got.reserved_at.timestamp() if got.reserved_at is not None else None)
    shown = ", ".join(f"{name} {output.duration(taken)}" for name, taken in times.items())
    if got.record == record:
        yield Finding("hand-off", "ok", f"{shown}; read back as it was put, in namespace {args.namespace!r}")
    else:
        yield Finding("hand-off", "FAIL", "the record came back changed", "report this with both versions")


def _role(args: argparse.Namespace, produces: bool, reads: bool, observes: bool) -> Finding:
    may = [name for name, yes in (("prefill", produces), ("decode", reads), ("observer", observes)) if yes]
    if not may:
        cure = f"grant a role for namespace {args.namespace!r} in the access file, or give --namespace"
        return Finding("role", "FAIL", f"none in namespace {args.namespace!r}", cure, exits.CREDENTIALS)
    return Finding("role", "ok", f"{', '.join(may)} in namespace {args.namespace!r}")


def _clock(before: float, after: float, reserved: float | None) -> Finding:
    if reserved is None:
        return Finding("clock", "skip", "the store did not say when")
    skew = 0.0 if before <= reserved <= after else min(reserved - before, reserved - after, key=abs)
    if abs(skew) <= _SKEW:
        return Finding("clock", "ok", f"within {output.duration(max(abs(skew), after - before))} of the store's")
    way = "ahead of" if skew > 0 else "behind"
    text = f"the store's is {output.duration(abs(skew))} {way} this machine's; hand-offs do not depend on it, logs do"
    return Finding("clock", "warn", text, "run NTP on both")


def _engines() -> Iterator[Finding]:
    found = []
    for name in _ENGINES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    target = os.environ.get("PD_HANDOFF_TARGET")
    if not found:
        yield Finding("engine", "info", "neither SGLang nor vLLM is installed in this environment")
    elif target:
        yield Finding("engine", "ok", f"{', '.join(found)}; PD_HANDOFF_TARGET is {target}")
    else:
        cure = "set PD_HANDOFF_TARGET where the engine starts"
        yield Finding("engine", "info", f"{', '.join(found)}; PD_HANDOFF_TARGET is not set here", cure)
