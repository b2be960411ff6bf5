"""As much of HTTP/1.1 as one client on the same machine needs, and ways to break it.

A stand-in has to do what a good server library prevents: fall silent in the middle of a stream,
reset the connection, promise more bytes than it sends. So it speaks the protocol itself.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

HEAD_LIMIT_BYTES = 1024 * 1024
# Linger for no time at all: closing then sends a reset instead of an end.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# What is on its way when a reset comes is thrown away by the receiver.
_ARRIVAL_S = 0.05

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"


class ClientDisconnected(Exception):
    """The client has closed the connection or does not speak HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingRequest:
    """A request as it came in."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class Connection:
    """One connection of a client, with what is needed to answer well or badly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> IncomingRequest:
        """The next request.

        Raises:
            ClientLeft: there is none.
        """
        try:
            line = (await self._reader.readline()).decode("latin-1")
            method, target, _ = line.split(" ", 2)
            headers = await self._headers()
            body = await self._body(headers)
        # A line without an end, a length that is no number: not from a client of ours.
        except (ConnectionError, asyncio.IncompleteReadError, ValueError) as error:
            raise ClientDisconnected from error
        path, _, query = target.partition("?")
        return IncomingRequest(method=method, path=path, query=query, headers=headers, body=body)

    async def send(
        self, status: int, body: bytes, *, content_type: str, headers: Mapping[str, str]
    ) -> None:
        """Returns a whole HTTP response."""
        length = {"content-type": content_type, "content-length": str(len(body))}
        await self._write(_head(status, {**length, **headers}) + body)

    async def send_json(self, status: int, document: Any, headers: Mapping[str, str]) -> None:
        """A whole answer that is one JSON document."""
        body = json.dumps(document).encode()
        await self.send(status, body, content_type=JSON, headers=headers)

    async def send_part(self, body: bytes, headers: Mapping[str, str]) -> None:
        """The start of a response with a larger content length; nothing follows."""
        promised = {"content-type": JSON, "content-length": str(len(body) + 1000), **headers}
        await self._write(_head(200, promised) + body)

    async def begin_stream(self, headers: Mapping[str, str]) -> None:
        """The head of an answer that comes in chunks."""
        kind = {"content-type": EVENT_STREAM, "cache-control": "no-cache"}
        await self._write(_head(200, {**kind, "transfer-encoding": "chunked", **headers}))

    async def send_chunk(self, data: bytes) -> None:
        """One chunk; an empty one ends the stream."""
        await self._write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def stay_silent(self) -> None:
        """Send nothing for as long as the client is willing to wait.

        Raises:
            ClientLeft: always, in the end.
        """
        await self._wait_for_disconnect()
        raise ClientDisconnected

    async def wait_for(self, event: Awaitable[Any]) -> None:
        """Wait before answering, but for no one who has left.

        Raises:
            ClientLeft: the client has not waited.
        """
        waiting, leaving = (
            asyncio.ensure_future(event),
            asyncio.ensure_future(self._wait_for_disconnect()),
        )
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientDisconnected
        finally:
            for task in (waiting, leaving):
                task.cancel()
            await asyncio.gather(waiting, leaving, return_exceptions=True)

    async def reset(self) -> None:
        """Break the connection off."""
        await asyncio.sleep(_ARRIVAL_S)
        blocked = self._writer.get_extra_info("socket")
        if blocked is not None:
            blocked.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._writer.transport.abort()

    async def is_disconnected(self) -> bool:
        """Whether the client has closed its end, as far as the machine knows by now."""
        # Once for the loop to see that there is something to read, once for it to be read.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self._reader.at_eof()

    async def close(self) -> None:
        """End the connection in good order."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError as error:
            raise ClientDisconnected from error

    async def _wait_for_disconnect(self) -> None:
        """Returns when the client has closed its end; it sends nothing while it waits."""
        with suppress(ConnectionError):
            while await self._reader.read(1024):
                pass

    async def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        while line := (await self._reader.readline()).decode("latin-1").rstrip("\r\n"):
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return headers

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self._reader.readexactly(int(headers.get("content-length", 0)))
        chunks = []
        while length := int((await self._reader.readline()).split(b";")[0], 16):
            chunks.append(await self._reader.readexactly(length))
            await self._reader.readline()
        await self._reader.readline()
        return b"".join(chunks)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    try:
        reason = HTTPStatus(status).phrase
    # 529 is the API's own.
    except ValueError:
        reason = "Scripted"
    lines = [
        f"HTTP/1.1 {status} {reason}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
