"""The stand-in on a bare connection: how it breaks one, and how it detects a client that left."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.unit.verification.messages_api.client import question, scenario
from verification.messages_api import MessagesApi, RequestState, reset, text
from verification.messages_api.script import ReadyStep

_BODY = json.dumps(question()).encode()
REQUEST = b"POST /v1/messages HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)


@asynccontextmanager
async def _connected(
    api: MessagesApi,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("step", [reset(), reset(3)], ids=["at once", "in mid stream"])
@scenario
async def test_a_reset_is_one_and_no_end_in_good_order(step: ReadyStep) -> None:
    async with MessagesApi([step]) as api, _connected(api) as (reader, writer):
        writer.write(REQUEST)

        with pytest.raises(ConnectionResetError):
            await reader.read()


@scenario
async def test_an_answer_without_a_reader_is_not_counted() -> None:
    async with MessagesApi([text()]) as api, _connected(api) as (_, writer):
        writer.write(REQUEST)
        writer.write_eof()

        (left,) = await api.wait_for_state(RequestState.ABANDONED)

    assert (left.answer, left.usage) == (None, None)


@scenario
async def test_a_connection_serves_one_request_after_another() -> None:
    answers = []
    async with (
        MessagesApi([text("one"), text("two")]) as api,
        _connected(api) as (reader, writer),
    ):
        for _ in range(2):
            writer.write(REQUEST)
            answers.append(_text_in(await reader.readuntil(b"\r\n0\r\n\r\n")))

    assert answers == ["one", "two"]


@scenario
async def test_a_connection_that_does_not_speak_http_is_closed() -> None:
    async with MessagesApi() as api, _connected(api) as (reader, writer):
        writer.write(b"\n")

        assert await reader.read() == b""


def _text_in(stream: bytes) -> str:
    """The text in the pieces of a stream."""
    lines = (line.removeprefix(b"data: ") for line in stream.splitlines())
    events = [json.loads(line) for line in lines if line.startswith(b'{"type"')]
    return "".join(event.get("delta", {}).get("text", "") for event in events)
