"""An agent that times out or is cancelled: no process survives, and it can continue later."""

import json
import os
from pathlib import Path

from longshore.core.tasks.states import TaskState
from longshore.execution.process_table import is_alive
from tests.acceptance.conftest import wait_until
from tests.agents.harness import TENANT, AgentHarness, scenario, survivors
from tests.agents.held_cli import detached_command, wait_for_file
from tests.agents.test_agent_workers import answers_stored
from verification.messages_api import RequestState as Far
from verification.messages_api import Script, hang, stall, text, tool_use

OPERATOR = "operator"


@scenario
async def test_steps_and_attempts_time_out_and_the_next_attempt_continues(
    harness: AgentHarness,
) -> None:
    harness.api.set_script(
        [
            Script.of(tool_use("Bash", {"command": "true"}), hang(), text("done"), when=key)
            for key in ("step", "attempt")
        ]
    )
    retry = {"base": "10ms", "cap": "10ms", "maxAttempts": 5}
    options = {"prompt": "Be late: step .", "tools": ["Bash"], "timeout": "8s"}
    await harness.define("step", options=options, retry=retry)
    options = {"prompt": "Be late: attempt .", "tools": ["Bash"], "timeout": "8s"}
    # Its time begins a little earlier than that of its step.
    await harness.define("attempt", options=options, retry=retry, timeout="8s", retryOnTimeout=True)
    await harness.submit(*({"taskId": key, "name": key} for key in ("step", "attempt")))
    await harness.api.wait_for_state(Far.SILENT, 2)
    families = [harness.process_tree(key) for key in ("step", "attempt")]
    assert all("claude" in family.values() for family in families)

    await harness.wait_finished("step", "attempt")

    for key, family in zip(("step", "attempt"), families, strict=True):
        row = await harness.row(key)
        assert row.state is TaskState.COMPLETED, row.failure
        assert row.attempts_used == row.attempt - 1 >= 1
        assert set(await harness.failures(key)) == {("timeout", "timed out after 8 s")}
        assert survivors(family) == {}
        assert harness.repeated_requests(key) == []
        assert row.usage.turns == 2


@scenario
async def test_a_cancelled_agent_leaves_no_process_and_continues_when_resumed(
    harness: AgentHarness, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "never")
    far = detached_command(tmp_path / "never")
    harness.api.set_script(
        [
            tool_use("Bash", {"command": f"{far}; echo > begun; read nothing < {tmp_path}/never"}),
            stall(),
            text("done"),
        ]
    )
    await harness.define(options={"prompt": "Do it.", "tools": ["Bash"]})
    await harness.submit()

    await wait_for_file(harness.files() / "begun")
    await wait_for_file(harness.files() / "detached")
    await wait_until(lambda: answers_stored(harness, 1))
    # Its parent has ended, so it is no descendant of the child.
    far_away = int((harness.files() / "detached").read_text())
    await cancel_twice(harness, among="bash")
    assert not is_alive(far_away)
    await harness.services.operator_commands.resume(
        harness.job_id, [harness.task_id()], by=OPERATOR
    )

    await harness.api.wait_until(
        lambda: any(item.state is Far.SILENT for item in harness.requests())
    )
    assert "Tool call interrupted" in json.dumps(harness.requests()[-1].messages)
    await cancel_twice(harness, among="claude")
    await harness.services.operator_commands.resume(
        harness.job_id, [harness.task_id()], by=OPERATOR
    )

    row = await harness.wait_finished()
    assert row.state is TaskState.COMPLETED, row.failure
    assert harness.repeated_requests() == []
    assert row.usage.turns == 2
    assert row.usage.input_tokens == 200


async def cancel_twice(harness: AgentHarness, *, among: str) -> None:
    family = harness.process_tree()
    assert among in family.values()
    await harness.services.operator_commands.cancel_task(TENANT, harness.task_id(), by=OPERATOR)
    await harness.services.operator_commands.cancel_task(TENANT, harness.task_id(), by=OPERATOR)
    row = await harness.wait_finished()
    assert row.state is TaskState.CANCELLED
    (traced,) = await harness.trace(attempt=row.attempt)
    assert traced["end"] is None
    assert survivors(family) == {}
