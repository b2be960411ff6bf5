"""What the command line does by itself, and what may become of it: no task is worse off for it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from longshore.core.agents.prices import LIST_PRICES, Tokens
from longshore.core.agents.transcripts import session_id
from longshore.core.blob_keys import session_part
from longshore.core.states import TaskState
from longshore.runners.agent.observing import Observer
from longshore.testing.messages_api import Script, error, stall, text, tool_use
from longshore.testing.messages_api import Stage as Far
from tests.agents.stage import MODEL, Stage, left_of, on_stage, scenario
from tests.agents.test_observing_real import Watched


@scenario
async def test_a_refused_credential_is_shown_once_however_often_others_are_tried_again(
    tmp_path: Path,
) -> None:
    script = [
        Script.of(error(401), when="refused"),
        Script.of(error(529), text("done"), when="busy"),
    ]
    async with on_stage(tmp_path, script, flags={"agent.retries": 2}) as stage:
        for key in ("refused", "busy"):
            await stage.define(key, options={"prompt": f"Meet {key} ."})
        await stage.submit(*({"taskId": key, "name": key} for key in ("refused", "busy")))

        await stage.over("refused", "busy")

        assert len(stage.requests("refused")) == 1
        ((category, _),) = await stage.failures("refused")
        assert category == "auth"
        row = await stage.row("busy")
        assert (row.state, row.attempt, len(stage.requests("busy"))) == (TaskState.COMPLETED, 1, 2)


@scenario
async def test_a_command_line_that_is_killed_costs_an_attempt_and_no_answer(stage: Stage) -> None:
    stage.api.play([tool_use("Bash", {"command": "true"}), stall(), text("done")])
    await stage.define(options={"prompt": "Do it.", "tools": ["Bash"]})
    await stage.submit()
    await stage.api.wait_for_stage(Far.SILENT)
    family = stage.family()
    (command_line,) = [one for one, name in family.items() if name == "claude"]

    os.kill(command_line, signal.SIGKILL)

    row = await stage.over()
    assert row.state is TaskState.COMPLETED, row.failure
    ((category, said),) = await stage.failures()
    assert (category, "SIGKILL" in said) == ("crash", True)
    assert left_of(family) == {}
    assert stage.asked_again() == []
    # The answer that broke off had told what was read for it; nothing else is counted twice.
    one = Tokens(input=100, output=10)
    begun = Tokens(input=100, output=1)
    cost = 2 * LIST_PRICES.cost_usd(MODEL, one) + LIST_PRICES.cost_usd(MODEL, begun)
    assert row.usage.cost_usd == pytest.approx(cost)
    assert (row.usage.turns, row.usage.input_tokens) == (2, 300)


@scenario
async def test_a_conversation_that_nobody_can_go_on_with_begins_anew(stage: Stage) -> None:
    stage.api.play([error(500), text("done")])
    await stage.define(options={"prompt": "Do it."}, retry={"maxAttempts": 1})
    await stage.submit()
    assert (await stage.over()).state is TaskState.FAILED
    await damage(stage, stage.job_id)

    await stage.services.resuming.resume(stage.job_id, [stage.id_of()], by="operator")

    row = await stage.over()

    assert (row.state, row.attempt) == (TaskState.COMPLETED, 2), row.failure
    first, second = stage.requests()
    assert first.first_prompt == second.first_prompt == second.prompt
    assert first.session_id == second.session_id


async def damage(stage: Stage, job_id: str) -> None:
    """Leave nothing of the conversation but one line that means nothing."""
    blobs = stage.services.backend.blobs
    prefix = session_part(job_id, "a")
    keys = await blobs.keys(prefix)
    assert keys
    for key in keys:
        await blobs.delete(key)
    kept = {
        "session": session_id(stage.id_of(), "task"),
        "revision": 0,
        "entries": [{"type": "nonsense", "uuid": "none"}],
    }
    key = session_part(job_id, "a", attempt=1, number=1)
    await stage.services.documents.keep_key(key, kept)


@scenario
async def test_the_older_kind_of_list_is_there_for_those_who_name_it(stage: Stage) -> None:
    todos = [
        {"content": "Look", "status": "completed", "activeForm": "Looking"},
        {"content": "Write", "status": "in_progress", "activeForm": "Writing"},
    ]
    stage.api.play([tool_use("TodoWrite", {"todos": todos}), text("done")])
    await stage.define(options={"prompt": "Do it.", "tools": ["TodoWrite"]})
    await stage.submit()

    row = await stage.over()

    assert row.state is TaskState.COMPLETED, row.failure
    assert "TodoWrite" in stage.requests()[0].tools
    (traced,) = await stage.trace()
    assert [(one["subject"], one["state"]) for one in traced["todos"]] == [
        ("Look", "completed"),
        ("Write", "in_progress"),
    ]
    assert "task: todo 1/2 done, now: Write\n" in await stage.output()


def test_a_tool_that_nobody_could_see_begin_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_observer: Observer, told: Any, _tool: Any, _context: Any) -> dict[str, Any]:
        if told["hook_event_name"] == "PreToolUse":
            raise RuntimeError
        return {}

    monkeypatch.setattr(Observer, "_hook", broken)

    step = Watched(tmp_path).run(
        [tool_use("Bash", {"command": "touch unseen"}), text("done")],
        tools=["Bash"],
        allowed_tools=["Bash"],
    )

    assert not (tmp_path / "unseen").exists()
    assert json.dumps(step["tools"]).count('"denied"') == 1, step["tools"]
