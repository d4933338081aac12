"""The command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from pd_handoff._transport import channel
from pd_handoff._version import __version__
from pd_handoff.cli import completion, doctor, hello, protos, top, usage, watching
from pd_handoff.cli.exits import EXPLAINED
from pd_handoff.model import WIDTH_NAMES

_DESCRIPTION = """\
The metadata hand-off of prefill/decode disaggregated LLM serving.

Run a store with `serve`, size one with `plan`, talk to one with the rest. Reservation tokens are printed and read as
hex; records are JSON files with the field names of the message HandoffRecord (bytes as base64, NaN and infinities as
the strings "NaN", "Infinity", "-Infinity")."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses everything but `serve` and `plan`. Exits with 2 on wrong usage."""
    return usage.parse(parser(), argv)


def parser() -> usage.Parser:
    """The whole command line."""
    parser = usage.Parser(
        prog="pd-handoff",
        description=_DESCRIPTION,
        epilog=EXPLAINED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pd-handoff {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("serve", help="run a store (own --help)", add_help=False)
    hello.add(_command(commands, "hello", hello.HELP, hello.DESCRIPTION))
    _capabilities(_command(commands, "capabilities", "show what a store takes"))
    _reserve(_command(commands, "reserve", "claim a slot before the prefill; the same --owner again renews the lease"))
    _put(_command(commands, "put", "publish a record, under a reservation's --token or in one go"))
    _get(_command(commands, "get", "read a record, waiting for it if asked"))
    _abort(_command(commands, "abort", "end a hand-off for everyone"))
    _release(_command(commands, "release", "give back a reservation, or what a reader no longer needs"))
    _list(_command(commands, "list", "list what a store knows, once or with --watch again and again"))
    top.add(_command(commands, "top", top.HELP, top.DESCRIPTION))
    doctor.add(_command(commands, "doctor", doctor.HELP, doctor.DESCRIPTION), _widths)
    protos.add(_command(commands, "protos", protos.HELP, local=True))
    completion.add(_command(commands, "completion", completion.HELP, completion.DESCRIPTION, local=True))
    commands.add_parser("plan", help="compute row and arena bytes before running a store (own --help)", add_help=False)
    return parser


def _command(
    commands: argparse._SubParsersAction[usage.Parser],
    name: str,
    text: str,
    description: str | None = None,
    *,
    local: bool = False,
) -> argparse.ArgumentParser:
    """A command's parser; with the options of a store unless it is `local`."""
    parser = commands.add_parser(
        name,
        help=text,
        description=description or text[0].upper() + text[1:] + ".",
        epilog=EXPLAINED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="JSON on stdout; errors as JSON on stderr")
    if local:
        return parser
    store = parser.add_argument_group("store")
    store.add_argument(
        "--target",
        default=os.environ.get("PD_HANDOFF_TARGET") or channel.DEFAULT_TARGET,
        help=f"host:port or unix:PATH (PD_HANDOFF_TARGET; default {channel.DEFAULT_TARGET})",
    )
    store.add_argument(
        "--timeout", type=float, default=5.0, metavar="SECONDS", help="for the call, on top of its --wait (default 5)"
    )
    store.add_argument(
        "--retry", type=float, default=0.0, metavar="SECONDS", help="how long the store may be away (default 0)"
    )
    store.add_argument(
        "--bearer-file",
        metavar="FILE",
        default=os.environ.get("PD_HANDOFF_BEARER_FILE") or None,
        help="one bearer token, this caller's (PD_HANDOFF_BEARER_FILE)",
    )
    store.add_argument(
        "--insecure-token",
        action="store_true",
        help="let it go in plaintext beyond loopback and Unix sockets, too (PD_HANDOFF_INSECURE_TOKEN=yes)",
    )
    store.add_argument("--tls", action="store_true", help="TLS with the machine's authorities")
    store.add_argument("--tls-ca", metavar="FILE", help="TLS; PEM of the authority that signed the store's certificate")
    store.add_argument("--tls-cert", metavar="FILE", help="mutual TLS; PEM of this caller's certificate")
    store.add_argument("--tls-key", metavar="FILE", help="mutual TLS; PEM of its key")
    store.add_argument(
        "--tls-name", metavar="NAME", help="the name in the store's certificate, where it is not the host"
    )
    return parser


def room(text: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 2**64 - 1, not {text!r}")
    return number


def sample(text: str) -> int:
    if not (text.isdecimal() and int(text) < 1 << 32):
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 2**32 - 1, not {text!r}")
    return int(text)


def _key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("room", type=room, metavar="ROOM", help="the request's room, 0 to 2**64 - 1")
    parser.add_argument("--sample", type=sample, default=0, metavar="N", help="which of n parallel samples (default 0)")
    _namespace(parser)


def _namespace(parser: argparse.ArgumentParser, otherwise: str | None = "") -> None:
    parser.add_argument(
        "--namespace",
        default=os.environ.get("PD_HANDOFF_NAMESPACE", otherwise),
        help="which of several models or deployments (PD_HANDOFF_NAMESPACE; "
        + ("default: the empty one)" if otherwise == "" else "default: all)"),
    )


def _widths(parser: argparse.ArgumentParser, title: str) -> None:
    group = parser.add_argument_group(title)
    for name in WIDTH_NAMES:
        group.add_argument(
            "--" + name.replace("_", "-"),
            dest=f"width_{name}",
            type=int,
            default=0,
            metavar="N",
            help=argparse.SUPPRESS,
        )
    group.description = " ".join(f"[--{name.replace('_', '-')} N]" for name in WIDTH_NAMES)


def digest(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if not 1 <= len(value) <= 32:
        raise argparse.ArgumentTypeError(f"must be 1 to 32 bytes as hex, not {text!r}")
    return value


def _digest(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--request-digest", type=digest, metavar="HEX", help=text)


def _reservation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--owner", help="idempotency key of the reservation (default: made up, and printed)")
    parser.add_argument(
        "--lease", type=float, metavar="SECONDS", help="how long to hold the slot (default: the store's)"
    )
    parser.add_argument(
        "--attempt", type=int, default=0, metavar="N", help="0 is the first prefill; a higher one fences it"
    )
    parser.add_argument("--expected-readers", type=int, default=1, metavar="N", help="distinct readers (default 1)")
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="for a free slot (default: not at all)")
    parser.add_argument("--instance-id", help="names the prefill process across its restarts")
    parser.add_argument("--epoch", type=int, help="grows at each start of that process")
    _digest(parser, "of the request; a get that states another one is refused")
    _widths(parser, "what the record will need, refused at once when it cannot fit")


def _capabilities(parser: argparse.ArgumentParser) -> None:
    _widths(parser, "widths to check against the store's limits")


def _reserve(parser: argparse.ArgumentParser) -> None:
    _key(parser)
    _reservation(parser)


def _put(parser: argparse.ArgumentParser) -> None:
    _key(parser)
    parser.add_argument("--record", required=True, metavar="FILE", help="JSON of the record; - is stdin")
    parser.add_argument("--token", metavar="HEX", help="from reserve; without it, reserves and publishes in one call")
    _reservation(parser)


def _get(parser: argparse.ArgumentParser) -> None:
    _key(parser)
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="for the record (default: not at all)")
    parser.add_argument(
        "--attempt", type=int, default=0, metavar="N", help="the lowest attempt that will do (default 0)"
    )
    parser.add_argument("--consume", action="store_true", help="count as this reader's consumption")
    parser.add_argument("--reader", metavar="ID", help="who reads (default: made up)")
    parser.add_argument("--store-epoch", metavar="EPOCH", help="refuse if the store came back empty since")
    _digest(parser, "of the request; refuse a record that was reserved with another one")
    parser.add_argument("--output", metavar="FILE", help="write the record's JSON there; - is stdout, and nothing else")


def _abort(parser: argparse.ArgumentParser) -> None:
    _key(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--token", metavar="HEX", help="from reserve")
    which.add_argument("--attempt", type=int, metavar="N", help="which attempt (default: whatever is live)")
    parser.add_argument("--http-status", type=int, default=500, metavar="N", help="for the user (default 500)")
    parser.add_argument("--reason", default="ABORTED", help="UPPER_SNAKE, for programs (default ABORTED)")
    parser.add_argument("--message", default="", help="for people")


def _release(parser: argparse.ArgumentParser) -> None:
    _key(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--token", metavar="HEX", help="from reserve")
    which.add_argument("--reader", metavar="ID", help="the reader that needs no more")


def _list(parser: argparse.ArgumentParser) -> None:
    _namespace(parser, otherwise=None)
    watching.add(parser)
