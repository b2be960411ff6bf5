"""The gateway: who gets through, with what, and what comes back."""

import asyncio
import json

import pytest

from longshore.errors import ConfigurationError
from longshore.runners.agent.credentials import ApiKey, Bearer
from longshore.runners.agent.gateway import Gateway
from longshore.testing.messages_api import Stage, hang, reset, stall, text, truncate
from tests.agents.gateway_play import (
    BROKEN,
    MESSAGES,
    SECRET,
    Books,
    gateway_to,
    http,
    model_that,
    scenario,
    wire,
)


@scenario
async def test_a_question_goes_up_with_the_real_key_and_all_that_was_said_with_it() -> None:
    async with model_that([text("hello")]) as (api, client):
        said = {
            "anthropic-beta": "a,b",
            "user-agent": "claude-cli/2",
            "x-claude-code-agent-id": "7",
        }
        status, body = await client.answer(headers=said)

        (request,) = api.requests
        assert (status, "message_stop" in body) == (200, True)
        assert (request.path, request.query) == ("/v1/messages", "beta=true")
        assert request.headers["x-api-key"] == SECRET
        assert "authorization" not in request.headers
        assert {name: request.headers[name] for name in said} == said
        assert request.headers["anthropic-version"] == "2023-06-01"
        assert client.gateway.token not in str(request.headers)


@pytest.mark.parametrize("subscription", [False, True])
@scenario
async def test_a_bearer_token_goes_up_as_one(subscription: bool) -> None:
    credential = Bearer("a-real-token", subscription=subscription)
    async with model_that([text("hello")], credential=credential) as (api, client):
        shown = {"authorization": f"Bearer {client.gateway.token}", "x-api-key": ""}
        status, _ = await client.answer(headers=shown)

        (request,) = api.requests
        assert status == 200
        assert request.headers["authorization"] == "Bearer a-real-token"
        assert "x-api-key" not in request.headers


@pytest.mark.parametrize(
    "shown",
    [
        {"x-api-key": ""},
        {"x-api-key": "guessed"},
        {"x-api-key": "gu\u00e9ss\u00e9d"},
        {"x-api-key": SECRET},
        {"x-api-key": "", "authorization": "Bearer guessed"},
        {"x-api-key": "", "authorization": f"Bearer {SECRET}"},
    ],
)
@scenario
async def test_nobody_gets_through_without_the_token(shown: dict[str, str]) -> None:
    books = Books()
    async with model_that([text("hello")], books) as (api, client):
        status, body = await client.answer(headers=shown)

        assert status == 401
        assert json.loads(body)["error"]["type"] == "authentication_error"
        assert (api.requests, books.asked) == ([], [])


@scenario
async def test_the_token_is_a_token_only_as_a_bearers() -> None:
    async with model_that([text("hello")]) as (api, client):
        shown = {"x-api-key": "", "authorization": f"Basic {client.gateway.token}"}

        assert (await client.answer(headers=shown))[0] == 401
        assert api.requests == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/messages"),
        ("POST", "/v1/messages/"),
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1/messages/../files"),
        ("POST", "/v1/files"),
        ("GET", "/v1/models"),
        ("HEAD", "/api/hello"),
        ("POST", ""),
    ],
)
@scenario
async def test_nothing_but_questions_reaches_the_upstream(method: str, path: str) -> None:
    async with model_that([text("hello")]) as (api, client):
        async with client.request(method, path, data=b"{}") as answer:
            assert answer.status == 404

        assert (api.requests, api.others) == ([], [])


@scenario
async def test_whoever_does_not_know_the_place_finds_nothing_there() -> None:
    async with model_that([text("hello")]) as (api, client):
        place, _, _ = client.gateway.url.rpartition("/")
        shown = {"x-api-key": client.gateway.token}
        async with client.session.post(f"{place}{MESSAGES}", headers=shown, data=b"{}") as answer:
            assert answer.status == 404

        assert api.requests == []


@scenario
async def test_each_gateway_has_a_place_and_a_token_of_its_own() -> None:
    async with gateway_to("http://127.0.0.1:9") as one, gateway_to("http://127.0.0.1:9") as two:
        assert one.gateway.token != two.gateway.token
        assert one.gateway.url.rpartition("/")[2] != two.gateway.url.rpartition("/")[2]
        assert min(len(one.gateway.token), len(one.gateway.url.rpartition("/")[2])) >= 20


@scenario
async def test_counting_tokens_is_passed_on_and_is_not_paid_for() -> None:
    books = Books()
    async with model_that([text("hello")], books) as (api, client):
        async with client.request("POST", "/v1/messages/count_tokens", data=b"{}") as answer:
            assert "input_tokens" in await answer.json()

        assert [other.path for other in api.others] == ["/v1/messages/count_tokens"]
        assert api.others[0].headers["x-api-key"] == SECRET
        assert (books.asked, books.told) == ([], [])


@scenario
async def test_an_address_with_a_path_is_kept() -> None:
    async with model_that([]) as (api, _):
        api.play([text("hello")], key="deep")
        async with gateway_to(f"{api.url_for('deep')}/") as client:
            assert (await client.answer())[0] == 200


@scenario
async def test_events_come_one_by_one() -> None:
    async with model_that([stall(after=3)]) as (api, client), client.ask() as answer:
        await api.wait_for_stage(Stage.SILENT)

        seen = b""
        while seen.count(b"\n\n") < 3:
            seen += await answer.content.readany()

        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["request-id"] == "req_scripted_1"
        assert seen.startswith(b"event: message_start\n")


@scenario
async def test_an_answer_comes_as_it_was_sent() -> None:
    body = b'{"type": "error", "error": {"type": "rate_limit_error"}}'
    sent = http("429 Slow down", body, retry_after="7", anthropic_ratelimit_x="1", x_y="z")
    async with wire(sent) as up, gateway_to(up.url) as client, client.ask() as answer:
        assert (answer.status, answer.reason) == (429, "Slow down")
        assert answer.headers["retry-after"] == "7"
        assert answer.headers["anthropic-ratelimit-x"] == "1"
        assert await answer.read() == body


@pytest.mark.parametrize("stream", [True, False])
@scenario
async def test_a_connection_that_is_reset_is_reset_and_no_answer(stream: bool) -> None:
    async with model_that([reset()]) as (_, client):
        with pytest.raises(BROKEN):
            await client.answer(stream=stream)

        assert "reset" in str(client.gateway.trouble).lower()
        assert client.gateway.last_status is None


@scenario
async def test_a_connection_that_is_refused_is_reset_and_said() -> None:
    async with model_that([]) as (api, _):
        nobody = api.url
    async with gateway_to(nobody) as client:
        with pytest.raises(BROKEN):
            await client.answer()

        assert "Cannot connect to host 127.0.0.1" in str(client.gateway.trouble)


@scenario
async def test_garbage_is_no_answer() -> None:
    async with wire(b"what?\r\n\r\n") as up, gateway_to(up.url) as client:
        with pytest.raises(BROKEN):
            await client.answer()


@pytest.mark.parametrize("stream", [True, False])
@scenario
async def test_an_answer_that_breaks_off_breaks_off(stream: bool) -> None:
    async with model_that([reset(4)]) as (_, client):
        with pytest.raises(BROKEN):
            await client.answer(stream=stream)

        assert client.gateway.trouble is not None


@scenario
async def test_a_stream_that_ends_too_early_ends_there() -> None:
    async with model_that([truncate(3)]) as (_, client):
        _, body = await client.answer()

        assert body.count("\n\n") == 3
        assert "message_stop" not in body
        assert client.gateway.trouble is None


@scenario
async def test_whoever_leaves_is_followed_by_the_gateway() -> None:
    books = Books()
    async with model_that([hang(), text("hello")], books) as (api, client):
        asking = asyncio.create_task(client.answer())
        await api.wait_for_stage(Stage.SILENT)
        asking.cancel()
        await api.wait_for_stage(Stage.ABANDONED)

        assert (await client.answer())[0] == 200
        assert [answered.status for answered in books.told] == [None, 200]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": 3}', b'{"model": ""}', b"[" * 9999])
@scenario
async def test_what_cannot_be_priced_is_not_asked(body: bytes) -> None:
    books = Books()
    async with model_that([text("hello")], books) as (api, client):
        async with client.request("POST", MESSAGES, data=body) as answer:
            assert answer.status == 400
            assert answer.headers["x-should-retry"] == "false"

        assert (api.requests, books.asked) == ([], [])


@scenario
async def test_a_redirection_is_neither_followed_nor_told() -> None:
    async with wire(http("200 OK", b"{}")) as elsewhere:
        there = http("307 Temporary Redirect", b"", location=elsewhere.url)
        async with wire(there) as up, gateway_to(up.url) as client, client.ask() as answer:
            assert answer.status == 307
            assert "location" not in answer.headers

        assert elsewhere.heads == []


@scenario
async def test_the_environment_has_the_token_where_the_credential_would_be() -> None:
    cases = {
        "ANTHROPIC_API_KEY": ApiKey(SECRET),
        "ANTHROPIC_AUTH_TOKEN": Bearer(SECRET),
        "CLAUDE_CODE_OAUTH_TOKEN": Bearer(SECRET, subscription=True),
    }
    for variable, credential in cases.items():
        async with gateway_to("http://127.0.0.1:9", credential=credential) as client:
            gateway = client.gateway
            expected = {**dict.fromkeys(cases, ""), "ANTHROPIC_BASE_URL": gateway.url}

            assert gateway.environment() == {**expected, variable: gateway.token}


@scenario
async def test_the_command_line_does_not_ask_a_proxy_for_the_gateway() -> None:
    async with gateway_to("http://127.0.0.1:9") as client:
        environment = client.gateway.environment

        proxied = environment({"HTTPS_PROXY": "http://proxy:1", "no_proxy": "intern.example"})
        assert proxied["NO_PROXY"] == proxied["no_proxy"] == "intern.example,127.0.0.1"
        assert environment({"http_proxy": "http://proxy:1"})["NO_PROXY"] == "127.0.0.1"
        assert "NO_PROXY" not in environment({"PATH": "/bin", "NO_PROXY": "x", "http_proxy": ""})


@pytest.mark.parametrize(
    "upstream",
    [
        "",
        "api.example.com",
        "ftp://a",
        "http://",
        "http://me:pass@a",
        "http://a?b=pass",
        "http://a#b",
    ],
)
def test_what_is_no_address_is_refused_and_not_repeated(upstream: str) -> None:
    books = Books()
    with pytest.raises(ConfigurationError) as refused:
        Gateway(ApiKey(SECRET), upstream, before=books.before, after=books.after)

    assert "pass" not in str(refused.value)
