"""A process that forks with an open client, as engines that start workers late do."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb

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
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    way = "Session.Get" if session == "always" else "Get"
    assert sorted(call.request.key.room for call in store.of(way)) == [1, 2, 3]
    assert len(store.of("Session")) == (2 if session == "always" else 0)
