"""Counts the house: packages, modules, arrows between rooms, and what a Put and a Get pass in the store.

    python tools/house.py [--tree DIRECTORY]

DIRECTORY is a checkout with its extension built or not; the default is this one. The hops are counted by running the
store of that tree in a process, with Python's profiler on, and sending one Put and one Get to it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

PACKAGES = {"pd_handoff": "clients/python", "pd_handoff_server": "service"}

TRACE = """
import asyncio, json, sys, threading
import grpc
from pd_handoff.v1 import metadata_store_pb2 as pb, metadata_store_pb2_grpc as rpc

calls = []
on = False

def profile(frame, event, argument):
    if on and event == "call" and "pd_handoff_server" in frame.f_code.co_filename:
        calls.append((threading.get_ident(), frame.f_code.co_filename, frame.f_code.co_qualname))

threading.setprofile(profile)
import importlib
try:
    runtime = importlib.import_module("pd_handoff_server.process.runtime")
except ModuleNotFoundError:
    runtime = importlib.import_module("pd_handoff_server.process")
runtime.prepare()
from pd_handoff_server import app, config
path = sys.argv[1]

def count(run):
    global on
    run(1), run(2)
    calls.clear()
    on = True
    run(3)
    on = False
    thread = max({one[0] for one in calls}, key=[one[0] for one in calls].count)
    mine = [one for one in calls if one[0] == thread]
    files = [one[1] for one in mine]
    return {"functions": len(mine), "files": len(set(files)),
            "changes of file": sum(a != b for a, b in zip(files, files[1:]))}

async def main():
    settings = config.load({"listen": ["unix:" + path], "slots": 64})
    store = app.App(settings)
    await store.start()
    def client():
        with grpc.insecure_channel("unix:" + path) as channel:
            stub = rpc.MetadataStoreStub(channel)
            def put(room):
                request = pb.PutRequest(reserve=pb.ReserveRequest(owner="o"))
                request.key.room = room
                request.record.tokens.add().token_id = 1
                stub.Put(request, timeout=10)
            def get(room):
                request = pb.GetRequest()
                request.key.room = room
                stub.Get(request, timeout=10)
            def token_put(room):
                reserve = pb.ReserveRequest(owner="o")
                reserve.key.room = room + 10
                token = stub.Reserve(reserve, timeout=10).token
                request = pb.PutRequest(token=token)
                request.key.room = room + 10
                request.record.tokens.add().token_id = 1
                global on
                was, on = on, on
                calls.clear()
                stub.Put(request, timeout=10)
            return {"Put": count(token_put), "Get": count(lambda room: get(room + 10))}
    result = await asyncio.get_running_loop().run_in_executor(None, client)
    print(json.dumps({"transport": store.server.name, **result}), flush=True)
    await store.stop()

asyncio.run(main())
"""


def modules(tree: Path) -> dict[str, Path]:
    """Hand-written modules by dotted name."""
    found = {}
    for package, root in PACKAGES.items():
        for path in sorted((tree / root / package).rglob("*.py")):
            if "_pb2" not in path.name:
                found[".".join(path.relative_to(tree / root).with_suffix("").parts)] = path
    return found


def room(module: str) -> str:
    """The package a module lies in; a module at the top is a room of its own."""
    parts = module.removesuffix(".__init__").split(".")
    return ".".join(parts[:-1]) if len(parts) > 2 else module.removesuffix(".__init__")


def arrows(found: dict[str, Path]) -> dict[str, set[str]]:
    """Rooms that each room imports from."""
    names = {name.removesuffix(".__init__") for name in found}
    result: dict[str, set[str]] = defaultdict(set)
    for name, path in found.items():
        parent = name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                up = parent[: len(parent) - node.level + 1] if node.level else []
                base = ".".join([*up, *([node.module] if node.module else [])])
                targets = [f"{base}.{one.name}" if f"{base}.{one.name}" in names else base for one in node.names]
            elif isinstance(node, ast.Import):
                targets = [one.name for one in node.names]
            else:
                continue
            for target in targets:
                if target.split(".")[0] in PACKAGES and room(target) != room(name):
                    result[room(name)].add(room(target))
    return result


def hops(tree: Path) -> dict[str, object]:
    """Functions, files and changes of file of a Put and a Get in the store."""
    path = f"/tmp/house-{os.getpid()}.sock"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / root) for root in PACKAGES.values())}
    done = subprocess.run(
        [sys.executable, "-c", TRACE, path], env=env, cwd=tree, capture_output=True, text=True, timeout=120, check=True
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith('{"transport"'))
    answer: dict[str, object] = json.loads(line)
    return answer


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1])
    tree = parser.parse_args().tree.resolve()
    found = modules(tree)
    pairs = arrows(found)
    for package in PACKAGES:
        own = {name: path for name, path in found.items() if name.split(".")[0] == package}
        lines = sum(len(path.read_text().splitlines()) for path in own.values())
        inits = sum(name.endswith("__init__") for name in own)
        count = sum(len(to) for start, to in pairs.items() if start.split(".")[0] == package)
        print(f"{package}: {inits} packages, {len(own) - inits} modules, {count} arrows, {lines:,} lines")
    for name, value in hops(tree).items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
