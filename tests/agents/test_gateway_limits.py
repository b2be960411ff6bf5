"""What a gateway bounds, and that nothing of it is left."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from longshore.execution.runners.agent import gateway as gateway_module
from tests.agents.gateway_client import (
    BROKEN,
    MESSAGES,
    GatewayClient,
    RecordingBudget,
    http_response,
    open_gateway,
    raw_upstream,
    scenario,
    scripted_model,
)
from verification.messages_api import RequestState, hang, stall, text


async def _chunks_of(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 100):
        yield body[start : start + 100]


@pytest.mark.parametrize("announced", [True, False])
@scenario
async def test_a_body_that_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    monkeypatch.setattr(gateway_module, "BODY_LIMIT_BYTES", 1000)
    async with scripted_model([text("hello")]) as (api, client):
        body = b" " * 1001
        data = body if announced else _chunks_of(body)
        async with client.request("POST", MESSAGES, data=data) as answer:
            assert answer.status == 413

        assert api.requests == []
        assert (await client.response())[0] == 200


async def _status_of_raw(client: GatewayClient, framing: str, *, later: str = "") -> bytes:
    """Returns the response to a request whose body is sent in these chunks only."""
    host, _, path = client.gateway.url.removeprefix("http://").partition("/")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    head = f"POST /{path}{MESSAGES} HTTP/1.1\r\nhost: x\r\nx-api-key: {client.gateway.token}"
    writer.write(f"{head}\r\n{framing}".encode())
    # Answered, so what came before it has been read.
    assert (await client.response(headers={"x-api-key": ""}))[0] == 401
    writer.write(later.encode())
    line = await reader.readline()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return line.split()[1]


@scenario
async def test_a_request_body_that_never_ends_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "_BODY_TIMEOUT_S", 0.01)
    async with scripted_model([text("hello")]) as (api, client):
        assert await _status_of_raw(client, "content-length: 9\r\n\r\n{") == b"408"
        assert api.requests == []


@scenario
async def test_a_body_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "_BODY_TIMEOUT_S", 1.0)
    async with scripted_model([text("hello")]) as (api, client):
        framing = "transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
        # One of the server's two parsers does not report it: then the request times out.
        assert await _status_of_raw(client, framing, later="zz\r\n") in (b"400", b"408")
        assert api.requests == []


@scenario
async def test_only_so_many_are_asked_at_once() -> None:
    budget = RecordingBudget()
    async with scripted_model([text("hello", gate="go")], budget, concurrency=2) as (api, client):
        request_task = [asyncio.create_task(client.response()) for _ in range(5)]
        await api.wait_for_requests(2)
        for _ in range(5):
            # These come after the others, which so have been looked at.
            assert (await client.response(headers={"x-api-key": ""}))[0] == 401
        assert (len(api.requests), len(budget.requests)) == (2, 2)

        api.release("go")

        assert [status for status, _ in await asyncio.gather(*request_task)] == [200] * 5


@scenario
async def test_nothing_is_left_when_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    # It ends what is open, and does not wait for it.
    monkeypatch.setattr(gateway_module, "_SHUTDOWN_TIMEOUT_S", 600.0)
    budget = RecordingBudget()
    says = [text("hello"), hang(), stall(after=2)]
    async with scripted_model(says, budget) as (api, client):
        assert (await client.response())[0] == 200
        silent = asyncio.create_task(client.response())
        await api.wait_for_state(RequestState.SILENT)
        async with client.ask() as begun:
            await begun.content.readany()

            await client.gateway.__aexit__(None, None, None)

            with pytest.raises(BROKEN):
                await begun.read()
        with pytest.raises(BROKEN):
            await silent
        await api.wait_for_state(RequestState.ABANDONED, 2)
        reported = [
            (model_response.status, model_response.complete) for model_response in budget.responses
        ]
        assert sorted(reported, key=str) == [(200, False), (200, True), (None, False)]
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.response()
        assert not [task for task in asyncio.all_tasks() if "RequestHandler" in repr(task)]


@pytest.mark.parametrize("trusted", [True, False])
@scenario
async def test_a_proxy_is_used_only_if_it_may_be(
    monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    answer = http_response("200 OK", b"{}")
    async with raw_upstream(answer) as up, raw_upstream(answer) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with open_gateway(up.url, trust_env=trusted) as client:
            assert (await client.response())[0] == 200

        assert (len(up.request_heads), len(proxy.request_heads)) == ((0, 1) if trusted else (1, 0))
