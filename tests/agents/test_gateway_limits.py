"""What a gateway bounds, and that nothing of it is left."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from longshore.runners.agent import gateway as gateway_module
from longshore.testing.messages_api import Stage, hang, stall, text
from tests.agents.gateway_play import (
    BROKEN,
    MESSAGES,
    Books,
    Client,
    gateway_to,
    http,
    model_that,
    scenario,
    wire,
)


async def _pieces_of(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 100):
        yield body[start : start + 100]


@pytest.mark.parametrize("announced", [True, False])
@scenario
async def test_a_body_that_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    monkeypatch.setattr(gateway_module, "BODY_LIMIT_BYTES", 1000)
    async with model_that([text("hello")]) as (api, client):
        body = b" " * 1001
        data = body if announced else _pieces_of(body)
        async with client.request("POST", MESSAGES, data=data) as answer:
            assert answer.status == 413

        assert api.requests == []
        assert (await client.answer())[0] == 200


async def _status_of_raw(client: Client, framing: str, *, later: str = "") -> bytes:
    """What is said to a question whose body is sent like this, and no further."""
    host, _, path = client.gateway.url.removeprefix("http://").partition("/")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    head = f"POST /{path}{MESSAGES} HTTP/1.1\r\nhost: x\r\nx-api-key: {client.gateway.token}"
    writer.write(f"{head}\r\n{framing}".encode())
    # Answered, so what came before it has been read.
    assert (await client.answer(headers={"x-api-key": ""}))[0] == 401
    writer.write(later.encode())
    line = await reader.readline()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return line.split()[1]


@scenario
async def test_a_body_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "_BODY_WITHIN_S", 0.01)
    async with model_that([text("hello")]) as (api, client):
        assert await _status_of_raw(client, "content-length: 9\r\n\r\n{") == b"408"
        assert api.requests == []


@scenario
async def test_a_body_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "_BODY_WITHIN_S", 1.0)
    async with model_that([text("hello")]) as (api, client):
        framing = "transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
        # One of the two parsers that the server may have tells nobody: then time runs out.
        assert await _status_of_raw(client, framing, later="zz\r\n") in (b"400", b"408")
        assert api.requests == []


@scenario
async def test_only_so_many_are_asked_at_once() -> None:
    books = Books()
    async with model_that([text("hello", gate="go")], books, concurrency=2) as (api, client):
        asking = [asyncio.create_task(client.answer()) for _ in range(5)]
        await api.wait_for_requests(2)
        for _ in range(5):
            # These come after the others, which so have been looked at.
            assert (await client.answer(headers={"x-api-key": ""}))[0] == 401
        assert (len(api.requests), len(books.asked)) == (2, 2)

        api.release("go")

        assert [status for status, _ in await asyncio.gather(*asking)] == [200] * 5


@scenario
async def test_nothing_is_left_when_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    # It ends what is open, and does not wait for it.
    monkeypatch.setattr(gateway_module, "_CLOSED_WITHIN_S", 600.0)
    books = Books()
    says = [text("hello"), hang(), stall(after=2)]
    async with model_that(says, books) as (api, client):
        assert (await client.answer())[0] == 200
        silent = asyncio.create_task(client.answer())
        await api.wait_for_stage(Stage.SILENT)
        async with client.ask() as begun:
            await begun.content.readany()

            await client.gateway.__aexit__(None, None, None)

            with pytest.raises(BROKEN):
                await begun.read()
        with pytest.raises(BROKEN):
            await silent
        await api.wait_for_stage(Stage.ABANDONED, 2)
        told = [(answered.status, answered.whole) for answered in books.told]
        assert sorted(told, key=str) == [(200, False), (200, True), (None, False)]
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.answer()
        assert not [task for task in asyncio.all_tasks() if "RequestHandler" in repr(task)]


@pytest.mark.parametrize("trusted", [True, False])
@scenario
async def test_a_proxy_is_used_only_if_it_may_be(
    monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    answer = http("200 OK", b"{}")
    async with wire(answer) as up, wire(answer) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with gateway_to(up.url, trust_env=trusted) as client:
            assert (await client.answer())[0] == 200

        assert (len(up.heads), len(proxy.heads)) == ((0, 1) if trusted else (1, 0))
