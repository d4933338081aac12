"""`pd-handoff serve` and `plan`: the server's own, when it is installed."""

from __future__ import annotations

import sys


def run(command: str, argv: list[str]) -> int:
    """Hands over to the server package; says what to install when one of its parts is missing."""
    try:
        if command == "serve":
            from pd_handoff_server import process  # noqa: PLC0415  # it may not be installed

            process.prepare()  # before gRPC loads
        from pd_handoff_server import app  # noqa: PLC0415  # it may not be installed
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "pd_handoff":
            raise  # not a missing extra but a broken installation
        print(
            f"pd-handoff: `{command}` needs the server, of which {missing} is not installed here: "
            "pip install 'pd-handoff[server]'",
            file=sys.stderr,
        )
        return 1
    entry = app.serve_main if command == "serve" else app.plan_main
    return entry(argv)
