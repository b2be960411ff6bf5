"""The gateway: who gets through, with what, and what comes back."""

import asyncio
import json

import pytest

from longshore.errors import ConfigurationError
from longshore.execution.runners.agent.credentials import AUTH_TOKEN, OAUTH_TOKEN, Credential
from longshore.execution.runners.agent.gateway import Gateway
from tests.agents.gateway_client import (
    BROKEN,
    MESSAGES,
    SECRET,
    RecordingBudget,
    http_response,
    open_gateway,
    raw_upstream,
    scenario,
    scripted_model,
)
from verification.messages_api import RequestState, hang, reset, stall, text, truncate


@scenario
async def test_a_request_is_forwarded_with_the_real_key_and_its_other_headers() -> None:
    async with scripted_model([text("hello")]) as (api, client):
        message = {
            "anthropic-beta": "a,b",
            "user-agent": "claude-cli/2",
            "x-claude-code-agent-id": "7",
        }
        status, body = await client.response(headers=message)

        (request,) = api.requests
        assert (status, "message_stop" in body) == (200, True)
        assert (request.path, request.query) == ("/v1/messages", "beta=true")
        assert request.headers["x-api-key"] == SECRET
        assert "authorization" not in request.headers
        assert {name: request.headers[name] for name in message} == message
        assert request.headers["anthropic-version"] == "2023-06-01"
        assert client.gateway.token not in str(request.headers)


@pytest.mark.parametrize("variable", [AUTH_TOKEN, OAUTH_TOKEN])
@scenario
async def test_a_bearer_token_is_sent_in_the_authorization_header(variable: str) -> None:
    credential = Credential("a-real-token", variable)
    async with scripted_model([text("hello")], credential=credential) as (api, client):
        shown = {"authorization": f"Bearer {client.gateway.token}", "x-api-key": ""}
        status, _ = await client.response(headers=shown)

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
async def test_a_request_without_the_token_is_rejected(shown: dict[str, str]) -> None:
    budget = RecordingBudget()
    async with scripted_model([text("hello")], budget) as (api, client):
        status, body = await client.response(headers=shown)

        assert status == 401
        assert json.loads(body)["error"]["type"] == "authentication_error"
        assert (api.requests, budget.requests) == ([], [])


@scenario
async def test_the_token_is_a_token_only_as_a_bearers() -> None:
    async with scripted_model([text("hello")]) as (api, client):
        shown = {"x-api-key": "", "authorization": f"Basic {client.gateway.token}"}

        assert (await client.response(headers=shown))[0] == 401
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
async def test_only_model_requests_reach_the_upstream(method: str, path: str) -> None:
    async with scripted_model([text("hello")]) as (api, client):
        async with client.request(method, path, data=b"{}") as answer:
            assert answer.status == 404

        assert (api.requests, api.other_requests) == ([], [])


@scenario
async def test_a_request_without_the_prefix_is_not_found() -> None:
    async with scripted_model([text("hello")]) as (api, client):
        folder, _, _ = client.gateway.url.rpartition("/")
        shown = {"x-api-key": client.gateway.token}
        async with client.session.post(f"{folder}{MESSAGES}", headers=shown, data=b"{}") as answer:
            assert answer.status == 404

        assert api.requests == []


@scenario
async def test_each_gateway_has_a_place_and_a_token_of_its_own() -> None:
    async with (
        open_gateway("http://127.0.0.1:9") as item,
        open_gateway("http://127.0.0.1:9") as two,
    ):
        assert item.gateway.token != two.gateway.token
        assert item.gateway.url.rpartition("/")[2] != two.gateway.url.rpartition("/")[2]
        assert min(len(item.gateway.token), len(item.gateway.url.rpartition("/")[2])) >= 20


@scenario
async def test_counting_tokens_is_passed_on_and_is_not_paid_for() -> None:
    budget = RecordingBudget()
    async with scripted_model([text("hello")], budget) as (api, client):
        async with client.request("POST", "/v1/messages/count_tokens", data=b"{}") as answer:
            assert "input_tokens" in await answer.json()

        assert [other.path for other in api.other_requests] == ["/v1/messages/count_tokens"]
        assert api.other_requests[0].headers["x-api-key"] == SECRET
        assert (budget.requests, budget.responses) == ([], [])


@scenario
async def test_the_path_of_the_upstream_address_is_used() -> None:
    async with scripted_model([]) as (api, _):
        api.set_script([text("hello")], key="deep")
        async with open_gateway(f"{api.url_for('deep')}/") as client:
            assert (await client.response())[0] == 200


@scenario
async def test_events_of_a_stream_are_passed_on_one_by_one() -> None:
    async with scripted_model([stall(after=3)]) as (api, client), client.ask() as answer:
        await api.wait_for_state(RequestState.SILENT)

        seen = b""
        while seen.count(b"\n\n") < 3:
            seen += await answer.content.readany()

        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["request-id"] == "req_scripted_1"
        assert seen.startswith(b"event: message_start\n")


@scenario
async def test_a_response_is_passed_on_unchanged() -> None:
    body = b'{"type": "error", "error": {"type": "rate_limit_error"}}'
    sent = http_response("429 Slow down", body, retry_after="7", anthropic_ratelimit_x="1", x_y="z")
    async with raw_upstream(sent) as up, open_gateway(up.url) as client, client.ask() as answer:
        assert (answer.status, answer.reason) == (429, "Slow down")
        assert answer.headers["retry-after"] == "7"
        assert answer.headers["anthropic-ratelimit-x"] == "1"
        assert await answer.read() == body


@pytest.mark.parametrize("stream", [True, False])
@scenario
async def test_a_connection_that_is_reset_is_reset_and_no_answer(stream: bool) -> None:
    async with scripted_model([reset()]) as (_, client):
        with pytest.raises(BROKEN):
            await client.response(stream=stream)

        assert client.gateway.unreachable
        assert client.gateway.last_status is None


@scenario
async def test_a_refused_connection_is_reset_and_reported() -> None:
    async with scripted_model([]) as (api, _):
        unreachable = api.url
    async with open_gateway(unreachable) as client:
        with pytest.raises(BROKEN):
            await client.response()

        assert client.gateway.unreachable


@scenario
async def test_garbage_is_no_answer() -> None:
    async with raw_upstream(b"what?\r\n\r\n") as up, open_gateway(up.url) as client:
        with pytest.raises(BROKEN):
            await client.response()


@pytest.mark.parametrize("stream", [True, False])
@scenario
async def test_an_answer_that_breaks_off_breaks_off(stream: bool) -> None:
    async with scripted_model([reset(4)]) as (_, client):
        with pytest.raises(BROKEN):
            await client.response(stream=stream)

        assert client.gateway.unreachable


@scenario
async def test_a_stream_that_ends_too_early_ends_there() -> None:
    async with scripted_model([truncate(3)]) as (_, client):
        _, body = await client.response()

        assert body.count("\n\n") == 3
        assert "message_stop" not in body
        assert not client.gateway.unreachable


@scenario
async def test_the_gateway_disconnects_when_its_client_does() -> None:
    budget = RecordingBudget()
    async with scripted_model([hang(), text("hello")], budget) as (api, client):
        request_task = asyncio.create_task(client.response())
        await api.wait_for_state(RequestState.SILENT)
        request_task.cancel()
        await api.wait_for_state(RequestState.ABANDONED)

        assert (await client.response())[0] == 200
        assert [model_response.status for model_response in budget.responses] == [None, 200]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": 3}', b'{"model": ""}', b"[" * 9999])
@scenario
async def test_a_request_without_a_model_is_not_sent(body: bytes) -> None:
    budget = RecordingBudget()
    async with scripted_model([text("hello")], budget) as (api, client):
        async with client.request("POST", MESSAGES, data=body) as answer:
            assert answer.status == 400
            assert answer.headers["x-should-retry"] == "false"

        assert (api.requests, budget.requests) == ([], [])


@scenario
async def test_a_redirect_is_neither_followed_nor_passed_on() -> None:
    async with raw_upstream(http_response("200 OK", b"{}")) as elsewhere:
        there = http_response("307 Temporary Redirect", b"", location=elsewhere.url)
        async with (
            raw_upstream(there) as up,
            open_gateway(up.url) as client,
            client.ask() as answer,
        ):
            assert answer.status == 307
            assert "location" not in answer.headers

        assert elsewhere.request_heads == []


@scenario
async def test_the_environment_has_the_token_where_the_credential_would_be() -> None:
    variables = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
    for variable in variables:
        credential = Credential(SECRET, variable)
        async with open_gateway("http://127.0.0.1:9", credential=credential) as client:
            gateway = client.gateway
            expected = {**dict.fromkeys(variables, ""), "ANTHROPIC_BASE_URL": gateway.url}

            assert gateway.environment() == {**expected, variable: gateway.token}


@scenario
async def test_the_command_line_does_not_ask_a_proxy_for_the_gateway() -> None:
    async with open_gateway("http://127.0.0.1:9") as client:
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
def test_an_invalid_address_is_refused_and_not_quoted(upstream: str) -> None:
    budget = RecordingBudget()
    with pytest.raises(ConfigurationError) as refused:
        Gateway(Credential(SECRET), upstream, before=budget.before, after=budget.after)

    assert "pass" not in str(refused.value)
