"""A proxy that loses answers of a server."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

TIMEOUT_S = 60


class _Connection:
    """One connection to the server, in both directions."""

    def __init__(self, cut_after: list[int], request_prefix: bytes) -> None:
        self._cut_after = cut_after
        self._request_prefix = request_prefix
        self._remaining: int | None = None

    async def forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            if self._cut_after and data.startswith(self._request_prefix):
                self._remaining = self._cut_after.pop(0)
            sink.write(data)
            await sink.drain()

    async def backward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(4096):
            if self._remaining is not None:
                data = data[: self._remaining]
                self._remaining -= len(data)
            sink.write(data)
            await sink.drain()
            if self._remaining == 0:
                return


@contextlib.contextmanager
def lossy_proxy(
    url: str, *, cut_after: tuple[int, ...], request_prefix: bytes = b""
) -> Iterator[str]:
    """An address that leads to the server, and cuts the first answers off.

    Args:
        cut_after: how many bytes of the first answer come through, of the second and so on.
        request_prefix: how the requests begin whose answers are cut.
    """
    loop = asyncio.new_event_loop()
    began: list[int] = []
    ready, over = threading.Event(), asyncio.Event()
    left = list(cut_after)
    upstream = urlsplit(url)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, answer = await asyncio.open_connection(upstream.hostname, upstream.port)
        connection = _Connection(left, request_prefix)
        directions = [
            asyncio.ensure_future(connection.forward(reader, answer)),
            asyncio.ensure_future(connection.backward(there, writer)),
        ]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        for stream in (writer, answer):
            stream.close()

    async def run() -> None:
        server = await asyncio.start_server(carry, "127.0.0.1", 0)
        began.append(server.sockets[0].getsockname()[1])
        ready.set()
        await over.wait()
        server.close()

    def threaded() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=threaded, name="cutting")
    thread.start()
    assert ready.wait(TIMEOUT_S)
    try:
        yield f"http://127.0.0.1:{began[0]}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(TIMEOUT_S)
