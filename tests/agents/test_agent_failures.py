"""What the model's API refuses or does not answer, and what that costs a task."""

from datetime import timedelta
from pathlib import Path

from longshore.core.tasks.states import TaskState
from tests.agents.harness import AgentHarness, open_harness, scenario
from verification.messages_api import Script, error, hang, reset, stall, text
from verification.messages_api.script import Step


async def run_scripts(
    harness_: AgentHarness, scripts: dict[str, list[Step]], *, attempts: int = 2
) -> None:
    """Tasks beside each other, one for each story, until all are over."""
    harness_.api.set_script([Script.of(*steps, when=key) for key, steps in scripts.items()])
    for key in scripts:
        retry = {"base": "10ms", "cap": "10ms", "maxAttempts": attempts}
        await harness_.define(key, options={"prompt": f"Meet {key} ."}, retry=retry)
    await harness_.submit(*({"taskId": key, "name": key} for key in scripts))
    await harness_.wait_finished(*scripts)


@scenario
async def test_what_no_attempt_can_mend_fails_a_task_at_once(harness: AgentHarness) -> None:
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
async def test_what_passes_is_tried_again_and_a_rate_limit_costs_no_attempt(
    harness: AgentHarness,
) -> None:
    expected = {
        "s500": ("server-error", 1),
        "s529": ("server-error", 1),
        "reset": ("network", 1),
        "s429": ("rate-limit", 0),
    }
    troubles: dict[str, Step] = {
        "s500": error(500),
        "s529": error(529),
        "reset": reset(),
        "s429": error(429, headers={"retry-after": "2"}),
    }
    await run_scripts(harness, {key: [raised, text("done")] for key, raised in troubles.items()})

    for key, (category, used) in expected.items():
        row, history = await harness.history(key)
        assert row.state is TaskState.COMPLETED, row.failure
        assert (row.attempt, row.attempts_used) == (2, used), key
        ((reported, message),) = await harness.failures(key)
        assert reported == category, message
        first, second = harness.requests(key)
        # The same conversation: what was asked stands in it once, and why it is asked again.
        assert second.first_prompt.startswith(first.first_prompt)
        assert "was interrupted" in second.prompt
        assert "API Error" not in str(second.messages)
        assert row.usage.turns == 1
        (failed,) = [event for event in history if event.type == "Task Processing Failed"]
        pause = failed.body.due_at - failed.at
        assert (pause >= timedelta(seconds=2)) == (key == "s429"), pause


@scenario
async def test_an_api_that_falls_silent_is_given_up_and_asked_again(tmp_path: Path) -> None:
    flags = {"agent.response_timeout": "2s", "agent.stall_timeout": "10s"}
    async with open_harness(tmp_path, flags=flags) as harness_:
        stories: dict[str, list[Step]] = {
            "hang": [hang(), text("done")],
            "stall": [stall(), hang(), text("done")],
        }
        await run_scripts(harness_, stories, attempts=4)

        for key in stories:
            row = await harness_.row(key)
            assert row.state is TaskState.COMPLETED, row.failure
            assert row.attempts_used >= 1
            reported = await harness_.failures(key)
            assert {category for category, _ in reported} == {"timeout"}, reported
            assert harness_.repeated_requests(key) == []
