"""Clients and credentials from the options that all commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeVar

from pd_handoff._transport import bearer, channel
from pd_handoff._transport.channel import tls_credentials
from pd_handoff.cli import exits, reach
from pd_handoff.client import AdminClient, DecodeClient, PrefillClient
from pd_handoff.errors import DeadlineExceeded, HandoffError, NotAStore, StoreUnavailable
from pd_handoff.retries import Retries

ClientT = TypeVar("ClientT", PrefillClient, DecodeClient, AdminClient)


def client(kind: type[ClientT], args: argparse.Namespace, **options: Any) -> ClientT:
    """A client of this kind. Raises OSError for a file, ValueError for a setting that cannot be used."""
    return kind(
        args.target,
        namespace=getattr(args, "namespace", None) or "",
        timeout=args.timeout,
        retries=Retries(total_seconds=args.retry),
        credentials=_credentials(args),
        token=bearer.token_in(args.bearer_file) if args.bearer_file else None,
        insecure_token=args.insecure_token or bearer.says_yes("PD_HANDOFF_INSECURE_TOKEN"),
        options=[("grpc.ssl_target_name_override", args.tls_name)] if args.tls_name else (),
        **options,
    )


def explained(error: HandoffError, args: argparse.Namespace) -> HandoffError:
    """The error, or what is wrong at the other end when something there is reached and speaks otherwise."""
    if not isinstance(error, (StoreUnavailable, DeadlineExceeded, NotAStore)):
        return error
    address = reach.address_of(channel.target_of(args.target))
    if address is None:
        return error
    try:
        opened, _ = reach.connect(address, args.timeout)
    except reach.UnreachableError:
        return error  # nothing is reached: that is what the error says
    try:
        with opened:
            if encrypted(args):
                pair = (args.tls_cert, args.tls_key) if args.tls_cert and args.tls_key else None
                reach.secure(opened, args.tls_name or address.host, args.tls_ca, pair)
            else:
                reach.greet(opened)
    except reach.UnreachableError as found:
        why = found if found.cure else reach.greet_otherwise(address, args.timeout)
        return exits.Mismatch(f"{args.target}: {why}", why.cure)
    except OSError:
        pass
    return error


def encrypted(args: argparse.Namespace) -> bool:
    """Whether the options ask for TLS."""
    return bool(args.tls or args.tls_ca or args.tls_cert or args.tls_key)


def _credentials(args: argparse.Namespace) -> Any:
    if not encrypted(args):
        return None
    if bool(args.tls_cert) != bool(args.tls_key):
        raise ValueError("--tls-cert and --tls-key go together")
    files = {"ca": args.tls_ca, "certificate": args.tls_cert, "key": args.tls_key}
    return tls_credentials(**{name: Path(path).read_bytes() if path else None for name, path in files.items()})
