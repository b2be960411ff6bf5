"""Agent tasks that cannot start: each fails at once with a reason and without a request."""

from pathlib import Path

from longshore.core.tasks.states import TaskState
from tests.agents.harness import AgentHarness, open_harness, scenario
from verification.messages_api import text

BROKEN = {"type": "object", "properties": {"a": {"type": "nonsense"}}}


@scenario
async def test_an_invalid_task_fails_before_any_model_request(
    harness: AgentHarness,
) -> None:
    options = {
        "bypass": {"permissionMode": "bypassPermissions"},
        "folder": {"folder": "/no/such/folder"},
        "schema": {"outputSchema": BROKEN},
        "place": {"prompt": "Write about {{ input.topic }}."},
        "local": {"repository": "/tmp/somewhere"},
    }
    expected = {
        "bypass": ("validation", "agent.allow_bypass"),
        "folder": ("not-found", "/no/such/folder"),
        "schema": ("validation", "outputSchema is not a valid JSON Schema"),
        "place": ("validation", "input.topic"),
        "local": ("validation", "repositor"),
    }
    harness.api.set_script([text("done")])
    for key, more_ in options.items():
        await harness.define(key, options={"prompt": "Do it.", **more_})
    tasks = [{"taskId": key, "name": key, "input": {"about": "x"}} for key in options]
    await harness.submit(*tasks)

    await harness.wait_finished(*options)

    for key, (category, words) in expected.items():
        row = await harness.row(key)
        assert (row.state, row.attempt) == (TaskState.FAILED, 1)
        ((reported, message),) = await harness.failures(key)
        assert (reported, words in message) == (category, True), (key, reported, message)
        assert harness.requests(key) == []


@scenario
async def test_without_credentials_a_task_fails_at_once_and_names_the_variables(
    tmp_path: Path,
) -> None:
    async with open_harness(tmp_path, [text("done")], flags={"agent.api_key": None}) as harness:
        options = {"prompt": "Do it.", "repository": "https://example.invalid/repository"}
        await harness.define(options=options)
        await harness.submit()

        row = await harness.wait_finished()

        assert (row.state, row.attempt) == (TaskState.FAILED, 1)
        ((category, message),) = await harness.failures()
        assert category == "auth"
        assert "ANTHROPIC_API_KEY" in message
        assert "CLAUDE_CODE_OAUTH_TOKEN" in message
        assert harness.api.requests == harness.api.other_requests == []
