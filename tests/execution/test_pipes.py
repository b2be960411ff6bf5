"""Our ends of pipes: read when asked, cut into lines, closed without harm to anybody else."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from longshore.execution.host.pipes import PipeReader
from tests.execution.conftest import scenario


@pytest.fixture
def pipe() -> Iterator[tuple[PipeReader, int]]:
    reading, writing = os.pipe()
    end = PipeReader(reading)
    yield end, writing

    async def close() -> None:
        end.close()

    asyncio.run(close())


async def _lines(end: PipeReader, *, longest: int = 100) -> list[bytes | None]:
    return [line async for line in end.lines(limit_bytes=longest)]


def _write_chunks(number: int, *chunks: bytes) -> None:
    for piece in chunks:
        os.write(number, piece)
    os.close(number)


@scenario
async def test_it_waits_for_what_is_not_there_yet(pipe: tuple[PipeReader, int]) -> None:
    end, writing = pipe
    reading = asyncio.ensure_future(end.read())
    await asyncio.sleep(0)
    assert not reading.done()

    _write_chunks(writing, b"late")

    assert (await reading, await end.read()) == (b"late", b"")


@scenario
async def test_lines_are_put_together_from_pieces(pipe: tuple[PipeReader, int]) -> None:
    end, writing = pipe
    reading = asyncio.ensure_future(_lines(end))
    for piece in (b"on", b"e\ntw", b"o\n\nfo", b"ur"):
        os.write(writing, piece)
        await asyncio.sleep(0)
    os.close(writing)

    assert await reading == [b"one", b"two", b"", b"four"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"12345678\n123456789\nnext\n", [b"12345678", None, b"next"]),
        (b"x" * 20, [None]),
        (b"x" * 20 + b"\nnext", [None, b"next"]),
    ],
)
@scenario
async def test_a_line_that_is_too_long_is_reported_once_and_skipped(
    pipe: tuple[PipeReader, int], written: bytes, expected: list[bytes | None]
) -> None:
    end, writing = pipe
    _write_chunks(writing, written)

    assert await _lines(end, longest=8) == expected


@scenario
async def test_a_growing_line_above_the_limit_is_not_buffered(
    pipe: tuple[PipeReader, int],
) -> None:
    end, writing = pipe
    os.write(writing, b"x" * 20)
    lines = end.lines(limit_bytes=8)
    assert await anext(lines) is None

    rest = asyncio.ensure_future(anext(lines))
    for piece in (b"x" * 20, b"x" * 20, b"\nnext\n"):
        os.write(writing, piece)
        await asyncio.sleep(0)
    os.close(writing)

    assert await rest == b"next"
    assert [line async for line in lines] == []


@scenario
async def test_a_busy_pipe_does_not_starve_other_tasks(
    pipe: tuple[PipeReader, int],
) -> None:
    end, writing = pipe
    os.write(writing, b"\n" * 4096)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(others())
    for _ in range(50):
        await end.read()
        os.write(writing, b"\n")
    other.cancel()
    os.close(writing)

    assert turns >= 50


@scenario
async def test_a_terminal_ends_when_its_last_user_has_gone() -> None:
    outside, inside = os.openpty()
    end = PipeReader(outside)
    _write_chunks(inside, b"data")

    assert [await end.read(), await end.read()] == [b"data", b""]
    end.close()


@scenario
async def test_a_closed_reader_does_not_read_from_a_reused_descriptor(
    pipe: tuple[PipeReader, int],
) -> None:
    end, writing = pipe
    reading = asyncio.ensure_future(end.read())
    await asyncio.sleep(0)
    os.close(writing)
    reading.cancel()
    end.close()
    # The lowest numbers are given again: these are the ones that were just closed.
    again, other = os.pipe()
    successor = PipeReader(again)
    expected_value = asyncio.ensure_future(successor.read())
    await asyncio.gather(reading, return_exceptions=True)
    end.close()

    _write_chunks(other, b"for the successor")

    assert await expected_value == b"for the successor"
    successor.close()
