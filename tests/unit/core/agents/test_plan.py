"""A plan is read, or all problems are reported with their paths."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.core.agents.plan import (
    DEFAULT_TIMEOUT,
    AgentPlan,
    Repository,
    read_plan,
    timeout_problems,
)
from longshore.core.budgets import NO_BUDGET, Budget

URL = "https://example.com/a.git"
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}}


def plan(**options: Any) -> AgentPlan:
    read, problems = read_plan(options)
    assert problems == []
    assert read is not None
    return read


def problems(**options: Any) -> dict[str, str]:
    read, result = read_plan(options)
    assert read is None
    return {problem.path: problem.message for problem in result}


def test_a_prompt_alone_is_a_plan_of_one_step_without_tools() -> None:
    (step,) = plan(prompt="Say hello.").steps

    assert (step.name, step.prompt, step.tools) == ("task", "Say hello.", ())
    assert (step.max_turns, step.timeout, step.output_file) == (
        30,
        DEFAULT_TIMEOUT,
        "task-result.json",
    )
    assert step.output_schema is None
    assert (step.budget, plan(prompt="Say hello.").budget) == (NO_BUDGET, NO_BUDGET)


def test_all_options_are_read() -> None:
    read = plan(
        role="You are an editor.",
        prompt="Edit {{ input.text }}",
        checks=["no passive voice"],
        outputSchema=SCHEMA,
        outputFile="edited.json",
        maxTurns=5,
        tools=["Read", "Bash(git diff *)", "Bash(git log *)", "mcp__stock__find"],
        timeout="2m",
        budget={"usd": 1.5},
        model="claude-sonnet-5-5",
        fallbackModel="claude-haiku-5-5",
        permissionMode="acceptEdits",
        mcpServers={"stock": {"command": "stock-server"}},
        repository={"url": "https://example.com/a.git", "ref": "main"},
        sandbox=True,
    )

    (step,) = read.steps
    assert step.tool_names == ("Read", "Bash", "mcp__stock__find")
    assert (step.max_turns, step.timeout) == (5, timedelta(minutes=2))
    # The budget of the whole task, not of its step.
    assert (read.budget, step.budget) == (Budget(usd=1.5), NO_BUDGET)
    assert read.repository == Repository(url="https://example.com/a.git", ref="main")
    assert (read.model, read.fallback_model) == ("claude-sonnet-5-5", "claude-haiku-5-5")
    assert (read.permission_mode, read.sandbox) == ("acceptEdits", True)
    assert read.checks == ("no passive voice",)
    assert read.mcp_servers == {"stock": {"command": "stock-server"}}


def test_options_beside_the_steps_are_their_defaults() -> None:
    read = plan(
        tools=["Read"],
        timeout="1m",
        budget=2,
        steps=[
            {"name": "outline", "prompt": "Outline.", "budget": {"tokens": 500}},
            {"name": "write", "prompt": "Write {{ steps.outline }}.", "tools": [], "timeout": 90},
        ],
    )

    outline, write = read.steps
    assert (outline.tools, write.tools) == (("Read",), ())
    assert (outline.timeout, write.timeout) == (timedelta(minutes=1), timedelta(seconds=90))
    assert (outline.output_file, write.output_file) == ("task-result.json", "write.json")
    assert (read.budget, outline.budget, write.budget) == (
        Budget(usd=2.0),
        Budget(tokens=500),
        NO_BUDGET,
    )
    assert read.max_duration == timedelta(minutes=1, seconds=90) + timedelta(seconds=60)


def test_a_single_check_and_a_bare_address_are_enough() -> None:
    read = plan(prompt="x", checks="all tests pass", repository="https://example.com/a.git")

    assert read.checks == ("all tests pass",)
    assert read.repository == Repository(url="https://example.com/a.git")
    assert plan(prompt="x", folder="/srv/shop").folder == "/srv/shop"


@pytest.mark.parametrize(
    ("options", "path", "text"),
    [
        ({}, "prompt", "missing: say what the agent has to do"),
        ({"prompt": "  "}, "prompt", "expected text"),
        ({"prompt": 3}, "prompt", "expected text"),
        ({"prompt": "{{ env }}"}, "prompt", "names nothing"),
        ({"prompt": "x", "colour": "red"}, "colour", "unknown field; expected one of role, prompt"),
        ({"prompt": "x", "maxTurns": 0}, "maxTurns", "from 1 to 1000"),
        ({"prompt": "x", "maxTurns": True}, "maxTurns", "from 1 to 1000"),
        ({"prompt": "x", "tools": "Bash"}, "tools", "an empty one means no tool"),
        ({"prompt": "x", "tools": ["rm -rf"]}, "tools", "expected a list of tools"),
        ({"prompt": "x", "tools": ["Read"] * 201}, "tools", "expected a list of tools"),
        ({"prompt": "x", "timeout": "25h"}, "timeout", "from 1s to 1d"),
        ({"prompt": "x", "timeout": "soon"}, "timeout", "soon"),
        ({"prompt": "x", "budget": 0}, "budget", "above 0"),
        ({"prompt": "x", "budget": {"usd": "1"}}, "budget", "above 0"),
        ({"prompt": "x", "budget": True}, "budget", "above 0"),
        ({"prompt": "x", "budget": {"turns": 3}}, "budget", "some of usd, tokens and minutes"),
        ({"steps": [{"name": "a", "prompt": "x", "budget": 0}]}, "steps[0].budget", "above 0"),
        ({"prompt": "x", "outputSchema": {"type": "array"}}, "outputSchema", "at its root"),
        ({"prompt": "x", "outputSchema": "no"}, "outputSchema", "at its root"),
        ({"prompt": "x", "outputFile": "../up.json"}, "outputFile", "without folders"),
        ({"prompt": "x", "outputFile": 1}, "outputFile", "without folders"),
        ({"prompt": "x", "model": ""}, "model", "expected a name"),
        ({"prompt": "x", "permissionMode": "yolo"}, "permissionMode", "expected one of dontAsk"),
        ({"prompt": "x", "mcpServers": {"a": {}}}, "mcpServers", "'command' or 'url'"),
        ({"prompt": "x", "mcpServers": []}, "mcpServers", "'command' or 'url'"),
        ({"prompt": "x", "folder": "here"}, "folder", "full path"),
        ({"prompt": "x", "sandbox": "yes"}, "sandbox", "true or false"),
        ({"prompt": "x", "checks": 1}, "checks", "expected a list of texts"),
        ({"prompt": "x", "repository": {"ref": "main"}}, "repository", "expected an address"),
        ({"prompt": "x", "repository": {"url": URL, "x": 1}}, "repository.x", "unknown"),
        ({"prompt": "x", "repository": URL, "folder": "/a"}, "folder", "either"),
        ({"prompt": "x", "repository": "ext::sh -c id"}, "repository.url", ""),
        ({"prompt": "x", "repository": {"url": URL, "ref": "-x"}}, "repository.ref", ""),
        ({"prompt": "x", "repository": {"url": URL, "ref": 1}}, "repository.ref", ""),
        ({"steps": []}, "steps", "1 to 50"),
        ({"steps": "a"}, "steps", "1 to 50"),
        ({"steps": ["a"]}, "steps[0]", "expected an object"),
        ({"steps": [{"name": "a b", "prompt": "x"}]}, "steps[0].name", "expected a name"),
        ({"steps": [{"name": "a"}]}, "steps[0].prompt", "missing"),
        ({"steps": [{"name": "a", "prompt": "x", "role": "r"}]}, "steps[0].role", "unknown"),
        ({"prompt": "x", "steps": [{"name": "a", "prompt": "x"}]}, "prompt", "either 'prompt'"),
        (
            {"steps": [{"name": "a", "prompt": "{{ steps.b }}"}, {"name": "b", "prompt": "x"}]},
            "steps[0].prompt",
            "no earlier step",
        ),
        (
            {"steps": [{"name": "a", "prompt": "x"}, {"name": "a", "prompt": "x"}]},
            "steps[1].name",
            "twice",
        ),
        (
            {
                "steps": [
                    {"name": "a", "prompt": "x", "outputFile": "r.json"},
                    {"name": "b", "prompt": "x", "outputFile": "r.json"},
                ]
            },
            "steps[1].outputFile",
            "another step's too",
        ),
    ],
)
def test_each_problem_has_its_path(options: dict[str, Any], path: str, text: str) -> None:
    assert text in problems(**options)[path]


def test_all_problems_are_reported_together() -> None:
    result = problems(maxTurns=0, tools=1, steps=[{"name": "a", "timeout": "0s"}])

    assert set(result) == {"steps[0].maxTurns", "steps[0].tools", "steps[0].prompt"} | {
        "steps[0].timeout"
    }


def test_an_attempt_needs_the_time_of_all_its_steps() -> None:
    read = plan(timeout="2m", steps=[{"name": n, "prompt": "x"} for n in ("a", "b")])

    assert timeout_problems(read, None) == []
    assert timeout_problems(read, timedelta(minutes=4)) == []
    (problem,) = timeout_problems(read, timedelta(minutes=3))
    assert problem.path == "timeout"
    assert "3m is less than its steps may take together, 4m" in problem.message
