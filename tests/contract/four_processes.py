"""Four processes on one SQLite file, seen as one backend.

Each call to a port goes to the next process in turn, so the calls of every clause are spread over
all four, and what one wrote the next must see. Two things stay where they are, because a real
program has them in one process too: a worker that waits for wake-ups, and a stream being read.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from tests.contract.rpc_connection import RpcConnection

_ROOT = Path(__file__).parents[2]
_COUNT = 4
_START_TIMEOUT_S = 10


@contextmanager
def four_processes() -> Iterator["FourProcesses"]:
    """Start the processes; they are ended in any case."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="longshore-"))
        paths = [f"{folder}/{number}" for number in range(_COUNT)]
        started = [stack.enter_context(_process(path)) for path in paths]
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield FourProcesses(paths)


@contextmanager
def _process(path: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.contract.one_process", path]
    with subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(_START_TIMEOUT_S)


class FourProcesses:
    """Where the processes listen."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    @asynccontextmanager
    async def backend(self, folder: Path, clock: FakeClock) -> AsyncIterator[Backend]:
        """The backend on ``folder``, open in all of them."""
        lines = [_connected(path) for path in self._paths]
        now, elapsed = clock.now(), clock.elapsed()
        try:
            opened = [line.call("open", str(folder), now, elapsed) for line in lines]
            ((epoch, atomic),) = set(await asyncio.gather(*opened))
            with clock.watched_by(partial(_sync_clocks, lines, clock)):
                yield _backend(_RoundRobin(lines), clock, epoch=epoch, atomic=atomic)
        finally:
            await asyncio.gather(*(line.call("close") for line in lines))
            for line in lines:
                line.close()


def _connected(path: str) -> RpcConnection:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return RpcConnection(connection, _serve_nothing)


async def _serve_nothing(name: str) -> None:
    raise NotImplementedError(name)


def _sync_clocks(connections: list[RpcConnection], clock: FakeClock) -> None:
    """Move every clock with ours. Time that has passed here has passed everywhere."""
    moved = [line.start_call("set_clock", clock.now(), clock.elapsed()) for line in connections]
    for line, answer in zip(connections, moved, strict=True):
        line.wait_blocking(answer)


def _backend(connections: "_RoundRobin", clock: FakeClock, *, epoch: int, atomic: bool) -> Backend:
    ports: dict[str, Any] = {
        name: _RemotePort(name, connections)
        for name in (
            *(
                "queue_controls",
                "events",
                "output",
                "definitions",
                "keys",
                "budgets",
                "retention",
            ),
        )
    }
    ledger, blobs = (
        _RemoteLedger(connections, epoch=epoch, atomic=atomic),
        _RemoteBlobs(connections),
    )
    return Backend(name="sqlite", clock=clock, ledger=ledger, blobs=blobs, **ports)


class _RoundRobin:
    """Whose turn it is."""

    def __init__(self, connections: list[RpcConnection]) -> None:
        self._connections = connections
        self._cycle = cycle(connections)

    def next(self) -> RpcConnection:
        return next(self._cycle)

    async def close(self) -> None:
        await asyncio.gather(*(line.call("close") for line in self._connections))


class _RemotePort:
    """A port each of whose methods is called in the process whose turn it is."""

    def __init__(self, name: str, connections: _RoundRobin) -> None:
        self._name = name
        self._connections = connections

    def __getattr__(self, method: str) -> Any:
        return partial(self._call, method)

    async def _call(self, method: str, /, *values: Any, **keywords: Any) -> Any:
        return await self._connections.next().call(f"{self._name}.{method}", *values, **keywords)


class _RemoteLedger(_RemotePort):
    def __init__(self, connections: _RoundRobin, *, epoch: int, atomic: bool) -> None:
        super().__init__("ledger", connections)
        self.epoch = epoch
        self.atomic = atomic
        self._workers: dict[str, RpcConnection] = {}

    async def wait_for_wake(self, worker_id: str) -> None:
        # A worker belongs to one process, which stores the last wake-up that it has seen.
        line = self._workers.setdefault(worker_id, self._connections.next())
        await line.call("ledger.wait_for_wake", worker_id)


class _RemoteBlobs(_RemotePort):
    def __init__(self, connections: _RoundRobin) -> None:
        super().__init__("blobs", connections)

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:
        line = self._connections.next()
        if isinstance(data, bytes):
            return await line.call("blobs.put", key, data)
        return await line.call("put", key, line.share_stream(data))

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        line = self._connections.next()
        async for piece in line.read_stream(await line.call("stream", key)):
            yield piece
