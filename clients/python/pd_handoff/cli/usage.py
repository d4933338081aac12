"""Wrong usage, told as argparse does, or as JSON where the command line asks for JSON."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from pd_handoff.cli import exits


class _WrongUsageError(Exception):
    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser
        self.message = message


class Parser(argparse.ArgumentParser):
    """Knows before it is asked for JSON that something is wrong, so it leaves the telling to `parse`."""

    def error(self, message: str) -> NoReturn:
        """Raises what `parse` tells."""
        raise _WrongUsageError(self, message)


_ALIKE = 0.75  # difflib's ratio, of 1
VARIABLES = frozenset(
    {
        *(
            "TARGET",
            "NAMESPACE",
            "BEARER_FILE",
            "INSECURE_TOKEN",
            "GRPC",
            "ROLE",
            "LEASE",
            "TLS_CA",
            "TLS_CERT",
            "TLS_KEY",
        ),
        *("DECODE_WAIT", "EXPECTED_READERS", "ADMISSION", "BOOTSTRAP", "ENGINE_TOP_LOGPROBS", "LIMITS_REFRESH"),
        *("DRAFT_STATE", "HIDDEN_STATES"),
        *("MAX_BODY_BYTES", "MAX_BUFFERED_BYTES", "ROOM_FROM_REQUEST_ID", "TLS_NAME", "SESSION", "TIMEOUT"),
    }
)
"""What follows PD_HANDOFF_ in the variables of this package. Those of a store are the store's to know."""


def meant(name: str, known: Iterable[str]) -> str:
    """`; did you mean NAME?` where one of the known names is like it, else nothing."""
    alike = difflib.get_close_matches(name, sorted(known), n=1, cutoff=_ALIKE)
    return f"; did you mean {alike[0]}?" if alike else ""


def check_variables() -> None:
    """Warns of each PD_HANDOFF_ variable that is nearly, but not quite, one of this package's."""
    for name in sorted(os.environ):
        rest = name.removeprefix("PD_HANDOFF_")
        if rest != name and rest not in VARIABLES:
            alike = difflib.get_close_matches(rest, sorted(VARIABLES), n=1, cutoff=0.85)
            if alike:
                print(f"pd-handoff: {name} has no effect; did you mean PD_HANDOFF_{alike[0]}?", file=sys.stderr)


def _advice(parser: argparse.ArgumentParser, message: str, argv: Sequence[str]) -> str:
    """The message, with what may have been meant, and where all flags are listed."""
    choices = next((action.choices for action in parser._actions if isinstance(action.choices, dict)), {})
    command = next((word for word in argv if word in choices), None)
    unknown = "unrecognized arguments: "
    if message.startswith(unknown):
        flags = [
            flag for one in (parser, choices.get(command)) if one is not None for flag in one._option_string_actions
        ]
        wrong = message.removeprefix(unknown).split()[0].partition("=")[0]
        message += meant(wrong, flags) if wrong.startswith("-") else ""
    elif "invalid choice" in message and choices and command is None:
        wrong = next((word for word in argv if not word.startswith("-")), "")
        message = f"there is no command {wrong!r}" + (meant(wrong, choices) or f"; there are {', '.join(choices)}")
    prog = parser.prog if command is None or parser.prog.endswith(command) else f"{parser.prog} {command}"
    return f"{message} (see `{prog} --help`)"


def parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """Parses. Exits with 2 on wrong usage, after one line or one JSON object on stderr."""
    try:
        return parser.parse_args(argv)
    except _WrongUsageError as wrong:
        text = _advice(wrong.parser, wrong.message, argv)
        raise SystemExit(exits.usage(text, as_json="--json" in argv)) from None
