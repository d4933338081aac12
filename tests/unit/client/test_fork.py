"""A process that forks with an open client, as engines that start workers late do."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support.waits import patient

SCRIPT = """
import os, sys
from pd_handoff import DecodeClient

client = DecodeClient(sys.argv[1], session=sys.argv[2])
assert client.get(1).store_epoch == "e"
child = os.fork()
if not child:
    os._exit(0 if client.get(2).store_epoch == "e" else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert client.get(3).store_epoch == "e"
client.close()
"""


@pytest.mark.parametrize("session", ["never", "always"])
def test_parent_and_child_go_on(session: str, store: Any, server: Any) -> None:
    store.script("Get", pb.GetResponse(store_epoch="e"))
    store.serve_sessions()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    command = [sys.executable, "-c", SCRIPT, server.target, session]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(60), check=False)
    assert done.returncode == 0, done.stderr
    way = "Session.Get" if session == "always" else "Get"
    assert sorted(call.request.key.room for call in store.of(way)) == [1, 2, 3]
    assert len(store.of("Session")) == (2 if session == "always" else 0)


INSIDE = """
import asyncio, os, sys
import pd_handoff
from pd_handoff import Record, Token, aio

target, face, session, way = sys.argv[1:]

def child(handoff):
    for end in (lambda: handoff.put(Record(tokens=[Token(1)])), lambda: handoff.abort(pd_handoff.Failure())):
        try:
            result = end()
            if asyncio.iscoroutine(result):
                result.send(None)
            os._exit(3)
        except RuntimeError as error:
            assert "belongs to process" in str(error), error
    if way == "exit":
        sys.exit(0)
    raise ValueError("the child failed")

def gone():
    # The child has left both blocks. What gRPC and asyncio do at the end of a forked interpreter is not judged here.
    if os.getpid() != me:
        os._exit(0)

def blocking():
    with pd_handoff.PrefillClient(target, session=session) as client, client.prefill(7) as handoff:
        pid = os.fork()
        if not pid:
            child(handoff)
        os.waitpid(pid, 0)
        handoff.put(Record(tokens=[Token(5)]))

async def tasks():
    async with aio.PrefillClient(target, session=session) as client, client.prefill(7) as handoff:
        pid = os.fork()
        if not pid:
            child(handoff)
        os.waitpid(pid, 0)
        await handoff.put(Record(tokens=[Token(5)]))

async def left():
    try:
        await tasks()
    except BaseException:
        gone()
        raise

me = os.getpid()
try:
    blocking() if face == "blocking" else asyncio.run(left())
except BaseException:
    gone()
    raise
assert os.getpid() == me
print("put")
"""


@pytest.mark.parametrize("way", ["exit", "raise"])
@pytest.mark.parametrize("session", ["never", "always"])
@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_a_child_that_leaves_the_block_ends_nothing(face: str, session: str, way: str, store: Any, server: Any) -> None:
    store.script("Reserve", pb.ReserveResponse(token=b"t", lease=Duration(seconds=60)))
    store.script("Put", pb.PutResponse(store_epoch="e"))
    store.script("Abort", pb.AbortResponse(ended=True))
    store.serve_sessions()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    command = [sys.executable, "-c", INSIDE, server.target, face, session, way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(60), check=False)
    assert (done.returncode, done.stdout) == (0, "put\n"), done.stderr
    methods = [call.method.removeprefix("Session.") for call in store.calls]
    assert methods.count("Put") == 1
    assert "Abort" not in methods
