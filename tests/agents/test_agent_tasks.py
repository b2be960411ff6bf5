"""What an agent task does, from its definition to its result; all is real but the model."""

import json

from longshore.core.tasks.states import TaskState
from tests.agents.harness import KEY, SCHEMA, AgentHarness, scenario
from verification.messages_api import Request, Script, Usage, structured, text, tool_use


@scenario
async def test_a_plain_answer_is_the_result(harness: AgentHarness) -> None:
    harness.api.set_script(
        [text("Hello, Ada.", usage=Usage(input_tokens=100, cache_read_tokens=300))]
    )
    await harness.define(options={"prompt": "Greet {{ input.name }}.", "role": "A host."})
    await harness.submit({"taskId": "a", "name": "agent-task", "input": {"name": "Ada"}})

    row = await harness.wait_finished()

    assert row.state is TaskState.COMPLETED, row.failure
    assert await harness.result() == "Hello, Ada."
    (request,) = harness.requests()
    assert "<task>\nGreet Ada.\n</task>" in request.first_prompt
    assert "<role>\nA host.\n</role>" in request.first_prompt
    assert request.credential == KEY
    assert (row.usage.turns, row.usage.input_tokens, row.usage.output_tokens) == (1, 100, 10)
    assert row.usage.cache_read_tokens == 300
    assert row.usage.cost_usd > 0
    await harness.history()
    assert "task: Hello, Ada.\n" in await harness.output()
    assert b"75% from the cache" in await harness.file("logs/summary.log")
    assert json.loads(await harness.file("artifacts/task-result.json")) == "Hello, Ada."
    (traced,) = await harness.trace()
    assert traced["end"]["how"] == "completed"
    assert traced["tokens"]["cacheEfficiency"] == 75.0
    assert not harness.files().exists()


@scenario
async def test_results_are_passed_from_step_to_step_and_from_task_to_task(
    harness: AgentHarness,
) -> None:
    match = {"title": "Tides", "score": 7}
    harness.api.set_script(
        [
            Script.of(structured(match), when="Outline"),
            Script.of(text("A text on {{ tides }}."), when="Write"),
            Script.of(text("Fine."), when="Judge"),
        ]
    )
    steps = [
        {"name": "outline", "prompt": "Outline it.", "outputSchema": SCHEMA},
        {"name": "write", "prompt": "Write about {{ steps.outline.title }}."},
    ]
    await harness.define("writer", options={"steps": steps})
    await harness.define("judge", options={"prompt": "Judge {{ tasks.first }}"})
    await harness.submit(
        {"taskId": "first", "name": "writer", "input": {"about": "water"}},
        {"taskId": "last", "name": "judge", "dependsOn": ["first"]},
    )

    row = await harness.wait_finished("first", "last")

    assert row.state is TaskState.COMPLETED, row.failure
    assert await harness.result("first") == "A text on {{ tides }}."
    (outline,) = harness.requests("first", step="outline")
    assert _offered(outline) == {"StructuredOutput"}
    assert '"about": "water"' in outline.first_prompt
    (write,) = harness.requests("first", step="write")
    assert write.tools == []
    assert "<task>\nWrite about Tides.\n</task>" in write.first_prompt
    (judge,) = harness.requests("last")
    assert "<task>\nJudge A text on {{ tides }}.\n</task>" in judge.first_prompt
    assert [item["step"] for item in await harness.trace(key="first")] == ["outline", "write"]
    assert json.loads(await harness.file("artifacts/task-result.json", key="first")) == match
    assert b"tides" in await harness.file("artifacts/write.json", key="first")
    spent = (await harness.row("first")).usage
    assert (spent.turns, spent.input_tokens) == (2, 200)


@scenario
async def test_tools_are_used_as_listed_and_no_other(harness: AgentHarness) -> None:
    harness.api.set_script(
        [
            tool_use("Bash", {"command": "echo one > made.txt; env"}, preamble="I look around."),
            lambda request: tool_use(
                "Write", {"file_path": f"{harness.files()}/two.txt", "content": "two\n"}
            ),
            lambda request: tool_use("Read", {"file_path": f"{harness.files()}/two.txt"}),
            tool_use("WebFetch", {"url": "http://127.0.0.1:1/", "prompt": "x"}),
            tool_use("Glob", {"pattern": "*"}),
            text("done"),
        ]
    )
    tools = ["Bash", "Read", "Write"]
    await harness.define(options={"prompt": "Do it.", "tools": tools})
    await harness.submit()

    row = await harness.wait_finished()

    assert row.state is TaskState.COMPLETED, row.failure
    requests = harness.requests()
    assert _offered(requests[0]) == {*tools}
    bash, write, read, *unlisted = [request.tool_results[0] for request in requests[1:]]
    _check_environment(bash.text, harness)
    assert not write.is_error
    assert "two" in read.text
    assert all(result.is_error for result in unlisted), unlisted
    (traced,) = await harness.trace()
    assert [(tool["name"], tool["outcome"]) for tool in traced["tools"]] == [
        ("Bash", "ok"),
        ("Write", "ok"),
        ("Read", "ok"),
        ("WebFetch", "failed"),
        ("Glob", "failed"),
    ]
    output = await harness.output()
    assert "I look around." in output
    assert "Bash" in output
    assert KEY not in output


def _offered(request: Request) -> set[str]:
    """The tools that the model may use; the command line adds one that only holds a place."""
    return {*request.tools} - {"DeferredToolPlaceholder"}


def _check_environment(printed: str, harness: AgentHarness) -> None:
    match = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    assert KEY not in printed
    assert harness.api.url not in printed
    assert {
        name: text for name, text in match.items() if name.startswith("LONGSHORE") and text
    } == {}
    own = f"{harness.work_folder}/{harness.task_id()}.1/agent"
    assert match["HOME"] == own
    assert match["CLAUDE_CONFIG_DIR"].startswith(own)
    assert match["TMPDIR"].startswith(own)


@scenario
async def test_only_the_named_uses_of_a_tool_are_allowed_and_todos_are_traced(
    harness: AgentHarness,
) -> None:
    harness.api.set_script(
        [
            tool_use("TaskCreate", {"subject": "Look", "description": "at it"}),
            tool_use("TaskUpdate", {"taskId": "1", "status": "in_progress"}),
            tool_use("Bash", {"command": "touch forbidden"}),
            tool_use("Bash", {"command": "git --version"}),
            tool_use("TaskUpdate", {"taskId": "1", "status": "completed"}),
            text("done"),
        ]
    )
    tools = ["Bash(git *)", "TaskCreate", "TaskUpdate"]
    await harness.define(options={"prompt": "Do it.", "tools": tools})
    await harness.submit()

    row = await harness.wait_finished()

    assert row.state is TaskState.COMPLETED, row.failure
    _, _, _, denied, allowed, _ = [request.tool_results for request in harness.requests()]
    assert denied[0].is_error
    assert "git version" in allowed[0].text
    (traced,) = await harness.trace()
    (todo,) = traced["todos"]
    assert (todo["subject"], todo["state"]) == ("Look", "completed")
    assert traced["counts"]["denied"] == 1


@scenario
async def test_an_agent_that_takes_too_many_turns_fails_for_good(harness: AgentHarness) -> None:
    harness.api.set_script([tool_use("Bash", {"command": "true"})])
    await harness.define(options={"prompt": "Do it.", "tools": ["Bash"], "maxTurns": 2})
    await harness.submit()

    row = await harness.wait_finished()

    assert row.state is TaskState.FAILED
    ((category, message),) = await harness.failures()
    assert category == "validation"
    assert "turn" in message
    assert len(harness.requests()) in (2, 3)
    assert row.usage.turns == len(harness.requests())
