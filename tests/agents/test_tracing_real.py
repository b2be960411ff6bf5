"""Real agents under observation: the SDK and its CLI against the stand-in of the API."""

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, query

from longshore.core.agents.prices import TokenCounts
from longshore.core.agents.trace import TRACE_FILE
from longshore.execution.runners.agent.tracing import AgentTracer
from verification.messages_api import (
    Answer,
    MessagesApi,
    Request,
    Usage,
    error,
    structured,
    text,
    tool_use,
    tool_uses,
)
from verification.messages_api.script import Step

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
KEY = "sk-" + "ant-api03-" + "AbC1" * 8
TOOLS = ["Bash", "Write", "WebFetch", "Agent", "TaskCreate", "TaskUpdate", "TaskList"]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


class TracedAgent:
    """An agent in a folder, its tracer, and all reports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.activities: list[str] = []
        self.summaries: list[str] = []
        self._ticks = 0
        self._tracer: AgentTracer | None = None

    def send(self, kind: str, /, **content: Any) -> None:
        if kind == "log":
            self.lines.append(content["text"])
        else:
            self.activities.append(content["activity"])

    def now(self) -> datetime:
        self._ticks += 1
        return NOON + timedelta(milliseconds=self._ticks)

    def with_usage(self, step: Answer) -> Callable[[Request], Step]:
        """Returns the step; its usage and a cost of one cent are reported as the gateway would."""

        def give(_request: Request) -> Step:
            usage, message_id = step.usage, f"msg_{uuid.uuid4().hex[:24]}"
            assert self._tracer is not None
            self._tracer.on_response(
                message_id,
                TokenCounts(
                    input=usage.input_tokens,
                    output=usage.output_tokens,
                    cache_read=usage.cache_read_tokens,
                    cache_write=usage.cache_write_tokens,
                ),
                0.01,
            )
            return replace(step, message_id=message_id)

        return give

    def run(
        self,
        steps: Sequence[Step],
        *,
        agents: Sequence[Answer] = (),
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Let the agent work; the trace of its step."""
        asyncio.run(self._run(steps, agents, environment or {}, options))
        (step,) = json.loads((self.folder / TRACE_FILE).read_text())["steps"]
        assert isinstance(step, dict)
        return step

    async def _run(
        self,
        steps: Sequence[Step],
        agents: Sequence[Answer],
        environment: Mapping[str, str],
        options: dict[str, Any],
    ) -> None:
        played = [self.with_usage(item) if isinstance(item, Answer) else item for item in steps]
        below = [self.with_usage(item) for item in agents]
        tracer = AgentTracer(str(self.folder), self.send, self.now, self.summaries.append)
        self._tracer = tracer
        async with MessagesApi(played, agents=below) as api:
            with tracer.trace_step("review"):
                hooks = {**tracer.hooks()}
                for event, more_ in options.pop("hooks", {}).items():
                    hooks[event] = [*hooks[event], *more_]
                requested = ClaudeAgentOptions(
                    cwd=self.folder,
                    model="claude-sonnet-4-5",
                    setting_sources=[],
                    permission_mode="dontAsk",
                    hooks=hooks,
                    env=self._environment(api.url, environment),
                    **options,
                )
                async for message in query(prompt="Do it.", options=requested):
                    tracer.on_message(message)

    def _environment(self, url: str, more_: Mapping[str, str]) -> dict[str, str]:
        # Empty is unset: the CLI inherits the whole environment of the tests.
        unset = ("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "http_proxy", "HTTP_PROXY")
        return {
            **dict.fromkeys(unset, ""),
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-none",
            "HOME": str(self.folder),
            "CLAUDE_CONFIG_DIR": str(self.folder / "config"),
            "CLAUDE_CODE_TMPDIR": str(self.folder),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
            "CLAUDE_CODE_MAX_RETRIES": "2",
            **more_,
        }


def test_a_whole_step_is_traced_and_logged(tmp_path: Path) -> None:
    watched = TracedAgent(tmp_path)
    cached = Usage(
        input_tokens=100, output_tokens=20, cache_read_tokens=800, cache_write_tokens=100
    )
    look, write = ({"subject": subject, "description": "d"} for subject in ("Look", "Write"))

    step = watched.run(
        [
            tool_uses(("TaskCreate", look), ("TaskCreate", write), preamble="First I look.\nThen"),
            tool_uses(
                ("TaskUpdate", {"taskId": "1", "status": "in_progress"}),
                ("Bash", {"command": f"echo {KEY}"}),
                usage=cached,
            ),
            tool_uses(
                ("Bash", {"command": "exit 3"}), ("WebFetch", {"url": "http://x", "prompt": "p"})
            ),
            tool_use(
                "Agent",
                {"description": "Count", "prompt": "c", "subagent_type": "general-purpose"},
            ),
            error(529),
            tool_use("TaskUpdate", {"taskId": "1", "status": "completed"}),
            structured({"answer": 42}),
        ],
        agents=[tool_use("Bash", {"command": "echo below"}), text("counted")],
        tools=TOOLS,
        allowed_tools=["Bash", "Agent"],
        output_format={"type": "json_schema", "schema": SCHEMA},
    )

    tools = {(item["name"], item["summary"]): item for item in step["tools"]}
    outcomes = {summary or name: item["outcome"] for (name, summary), item in tools.items()}
    assert step["end"] == {
        "how": "completed",
        "reason": "completed",
        "error": None,
        "apiStatus": None,
    }
    assert outcomes == {
        "Look": "ok",
        "Write": "ok",
        "1 in_progress": "ok",
        "echo [masked]": "ok",
        "exit 3": "failed",
        "http://x": "denied",
        "Count": "ok",
        "echo below": "ok",
        "1 completed": "ok",
        "42": "ok",
    }
    assert tools["Bash", "echo below"]["parent"] == tools["Agent", "Count"]["id"]
    assert all(
        item["durationMs"] is not None for item in step["tools"] if item["outcome"] != "denied"
    )
    (subagent,) = step["subagents"]
    assert (subagent["kind"], subagent["tool"]) == (
        "general-purpose",
        tools["Agent", "Count"]["id"],
    )
    assert subagent["durationMs"] > 0
    (note,) = step["notes"]
    assert note["text"].startswith("the API failed (529, overloaded): retry 1 of ")
    assert [(item["subject"], item["state"]) for item in step["todos"]] == [
        ("Look", "completed"),
        ("Write", "pending"),
    ]
    # Six answers to the agent and two to the one below; the last of those is never shown.
    assert (step["counts"]["turns"], step["costUsd"]) == (7, 0.08)
    assert step["tokens"]["output"] == 7 * 10 + 20
    assert step["turns"][1]["tokens"]["cacheEfficiency"] == 80.0
    assert all(turn["costUsd"] == 0.01 for turn in step["turns"])
    assert KEY not in (tmp_path / TRACE_FILE).read_text()

    reported = "\n".join(watched.lines)
    for line in (
        "review: First I look.\n  Then",
        "review: todo started: Look",
        "review: Bash: echo [masked]",
        "review: subagent general-purpose started: Count",
        "review/general-purpose: Bash: echo below",
        "review: todo: Write",
    ):
        assert f"{line}\n" in f"{reported}\n"
    assert "review: WebFetch was denied: Permission to use WebFetch has been denied" in reported
    assert "review: Bash failed after" in reported
    assert "review: subagent general-purpose took" in reported
    assert "review: todo 1/2 done after" in reported
    assert "review: returned its result: {" in reported
    assert {"sdk_query", "step_running", "waiting"} == set(watched.activities)
    (summary,) = watched.summaries
    assert summary.startswith("review: completed after ")
    assert "7 turns, 10 tools (1 failed, 1 denied)" in summary


def test_another_hook_may_still_refuse(tmp_path: Path) -> None:
    async def refuse(_payload: Any, _tool: Any, _context: Any) -> dict[str, Any]:
        decision = {"permissionDecision": "deny", "permissionDecisionReason": "not that"}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}

    watched = TracedAgent(tmp_path)

    step = watched.run(
        [
            tool_use("Bash", {"command": "touch seen"}),
            text("done", thinking="between us"),
        ],
        tools=["Bash"],
        allowed_tools=["Bash"],
        hooks={"PreToolUse": [HookMatcher(matcher="Bash", hooks=[refuse])]},
    )

    assert not (tmp_path / "seen").exists()
    (tool,) = step["tools"]
    assert (tool["name"], tool["outcome"]) == ("Bash", "denied")
    assert "not that" in tool["output"]
    assert "between us" not in (tmp_path / TRACE_FILE).read_text()
