"""A killed worker: another one continues with the stored conversation."""

import json
import os
from pathlib import Path

from longshore.core.agents.transcripts import session_id
from longshore.core.tasks.states import TaskState
from longshore.execution.process_table import descendants
from longshore.services.worker.attempt_specs import load_conversations
from tests.acceptance.conftest import WorkerProcess, wait_until
from tests.agents.harness import (
    AgentHarness,
    open_harness,
    process_name,
    scenario,
    settings_for,
    survivors,
)
from tests.agents.held_cli import detached_command, wait_for_file
from verification.messages_api import text, tool_use


@scenario
async def test_a_killed_worker_leaves_no_process_and_the_next_one_continues(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "never")
    far = detached_command(tmp_path / "never")
    script = [
        tool_use("Bash", {"command": "echo > kept"}),
        tool_use("Bash", {"command": f"{far}; echo > begun; read nothing < {tmp_path}/never"}),
        text("done"),
    ]
    async with open_harness(tmp_path, script, with_worker=False) as harness:
        await harness.define(options={"prompt": "Do it.", "tools": ["Bash"]})
        await harness.submit()
        first = WorkerProcess(settings_for(tmp_path, harness.api.url))
        try:
            await wait_for_file(harness.files() / "begun")
            await wait_for_file(harness.files() / "detached")
            await wait_until(lambda: answers_stored(harness, 2))
            family = {item: process_name(item) for item in descendants(first.process.pid)}
            assert int((harness.files() / "detached").read_text()) in family
            assert {"claude", "bash", "longshore-task"} <= {*family.values()}
        finally:
            first.stop()

        async def no_process_is_left() -> bool:
            return not survivors(family)

        await wait_until(no_process_is_left)
        second = WorkerProcess(settings_for(tmp_path, harness.api.url))
        try:
            row = await harness.wait_finished()
        finally:
            second.stop()

        assert row.state is TaskState.COMPLETED, row.failure
        assert (row.attempt, row.attempts_used) == (2, 1)
        *_, last = harness.requests()
        assert len(harness.requests()) == 3
        assert "Tool call interrupted" in json.dumps(last.messages)
        assert harness.repeated_requests() == []
        assert row.usage.turns == 3
        assert row.usage.input_tokens == harness.api.usage_of().input_tokens


async def answers_stored(harness: AgentHarness, count: int) -> bool:
    backend, row = harness.services.backend, await harness.row()
    result = await load_conversations(
        row, blobs=backend.blobs, documents=harness.services.documents
    )
    stored = result.get(session_id(row.id, "task"))
    return stored is not None and count <= len(
        [entry for entry in stored.entries if entry.get("type") == "assistant"]
    )
