"""`pd-handoff serve` and `plan`: the server's own, when it is installed."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from importlib.util import find_spec

# Looked for before anything starts: the store loads the heavy ones when its socket listens already.
_PARTS = ("structlog", "grpc_health", "grpc_reflection", "prometheus_client", "numpy", "torch")


def run(command: str, argv: list[str]) -> int:
    """Hands over to the server package; says what to install when one of its parts is missing."""
    try:
        if command == "serve":
            missing = next((part for part in _PARTS if find_spec(part) is None), None)
            if missing is not None:
                raise ModuleNotFoundError(name=missing)
            from pd_handoff_server.process import runtime  # noqa: PLC0415  # it may not be installed

            runtime.prepare()  # before gRPC loads
        from pd_handoff_server import app  # noqa: PLC0415  # it may not be installed

        if command == "serve":
            return app.serve_main(argv)
        if "--json" not in argv:
            return app.plan_main(argv)
        from pd_handoff.cli import exits  # noqa: PLC0415  # `serve` loads no more than it must before it prepares

        return app.plan_main(argv, partial(exits.usage, as_json=True))
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.startswith(("pd_handoff.", "pd_handoff_server.")):
            raise  # not a missing extra but a broken installation
        print(
            f"pd-handoff: `{command}` needs the server, of which {name.partition('.')[0]} is not installed here: "
            "pip install 'pd-handoff[server]'",
            file=sys.stderr,
        )
        return 1


def parser_of(command: str) -> argparse.ArgumentParser | None:
    """The parser of `serve` or `plan`, for completion; None for other commands, and without the server."""
    try:
        if command == "serve":
            from pd_handoff_server import config  # noqa: PLC0415  # it may not be installed

            parser = argparse.ArgumentParser(prog="pd-handoff serve")
            config.add_arguments(parser)
            return parser
        if command == "plan":
            from pd_handoff_server import plan  # noqa: PLC0415  # it may not be installed

            return plan.make_parser()
    except ModuleNotFoundError:
        pass
    return None
