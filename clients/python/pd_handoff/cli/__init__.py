"""The `pd-handoff` command: a store's server and its client for people and scripts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_OF_THE_SERVER = ("serve", "plan")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code (see `pd-handoff --help`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments and arguments[0] in _OF_THE_SERVER:
            from pd_handoff.cli import serve  # noqa: PLC0415  # the server may not be installed

            return serve.run(arguments[0], arguments[1:])
        # gRPC takes a while to load, and `serve` sets up its own process before it does.
        from pd_handoff.cli import arguments as parsing  # noqa: PLC0415
        from pd_handoff.cli import commands, usage  # noqa: PLC0415

        usage.check_variables()
        return commands.run(parsing.parse(arguments))
    except BrokenPipeError:
        # The reader of our output left (`| head`): nothing more to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
