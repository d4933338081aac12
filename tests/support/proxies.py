"""nginx and HAProxy in front of a store, on loopback, started from their binaries."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from .waits import PATIENCE, eventually

_NGINX = """
daemon off; master_process off; pid {directory}/nginx.pid; error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
  {server}
}}
"""
_SERVER = """
  server {{
    listen 127.0.0.1:{port} http2;
    {settings}
    location / {{ grpc_pass grpc://{upstream}; }}
  }}
"""
_HAPROXY = """
global
  maxconn 4096
  {tune}
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  {settings}
frontend near
  bind 127.0.0.1:{port} proto h2
  default_backend far
backend far
  server store {upstream} proto h2
"""


class WebProxy:
    """One of them; end it by leaving the context.

    Attributes:
        target: where it listens.
    """

    def __init__(
        self, kind: str, upstream: str, directory: Path, settings: str = "", tune: str = "", recipe: str = ""
    ) -> None:
        """`upstream` is `unix:PATH`; `settings` are lines of the server block, or of the defaults, `tune` of HAProxy's
        global part. A `recipe` takes the place of all of them: nginx's server block, or HAProxy's whole file, with the
        addresses of the docs in it, 127.0.0.1:8443 and 127.0.0.1:50071."""
        binary = shutil.which(kind, path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
        assert binary is not None, f"{kind} is not installed (Debian: apt-get install {kind})"
        port = _free_port()
        self.target = f"127.0.0.1:{port}"
        file = directory / f"{kind}.conf"
        if kind == "nginx":
            server = recipe or _SERVER.format(port=port, settings=settings, upstream=upstream)
            file.write_text(_placed(_NGINX.format(directory=directory, server=server), port, upstream))
            command = [binary, "-p", str(directory), "-e", "stderr", "-c", str(file)]
        else:
            far = upstream.replace("unix:", "unix@")
            whole = recipe or _HAPROXY.format(port=port, settings=settings, tune=tune, upstream=far)
            file.write_text(_placed(whole, port, far))
            command = [binary, "-db", "-f", str(file)]
        self._log = (directory / f"{kind}.log").open("w+")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        eventually(self._listens, f"{kind} listens")

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            self._log.seek(0)
            raise AssertionError(f"it ended: {self._log.read()}")
        host, _, port = self.target.rpartition(":")
        try:
            socket.create_connection((host, int(port)), PATIENCE).close()
        except ConnectionRefusedError:
            return False
        return True

    def __enter__(self) -> WebProxy:
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        self._log.close()


def _placed(text: str, port: int, upstream: str) -> str:
    return text.replace("127.0.0.1:8443", f"127.0.0.1:{port}").replace("127.0.0.1:50071", upstream)


def _free_port() -> int:
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        return int(probing.getsockname()[1])
