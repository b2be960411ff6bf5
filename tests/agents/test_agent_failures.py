"""What the model's API refuses or does not answer, and what that costs a task."""

from datetime import timedelta
from pathlib import Path

from longshore.core.tasks.states import TaskState
from tests.agents.harness import AgentHarness, open_harness, scenario
from verification.messages_api import Script, error, hang, reset, stall, text
from verification.messages_api.script import Step


async def run_scripts(
    harness: AgentHarness, scripts: dict[str, list[Step]], *, attempts: int = 2
) -> None:
    """Run one task for each script at the same time, until all have ended."""
    harness.api.set_script([Script.of(*steps, when=key) for key, steps in scripts.items()])
    for key in scripts:
        retry = {"base": "10ms", "cap": "10ms", "maxAttempts": attempts}
        await harness.define(key, options={"prompt": f"Meet {key} ."}, retry=retry)
    await harness.submit(*({"taskId": key, "name": key} for key in scripts))
    await harness.wait_finished(*scripts)


@scenario
async def test_a_permanent_error_fails_a_task_at_once(harness: AgentHarness) -> None:
    expected = {400: "validation", 401: "auth", 402: "auth", 403: "auth", 404: "not-found"}
    await run_scripts(harness, {f"s{status}": [error(status)] for status in expected})

    for status, category in expected.items():
        key = f"s{status}"
        row = await harness.row(key)
        assert (row.state, row.attempt) == (TaskState.FAILED, 1)
        ((reported, message),) = await harness.failures(key)
        assert reported == category, message
        assert f"({status})" in message
        assert len(harness.requests(key)) <= 3
        assert row.usage.cost_usd == 0


@scenario
async def test_temporary_errors_are_retried_and_a_rate_limit_counts_no_attempt(
    harness: AgentHarness,
) -> None:
    expected = {
        "s500": ("server-error", 1),
        "s529": ("server-error", 1),
        "reset": ("network", 1),
        "s429": ("rate-limit", 0),
    }
    errors: dict[str, Step] = {
        "s500": error(500),
        "s529": error(529),
        "reset": reset(),
        "s429": error(429, headers={"retry-after": "2"}),
    }
    await run_scripts(harness, {key: [raised, text("done")] for key, raised in errors.items()})

    for key, (category, used) in expected.items():
        row, history = await harness.history(key)
        assert row.state is TaskState.COMPLETED, row.failure
        assert (row.attempt, row.attempts_used) == (2, used), key
        ((reported, message),) = await harness.failures(key)
        assert reported == category, message
        first, second = harness.requests(key)
        # The same conversation: it contains the prompt once, and the reason of the retry.
        assert second.first_prompt.startswith(first.first_prompt)
        assert "was interrupted" in second.prompt
        assert "API Error" not in str(second.messages)
        assert row.usage.turns == 1
        (failed,) = [event for event in history if event.type == "Task Processing Failed"]
        pause = failed.body.due_at - failed.at
        assert (pause >= timedelta(seconds=2)) == (key == "s429"), pause


@scenario
async def test_a_request_without_a_response_times_out_and_is_retried(tmp_path: Path) -> None:
    flags = {"agent.response_timeout": "2s", "agent.stall_timeout": "10s"}
    async with open_harness(tmp_path, flags=flags) as harness:
        scripts: dict[str, list[Step]] = {
            "hang": [hang(), text("done")],
            "stall": [stall(), hang(), text("done")],
        }
        await run_scripts(harness, scripts, attempts=4)

        for key in scripts:
            row = await harness.row(key)
            assert row.state is TaskState.COMPLETED, row.failure
            assert row.attempts_used >= 1
            reported = await harness.failures(key)
            assert {category for category, _ in reported} == {"timeout"}, reported
            assert harness.repeated_requests(key) == []
