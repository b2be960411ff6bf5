"""``longshore up`` in a process of its own, and a client that keeps its connection."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks.worker_process import clean_environment

_READY_WITHIN_S = 60.0
_STOPS_WITHIN_S = 30.0
_POLL_S = 0.05
# As many as the client can send: how often a key may be used is not what is measured.
_NO_LIMIT = "1000000"


class BenchmarkClient:
    """One connection to a server."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"x-api-key": key}

    def get(self, path: str, **query: str) -> Any:
        """What the server answers, read to its end."""
        question = f"?{urlencode(query)}" if query else ""
        try:
            answer = self._request(f"/v1{path}{question}")
        except ConnectionError:
            # The server lets go of a connection that was idle for a while: others were measured.
            self._connection.close()
            answer = self._request(f"/v1{path}{question}")
        body = answer.read()
        assert answer.status == http.HTTPStatus.OK, body
        return json.loads(body)

    def _request(self, path: str) -> http.client.HTTPResponse:
        self._connection.request("GET", path, headers=self._headers)
        return self._connection.getresponse()

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


@contextlib.contextmanager
def run_server(folder: Path) -> Iterator[BenchmarkClient]:
    """A server of the store in ``folder``, without workers, and a client with its own key."""
    port = _free_port()
    log, keys = folder / "up.log", folder.with_name(f"{folder.name}-keys")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "longshore", "up", "--no-worker", "--port", str(port)],
            cwd=folder,
            env=clean_environment(
                LONGSHORE_DATA_DIR=str(folder),
                LONGSHORE_KEYS_DIR=str(keys),
                LONGSHORE_API_REQUESTS_PER_SECOND=_NO_LIMIT,
                LONGSHORE_API_BURST=_NO_LIMIT,
            ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        _wait_until_ready(process, port, log)
        with contextlib.closing(
            BenchmarkClient(port, next(keys.iterdir()).read_text().strip())
        ) as client:
            yield client
    finally:
        process.terminate()
        try:
            process.wait(_STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    # The socket is there before everything else: only an answer says that all of it is.
    while not _is_alive(port):
        assert process.poll() is None, f"the server ended: {log.read_text()}"
        assert time.monotonic() < deadline, f"the server is not ready: {log.read_text()}"
        time.sleep(_POLL_S)


def _is_alive(port: int) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as asking:
        try:
            asking.request("GET", "/live")
            return asking.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
