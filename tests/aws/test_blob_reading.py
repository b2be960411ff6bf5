"""Blobs in S3, read over a connection that breaks."""

import asyncio
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET

import httpx2
import pytest

from longshore.adapters.aws.blobs import S3BlobStore
from longshore.errors import BackendUnavailable
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import clause, without_time_passing
from tests.aws.call_faults import FaultyAws
from tests.aws.stand_in import stand_in
from tests.aws.test_blobs import KEY, MB, FaultyBlobContract, another_aws, different_bytes


class TestReadingOverABrokenConnection(FaultyBlobContract):
    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Backend]:
        async with (
            super().make_backend(tmp_path, clock) as backend,
            _CuttingProxy() as self.proxy,
            another_aws(endpoint_url=self.proxy.endpoint) as aws,
        ):
            self.calls = FaultyAws(aws)
            self.reader = S3BlobStore(self.calls, self.names)
            yield backend

    @pytest.mark.parametrize("reset", [False, True])
    @pytest.mark.parametrize("size", [300_000, 3 * MB])
    @clause
    async def test_a_read_whose_connection_breaks_resumes_at_its_position(
        self, backend: Backend, size: int, reset: bool
    ) -> None:
        data = different_bytes(size)
        await backend.blobs.put(KEY, data)
        self.proxy.cuts = [size // 4] * 3
        self.proxy.resets = reset

        assert await self.reader.get(KEY) == data

        assert self.proxy.cuts == []
        assert self.calls.count("get_object") == 4

    @clause
    async def test_a_read_resumes_any_number_of_times_while_it_makes_progress(
        self, backend: Backend
    ) -> None:
        data = different_bytes(MB)
        await backend.blobs.put(KEY, data)
        self.proxy.cuts = [50_000] * 10

        assert await self.reader.get(KEY) == data

        assert self.proxy.cuts == []

    @clause
    async def test_a_read_that_makes_no_progress_raises_backend_unavailable(
        self, backend: Backend
    ) -> None:
        await backend.blobs.put(KEY, different_bytes(MB))
        self.proxy.cuts = [100_000, *[0] * 100]

        with pytest.raises(BackendUnavailable):
            await self.reader.get(KEY)

        assert self.calls.count("get_object") < 6

    @pytest.mark.parametrize("other", [b"b", None], ids=["replaced", "removed"])
    @clause
    async def test_a_reader_whose_connection_breaks_never_sees_a_mixture_of_two_versions(
        self, backend: Backend, other: bytes | None
    ) -> None:
        await backend.blobs.put(KEY, b"a" * 3 * MB)
        self.proxy.cuts = [MB]
        reader = self.reader.stream(KEY)
        read = await anext(reader)

        async def read_on() -> None:
            nonlocal read
            async for piece in reader:
                read += piece

        if other is None:
            await backend.blobs.delete(KEY)
        else:
            await backend.blobs.put(KEY, other * 3 * MB)
        with pytest.raises(BackendUnavailable):
            await read_on()

        assert set(read) == set(b"a")
        assert self.calls.count("get_object") == 2

    @clause
    async def test_a_read_of_damaged_bytes_raises_a_checksum_error(self, backend: Backend) -> None:
        await backend.blobs.put(KEY, b"a" * MB)
        self.proxy.damages = True

        with pytest.raises(BackendUnavailable, match="Checksum"):
            await self.reader.get(KEY)

    @clause
    async def test_readers_that_are_closed_early_leave_no_connection_open(
        self, backend: Backend
    ) -> None:
        await backend.blobs.put(KEY, bytes(MB))

        # More than there may be connections.
        for _ in range(120):
            reader = self.reader.stream(KEY)
            await without_time_passing(anext(reader))
            await reader.aclose()

        await without_time_passing(self.proxy.refuses.wait())


class _CuttingProxy:
    """What lies between a reader and S3: requests go through, and answers as a test wants."""

    def __init__(self) -> None:
        self.cuts: list[int] = []
        """After so many bytes the next answers break off."""
        self.resets = False
        self.damages = False
        self.refuses = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "_CuttingProxy":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for entry in self._connections:
            entry.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        self.refuses.clear()
        connection.add_done_callback(self._left)

    def _left(self, connection: asyncio.Task[None]) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self.refuses.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = httpx2.URL(stand_in().endpoint)
        from_s3, to_s3 = await asyncio.open_connection(server.host, server.port)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._answered(reader, to_s3, from_s3, writer):
                    pass
        finally:
            to_s3.close()
            writer.close()

    async def _answered(
        self,
        reader: asyncio.StreamReader,
        to_s3: asyncio.StreamWriter,
        from_s3: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        to_s3.write(await reader.readuntil(b"\r\n\r\n"))  # reading has no body
        head = await from_s3.readuntil(b"\r\n\r\n")
        (length,) = re.findall(rb"(?i)content-length: (\d+)", head)
        body = await from_s3.readexactly(int(length))
        if self.damages:
            body = b"b" + body[1:]
        fine = head.split()[1].startswith(b"2")
        cut = self.cuts.pop(0) if fine and self.cuts else None
        writer.write(head + body[:cut])
        await writer.drain()
        if cut is not None and self.resets:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, linger)
        return cut is None
