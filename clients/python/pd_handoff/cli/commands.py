"""The commands that talk to a store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pd_handoff.cli import completion, connect, doctor, exits, hello, output, protos, top, watching
from pd_handoff.cli.summary import record_lines
from pd_handoff.client import AdminClient, DecodeClient, PrefillClient
from pd_handoff.errors import HandoffError, invalid_request
from pd_handoff.model import WIDTH_NAMES, Failure, Key, Reservation, Widths
from pd_handoff.record import Record


def run(args: argparse.Namespace) -> int:
    """Carries out one command and returns its exit code."""
    try:
        return _COMMANDS[args.command](args) or exits.OK
    except HandoffError as error:
        return exits.report(connect.explained(error, args), args.json, bool(getattr(args, "wait", None)))
    except (OSError, ValueError) as error:  # a file, a setting
        if isinstance(error, BrokenPipeError):
            raise
        return exits.usage(str(error), args.json)


def _prefill(args: argparse.Namespace) -> PrefillClient:
    return connect.client(
        PrefillClient, args, instance_id=getattr(args, "instance_id", None), epoch=getattr(args, "epoch", None)
    )


def _key(args: argparse.Namespace) -> Key:
    return Key(args.room, args.sample)


def _widths(args: argparse.Namespace) -> Widths | None:
    widths = Widths(**{name: getattr(args, f"width_{name}") for name in WIDTH_NAMES})
    return widths if widths != Widths() else None


def _reservation_options(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "owner": args.owner,
        "widths": _widths(args),
        "lease": args.lease,
        "attempt": args.attempt,
        "expected_readers": args.expected_readers,
        "max_wait": args.wait,
        "request_digest": args.request_digest,
    }


def _held(args: argparse.Namespace) -> Reservation:
    """What a --token stands for."""
    try:
        token = bytes.fromhex(args.token)
    except ValueError:
        token = b""
    if not token:
        raise invalid_request("token", "must be the hex that `pd-handoff reserve` printed")
    return Reservation(_key(args), token, "", getattr(args, "attempt", None) or 0, 0.0, "")


def _shown_key(key: Key) -> list[tuple[str, Any]]:
    return [("namespace", key.namespace or "(empty)"), ("room", key.room), ("sample", key.sample)]


def _capabilities(args: argparse.Namespace) -> None:
    with connect.client(AdminClient, args) as client:
        found = client.capabilities(required=_widths(args))
    if args.json:
        return output.show_json(found)
    shown = output.plain(found)
    for name in ("row_bytes", "arena_bytes", "max_message_bytes"):
        shown[name] = output.size(shown[name])
    for name in ("hidden_state_dtypes", "features"):
        shown[name] = ", ".join(shown[name]) or "-"
    limits = shown.pop("limits")
    units = dict.fromkeys(("lease_default", "lease_min", "lease_max", "max_wait", "retention"), " s")
    units |= dict.fromkeys(("consumed_grace", "tombstone_time"), " s")
    output.show_pairs(
        [
            *((f"max {name}", limit) for name, limit in limits.items()),
            *((name, output.cell(value) + units.get(name, "")) for name, value in shown.items()),
        ]
    )
    return None


def _reserve(args: argparse.Namespace) -> None:
    with _prefill(args) as client:
        held = client.reserve(_key(args), **_reservation_options(args))
    if args.json:
        return output.show_json(held)
    output.show_pairs(
        [
            *_shown_key(held.key),
            ("token", held.token.hex()),
            ("owner", held.owner),
            ("attempt", held.attempt),
            ("lease", f"{output.cell(held.lease)} s"),
            ("store_epoch", held.store_epoch),
        ]
    )
    return None


def _put(args: argparse.Namespace) -> None:
    record = Record.from_json(sys.stdin.buffer.read() if args.record == "-" else Path(args.record).read_bytes())
    with _prefill(args) as client:
        if args.token is not None:
            published = client.put(_held(args), record)
        else:
            published = client.put_once(_key(args), record, **_reservation_options(args))
    if args.json:
        return output.show_json(published)
    output.show_pairs([("published_at", published.published_at), ("store_epoch", published.store_epoch)])
    return None


def _get(args: argparse.Namespace) -> None:
    with connect.client(DecodeClient, args) as client:
        found = client.get(
            _key(args),
            attempt=args.attempt,
            max_wait=args.wait,
            consume=args.consume,
            reader_id=args.reader,
            expected_store_epoch=args.store_epoch,
            request_digest=args.request_digest,
        )
    if args.output == "-":
        return print(found.record.to_json())
    if args.output:
        Path(args.output).write_text(found.record.to_json() + "\n")
    about = {
        "attempt": found.attempt,
        "reserved_at": found.reserved_at,
        "published_at": found.published_at,
        "store_epoch": found.store_epoch,
    }
    if args.json:
        return output.show_json({**about, "record": found.record})
    output.show_pairs([*about.items(), *record_lines(found.proto)])
    return None


def _abort(args: argparse.Namespace) -> None:
    failure = Failure(args.http_status, args.reason, args.message)
    with _prefill(args) as client:
        if args.token is not None:
            ended = client.abort(_held(args), failure)
        else:
            ended = client.abort(_key(args), failure, attempt=args.attempt)
    if args.json:
        output.show_json({"ended": ended})
    else:
        print("ended" if ended else "had ended already")


def _release(args: argparse.Namespace) -> None:
    if args.token is not None:
        with _prefill(args) as prefill:
            prefill.release(_held(args))
    else:
        with connect.client(DecodeClient, args) as decode:
            decode.release(_key(args), reader_id=args.reader)
    if args.json:
        output.show_json({"released": True})
    else:
        print("released")


_COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "capabilities": _capabilities,
    "reserve": _reserve,
    "put": _put,
    "get": _get,
    "abort": _abort,
    "release": _release,
    "list": watching.run,
    "top": top.run,
    "doctor": lambda args: doctor.run(args, _widths(args)),
    "hello": hello.run,
    "protos": protos.run,
    "completion": completion.run,
}
