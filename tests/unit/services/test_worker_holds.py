"""An agent whose model asks for a pause holds its whole queue for as long, and no other queue."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.queues import QueuePause
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendUnavailable
from longshore.ports.backend import Backend
from longshore.services.worker.group import wait_until_idle
from longshore.testing.fake_runner import Script, fails
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    TENANT,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.samples import MINUTE

AGENT = {"name": "agent-task", "input": {}}
ONE_SLOT = {"concurrency": 1}


def rate_limited(wait: timedelta | None = MINUTE, **fields: Any) -> Script:
    category = fields.pop("category", ErrorCategory.RATE_LIMIT)
    return Script(ending=fails(category, retry_after=wait, **fields))


async def agent_harness(backend: Backend) -> ServiceHarness:
    definition = Definition(
        name="agent-task", runner=RunnerKind.AGENT, options={"prompt": "Do it."}
    )
    await backend.definitions.put(TENANT, definition)
    return ServiceHarness(backend)


def started(harness: ServiceHarness) -> list[str]:
    return [spec.key for spec in harness.runner.specs]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_no_task_of_the_queue_begins_before_the_time_is_over_and_no_attempt_is_used(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", rate_limited(), Script())
        async with (
            harness.running_worker(**ONE_SLOT),
            harness.running_worker("worker-2", **ONE_SLOT),
        ):
            await harness.submit(make_task("a", **AGENT))
            await harness.advance(NO_WAIT)
            (claimed,) = await backend.queue_controls.list_pauses()
            assert claimed == QueuePause(
                name="default",
                by=claimed.by,
                reason="rate limit of the model's API",
                at=harness.clock.now(),
                until=harness.clock.now() + MINUTE,
            )
            assert claimed.by in ("worker-1", "worker-2")

            await harness.submit(make_task("b", **AGENT), make_task("c"), request_id="later")
            await harness.advance(MINUTE - SECOND)
            assert started(harness) == ["a"]

            await harness.advance(2 * SECOND)
            assert set(started(harness)) == {"a", "b", "c"}
            done = await harness.task("a")
            assert (done.state, done.attempt, done.attempts_used) == (TaskState.COMPLETED, 2, 0)
            assert await backend.queue_controls.list_pauses() == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_other_queues_are_served_meanwhile(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", rate_limited(), Script())
        async with harness.running_worker(queues=("default", "other")):
            await harness.submit(make_task("a", **AGENT))
            await harness.advance(NO_WAIT)
            await harness.submit(make_task("b", queue="other", **AGENT), request_id="other")
            await harness.advance(NO_WAIT)

            assert (await harness.task("b", "other")).state is TaskState.COMPLETED


@pytest.mark.parametrize(
    "script",
    [
        rate_limited(None),
        rate_limited(NO_WAIT),
        rate_limited(category=ErrorCategory.SERVER_ERROR),
        Script(),
    ],
    ids=["no time was given", "no time at all", "another error", "a result"],
)
@scenario
async def test_nothing_else_that_happens_to_an_agent_holds_its_queue(
    tmp_path: Path, script: Script
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", script)
        await harness.submit(make_task("a", **AGENT))
        async with harness.running_worker():
            assert (await harness.task("a")).attempt == 1
            assert await backend.queue_controls.list_pauses() == []


@scenario
async def test_a_task_of_another_runner_holds_no_queue(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", rate_limited())
        await harness.submit(make_task("a"))
        async with harness.running_worker():
            assert (await harness.task("a")).attempt == 1
            assert await backend.queue_controls.list_pauses() == []


@pytest.mark.parametrize(
    ("longest", "lasts"), [(10 * SECOND, 10 * SECOND), (timedelta(hours=1), MINUTE)]
)
@scenario
async def test_a_hold_lasts_no_longer_than_was_asked_for_nor_than_it_may(
    tmp_path: Path, longest: timedelta, lasts: timedelta
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", rate_limited())
        await harness.submit(make_task("a", **AGENT))
        async with harness.running_worker(context={"longest_hold": longest}):
            (claimed,) = await backend.queue_controls.list_pauses()
            assert claimed.until == claimed.at + lasts


@scenario
async def test_a_worker_that_may_hold_nothing_holds_nothing(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", rate_limited())
        await harness.submit(make_task("a", **AGENT))
        async with harness.running_worker(context={"longest_hold": NO_WAIT}):
            assert (await harness.task("a")).attempt == 1
            assert await backend.queue_controls.list_pauses() == []


@pytest.mark.parametrize("error", [BackendUnavailable("down"), RuntimeError("a bug")], ids=repr)
@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_hold_that_cannot_be_kept_costs_no_outcome(
    kind: str, tmp_path: Path, error: Exception
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        await agent_harness(backend)
        queues = FlakyPort(backend.queue_controls, "hold", error, times=None)
        harness = ServiceHarness(backend).with_ports(queue_controls=queues)
        harness.runner.set_scripts("a", rate_limited(), Script())
        await harness.submit(make_task("a", **AGENT))
        async with harness.running_worker():
            assert queues.failures == 1
            waiting = await harness.task("a")
            assert (waiting.state, waiting.attempts_used) == (TaskState.PENDING, 0)
            assert waiting.lease is None

            await harness.advance(2 * MINUTE)
            assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_resuming_the_queue_ends_the_hold(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", rate_limited(), Script())
        async with harness.running_worker():
            await harness.submit(make_task("a", **AGENT))
            await harness.advance(NO_WAIT)
            await harness.submit(make_task("b", **AGENT), request_id="later")
            await harness.advance(SECOND)
            assert started(harness) == ["a"]

            await backend.queue_controls.resume("default")
            await harness.advance(NO_WAIT)
            assert started(harness) == ["a", "b"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_running_tasks_of_a_held_queue_continue_and_the_longest_hold_counts(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", rate_limited(), Script())
        harness.runner.set_scripts(
            "b", Script(reports=[10 * SECOND], ending=rate_limited().ending), Script()
        )
        harness.runner.set_scripts("c", Script(reports=[20 * SECOND]))
        await harness.submit(*(make_task(key, **AGENT) for key in "abc"))
        async with harness.running_worker():
            began = harness.clock.now()
            await harness.advance(30 * SECOND)

            assert (await harness.task("c")).state is TaskState.COMPLETED
            (claimed,) = await backend.queue_controls.list_pauses()
            assert claimed.until is not None
            assert claimed.until - began >= 10 * SECOND + MINUTE


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_who_waits_for_the_end_of_all_work_waits_for_a_hold_that_ends_soon(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", rate_limited(5 * SECOND), Script())
        await harness.submit(make_task("a", **AGENT))
        async with harness.running_worker():
            await harness.submit(make_task("b", **AGENT), request_id="later")

            def nothing_left(horizon: timedelta) -> Any:
                return wait_until_idle(
                    backend,
                    harness.source,
                    harness.dispatcher,
                    tenant=TENANT,
                    queues=["default"],
                    horizon=horizon,
                )

            await asyncio.wait_for(nothing_left(SECOND), 10)
            assert (await harness.task("b", "later")).state is TaskState.PENDING

            await harness.advance_until_done(nothing_left(MINUTE))
            assert (await harness.task("a")).state is TaskState.COMPLETED
            assert (await harness.task("b", "later")).state is TaskState.COMPLETED
