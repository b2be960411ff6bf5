"""Very many readers of one task's output, and one that stops reading; through the real server.

Readers are bare sockets that speak HTTP/1.0, so that what they get is the stream and nothing else.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.sqlite.output import SqliteOutputLog
from longshore.core.api_keys import ApiScope
from longshore.ports.output import OutputChunk, OutputPosition, Stream
from longshore.services import followers
from tests.interfaces.rest.server import RestServer, a_task, async_test, run_server

LINES = 10_000
HALF = LINES // 2
READERS = 200
CHUNK_LINES = 100
# Each message on the channel becomes one chunk of output, however slow the reader is. After half of
# the lines the task waits until the test opens the gate.
CHATTY = f"""
import json, sys
channel = open(3, "w")
def say(first, last):
    for start in range(first, last, {CHUNK_LINES}):
        lines = "\\n".join(f"line {{number}}" for number in range(start, start + {CHUNK_LINES}))
        print(json.dumps({{"type": "log", "text": lines}}), file=channel, flush=True)
say(0, {HALF})
open(sys.argv[1], "rb").read(1)
say({HALF}, {LINES})
"""
PRINTED = "".join(f"line {number}\n" for number in range(LINES))
MIB = 2**20
# What a kernel buffers for a socket before it is full, and a little for the server's own buffers.
FITS = 8 * MIB
UNLIMITED = {"requests_per_second": 1_000_000, "burst": 1_000_000}


@dataclass
class StreamReader:
    """A reader of a stream that can be cut off and reconnect."""

    server: RestServer
    path: str
    text: list[str] = field(default_factory=list)
    lines: int = 0
    last_id: str | None = None
    end: Any = None

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server.address.removeprefix("http://").split(":")
        return host, int(port)

    async def read(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Read after the last chunk received, until `enough()` or to the end."""
        reader, writer = await asyncio.open_connection(*self.address)
        with contextlib.closing(writer):
            writer.write(self.request())
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head.partition(b"\r\n")[0], head
            left = b""
            while not enough() and (data := await reader.read(MIB)):
                *events, left = (left + data).split(b"\n\n")
                for event in events:
                    self._take(event)

    def request(self) -> bytes:
        came_so_far = f"Last-Event-ID: {self.last_id}\r\n" if self.last_id else ""
        key = self.server.keys["all"]
        return (
            f"GET {self.path} HTTP/1.0\r\nHost: 127.0.0.1\r\nx-api-key: {key}\r\n{came_so_far}\r\n"
        ).encode()

    def _take(self, event: bytes) -> None:
        fields = dict(line.split(b": ", 1) for line in event.split(b"\n"))
        if fields.get(b"event") == b"output":
            text = json.loads(fields[b"data"])["text"]
            self.text.append(text)
            self.lines += text.count("\n")
            self.last_id = fields[b"id"].decode()
        elif fields.get(b"event") == b"end":
            self.end = json.loads(fields[b"data"])


@async_test
async def test_each_of_many_readers_gets_every_line_once_and_in_order_also_after_a_reconnect(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    go_on = os.open(gate, os.O_RDWR)
    argv = (sys.executable, "-c", CHATTY, str(gate))
    async with run_server(tmp_path / "data", with_worker=True, **UNLIMITED) as server:
        job_id = await server.submit(a_task("a", argv=argv))
        path = f"/v1/jobs/{job_id}/tasks/a/output/stream"
        readers = [StreamReader(server, path) for _ in range(READERS)]
        behind = set(range(READERS))

        async def follow(number: int) -> None:
            reader, cut_at = readers[number], number * LINES // READERS

            def cut_off() -> bool:
                if reader.lines >= HALF and number in behind:
                    behind.remove(number)
                    if not behind:
                        os.write(go_on, b"!")
                return reader.lines >= cut_at

            await reader.read(cut_off)
            cut_at = LINES + 1
            await reader.read(cut_off)

        await asyncio.gather(*map(follow, range(READERS)))

        assert {len(reader.text) for reader in readers} == {len(readers[0].text)}
        assert {"".join(reader.text) == PRINTED for reader in readers} == {True}
        assert [reader.end for reader in readers] == [{"status": "completed"}] * READERS
    os.close(go_on)


async def print_chunks(server: RestServer, task_id: str, first: int, *chunks: bytes) -> None:
    """Store chunks of output, as a worker does."""
    backend = server.services.backend
    now = backend.clock.now()
    entries = [
        OutputChunk(attempt=1, sequence=sequence, at=now, stream=Stream.STDOUT, data=data)
        for sequence, data in enumerate(chunks, first)
    ]
    await backend.output.append(task_id, entries)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that each stream has taken from the store, in the order in which they began."""
    counts: list[int] = []
    updates = followers.follow_task

    async def counted(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        index = len(counts)
        counts.append(0)
        async for row, entries in updates(*args, **kwargs):
            counts[index] += sum(len(entry.data) for entry in entries)
            yield row, entries

    monkeypatch.setattr(followers, "follow_task", counted)
    return counts


@async_test
async def test_for_a_reader_that_stops_the_server_buffers_little_more_than_its_socket(
    tmp_path: Path, taken: list[int]
) -> None:
    async with run_server(tmp_path, **UNLIMITED) as server:
        job_id = await server.submit(a_task("a"))
        path = f"/v1/jobs/{job_id}/tasks/a/output/stream"
        # So many short ones that very many of them are read at once; then long ones.
        short, long = [b"a\n"] * 400, [b"a line\n" * 9_000] * 500
        await print_chunks(server, f"{job_id}_a", 1, *short, *long)
        await server.post(f"/v1/jobs/{job_id}/cancel")
        stopped, reading = StreamReader(server, path), StreamReader(server, path)
        with socket.socket() as never_read:
            never_read.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            never_read.connect(stopped.address)
            never_read.sendall(stopped.request())
            while not taken:
                await asyncio.sleep(0)  # the server is on this loop: it gets its turns
            # All that another reads meanwhile, the stopped one could have been sent, too.
            await reading.read()

            assert taken[1] == sum(map(len, reading.text)) == sum(map(len, short + long))
            assert 0 < taken[0] < FITS < taken[1] / 3


@async_test
async def test_readers_that_wait_for_the_same_output_share_the_reads_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, count = 10, 50
    reads = 0
    read = SqliteOutputLog.read

    async def counted(self: SqliteOutputLog, *args: Any, **named: Any) -> list[OutputChunk]:
        nonlocal reads
        reads += 1
        return await read(self, *args, **named)

    monkeypatch.setattr(SqliteOutputLog, "read", counted)
    async with run_server(tmp_path, **UNLIMITED) as server:
        job_id = await server.submit(a_task("a"))
        path = f"/v1/jobs/{job_id}/tasks/a/output/stream"
        readers = [StreamReader(server, path) for _ in range(count)]
        all_have_it = asyncio.Event()
        number = 0

        def enough() -> bool:
            if min(reader.lines for reader in readers) == number:
                all_have_it.set()
            return number == lines and all_have_it.is_set()

        reading = [asyncio.ensure_future(reader.read(enough)) for reader in readers]
        for number in range(1, lines + 1):
            all_have_it.clear()
            await print_chunks(server, f"{job_id}_a", number, b"a line\n")
            await all_have_it.wait()
        for future in reading:
            future.cancel()
        await asyncio.wait(reading)

    # At first each looks for itself; then one reads for all who wait, and some may come too late.
    assert reads < count + lines * count / 5
    assert {"".join(reader.text) for reader in readers} == {"a line\n" * lines}


@async_test
async def test_a_reader_that_leaves_does_not_disturb_other_waiting_readers(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        task_id = f"{await server.submit(a_task('a'))}_a"
        streams = [
            followers.follow_task(
                server.services.backend, task_id, poll_interval=timedelta(hours=1)
            )
            for _ in range(4)
        ]
        for stream in streams:
            await anext(stream)
        before = asyncio.all_tasks()

        waiting = await _waiting(streams)
        await _left(waiting[0])  # the reader whose request began the wait
        await print_chunks(server, task_id, 1, b"a line\n")
        got = await asyncio.gather(*waiting[1:])
        for future in await _waiting(streams[1:]):
            await _left(future)
        newcomer = followers.follow_task(
            server.services.backend,
            task_id,
            after=OutputPosition(1, 1),
            poll_interval=timedelta(hours=1),
        )
        await anext(newcomer)
        (waiting_again,) = await _waiting([newcomer])
        await print_chunks(server, task_id, 2, b"another\n")
        got.append(await waiting_again)

        lines = [[b"a line\n"]] * 3 + [[b"another\n"]]
        assert [[entry.data for entry in entries] for _, entries in got] == lines
        while left := asyncio.all_tasks() - before:
            await asyncio.wait(left)  # no task still polls for a reader that left


async def _waiting(streams: list[Any]) -> list[asyncio.Future[Any]]:
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    return waiting


async def _left(reader: asyncio.Future[Any]) -> None:
    reader.cancel()
    await asyncio.wait([reader])


@pytest.mark.parametrize("follow", [False, True], ids=["stored", "followed"])
@async_test
async def test_output_of_several_tasks_is_read_once_and_in_order_of_time(
    tmp_path: Path, follow: bool
) -> None:
    async with run_server(tmp_path) as server:
        keys = ("a", "b", "c")
        job_id = await server.submit(*(a_task(key) for key in keys))
        expected = []
        # Short pieces and then long ones, so that batches of every size are cut off somewhere.
        for number in range(1, 121):
            for key in keys:
                data = f"{key} {number} ".encode() * (9_000 if number > 100 else 1)
                await print_chunks(server, f"{job_id}_{key}", number, data)
                expected.append((key, data))
        await server.post(f"/v1/jobs/{job_id}/cancel")
        backend = server.services.backend

        pieces = followers.read_job_output(backend, job_id, follow=follow, attempt=None)
        got = [piece async for piece in pieces]
        of_one = [entry.data async for entry in followers.read_stored(backend, f"{job_id}_b")]

        assert [(key, chunk.data) for key, chunk in got] == expected
        assert of_one == [data for key, data in expected if key == "b"]


@async_test
async def test_streams_of_a_key_are_bounded_and_count_until_they_end(tmp_path: Path) -> None:
    async with run_server(tmp_path, streams_per_key=2, **UNLIMITED) as server:
        path = f"/v1/jobs/{await server.submit(a_task('a'))}/events/stream"
        headers = {"x-api-key": server.keys["all"]}
        other = {"x-api-key": await server.key(ApiScope.READ)}
        missing = path.replace("/job-", "/job-0")

        async def status(path: str, headers: dict[str, str]) -> int:
            async with server.client.stream("GET", path, headers=headers) as answer:
                return answer.status_code

        async with server.client.stream("GET", path, headers=headers):
            for _ in range(3):
                assert await status(missing, headers) == 404
            async with server.client.stream("GET", path, headers=headers):
                assert await status(path, headers) == 429
                assert await status(path, other) == 200
            while await status(path, headers) == 429:
                continue  # until the server has noticed the end
