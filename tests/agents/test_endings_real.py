"""How queries really end: the SDK and its CLI against the stand-in, judged by ``endings``.

A start of the CLI costs most of a second of processor time, so every row is one query, rows of a
kind share a test, and two run at once.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, query

from longshore.core.agents.failures import (
    QueryEnding,
    QueryFailure,
    QueryFailureReason,
    query_failure_of,
)
from longshore.core.tasks.failures import ErrorCategory as Category
from verification.messages_api import (
    MessagesApi,
    RequestState,
    error,
    hang,
    reset,
    stall,
    structured,
    text,
)
from verification.messages_api.script import Step

MODEL = "claude-sonnet-4-5"
AT_ONCE = 2
SCHEMA = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
    },
}

# Reason, category, and whether it is worth another attempt; None: it worked.
Expected = tuple[QueryFailureReason, Category, bool] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One query: the API's behaviour and the expected failure."""

    step: Step
    expected: Expected
    requests: int = 1  # how many the CLI makes of it
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def _environment(url: str, home: Path, more_: Mapping[str, str]) -> dict[str, str]:
    # Empty is unset: the CLI inherits the whole environment of the tests.
    unset = dict.fromkeys(
        ("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "http_proxy", "HTTP_PROXY"), ""
    )
    return {
        **unset,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-none",
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / "config"),
        "CLAUDE_CODE_TMPDIR": str(home),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        **more_,
    }


async def _run_query(url: str, home: Path, row: Row) -> QueryFailure | None:
    home.mkdir()
    stderr: deque[str] = deque(maxlen=50)
    raised, result, assistant_error = None, None, None
    options = ClaudeAgentOptions(
        cwd=home,
        model=MODEL,
        tools=[],
        setting_sources=[],
        env=_environment(url, home, row.environment),
        stderr=stderr.append,
        **row.options,
    )
    try:
        async for message in query(prompt="Do it.", options=options):
            if isinstance(message, AssistantMessage):
                assistant_error = message.error
            elif isinstance(message, ResultMessage):
                result = message
    # Any error: its classification is what is tested.
    except Exception as error:  # noqa: BLE001
        raised = error
    ending = QueryEnding.from_query(
        raised,
        result,
        assistant_error=assistant_error,
        stderr="\n".join(stderr),
        model=MODEL,
        wants_structure="output_format" in row.options,
    )
    return query_failure_of(ending)


async def _run_rows(
    rows: Mapping[str, Row], home: Path
) -> tuple[dict[str, QueryFailure | None], MessagesApi]:
    turns = asyncio.Semaphore(AT_ONCE)
    async with MessagesApi() as api:

        async def item(key: str, row: Row) -> QueryFailure | None:
            async with turns:
                return await _run_query(api.set_script([row.step], key=key), home / key, row)

        decisions = await asyncio.gather(*(item(key, row) for key, row in rows.items()))
    return dict(zip(rows, decisions, strict=True)), api


def _classification(failure: QueryFailure | None) -> Expected:
    if failure is None:
        return None
    return failure.reason, failure.failure.category, failure.failure.retryable


def _check(rows: Mapping[str, Row], home: Path) -> tuple[dict[str, str], MessagesApi]:
    """Compare all rows at once; the messages, by row."""
    decisions, api = asyncio.run(_run_rows(rows, home))
    assert {key: _classification(query_failure) for key, query_failure in decisions.items()} == {
        key: row.expected for key, row in rows.items()
    }
    assert {key: len(api.requests_of(key)) for key in rows} == {
        key: row.requests for key, row in rows.items()
    }
    return {key: item.failure.message if item else "" for key, item in decisions.items()}, api


def test_a_refused_request_has_the_category_of_its_status(tmp_path: Path) -> None:
    def refused(status: int, category: Category, requests: int = 1, **options: Any) -> Row:
        reported = (QueryFailureReason.STATUS, category, category.retryable)
        return Row(step=error(status, **options), expected=reported, requests=requests)

    rows = {
        # The CLI leaves out what a server may not know, piece by piece.
        "400": refused(400, Category.VALIDATION, 3),
        "401": refused(401, Category.AUTH),
        "402": refused(402, Category.AUTH),
        "403": refused(403, Category.AUTH),
        # It asks again without a stream.
        "404": refused(404, Category.NOT_FOUND, 2),
        "429": refused(429, Category.RATE_LIMIT, headers={"retry-after": "90"}),
        "500": refused(500, Category.SERVER_ERROR),
        "529": refused(529, Category.SERVER_ERROR),
    }

    messages, _ = _check(rows, tmp_path)

    assert messages["529"] == "the API is overloaded (529); message: scripted overloaded_error."
    assert f"no model '{MODEL}'" in messages["404"]


def test_missing_and_interrupted_responses_are_retried(tmp_path: Path) -> None:
    no_answer = (QueryFailureReason.NO_ANSWER, Category.TIMEOUT, True)
    rows = {
        "stall": Row(
            step=stall(),
            expected=no_answer,
            environment={
                # The least that the CLI allows.
                "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": "10000",
                "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
            },
        ),
        "hang": Row(step=hang(), expected=no_answer, environment={"API_TIMEOUT_MS": "1000"}),
        "reset": Row(step=reset(), expected=(QueryFailureReason.NETWORK, Category.NETWORK, True)),
    }

    _, api = _check(rows, tmp_path)

    (hung,), (stalled,) = api.requests_of("hang"), api.requests_of("stall")
    assert (hung.state, stalled.state) == (RequestState.ABANDONED, RequestState.ABANDONED)


def test_answers_without_a_result_are_distinguished(tmp_path: Path) -> None:
    shape = (QueryFailureReason.SCHEMA_MISMATCH, Category.PARSE, True)
    structure = {"output_format": SCHEMA}
    rows = {
        "schema-met": Row(step=structured({"answer": "42"}), expected=None, options=structure),
        "schema-never-met": Row(
            step=structured({"wrong": 1}),
            expected=shape,
            requests=2,
            options=structure,
            environment={"MAX_STRUCTURED_OUTPUT_RETRIES": "2"},
        ),
        # The CLI asks once more for a result, and then accepts the text.
        "prose": Row(step=text("It is 42."), expected=shape, requests=2, options=structure),
        "refusal": Row(
            step=text("No.", stop_reason="refusal"),
            expected=(QueryFailureReason.REFUSAL, Category.VALIDATION, False),
            requests=2,
        ),
        "no-key": Row(
            step=text(),
            expected=(QueryFailureReason.NO_CREDENTIALS, Category.AUTH, False),
            requests=0,
            environment={"ANTHROPIC_API_KEY": ""},
        ),
    }

    messages, _ = _check(rows, tmp_path)

    assert "set ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN" in messages["no-key"]
    assert "It is 42." in messages["prose"]
    assert "answer" in messages["schema-never-met"]
