"""The gateway with the real command line: what it and its tools see, and what it says it paid."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultError,
    ResultMessage,
    query,
)

from longshore.execution.runners.agent.gateway import Gateway
from tests.agents.gateway_client import SECRET, RecordingBudget, scenario, scripted_model
from verification.messages_api import Request, Script, Usage, text, tool_use

MODELS = ("claude-sonnet-5-5", "claude-haiku-5-5")
# What a curious tool would look at: its own surroundings, and those of all above it.
CURIOUS = (
    "env; one=$PPID; while [ $one -gt 1 ] && [ $one -ne %d ]; do"
    " tr '\\0' '\\n' </proc/$one/environ; tr '\\0' ' ' </proc/$one/cmdline;"
    " one=$(awk '/^PPid/ {print $2}' /proc/$one/status); done"
)


def _options(gateway: Gateway, home: Path, **more_: Any) -> ClaudeAgentOptions:
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"), "")
    environment: Mapping[str, str] = {
        **proxies,
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "CLAUDE_CODE_TMPDIR": str(home),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **gateway.environment(),
    }
    fields = {"model": MODELS[0], "tools": [], "permission_mode": "dontAsk", **more_}
    return ClaudeAgentOptions(env=dict(environment), cwd=home, setting_sources=[], **fields)


@scenario
async def test_a_tool_that_looks_everywhere_finds_only_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the child had inherited one: it must not get to the command line either.
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", f"inherited-{SECRET}")
    look = tool_use("Bash", {"command": CURIOUS % os.getpid()})
    async with scripted_model([look, text("done")]) as (api, client):
        gateway = client.gateway
        options = _options(gateway, tmp_path, tools=["Bash"], allowed_tools=["Bash"])
        messages = [message async for message in query(prompt="look", options=options)]

        (match,) = api.requests[1].tool_results
        assert match.text.count(f"ANTHROPIC_API_KEY={gateway.token}") >= 2, match.text
        assert f"ANTHROPIC_BASE_URL={gateway.url}" in match.text
        assert SECRET not in f"{match.text} {messages} {api.requests[1].body}"
        assert [request.credential for request in api.requests] == [SECRET, SECRET]


@scenario
async def test_a_question_that_is_stopped_ends_the_run_at_once(tmp_path: Path) -> None:
    budget = RecordingBudget(decisions=[None, "the budget of 1 USD is used up"])
    says = [tool_use("Bash", {"command": "echo 1"}), text("never sent")]
    received: set[str] = set()
    async with scripted_model(says, budget) as (api, client):
        options = _options(client.gateway, tmp_path, tools=["Bash"], allowed_tools=["Bash"])

        async def run() -> None:
            async for message in query(prompt="go on", options=options):
                received.add(getattr(message, "subtype", ""))

        with pytest.raises(ResultError) as ended:
            await run()

        assert client.gateway.stop_reason == "the budget of 1 USD is used up"
        assert "the budget of 1 USD is used up" in str(ended.value.data["result"])
        assert ended.value.data["api_error_status"] == 402
        # With all the retries that the command line has by default, it makes use of none.
        assert (len(api.requests), len(budget.requests), "api_retry" in received) == (1, 2, False)
        assert ended.value.data["total_cost_usd"] == budget.responses[0].cost_usd > 0


def _is_a_look(request: Request) -> bool:
    return request.body["max_tokens"] == 1


@scenario
async def test_the_counted_cost_is_what_the_cli_reports(tmp_path: Path) -> None:
    small = Usage(input_tokens=1234, output_tokens=567, cache_read_tokens=89, cache_write_tokens=10)
    large = Usage(input_tokens=9, output_tokens=7, cache_read_tokens=99_999, cache_write_tokens=6)
    answers = [text(usage=small), text(usage=large), text(usage=small), text(usage=large)]
    # It looks whether there is such a model; that costs something, too, and it does not count it.
    looks = Script.of(text(usage=Usage(input_tokens=0, output_tokens=0)), when=_is_a_look)
    budget = RecordingBudget()
    async with (
        scripted_model([looks, Script.of(*answers)], budget) as (_, client),
        ClaudeSDKClient(_options(client.gateway, tmp_path)) as agent,
    ):
        # Each model with a short and a long prompt, which one of them charges more for.
        for model in (*MODELS, *reversed(MODELS)):
            await agent.set_model(model)
            await agent.query("go on")
            async with asyncio.timeout(60):
                results = [item async for item in agent.receive_response()]
            (result,) = [item for item in results if isinstance(item, ResultMessage)]
            # What it says at its end was counted before.
            assert result.total_cost_usd == sum(response.cost_usd for response in budget.responses)

    for model in MODELS:
        ours = [item for item in budget.responses if item.model == model and item.cost_usd]
        assert len(ours) == 2
        theirs = result.model_usage[model]
        assert theirs["inputTokens"] == sum(item.tokens.input for item in ours)
        assert theirs["outputTokens"] == sum(item.tokens.output for item in ours)
        assert theirs["cacheReadInputTokens"] == sum(item.tokens.cache_read for item in ours)
        assert theirs["cacheCreationInputTokens"] == sum(
            item.tokens.cache_creation for item in ours
        )
        assert theirs["costUSD"] == sum(item.cost_usd for item in ours)
        assert theirs["costBasis"] == "list"
