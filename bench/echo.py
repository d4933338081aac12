"""Servers that do nothing but answer: what a transport costs by itself.

`python -m bench.echo fast|aio ADDRESS PUT GET`: every Put is answered by PUT bytes, every Get by GET bytes, which the
caller makes as large as the store's answers. `fast` is the store's own fast transport, `aio` a plain `grpc.aio` server
as gRPC's documentation has it, without anything of ours. A message on the stream of `fast` is answered as a Put when it
is long, else as a Get, right where it arrives, with nothing of ours between gRPC's C core and the answer; `aio` sends
it back.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent import futures
from types import SimpleNamespace
from typing import Any

from pd_handoff_server.process import runtime

STORE = "pd_handoff.v1.MetadataStore"
_LONG = 512  # bytes, that no request but a Put has


def main() -> None:
    """Serve until the process is ended; prints a line with the address once it listens."""
    kind, address, put, get = sys.argv[1:]
    answers = {"Put": bytes(int(put)), "Get": bytes(int(get))}
    if kind == "fast":
        runtime.prepare()
        _fast(address, answers)
    else:
        asyncio.run(_aio(address, answers))


def _bound(address: str, port: int) -> str:
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def _fast(address: str, answers: dict[str, bytes]) -> None:
    import grpc  # noqa: PLC0415 - after `prepare`
    from pd_handoff_server.handlers.send_budget import Unread  # noqa: PLC0415
    from pd_handoff_server.transport.gate import UNARY  # noqa: PLC0415
    from pd_handoff_server.transport.serving_thread import grpc_internals  # noqa: PLC0415
    from pd_handoff_server.transport.serving_thread.context import Front  # noqa: PLC0415
    from pd_handoff_server.transport.serving_thread.server import routes  # noqa: PLC0415

    def handler(answer: bytes) -> Any:
        return lambda data, call, done: answer

    class Bare(grpc_internals.Tag):
        """A stream of which every message is answered at once."""

        __slots__ = ("_call",)

        def __init__(self, event: Any) -> None:
            self._call = event.call

        def begin(self) -> None:
            grpc_internals.start_watch(self._call, grpc_internals.Step(lambda event: None))
            grpc_internals.start_initial_and_receive(self._call, self)

        def complete(self, event: Any) -> grpc_internals.Served | None:
            message = grpc_internals.received(event)
            if message is None:
                end = grpc_internals.Step(lambda event: self)
                grpc_internals.start_status(self._call, 0, b"", None, end, watched=True, begun=True)
            else:
                answer = answers["Put" if len(message) > _LONG else "Get"]
                grpc_internals.start_send_and_receive(self._call, answer, self)
            return None

    calls = SimpleNamespace(handlers={name: handler(answers.get(name, b"")) for name in UNARY})
    gate: Any = SimpleNamespace(
        guard=None, admit=lambda *_: None, calls=calls, ready_calls=lambda: calls, unread=Unread()
    )
    server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    port = server.add_insecure_port(address)
    answered = {**routes(Front(gate, lambda *_: None)), f"/{STORE}/Session".encode(): Bare}
    grpc_internals.Loop(server, answered, lambda error: print(repr(error), file=sys.stderr)).start()
    print("serving", _bound(address, port), flush=True)
    server.wait_for_termination()


async def _aio(address: str, answers: dict[str, bytes]) -> None:
    import grpc  # noqa: PLC0415

    def handler(answer: bytes) -> Any:
        async def behave(request: bytes, context: Any) -> bytes:
            return answer

        return grpc.unary_unary_rpc_method_handler(behave)

    async def echo(requests: Any, context: Any) -> Any:
        async for request in requests:
            yield request

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    methods = {name: handler(answer) for name, answer in answers.items()}
    methods["Session"] = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(STORE, methods),))
    port = server.add_insecure_port(address)
    await server.start()
    print("serving", _bound(address, port), flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    main()
