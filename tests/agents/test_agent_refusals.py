"""Agent tasks that cannot begin: each says why at once, and nobody is asked or paid."""

from pathlib import Path

from longshore.core.tasks.states import TaskState
from tests.agents.harness import AgentHarness, open_harness, scenario
from verification.messages_api import text

BROKEN = {"type": "object", "properties": {"a": {"type": "nonsense"}}}


@scenario
async def test_what_is_wrong_with_a_task_is_told_before_the_model_is_asked(
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
    for key, more in options.items():
        await harness.define(key, options={"prompt": "Do it.", **more})
    tasks = [{"taskId": key, "name": key, "input": {"about": "x"}} for key in options]
    await harness.submit(*tasks)

    await harness.wait_finished(*options)

    for key, (category, words) in expected.items():
        row = await harness.row(key)
        assert (row.state, row.attempt) == (TaskState.FAILED, 1)
        ((told, said),) = await harness.failures(key)
        assert (told, words in said) == (category, True), (key, told, said)
        assert harness.requests(key) == []


@scenario
async def test_without_credentials_a_task_fails_at_once_and_says_what_to_set(
    tmp_path: Path,
) -> None:
    async with open_harness(tmp_path, [text("done")], flags={"agent.api_key": None}) as stage:
        options = {"prompt": "Do it.", "repository": "https://example.invalid/repository"}
        await stage.define(options=options)
        await stage.submit()

        row = await stage.wait_finished()

        assert (row.state, row.attempt) == (TaskState.FAILED, 1)
        ((category, said),) = await stage.failures()
        assert category == "auth"
        assert "ANTHROPIC_API_KEY" in said
        assert "CLAUDE_CODE_OAUTH_TOKEN" in said
        assert stage.api.requests == stage.api.other_requests == []
