"""`pd-handoff hello`: a store, one Put and one Get, in seconds and without a model."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pd_handoff.cli import connect, output
from pd_handoff.client import DecodeClient, PrefillClient
from pd_handoff.errors import HandoffError, TopLogprobsOverflow
from pd_handoff.model import Widths
from pd_handoff.record import Logprobs, Record, Token

HELP = "see one hand-off: start a store, put a record, get it back"
DESCRIPTION = """\
See one hand-off, without a model. Starts a store of its own on a Unix socket and stops it at the end, or uses the store
of --target."""

_ROOM = 7
_START_SECONDS = 120.0
_NEXT = """\

Next:
  pd-handoff serve              run a store on 127.0.0.1:50071
  pd-handoff doctor             check it from any machine
  pd-handoff top                watch it
  pd-handoff plan --help        size it"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the command's own options."""
    parser.set_defaults(target=None)


def run(args: argparse.Namespace) -> None:
    """Shows it. Raises HandoffError; OSError when the store does not start."""
    with contextlib.ExitStack() as stack:
        if args.target is None:
            began = time.monotonic()
            args.target = stack.enter_context(_store(args))
            _tell("store", f"started at {args.target} in {output.duration(time.monotonic() - began)}")
        prefill = stack.enter_context(connect.client(PrefillClient, args))
        decode = stack.enter_context(connect.client(DecodeClient, args))
        hand_over(prefill, decode)
    print(_NEXT)


def hand_over(prefill: PrefillClient, decode: DecodeClient) -> None:
    """One hand-off and one refusal, told step by step."""
    capabilities = prefill.capabilities()
    slots, row = output.number(capabilities.slots_total), output.number(capabilities.row_bytes)
    _tell(
        "store",
        f"has {slots} slots of {row} bytes, and takes {capabilities.limits.top_logprobs} top logprobs per token",
    )
    with prefill.prefill(_ROOM) as handoff:
        _tell("prefill", f"reserved room {_ROOM}; now it would compute the prompt")
        got: list[tuple[Record, float]] = []

        def wait() -> None:
            record = decode.get(_ROOM, max_wait=30).record
            got.append((record, time.monotonic()))

        waiting = threading.Thread(target=wait)
        waiting.start()
        _tell("decode", f"waits for room {_ROOM}")
        put = time.monotonic()
        handoff.put(Record(tokens=[Token(42, -0.5, top_logprobs=Logprobs([-0.5, -1.25], [42, 7]))]))
        _tell("prefill", "put the first token: 42, logprob -0.5, 2 top logprobs")
    waiting.join()
    if not got:
        raise OSError("the record did not arrive")
    record, at = got[0]
    token = record.tokens[0]
    values = len(token.top_logprobs.to_proto().values) if token.top_logprobs is not None else 0
    taken = output.duration(at - put)
    _tell(
        "decode",
        f"got token {token.token_id}, logprob {token.logprob}, {values} top logprobs, {taken} after the put began",
    )
    too_many = capabilities.limits.top_logprobs + 1
    try:
        prefill.reserve(_ROOM + 1, widths=Widths(top_logprobs=too_many))
    except TopLogprobsOverflow as refused:
        _tell("prefill", f"asked for {too_many} top logprobs: {refused.reason}, before anything was computed")


@contextlib.contextmanager
def _store(args: argparse.Namespace) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pd-handoff-") as directory:
        target, log = f"unix:{directory}/store", Path(directory, "log")
        command = [sys.executable, "-m", "pd_handoff.cli", "serve", "--listen", target, "--slots", "16"]
        with log.open("wb") as output_file:
            process = subprocess.Popen(command, stdout=output_file, stderr=output_file)  # noqa: S603  # our own command
        try:
            _wait(args, target, process)
            yield target
        except OSError:
            print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait(20)


def _wait(args: argparse.Namespace, target: str, process: subprocess.Popen[bytes]) -> None:
    asked = argparse.Namespace(**{**vars(args), "target": target})
    deadline = time.monotonic() + _START_SECONDS
    with connect.client(PrefillClient, asked) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.capabilities()
                return
            except HandoffError:
                time.sleep(0.05)
    raise OSError("the store did not start; its log is above")


def _tell(who: str, text: str) -> None:
    print(f"{who:<8} {text}", flush=True)
