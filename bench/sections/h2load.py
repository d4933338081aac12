"""One call over and over, many in flight, by a load generator that everybody knows.

h2load sends the same bytes each time. So each Get is one that does not consume, and each Put but the first is the
repetition of one that was answered: the store compares it with the row, bit by bit, and answers OK. What a Put of
another record costs is in the section of bench/http2.py, which sends each its own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import http2, records
from bench.scene import Scene
from bench.sections.load import STORE, SUBJECTS
from bench.servers import Process

SECTIONS = {
    "Put": "h2load -c1 -m64, one Put of 1.5 KB repeated (the store compares with its row, answers OK), Unix socket",
    "Get": "h2load -c1 -m64, one Get of 1.5 KB repeated, Unix socket",
}
CPP = "echo gRPC C++"


def run(scene: Scene) -> None:
    """In turns between all subjects."""
    if shutil.which("h2load") is None:
        scene.report.lacks("h2load (apt nghttp2-client; run tools/bench-peers.sh)")
        return
    subjects = {name: scene.server(name) for name in SUBJECTS}
    cpp = scene.grpc_cpp()
    if cpp is not None:
        subjects[CPP] = cpp
    for _ in range(scene.amount.rounds):
        for method in SECTIONS:
            for name, process in subjects.items():
                _round(scene, method, name, process)


def _round(scene: Scene, method: str, subject: str, process: Process) -> None:
    """So many calls of one message, to one room."""
    room = [scene.rooms()]
    token = bytes(32)
    if process.told:
        token = pb.ReserveResponse.FromString(_asked(process, "Reserve", records.reserves(room)[0])).token
    put = records.puts(room, [token], records.record(records.SMALL))[0]
    _asked(process, "Put", put)
    message = put if method == "Put" else records.gets(room, consume=False)[0]
    size = len(_asked(process, method, message))
    body = scene.directory / "h2load-body"
    body.write_bytes(_framed(message))
    count = scene.amount.calls if subject.endswith(("fast", "C++")) else scene.amount.calls // 3
    before = process.usage()
    rate = _rate(process.address, method, body, count, size)
    used = process.usage() - before
    scene.report.add(SECTIONS[method], subject, "calls", "1/s", rate)
    scene.report.add(SECTIONS[method], subject, "server CPU", "µs", used.cpu / count * 1e6)
    _asked(process, "Get", records.gets(room)[0])  # gives the row back


def _framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def _asked(process: Process, method: str, message: bytes) -> bytes:
    """The answer to one call. Raises RuntimeError for an error."""
    answer = http2.drive(process.address, STORE + method, [message], in_flight=1, keep=True).answers[0]
    if answer is None:
        raise RuntimeError(f"{method} failed")
    return answer


def _rate(address: str, method: str, body: Path, count: int, size: int) -> float:
    """Calls a second. Raises RuntimeError unless all answers had this size: h2load itself takes gRPC's errors, which
    have no message, for success."""
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    load = ["-n", str(count), "-c", "1", "-m", "64", "-t", "1", "-d", str(body)]
    command = ["h2load", *load, "-B", address, *headers, f"http://localhost{STORE}{method}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    rate = re.search(r"^finished in .*, ([0-9.]+) req/s", done.stdout, re.MULTILINE)
    data = re.search(r"^traffic: .* \((\d+)\) data$", done.stdout, re.MULTILINE)
    if rate is None or data is None or int(data[1]) != count * (size + 5):
        raise RuntimeError(f"{method}: not every call was answered by {size} bytes; h2load said: {done.stdout}")
    return float(rate[1])
