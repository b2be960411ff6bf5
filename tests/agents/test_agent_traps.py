"""What the command line does by itself, and what may become of it: no task is worse off for it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from longshore.core.agents.prices import LIST_PRICES, TokenCounts
from longshore.core.agents.transcripts import session_id
from longshore.core.documents import conversation_part_key
from longshore.core.tasks.states import TaskState
from longshore.execution.runners.agent.tracing import AgentTracer
from tests.agents.harness import MODEL, AgentHarness, open_harness, scenario, survivors
from tests.agents.test_tracing_real import TracedAgent
from verification.messages_api import RequestState as Far
from verification.messages_api import Script, error, stall, text, tool_use


@scenario
async def test_a_rejected_credential_is_sent_once_even_if_other_errors_are_retried(
    tmp_path: Path,
) -> None:
    script = [
        Script.of(error(401), when="refused"),
        Script.of(error(529), text("done"), when="busy"),
    ]
    async with open_harness(tmp_path, script, flags={"agent.retries": 2}) as harness:
        for key in ("refused", "busy"):
            await harness.define(key, options={"prompt": f"Meet {key} ."})
        await harness.submit(*({"taskId": key, "name": key} for key in ("refused", "busy")))

        await harness.wait_finished("refused", "busy")

        assert len(harness.requests("refused")) == 1
        ((category, _),) = await harness.failures("refused")
        assert category == "auth"
        row = await harness.row("busy")
        assert (row.state, row.attempt, len(harness.requests("busy"))) == (
            TaskState.COMPLETED,
            1,
            2,
        )


@scenario
async def test_a_command_line_that_is_killed_costs_an_attempt_and_no_answer(
    harness: AgentHarness,
) -> None:
    harness.api.set_script([tool_use("Bash", {"command": "true"}), stall(), text("done")])
    await harness.define(options={"prompt": "Do it.", "tools": ["Bash"]})
    await harness.submit()
    await harness.api.wait_for_state(Far.SILENT)
    family = harness.process_tree()
    (command_line,) = [item for item, name in family.items() if name == "claude"]

    os.kill(command_line, signal.SIGKILL)

    row = await harness.wait_finished()
    assert row.state is TaskState.COMPLETED, row.failure
    ((category, message),) = await harness.failures()
    assert (category, "SIGKILL" in message) == ("crash", True)
    assert survivors(family) == {}
    assert harness.repeated_requests() == []
    # The interrupted response had reported its input; nothing else is counted twice.
    item = TokenCounts(input=100, output=10)
    begun = TokenCounts(input=100, output=1)
    cost = 2 * LIST_PRICES.cost_usd(MODEL, item) + LIST_PRICES.cost_usd(MODEL, begun)
    assert row.usage.cost_usd == pytest.approx(cost)
    assert (row.usage.turns, row.usage.input_tokens) == (2, 300)


@scenario
async def test_a_conversation_that_cannot_be_resumed_starts_again(harness: AgentHarness) -> None:
    harness.api.set_script([error(500), text("done")])
    await harness.define(options={"prompt": "Do it."}, retry={"maxAttempts": 1})
    await harness.submit()
    assert (await harness.wait_finished()).state is TaskState.FAILED
    await damage(harness, harness.job_id)

    await harness.services.operator_commands.resume(
        harness.job_id, [harness.task_id()], by="operator"
    )

    row = await harness.wait_finished()

    assert (row.state, row.attempt) == (TaskState.COMPLETED, 2), row.failure
    first, second = harness.requests()
    assert first.first_prompt == second.first_prompt == second.prompt
    assert first.session_id == second.session_id


async def damage(harness: AgentHarness, job_id: str) -> None:
    """Leave nothing of the conversation but one line that means nothing."""
    blobs = harness.services.backend.blobs
    prefix = conversation_part_key(job_id, "a")
    keys = await blobs.list_keys(prefix)
    assert keys
    for key in keys:
        await blobs.delete(key)
    stored = {
        "session": session_id(harness.task_id(), "task"),
        "revision": 0,
        "entries": [{"type": "nonsense", "uuid": "none"}],
    }
    key = conversation_part_key(job_id, "a", attempt=1, number=1)
    await harness.services.documents.store_key(key, stored)


def test_a_tool_whose_start_cannot_be_traced_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(
        _observer: AgentTracer, reported: Any, _tool: Any, _context: Any
    ) -> dict[str, Any]:
        if reported["hook_event_name"] == "PreToolUse":
            raise RuntimeError
        return {}

    monkeypatch.setattr(AgentTracer, "_hook", broken)

    step = TracedAgent(tmp_path).run(
        [tool_use("Bash", {"command": "touch unseen"}), text("done")],
        tools=["Bash"],
        allowed_tools=["Bash"],
    )

    assert not (tmp_path / "unseen").exists()
    assert json.dumps(step["tools"]).count('"denied"') == 1, step["tools"]
