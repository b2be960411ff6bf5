"""One of the processes that share a SQLite file; started by ``four_processes``.

Each connection to its socket is one open backend, with a clock that follows the one of the test.
It ends when the process that started it closes its standard input, or is gone.
"""

import asyncio
import socket
import sys
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import settle
from tests.contract.rpc_connection import RpcConnection


class _Instance:
    """An open backend at the end of a line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = RpcConnection(connection, self._serve)
        self._stack = AsyncExitStack()
        self._clock = FakeClock()
        self._backend: Backend | None = None
        self._running_calls = 0

    async def _serve(self, name: str, /, *values: Any, **keywords: Any) -> Any:
        own = getattr(self, name, None)
        if own is not None:
            return await own(*values, **keywords)
        port, _, method = name.partition(".")
        self._running_calls += 1
        try:
            return await getattr(getattr(self._backend, port), method)(*values, **keywords)
        finally:
            self._running_calls -= 1

    async def open(self, folder: str, now: datetime, elapsed: timedelta) -> tuple[int, bool]:
        self._set_clock(now, elapsed)
        opened = sqlite_backend(Path(folder), self._clock)
        self._backend = await self._stack.enter_async_context(opened)
        return self._backend.ledger.epoch, self._backend.ledger.atomic

    async def close(self) -> None:
        await self._stack.aclose()

    async def set_clock(self, now: datetime, elapsed: timedelta) -> None:
        """Move the clock; returns when the waiters of this process have run."""
        self._set_clock(now, elapsed)
        if self._running_calls:
            await settle()

    def _set_clock(self, now: datetime, elapsed: timedelta) -> None:
        self._clock.advance(elapsed - self._clock.elapsed())
        self._clock.set(now)

    async def put(self, key: str, lent: int) -> int:
        assert self._backend is not None
        return await self._backend.blobs.put(key, self._connection.read_stream(lent))

    async def stream(self, key: str) -> int:
        assert self._backend is not None
        return self._connection.share_stream(self._backend.blobs.stream(key))


async def _serve(path: str) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        loop.add_reader(listener, lambda: _Instance(listener.accept()[0]))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await ended.wait()
        loop.remove_reader(listener)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
