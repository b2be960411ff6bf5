"""The budget check of a gateway before a request, and its report after the response."""

import asyncio
import gzip
import json
from datetime import timedelta

import pytest

from longshore.core.agents.prices import LIST_PRICES, NO_TOKENS, TokenCounts
from longshore.execution.runners.agent.accounting import ModelCall
from longshore.execution.runners.agent.credentials import AUTH_TOKEN, OAUTH_TOKEN, Credential
from tests.agents.gateway_client import (
    BROKEN,
    MESSAGES,
    MODEL,
    RecordingBudget,
    http_response,
    open_gateway,
    raw_upstream,
    scenario,
    scripted_model,
)
from verification.messages_api import (
    RequestState,
    Usage,
    error,
    hang,
    raw,
    reset,
    sse_error,
    stall,
    text,
    truncate,
)
from verification.messages_api.script import Step

USED = Usage(input_tokens=1000, output_tokens=200, cache_read_tokens=30, cache_write_tokens=4)
TOKENS = TokenCounts(input=1000, output=200, cache_read=30, cache_write=4)
BEGUN = TokenCounts(input=1000, output=1, cache_read=30, cache_write=4)


@scenario
async def test_before_receives_the_request() -> None:
    budget = RecordingBudget()
    async with scripted_model([text("hello")], budget) as (_, client):
        headers = {"x-claude-code-agent-id": "a1"}
        body = json.dumps({"model": "claude-opus-5-5", "max_tokens": 64, "stream": True})
        async with client.request("POST", MESSAGES, data=body, headers=headers):
            pass

        (call,) = budget.requests
        assert (call.model, call.max_tokens) == ("claude-opus-5-5", 64)
        assert (call.size_bytes, call.agent_id) == (len(body), "a1")


@pytest.mark.parametrize("stream", [True, False])
@scenario
async def test_after_receives_the_cost_of_the_response(stream: bool) -> None:
    budget = RecordingBudget()
    async with scripted_model([text("hello", usage=USED)], budget) as (_, client):
        await client.response(stream=stream)

        (model_response,) = budget.responses
        assert model_response is budget.requests[0]
        assert (model_response.status, model_response.complete) == (200, True)
        assert model_response.tokens == TOKENS
        assert model_response.cost_usd == LIST_PRICES.cost_usd(MODEL, TOKENS) > 0
        assert model_response.retry_after is None
        elapsed_s = asyncio.get_running_loop().time() - model_response.sent_at_s
        assert 0 < elapsed_s < 60
        assert client.gateway.last_status == 200


@scenario
async def test_after_is_called_before_the_client_sees_the_end() -> None:
    budget = RecordingBudget()
    async with scripted_model([stall(after=99, of=text("hello", usage=USED))], budget) as (
        _,
        client,
    ):
        async with client.ask() as answer:
            seen = b""
            while b"message_stop" not in seen:
                seen += await answer.content.readany()

            assert [model_response.tokens for model_response in budget.responses] == [TOKENS]

        assert len(budget.responses) == 1


@pytest.mark.parametrize(
    ("says", "status", "tokens"),
    [
        (reset(4, of=text(usage=USED)), 200, BEGUN),
        (truncate(4, of=text(usage=USED)), 200, BEGUN),
        (sse_error(after=3, of=text(usage=USED)), 529, BEGUN),
        (sse_error("new_error", after=3, of=text(usage=USED)), 500, BEGUN),
        (reset(), None, NO_TOKENS),
        (error(500), 500, NO_TOKENS),
        (raw(502, "<html>"), 502, NO_TOKENS),
        (raw(200, "<html>"), 200, NO_TOKENS),
    ],
    ids=["reset", "ended", "overloaded", "new error", "at once", "500", "page", "page as answer"],
)
@scenario
async def test_an_incomplete_response_costs_its_started_part(
    says: Step, status: int | None, tokens: TokenCounts
) -> None:
    budget = RecordingBudget()
    async with scripted_model([says], budget) as (_, client):
        try:
            await client.response()
        except BROKEN:
            assert status in (None, 200)

        (model_response,) = budget.responses
        assert (model_response.status, model_response.tokens, model_response.complete) == (
            status,
            tokens,
            False,
        )
        assert client.gateway.last_status == status


@scenario
async def test_a_broken_stream_and_its_repetition_are_each_counted_once() -> None:
    budget = RecordingBudget()
    says = [reset(4, of=text(usage=USED)), text("hello", usage=USED)]
    async with scripted_model(says, budget) as (_, client):
        with pytest.raises(BROKEN):
            await client.response()
        await client.response(stream=False)

        assert [model_response.tokens for model_response in budget.responses] == [BEGUN, TOKENS]
        assert len(budget.requests) == 2


@scenario
async def test_a_client_that_disconnects_pays_for_the_started_response() -> None:
    budget = RecordingBudget()
    async with scripted_model([stall(after=3, of=text(usage=USED))], budget) as (api, client):
        async with client.ask() as answer:
            await answer.content.readany()
        await api.wait_for_state(RequestState.ABANDONED)

    assert [model_response.tokens for model_response in budget.responses] == [BEGUN]


@scenario
async def test_a_refused_request_and_all_later_ones_are_not_sent() -> None:
    budget = RecordingBudget(decisions=[None, "the budget of 2 USD is used up"])
    async with scripted_model([text("hello")], budget) as (api, client):
        assert (await client.response())[0] == 200
        for _ in range(2):
            async with client.ask() as answer:
                shown = await answer.json()

                assert (answer.status, answer.headers["x-should-retry"]) == (402, "false")
                message = "the budget of 2 USD is used up"
                assert shown["error"] == {"type": "billing_error", "message": message}

        assert client.gateway.stop_reason == message
        assert (len(api.requests), len(budget.requests), len(budget.responses)) == (1, 2, 1)
        assert client.gateway.last_status == 200


@scenario
async def test_an_allowed_request_is_sent_although_another_was_refused_meanwhile() -> None:
    budget, stopped = RecordingBudget(), asyncio.Event()

    async def before(request: ModelCall) -> str | None:
        budget.requests.append(request)
        if len(budget.requests) == 1:
            await stopped.wait()
            return None
        return "enough"

    async with scripted_model([text("hello")], budget, before=before) as (_, client):
        first = asyncio.create_task(client.response())
        while not budget.requests:
            await asyncio.sleep(0)
        assert (await client.response())[0] == 402

        stopped.set()

        assert (await first)[0] == 200
        assert len(budget.responses) == 1


@scenario
async def test_no_request_is_sent_after_a_failed_budget_check() -> None:
    broken = OSError("no budget today")
    budget = RecordingBudget(decisions=[broken])
    async with scripted_model([text("hello")], budget) as (api, client):
        assert [(await client.response())[0] for _ in range(2)] == [402, 402]

        assert client.gateway.failure is broken
        assert client.gateway.stop_reason == "the budget check failed: OSError"
        assert (api.requests, budget.responses, len(budget.requests)) == ([], [], 1)


@scenario
async def test_no_request_is_sent_after_the_usage_could_not_be_recorded() -> None:
    broken = OSError("no budget today")

    def after(model_response: ModelCall) -> None:
        raise broken

    async with scripted_model([text("hello")], after=after) as (api, client):
        assert [(await client.response())[0] for _ in range(2)] == [200, 402]

        assert client.gateway.failure is broken
        assert len(api.requests) == 1


@scenario
async def test_a_client_that_disconnects_during_the_budget_check_sends_no_request() -> None:
    requested, budget = asyncio.Event(), RecordingBudget()

    async def before(_: ModelCall) -> str | None:
        requested.set()
        await asyncio.Event().wait()
        return None

    async with scripted_model([text("hello")], budget, before=before) as (api, client):
        request_task = asyncio.create_task(client.response())
        await requested.wait()
        request_task.cancel()
        await asyncio.wait([request_task])

    assert (api.requests, budget.responses) == ([], [])


@pytest.mark.parametrize("status", [429, 503, 529])
@scenario
async def test_the_retry_delay_is_remembered_until_a_later_request_succeeds(status: int) -> None:
    budget = RecordingBudget()
    put_off = error(status, headers={"retry-after": "90"})
    async with scripted_model([put_off, error(500), text("hello")], budget) as (_, client):
        waits = []
        for _ in range(3):
            await client.response()
            waits.append(client.gateway.retry_after)

        assert waits == [timedelta(seconds=90), timedelta(seconds=90), None]
        assert [model_response.retry_after for model_response in budget.responses] == [
            waits[0],
            None,
            None,
        ]


@scenario
async def test_a_response_to_an_earlier_request_does_not_clear_the_retry_delay() -> None:
    says = [text("hello", gate="first"), error(429, headers={"retry-after": "90"})]
    async with scripted_model(says) as (api, client):
        first = asyncio.create_task(client.response())
        await api.wait_for_requests(1)
        await client.response()

        api.release("first")
        await first

        assert client.gateway.retry_after == timedelta(seconds=90)


@scenario
async def test_a_compressed_response_is_counted_and_passed_on_uncompressed() -> None:
    body = json.dumps({"type": "message", "usage": {"input_tokens": 5}}).encode()
    packed, budget = (
        http_response("200 OK", gzip.compress(body), content_encoding="gzip"),
        RecordingBudget(),
    )
    async with (
        raw_upstream(packed) as up,
        open_gateway(up.url, budget) as client,
        client.ask() as answer,
    ):
        assert await answer.read() == body
        assert "content-encoding" not in answer.headers
        assert "accept-encoding: identity" in up.request_heads[0].lower()

    assert budget.responses[0].tokens == TokenCounts(input=5)


@pytest.mark.parametrize(("variable", "usd"), [(AUTH_TOKEN, 0.004), (OAUTH_TOKEN, 0.002)])
@scenario
async def test_an_unknown_model_has_the_price_that_the_cli_assumes(
    variable: str, usd: float
) -> None:
    budget, credential = RecordingBudget(), Credential("real", variable)
    used = Usage(input_tokens=1000, output_tokens=0)
    async with scripted_model([text(usage=used)], budget, credential=credential) as (_, client):
        body = json.dumps({"model": "new", "stream": True})
        async with client.request("POST", MESSAGES, data=body) as answer:
            await answer.read()

    assert budget.responses[0].cost_usd == pytest.approx(usd)


@scenario
async def test_a_request_without_a_response_is_reported_when_it_ends() -> None:
    budget = RecordingBudget()
    async with scripted_model([hang()], budget) as (api, client):
        request_task = asyncio.create_task(client.response())
        await api.wait_for_state(RequestState.SILENT)
        assert budget.responses == []
        request_task.cancel()
        await api.wait_for_state(RequestState.ABANDONED)

    (model_response,) = budget.responses
    assert (model_response.status, model_response.cost_usd) == (None, 0)
