"""A line between two processes, on which each may call the other.

Everything travels pickled: arguments, answers and errors, which arrive as themselves. Calls begin
on the other side in the order in which they were made, and a call that is given up here has ended
there before its caller continues.
"""

import asyncio
import pickle
import select
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any

_HEAD = struct.Struct("!Q")
_READ_BYTES = 1 << 20

Serve = Callable[..., Coroutine[Any, Any, Any]]


class RpcConnection:
    """One end. Nothing here blocks for long: the other end always reads, also while it writes."""

    def __init__(self, connection: socket.socket, serve: Serve) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._serve = serve
        self._numbers = count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._serving: dict[int, asyncio.Task[Any]] = {}
        self._shared_streams: dict[int, AsyncIterator[bytes]] = {}
        self._received = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        """Hang up."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for answer in self._pending.values():
            answer.cancel()

    async def call(self, name: str, /, *values: Any, **keywords: Any) -> Any:
        """What the other side answers."""
        number, answer = self._start_call(name, values, keywords)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not answer.done():
                self._send("cancel", number)
                await asyncio.wait([answer])
            if answer.cancelled() or answer.exception():
                raise
            # It had ended there before it was given up, and what it gave must not be lost.
            return answer.result()

    def start_call(self, name: str, *values: Any) -> asyncio.Future[Any]:
        """Ask without waiting; see ``wait_blocking``."""
        return self._start_call(name, values, {})[1]

    def wait_blocking(self, answer: asyncio.Future[Any]) -> None:
        """Wait for an answer without letting the event loop go on."""
        while not answer.done():
            select.select([self._socket], [], [])
            self._read()
        answer.result()

    def share_stream(self, chunks: AsyncIterator[bytes]) -> int:
        """Let the other side iterate; the number is what it must ``borrow``."""
        number = next(self._numbers)
        self._shared_streams[number] = chunks
        return number

    async def read_stream(self, number: int) -> AsyncIterator[bytes]:
        """Iterate over what the other side has lent."""
        while (piece := await self.call("next piece", number)) is not None:
            yield piece

    def _start_call(
        self, name: str, values: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[int, asyncio.Future[Any]]:
        number = next(self._numbers)
        answer = self._pending[number] = self._loop.create_future()
        self._send("ask", number, name, values, keywords)
        return number, answer

    def _send(self, *frame: Any) -> None:
        body = pickle.dumps(frame)
        left = memoryview(_HEAD.pack(len(body)) + body)
        while left:
            readable, writable, _ = select.select([self._socket], [self._socket], [])
            if readable:
                # The other side may be unable to read until this side has read.
                self._read()
            if writable:
                left = left[self._socket.send(left) :]

    def _read(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            self.close()
            return
        self._received += data
        while len(self._received) >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._received)
            end = _HEAD.size + size
            if len(self._received) < end:
                return
            frame = pickle.loads(self._received[_HEAD.size : end])  # noqa: S301 - our own child
            del self._received[:end]
            self._handle_frame(*frame)

    def _handle_frame(self, kind: str, number: int, *rest: Any) -> None:
        if kind == "ask":
            name, values, named = rest
            serve = self._next_chunk if name == "next piece" else partial(self._serve, name)
            task = self._serving[number] = self._loop.create_task(serve(*values, **named))
            task.add_done_callback(partial(self._ended, number))
        elif kind == "cancel":
            if number in self._serving:
                self._serving[number].cancel()
        else:
            self._resolve(self._pending.pop(number), *rest)

    def _ended(self, number: int, task: asyncio.Task[Any]) -> None:
        del self._serving[number]
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._socket.fileno() >= 0:
            self._send("end", number, None if error else task.result(), error)

    def _resolve(
        self, answer: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            answer.cancel()
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    async def _next_chunk(self, number: int) -> bytes | None:
        return await anext(self._shared_streams[number], None)
