"""An agent that is late or not wanted any more: nothing of it lives on, and it can go on later."""

import json
import os
from pathlib import Path

from longshore.adapters.process.table import alive
from longshore.core.states import TaskState
from longshore.testing.messages_api import Script, hang, stall, text, tool_use
from longshore.testing.messages_api import Stage as Far
from tests.acceptance.conftest import until
from tests.agents.holding import begun, detached
from tests.agents.stage import TENANT, Stage, left_of, scenario
from tests.agents.test_agent_workers import answers_stored

BY = "operator"


@scenario
async def test_steps_and_attempts_have_their_time_and_what_was_late_goes_on_later(
    stage: Stage,
) -> None:
    stage.api.play(
        [
            Script.of(tool_use("Bash", {"command": "true"}), hang(), text("done"), when=key)
            for key in ("step", "attempt")
        ]
    )
    retry = {"base": "10ms", "cap": "10ms", "maxAttempts": 5}
    options = {"prompt": "Be late: step .", "tools": ["Bash"], "timeout": "8s"}
    await stage.define("step", options=options, retry=retry)
    options = {"prompt": "Be late: attempt .", "tools": ["Bash"], "timeout": "8s"}
    # Its time begins a little earlier than that of its step.
    await stage.define("attempt", options=options, retry=retry, timeout="8s", retryOnTimeout=True)
    await stage.submit(*({"taskId": key, "name": key} for key in ("step", "attempt")))
    await stage.api.wait_for_stage(Far.SILENT, 2)
    families = [stage.family(key) for key in ("step", "attempt")]
    assert all("claude" in family.values() for family in families)

    await stage.over("step", "attempt")

    for key, family in zip(("step", "attempt"), families, strict=True):
        row = await stage.row(key)
        assert row.state is TaskState.COMPLETED, row.failure
        assert row.attempts_used == row.attempt - 1 >= 1
        assert set(await stage.failures(key)) == {("timeout", "no result within 8 s")}
        assert left_of(family) == {}
        assert stage.asked_again(key) == []
        assert row.usage.turns == 2


@scenario
async def test_a_cancelled_agent_leaves_nobody_behind_and_goes_on_when_it_is_resumed(
    stage: Stage, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "never")
    far = detached(tmp_path / "never")
    stage.api.play(
        [
            tool_use("Bash", {"command": f"{far}; echo > begun; read nothing < {tmp_path}/never"}),
            stall(),
            text("done"),
        ]
    )
    await stage.define(options={"prompt": "Do it.", "tools": ["Bash"]})
    await stage.submit()

    await begun(stage.files() / "begun")
    await begun(stage.files() / "detached")
    await until(lambda: answers_stored(stage, 1))
    # Whoever it was left by is gone, and so it is below nobody whom the attempt has started.
    far_away = int((stage.files() / "detached").read_text())
    await cancelled_twice(stage, among="bash")
    assert not alive(far_away)
    await stage.services.resuming.resume(stage.job_id, [stage.id_of()], by=BY)

    await stage.api.wait_until(lambda: any(one.stage is Far.SILENT for one in stage.requests()))
    assert "Tool call interrupted" in json.dumps(stage.requests()[-1].messages)
    await cancelled_twice(stage, among="claude")
    await stage.services.resuming.resume(stage.job_id, [stage.id_of()], by=BY)

    row = await stage.over()
    assert row.state is TaskState.COMPLETED, row.failure
    assert stage.asked_again() == []
    assert row.usage.turns == 2
    assert row.usage.input_tokens == 200


async def cancelled_twice(stage: Stage, *, among: str) -> None:
    family = stage.family()
    assert among in family.values()
    await stage.services.cancelling.cancel_task(TENANT, stage.id_of(), by=BY)
    await stage.services.cancelling.cancel_task(TENANT, stage.id_of(), by=BY)
    row = await stage.over()
    assert row.state is TaskState.CANCELLED
    (traced,) = await stage.trace(attempt=row.attempt)
    assert traced["end"] is None
    assert left_of(family) == {}
