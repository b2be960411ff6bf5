"""A rate limit of the model's API delays the whole queue and counts no attempt."""

from pathlib import Path

from longshore.core.explain import Remedy, RemedyAction
from longshore.core.tasks.states import TaskState
from tests.acceptance.conftest import wait_until
from tests.agents.harness import TENANT, AgentHarness, open_harness, scenario
from verification.messages_api import Script, error, text

WAIT_S = 2
LIMITED = error(429, headers={"retry-after": str(WAIT_S)})
ONE_AT_A_TIME = {"worker.concurrency": 1, "agent.retries": 2}


async def submit(harness: AgentHarness, *keys: str) -> None:
    for key in keys:
        await harness.define(key, options={"prompt": f"Meet {key} ."})
    await harness.submit(*({"taskId": key, "name": key} for key in keys))


@scenario
async def test_no_task_of_the_queue_asks_the_model_before_the_time_is_over(tmp_path: Path) -> None:
    script = [Script.of(LIMITED, text("done"), when="first"), Script.of(text("done"), when="next")]
    async with open_harness(tmp_path, script, flags=ONE_AT_A_TIME) as harness:
        await submit(harness, "first", "next")
        await harness.wait_attempt_finished(1, "first")
        turned_away = harness.requests("first")[0].received_at_s

        await harness.wait_finished("first", "next")

        others = [item for item in harness.api.requests if item.received_at_s > turned_away]
        assert len(others) == 2
        assert min(item.received_at_s for item in others) >= turned_away + WAIT_S
        for key, attempts in (("first", 2), ("next", 1)):
            row = await harness.row(key)
            assert row.state is TaskState.COMPLETED, row.failure
            assert (row.attempt, row.attempts_used) == (attempts, 0), key
        assert await harness.services.backend.queue_controls.list_pauses() == []


@scenario
async def test_the_cli_does_not_wait_for_a_rate_limit_and_why_explains_the_wait(
    tmp_path: Path,
) -> None:
    limited = error(429, headers={"retry-after": "50"})
    script = [Script.of(limited, text("done"), when="first"), Script.of(text("x"), when="next")]
    async with open_harness(tmp_path, script, flags=ONE_AT_A_TIME) as harness:
        await submit(harness, "first", "next")

        waiting = await harness.wait_attempt_finished(1, "first")

        assert (waiting.state, waiting.attempts_used) == (TaskState.PENDING, 0)
        ((category, _),) = await harness.failures("first")
        assert category == "rate-limit"
        assert len(harness.requests("first")) == 1
        services = harness.services
        await wait_until(services.backend.queue_controls.list_pauses)
        reasons = await services.explainer.why(TENANT, harness.task_id("next"))
        (blocked,) = [reason for reason in reasons if reason.code == "queue_held"]
        assert blocked.remedy == Remedy(RemedyAction.RESUME_QUEUE, "default")

        await services.operator_commands.resume_queue("default", by="operator")

        assert (await harness.wait_finished("next")).state is TaskState.COMPLETED
        assert len(harness.api.requests) == 2
