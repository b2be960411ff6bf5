"""What a gateway asks before a question is paid for, and tells after it was answered."""

import asyncio
import gzip
import json
from datetime import timedelta

import pytest

from longshore.core.agents.prices import LIST_PRICES, NO_TOKENS, TokenCounts
from longshore.execution.runners.agent.accounting import ModelRequest, ModelResponse
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
async def test_before_a_question_it_is_said_what_will_be_asked() -> None:
    books = RecordingBudget()
    async with scripted_model([text("hello")], books) as (_, client):
        headers = {"x-claude-code-agent-id": "a1"}
        body = json.dumps({"model": "claude-opus-5-5", "max_tokens": 64, "stream": True})
        async with client.request("POST", MESSAGES, data=body, headers=headers):
            pass

        assert books.requests == [
            ModelRequest(
                model="claude-opus-5-5",
                max_tokens=64,
                size_bytes=len(body),
                agent_id="a1",
            )
        ]


@pytest.mark.parametrize("stream", [True, False])
@scenario
async def test_after_an_answer_it_is_said_what_it_cost(stream: bool) -> None:
    books = RecordingBudget()
    async with scripted_model([text("hello", usage=USED)], books) as (_, client):
        await client.response(stream=stream)

        (answered,) = books.responses
        assert answered.request is books.requests[0]
        assert (answered.status, answered.complete) == (200, True)
        assert answered.tokens == TOKENS
        assert answered.cost_usd == LIST_PRICES.cost_usd(MODEL, TOKENS) > 0
        assert answered.retry_after is None
        assert timedelta(0) < answered.duration < timedelta(minutes=1)
        assert client.gateway.last_status == 200


@scenario
async def test_it_is_said_before_whoever_asked_can_know_that_it_is_over() -> None:
    books = RecordingBudget()
    async with scripted_model([stall(after=99, of=text("hello", usage=USED))], books) as (
        _,
        client,
    ):
        async with client.ask() as answer:
            seen = b""
            while b"message_stop" not in seen:
                seen += await answer.content.readany()

            assert [answered.tokens for answered in books.responses] == [TOKENS]

        assert len(books.responses) == 1


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
async def test_an_answer_that_is_not_whole_costs_what_was_begun(
    says: Step, status: int | None, tokens: TokenCounts
) -> None:
    books = RecordingBudget()
    async with scripted_model([says], books) as (_, client):
        try:
            await client.response()
        except BROKEN:
            assert status in (None, 200)

        (answered,) = books.responses
        assert (answered.status, answered.tokens, answered.complete) == (status, tokens, False)
        assert client.gateway.last_status == status


@scenario
async def test_a_broken_stream_and_its_repetition_are_each_counted_once() -> None:
    books = RecordingBudget()
    says = [reset(4, of=text(usage=USED)), text("hello", usage=USED)]
    async with scripted_model(says, books) as (_, client):
        with pytest.raises(BROKEN):
            await client.response()
        await client.response(stream=False)

        assert [answered.tokens for answered in books.responses] == [BEGUN, TOKENS]
        assert len(books.requests) == 2


@scenario
async def test_whoever_leaves_pays_for_what_was_begun() -> None:
    books = RecordingBudget()
    async with scripted_model([stall(after=3, of=text(usage=USED))], books) as (api, client):
        async with client.ask() as answer:
            await answer.content.readany()
        await api.wait_for_state(RequestState.ABANDONED)

    assert [answered.tokens for answered in books.responses] == [BEGUN]


@scenario
async def test_a_question_that_was_stopped_is_not_asked_nor_any_after_it() -> None:
    books = RecordingBudget(decisions=[None, "the budget of 2 USD is used up"])
    async with scripted_model([text("hello")], books) as (api, client):
        assert (await client.response())[0] == 200
        for _ in range(2):
            async with client.ask() as answer:
                said = await answer.json()

                assert (answer.status, answer.headers["x-should-retry"]) == (402, "false")
                message = "the budget of 2 USD is used up"
                assert said["error"] == {"type": "billing_error", "message": message}

        assert client.gateway.stop_reason == message
        assert (len(api.requests), len(books.requests), len(books.responses)) == (1, 2, 1)
        assert client.gateway.last_status == 200


@scenario
async def test_what_was_let_go_goes_although_another_was_stopped_meanwhile() -> None:
    books, stopped = RecordingBudget(), asyncio.Event()

    async def before(request: ModelRequest) -> str | None:
        books.requests.append(request)
        if len(books.requests) == 1:
            await stopped.wait()
            return None
        return "enough"

    async with scripted_model([text("hello")], books, before=before) as (_, client):
        first = asyncio.create_task(client.response())
        while not books.requests:
            await asyncio.sleep(0)
        assert (await client.response())[0] == 402

        stopped.set()

        assert (await first)[0] == 200
        assert len(books.responses) == 1


@scenario
async def test_a_budget_that_cannot_be_asked_stops_everything() -> None:
    broken = OSError("no budget today")
    books = RecordingBudget(decisions=[broken])
    async with scripted_model([text("hello")], books) as (api, client):
        assert [(await client.response())[0] for _ in range(2)] == [402, 402]

        assert client.gateway.failure is broken
        assert client.gateway.stop_reason == "the budget check failed: OSError"
        assert (api.requests, books.responses, len(books.requests)) == ([], [], 1)


@scenario
async def test_a_budget_that_cannot_be_told_stops_what_comes_next() -> None:
    broken = OSError("no budget today")

    def after(answered: ModelResponse) -> None:
        raise broken

    async with scripted_model([text("hello")], after=after) as (api, client):
        assert [(await client.response())[0] for _ in range(2)] == [200, 402]

        assert client.gateway.failure is broken
        assert len(api.requests) == 1


@scenario
async def test_whoever_leaves_while_the_budget_is_asked_has_asked_nothing() -> None:
    asked, books = asyncio.Event(), RecordingBudget()

    async def before(_: ModelRequest) -> str | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    async with scripted_model([text("hello")], books, before=before) as (api, client):
        asking = asyncio.create_task(client.response())
        await asked.wait()
        asking.cancel()
        await asyncio.wait([asking])

    assert (api.requests, books.responses) == ([], [])


@pytest.mark.parametrize("status", [429, 503, 529])
@scenario
async def test_how_long_to_wait_is_kept_until_a_later_question_is_answered(status: int) -> None:
    books = RecordingBudget()
    put_off = error(status, headers={"retry-after": "90"})
    async with scripted_model([put_off, error(500), text("hello")], books) as (_, client):
        waits = []
        for _ in range(3):
            await client.response()
            waits.append(client.gateway.retry_after)

        assert waits == [timedelta(seconds=90), timedelta(seconds=90), None]
        assert [answered.retry_after for answered in books.responses] == [waits[0], None, None]


@scenario
async def test_an_answer_to_an_earlier_question_is_no_word_about_waiting() -> None:
    says = [text("hello", gate="first"), error(429, headers={"retry-after": "90"})]
    async with scripted_model(says) as (api, client):
        first = asyncio.create_task(client.response())
        await api.wait_for_requests(1)
        await client.response()

        api.release("first")
        await first

        assert client.gateway.retry_after == timedelta(seconds=90)


@scenario
async def test_a_moment_to_wait_for_is_counted_from_the_answers_own() -> None:
    moments = {
        "date": "Wed, 21 Oct 2026 07:28:00 GMT",
        "retry_after": "Wed, 21 Oct 2026 07:30:30 GMT",
    }
    async with (
        raw_upstream(http_response("529 Busy", b"{}", **moments)) as up,
        open_gateway(up.url) as client,
    ):
        await client.response()

        assert client.gateway.retry_after == timedelta(seconds=150)


@scenario
async def test_an_answer_that_is_packed_is_counted_and_passed_on_unpacked() -> None:
    body = json.dumps({"type": "message", "usage": {"input_tokens": 5}}).encode()
    packed, books = (
        http_response("200 OK", gzip.compress(body), content_encoding="gzip"),
        RecordingBudget(),
    )
    async with (
        raw_upstream(packed) as up,
        open_gateway(up.url, books) as client,
        client.ask() as answer,
    ):
        assert await answer.read() == body
        assert "content-encoding" not in answer.headers
        assert "accept-encoding: identity" in up.request_heads[0].lower()

    assert books.responses[0].tokens == TokenCounts(input=5)


@pytest.mark.parametrize(("variable", "usd"), [(AUTH_TOKEN, 0.004), (OAUTH_TOKEN, 0.002)])
@scenario
async def test_an_unknown_model_costs_what_the_command_line_would_say(
    variable: str, usd: float
) -> None:
    books, credential = RecordingBudget(), Credential("real", variable)
    used = Usage(input_tokens=1000, output_tokens=0)
    async with scripted_model([text(usage=used)], books, credential=credential) as (_, client):
        body = json.dumps({"model": "new", "stream": True})
        async with client.request("POST", MESSAGES, data=body) as answer:
            await answer.read()

    assert books.responses[0].cost_usd == pytest.approx(usd)


@scenario
async def test_silence_is_told_as_no_answer_when_it_ends() -> None:
    books = RecordingBudget()
    async with scripted_model([hang()], books) as (api, client):
        asking = asyncio.create_task(client.response())
        await api.wait_for_state(RequestState.SILENT)
        assert books.responses == []
        asking.cancel()
        await api.wait_for_state(RequestState.ABANDONED)

    (answered,) = books.responses
    assert (answered.status, answered.cost_usd) == (None, 0)
