"""Agent tasks that cannot begin: each says why at once, and nobody is asked or paid."""

from pathlib import Path

from longshore.core.states import TaskState
from longshore.testing.messages_api import text
from tests.agents.stage import Stage, on_stage, scenario

BROKEN = {"type": "object", "properties": {"a": {"type": "nonsense"}}}


@scenario
async def test_what_is_wrong_with_a_task_is_told_before_the_model_is_asked(stage: Stage) -> None:
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
        "schema": ("validation", "outputSchema is no JSON Schema"),
        "place": ("validation", "input.topic"),
        "local": ("validation", "repositor"),
    }
    stage.api.play([text("done")])
    for key, more in options.items():
        await stage.define(key, options={"prompt": "Do it.", **more})
    tasks = [{"taskId": key, "name": key, "input": {"about": "x"}} for key in options]
    await stage.submit(*tasks)

    await stage.over(*options)

    for key, (category, words) in expected.items():
        row = await stage.row(key)
        assert (row.state, row.attempt) == (TaskState.FAILED, 1)
        ((told, said),) = await stage.failures(key)
        assert (told, words in said) == (category, True), (key, told, said)
        assert stage.requests(key) == []


@scenario
async def test_without_credentials_a_task_fails_at_once_and_says_what_to_set(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path, [text("done")], flags={"agent.api_key": None}) as stage:
        options = {"prompt": "Do it.", "repository": "https://example.invalid/repository"}
        await stage.define(options=options)
        await stage.submit()

        row = await stage.over()

        assert (row.state, row.attempt) == (TaskState.FAILED, 1)
        ((category, said),) = await stage.failures()
        assert category == "auth"
        assert "ANTHROPIC_API_KEY" in said
        assert "CLAUDE_CODE_OAUTH_TOKEN" in said
        assert stage.api.requests == stage.api.others == []
