"""Wrong usage, told as argparse does, or as JSON where the command line asks for JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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


def parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """Parses. Exits with 2 on wrong usage, after one line or one JSON object on stderr."""
    try:
        return parser.parse_args(argv)
    except _WrongUsageError as wrong:
        if "--json" in argv:
            raise SystemExit(exits.usage(wrong.message, as_json=True)) from None
        argparse.ArgumentParser.error(wrong.parser, wrong.message)
