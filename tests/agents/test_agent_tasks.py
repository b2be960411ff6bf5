"""What an agent task does, from its definition to its result; all is real but the model."""

import json

from longshore.core.states import TaskState
from longshore.testing.messages_api import Request, Script, Usage, structured, text, tool_use
from tests.agents.stage import KEY, SCHEMA, Stage, scenario


@scenario
async def test_a_plain_answer_is_the_result(stage: Stage) -> None:
    stage.api.play([text("Hello, Ada.", usage=Usage(input_tokens=100, cache_read_tokens=300))])
    await stage.define(options={"prompt": "Greet {{ input.name }}.", "role": "A host."})
    await stage.submit({"taskId": "a", "name": "agent-task", "input": {"name": "Ada"}})

    row = await stage.over()

    assert row.state is TaskState.COMPLETED, row.failure
    assert await stage.result() == "Hello, Ada."
    (request,) = stage.requests()
    assert "<task>\nGreet Ada.\n</task>" in request.first_prompt
    assert "<role>\nA host.\n</role>" in request.first_prompt
    assert request.credential == KEY
    assert (row.usage.turns, row.usage.input_tokens, row.usage.output_tokens) == (1, 100, 10)
    assert row.usage.cache_read_tokens == 300
    assert row.usage.cost_usd > 0
    await stage.history()
    assert "task: Hello, Ada.\n" in await stage.output()
    assert b"75% from the cache" in await stage.file("logs/summary.log")
    assert json.loads(await stage.file("artifacts/task-result.json")) == "Hello, Ada."
    (traced,) = await stage.trace()
    assert traced["end"]["how"] == "completed"
    assert traced["tokens"]["cacheEfficiency"] == 75.0
    assert not stage.files().exists()


@scenario
async def test_results_go_on_from_step_to_step_and_from_task_to_task(stage: Stage) -> None:
    found = {"title": "Tides", "score": 7}
    stage.api.play(
        [
            Script.of(structured(found), when="Outline"),
            Script.of(text("A text on {{ tides }}."), when="Write"),
            Script.of(text("Fine."), when="Judge"),
        ]
    )
    steps = [
        {"name": "outline", "prompt": "Outline it.", "outputSchema": SCHEMA},
        {"name": "write", "prompt": "Write about {{ steps.outline.title }}."},
    ]
    await stage.define("writer", options={"steps": steps})
    await stage.define("judge", options={"prompt": "Judge {{ tasks.first }}"})
    await stage.submit(
        {"taskId": "first", "name": "writer", "input": {"about": "water"}},
        {"taskId": "last", "name": "judge", "dependsOn": ["first"]},
    )

    row = await stage.over("first", "last")

    assert row.state is TaskState.COMPLETED, row.failure
    assert await stage.result("first") == "A text on {{ tides }}."
    (outline,) = stage.requests("first", step="outline")
    assert _offered(outline) == {"StructuredOutput"}
    assert '"about": "water"' in outline.first_prompt
    (write,) = stage.requests("first", step="write")
    assert write.tools == []
    assert "<task>\nWrite about Tides.\n</task>" in write.first_prompt
    (judge,) = stage.requests("last")
    assert "<task>\nJudge A text on {{ tides }}.\n</task>" in judge.first_prompt
    assert [one["step"] for one in await stage.trace(key="first")] == ["outline", "write"]
    assert json.loads(await stage.file("artifacts/task-result.json", key="first")) == found
    assert b"tides" in await stage.file("artifacts/write.json", key="first")
    spent = (await stage.row("first")).usage
    assert (spent.turns, spent.input_tokens) == (2, 200)


@scenario
async def test_tools_are_used_as_listed_and_no_other(stage: Stage) -> None:
    stage.api.play(
        [
            tool_use("Bash", {"command": "echo one > made.txt; env"}, say="I look around."),
            lambda request: tool_use(
                "Write", {"file_path": f"{stage.files()}/two.txt", "content": "two\n"}
            ),
            lambda request: tool_use("Read", {"file_path": f"{stage.files()}/two.txt"}),
            tool_use("WebFetch", {"url": "http://127.0.0.1:1/", "prompt": "x"}),
            tool_use("Glob", {"pattern": "*"}),
            text("done"),
        ]
    )
    tools = ["Bash", "Read", "Write"]
    await stage.define(options={"prompt": "Do it.", "tools": tools})
    await stage.submit()

    row = await stage.over()

    assert row.state is TaskState.COMPLETED, row.failure
    requests = stage.requests()
    assert _offered(requests[0]) == {*tools}
    bash, write, read, *unlisted = [request.tool_results[0] for request in requests[1:]]
    _check_environment(bash.text, stage)
    assert not write.is_error
    assert "two" in read.text
    assert all(result.is_error for result in unlisted), unlisted
    (traced,) = await stage.trace()
    assert [(tool["name"], tool["outcome"]) for tool in traced["tools"]] == [
        ("Bash", "ok"),
        ("Write", "ok"),
        ("Read", "ok"),
        ("WebFetch", "failed"),
        ("Glob", "failed"),
    ]
    output = await stage.output()
    assert "I look around." in output
    assert "Bash" in output
    assert KEY not in output


def _offered(request: Request) -> set[str]:
    """The tools that the model may use; the command line adds one that only holds a place."""
    return {*request.tools} - {"DeferredToolPlaceholder"}


def _check_environment(printed: str, stage: Stage) -> None:
    found = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    assert KEY not in printed
    assert stage.api.url not in printed
    assert {
        name: text for name, text in found.items() if name.startswith("LONGSHORE") and text
    } == {}
    own = f"{stage.work_folder}/{stage.id_of()}.1/agent"
    assert found["HOME"] == own
    assert found["CLAUDE_CONFIG_DIR"].startswith(own)
    assert found["TMPDIR"].startswith(own)


@scenario
async def test_only_the_named_uses_of_a_tool_are_allowed_and_todos_are_traced(stage: Stage) -> None:
    stage.api.play(
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
    await stage.define(options={"prompt": "Do it.", "tools": tools})
    await stage.submit()

    row = await stage.over()

    assert row.state is TaskState.COMPLETED, row.failure
    _, _, _, denied, allowed, _ = [request.tool_results for request in stage.requests()]
    assert denied[0].is_error
    assert "git version" in allowed[0].text
    (traced,) = await stage.trace()
    (todo,) = traced["todos"]
    assert (todo["subject"], todo["state"]) == ("Look", "completed")
    assert traced["counts"]["denied"] == 1
    assert len(traced["denials"]) == 1


@scenario
async def test_an_agent_that_takes_too_many_turns_fails_for_good(stage: Stage) -> None:
    stage.api.play([tool_use("Bash", {"command": "true"})])
    await stage.define(options={"prompt": "Do it.", "tools": ["Bash"], "maxTurns": 2})
    await stage.submit()

    row = await stage.over()

    assert row.state is TaskState.FAILED
    ((category, said),) = await stage.failures()
    assert category == "validation"
    assert "turn" in said
    assert len(stage.requests()) in (2, 3)
    assert row.usage.turns == len(stage.requests())
