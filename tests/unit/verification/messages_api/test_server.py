"""The stand-in of the Messages API: what a client sees, and what a test can wait for."""

import asyncio
import json

import httpx2
import pytest

from tests.unit.verification.messages_api.client import (
    answer_to,
    events_in,
    question,
    scenario,
    send_request,
)
from verification.messages_api import (
    MessagesApi,
    MessagesApiThread,
    Request,
    RequestState,
    Usage,
    error,
    hang,
    raw,
    reset,
    sse_error,
    stall,
    structured,
    text,
    tool_use,
    truncate,
)
from verification.messages_api.script import Answer, ReadyStep

USAGE = Usage(input_tokens=7, output_tokens=50, cache_read_tokens=1000, cache_write_tokens=20)


@scenario
async def test_an_answer_streams_in_pieces_that_make_the_whole() -> None:
    step = tool_use(
        "Bash", {"command": "ls -l"}, preamble="Let me look.", thinking="Hm.", usage=USAGE
    )
    async with MessagesApi([step]) as api:
        events = events_in((await send_request(api.url)).text)
        whole = (await send_request(api.url, question(stream=False))).json()

    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Let me look."
    assert "".join(delta.get("thinking", "") for delta in deltas) == "Hm."
    tool_input = "".join(delta.get("partial_json", "") for delta in deltas)
    assert json.loads(tool_input) == {"command": "ls -l"} == whole["content"][2]["input"]
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"


@scenario
async def test_output_tokens_are_whole_only_at_the_end_of_a_stream() -> None:
    async with MessagesApi([text("hi", usage=USAGE)]) as api:
        events = events_in((await send_request(api.url)).text)

    start, end = events[0]["message"]["usage"], events[-2]["usage"]
    assert (start["output_tokens"], end["output_tokens"]) == (1, 50)
    assert (start["cache_read_input_tokens"], start["cache_creation_input_tokens"]) == (1000, 20)
    assert end["input_tokens"] == 7


@scenario
async def test_a_refusal_has_the_status_the_body_and_the_headers_of_the_script() -> None:
    async with MessagesApi([error(429, "slow down", headers={"retry-after": "30"})]) as api:
        response = await send_request(api.url)

    assert (response.status_code, response.headers["retry-after"]) == (429, "30")
    assert response.json()["error"] == {"type": "rate_limit_error", "message": "slow down"}
    assert api.requests[0].state is RequestState.REFUSED


@scenario
async def test_any_body_can_be_sent() -> None:
    async with MessagesApi([raw(502, "<html>bad gateway</html>")]) as api:
        response = await send_request(api.url)

    assert (response.status_code, response.text) == (502, "<html>bad gateway</html>")
    assert response.headers["content-type"] == "text/html"


@scenario
async def test_a_step_may_be_a_function_of_the_request() -> None:
    def echo(request: Request) -> Answer:
        return text(f"{request.model} was asked to {request.prompt}")

    async with MessagesApi([echo]) as api:
        assert await answer_to(api.url, "sing") == "claude-x was asked to sing"


@scenario
async def test_a_failing_function_of_a_script_fails_the_test_and_not_only_the_request() -> None:
    def refuse(_: Request) -> Answer:
        raise AssertionError("not what was expected")

    with pytest.raises(AssertionError, match="not what was expected"):
        async with MessagesApi([refuse]) as api:
            assert (await send_request(api.url)).status_code == 500


@scenario
async def test_places_on_one_server_have_their_own_scripts_and_their_own_record() -> None:
    async with MessagesApi([text("nameless")]) as api:
        first, second = (
            api.set_script([text("one")], key="job1"),
            api.set_script([text("two")], key="job.2"),
        )

        answers = await asyncio.gather(*map(answer_to, (first, second, api.url)))

    assert first == api.url_for("job1")
    assert answers == ["one", "two", "nameless"]
    assert [len(api.requests_of(key)) for key in ("job1", "job.2", "", "none")] == [1, 1, 1, 0]
    assert [request.number for request in api.all_requests] == [1, 2, 3]


@pytest.mark.parametrize("key", ["a/b", "ü", " ", "a" * 101])
def test_a_place_that_no_path_can_name_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        MessagesApi().set_script([text()], key=key)


@scenario
async def test_a_request_without_a_script_is_refused_with_its_prompt() -> None:
    async with MessagesApi() as api:
        assert await answer_to(api.url_for("job9"), "sing") == (
            "400 no script of scenario 'job9' fits the prompt 'sing'"
        )


@scenario
async def test_a_test_can_wait_for_requests_and_gets_their_number() -> None:
    async with MessagesApi([text()]) as api:
        waiting = asyncio.create_task(api.wait_for_requests(2))
        await send_request(api.url)
        with pytest.raises(TimeoutError, match="of 3 requests in scenario '', 1 came"):
            await api.wait_for_requests(3, timeout_s=0.01)

        await send_request(api.url)

        assert len(await waiting) == 2


@scenario
async def test_an_answer_waits_at_its_gate_until_it_is_released() -> None:
    async with MessagesApi([text("one", gate="g"), text("two")]) as api:
        waiting = asyncio.create_task(answer_to(api.url))
        await api.wait_for_requests(1)

        assert await answer_to(api.url) == "two"
        assert not waiting.done()
        api.release("g")

        assert await waiting == "one"


@scenario
async def test_a_delayed_answer_comes() -> None:
    async with MessagesApi([text("late", delay_s=0.01, event_delay_s=0.001)]) as api:
        assert events_in((await send_request(api.url)).text)[-1]["type"] == "message_stop"


@pytest.mark.parametrize(
    "step", [hang(), stall(), text(gate="closed")], ids=["hang", "stall", "gate"]
)
@pytest.mark.parametrize("stream", [True, False])
@scenario
async def test_a_client_that_leaves_is_noticed(step: ReadyStep, stream: bool) -> None:
    async with MessagesApi([step]) as api:
        asking = asyncio.create_task(send_request(api.url, question(stream=stream)))
        await api.wait_for_requests(1)
        if not isinstance(step, Answer):
            await api.wait_for_state(RequestState.SILENT)

        asking.cancel()

        (left,) = await api.wait_for_state(RequestState.ABANDONED)
    assert left.usage is None


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("step", [reset(), reset(3), truncate(3)], ids=["reset", "later", "end"])
@scenario
async def test_an_answer_that_breaks_off_is_never_whole(step: ReadyStep, stream: bool) -> None:
    async with MessagesApi([step, text("again")]) as api:
        try:
            body = (await send_request(api.url, question(stream=stream))).text
        except httpx2.HTTPError:
            body = ""

        assert "message_stop" not in body
        (request,) = await api.wait_for_state(RequestState.BROKEN)
        assert (request.answer, request.usage) == (None, None)
        assert await answer_to(api.url) == "again"


@scenario
async def test_an_error_in_mid_stream_meets_a_request_without_a_stream_as_its_status() -> None:
    async with MessagesApi([sse_error(after=2)]) as api:
        events = events_in((await send_request(api.url)).text)
        plain = await send_request(api.url, question(stream=False))

    assert [event["type"] for event in events] == ["message_start", "ping", "error"]
    assert (plain.status_code, plain.json()["error"]["type"]) == (529, "overloaded_error")


@scenario
async def test_the_cost_of_complete_answers_is_added_up() -> None:
    async with MessagesApi([text(usage=USAGE), error(500), structured({}, usage=USAGE)]) as api:
        for _ in range(3):
            await send_request(api.url)

    assert api.usage_of() == USAGE + USAGE


@scenario
async def test_a_question_that_was_answered_and_is_asked_again_is_found() -> None:
    async with MessagesApi([error(500), text()]) as api:
        for _ in range(3):
            await send_request(api.url)

    assert [(a.number, b.number) for a, b in api.repeated_requests()] == [(3, 2)]


@scenario
async def test_what_is_no_question_is_answered_and_kept_apart() -> None:
    async with (
        MessagesApi() as api,
        httpx2.AsyncClient(base_url=api.url, trust_env=False) as client,
    ):
        hello = await client.head("/api/hello")
        count = await client.post("/v1/messages/count_tokens", json=question())
        strange = await client.get("/v1/strange")

        # In chunks, and not JSON.
        chunked = await client.post("/v1/messages", content=_chunks(b"{not", b" json"))

    assert (hello.status_code, strange.status_code, chunked.status_code) == (200, 404, 400)
    assert count.json()["input_tokens"] > 0
    assert [other.path for other in api.other_requests] == [
        "/api/hello",
        "/v1/messages/count_tokens",
        "/v1/strange",
    ]
    assert len(api.requests) == 1


@scenario
async def test_it_listens_on_loopback_only_and_ends_with_clients_still_waiting() -> None:
    async with MessagesApi([hang()]) as api:
        asking = asyncio.create_task(send_request(api.url))
        await api.wait_for_state(RequestState.SILENT)

        assert api.url.startswith("http://127.0.0.1:")

    with pytest.raises(httpx2.HTTPError):
        await asking
    await api.stop()


def test_a_test_that_blocks_has_it_in_a_thread() -> None:
    with MessagesApiThread([text("one", gate="g", usage=USAGE)]) as api:
        url = api.set_script([stall()], key="job1")
        api.release("g")

        with httpx2.Client(trust_env=False) as client:
            client.post(f"{api.url}/v1/messages", json=question())
            with client.stream("POST", f"{url}/v1/messages", json=question()):
                (silent,) = api.wait_for_state(RequestState.SILENT, key="job1")

        assert silent.scenario == "job1"
        assert len(api.wait_for_requests(1)) == len(api.requests) == 1
        assert (api.usage_of(), api.repeated_requests()) == (USAGE, [])
        assert len(api.all_requests) == 2
        assert url == api.url_for("job1")
        assert str(api.port) in api.url


async def _chunks(*chunks: bytes):
    for chunk in chunks:
        yield chunk
