"""An agent whose model asks to be left alone holds its whole queue for as long, and nobody else."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.definition import Definition, RunnerKind
from longshore.core.failures import ErrorCategory
from longshore.core.states import TaskState
from longshore.errors import BackendUnavailable
from longshore.ports.backend import Backend
from longshore.ports.queues import PausedQueue
from longshore.services.crew import until_nothing_is_left
from longshore.testing.flaky import Flaky
from longshore.testing.runner import Script, fails
from tests.unit.services.samples import MINUTE
from tests.unit.services.stage import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    TENANT,
    Stage,
    a_task,
    opened,
    scenario,
)

AGENT = {"name": "agent-task", "input": {}}
ONE = {"concurrency": 1}


def turned_away(wait: timedelta | None = MINUTE, **fields: Any) -> Script:
    category = fields.pop("category", ErrorCategory.RATE_LIMIT)
    return Script(ending=fails(category, retry_after=wait, **fields))


async def staged(backend: Backend) -> Stage:
    definition = Definition(
        name="agent-task", runner=RunnerKind.AGENT, options={"prompt": "Do it."}
    )
    await backend.definitions.put(TENANT, definition)
    return Stage(backend)


def started(stage: Stage) -> list[str]:
    return [order.key for order in stage.runner.orders]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_no_task_of_the_queue_begins_before_the_time_is_over_and_no_attempt_is_used(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", turned_away(), Script())
        async with stage.working(**ONE), stage.working("worker-2", **ONE):
            await stage.submit(a_task("a", **AGENT))
            await stage.passes(NO_WAIT)
            (held,) = await backend.queues.paused()
            assert held == PausedQueue(
                name="default",
                by=held.by,
                reason="the model's API asks to be left alone: rate limit",
                at=stage.clock.now(),
                until=stage.clock.now() + MINUTE,
            )
            assert held.by in ("worker-1", "worker-2")

            await stage.submit(a_task("b", **AGENT), a_task("c"), request_id="later")
            await stage.passes(MINUTE - SECOND)
            assert started(stage) == ["a"]

            await stage.passes(2 * SECOND)
            assert set(started(stage)) == {"a", "b", "c"}
            done = await stage.task("a")
            assert (done.state, done.attempt, done.attempts_used) == (TaskState.COMPLETED, 2, 0)
            assert await backend.queues.paused() == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_other_queues_are_served_meanwhile(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", turned_away(), Script())
        async with stage.working(queues=("default", "other")):
            await stage.submit(a_task("a", **AGENT))
            await stage.passes(NO_WAIT)
            await stage.submit(a_task("b", queue="other", **AGENT), request_id="other")
            await stage.passes(NO_WAIT)

            assert (await stage.task("b", "other")).state is TaskState.COMPLETED


@pytest.mark.parametrize(
    "script",
    [
        turned_away(None),
        turned_away(NO_WAIT),
        turned_away(category=ErrorCategory.SERVER_ERROR),
        Script(),
    ],
    ids=["no time was said", "no time at all", "another trouble", "a result"],
)
@scenario
async def test_nothing_else_that_happens_to_an_agent_holds_its_queue(
    tmp_path: Path, script: Script
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", script)
        await stage.submit(a_task("a", **AGENT))
        async with stage.working():
            assert (await stage.task("a")).attempt == 1
            assert await backend.queues.paused() == []


@scenario
async def test_a_task_that_no_agent_does_holds_up_nobody(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", turned_away())
        await stage.submit(a_task("a"))
        async with stage.working():
            assert (await stage.task("a")).attempt == 1
            assert await backend.queues.paused() == []


@pytest.mark.parametrize(
    ("longest", "lasts"), [(10 * SECOND, 10 * SECOND), (timedelta(hours=1), MINUTE)]
)
@scenario
async def test_a_hold_lasts_no_longer_than_was_asked_for_nor_than_it_may(
    tmp_path: Path, longest: timedelta, lasts: timedelta
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", turned_away())
        await stage.submit(a_task("a", **AGENT))
        async with stage.working(tools={"longest_hold": longest}):
            (held,) = await backend.queues.paused()
            assert held.until == held.at + lasts


@scenario
async def test_a_worker_that_may_hold_nothing_holds_nothing(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", turned_away())
        await stage.submit(a_task("a", **AGENT))
        async with stage.working(tools={"longest_hold": NO_WAIT}):
            assert (await stage.task("a")).attempt == 1
            assert await backend.queues.paused() == []


@pytest.mark.parametrize("error", [BackendUnavailable("down"), RuntimeError("a bug")], ids=repr)
@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_hold_that_cannot_be_kept_costs_no_outcome(
    kind: str, tmp_path: Path, error: Exception
) -> None:
    async with opened(kind, tmp_path) as backend:
        await staged(backend)
        queues = Flaky(backend.queues, "hold", error, times=None)
        stage = Stage(backend).with_ports(queues=queues)
        stage.runner.plays("a", turned_away(), Script())
        await stage.submit(a_task("a", **AGENT))
        async with stage.working():
            assert queues.failures == 1
            waiting = await stage.task("a")
            assert (waiting.state, waiting.attempts_used) == (TaskState.PENDING, 0)
            assert waiting.lease is None

            await stage.passes(2 * MINUTE)
            assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_somebody_who_resumes_the_queue_ends_the_hold(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", turned_away(), Script())
        async with stage.working():
            await stage.submit(a_task("a", **AGENT))
            await stage.passes(NO_WAIT)
            await stage.submit(a_task("b", **AGENT), request_id="later")
            await stage.passes(SECOND)
            assert started(stage) == ["a"]

            await backend.queues.resume("default")
            await stage.passes(NO_WAIT)
            assert started(stage) == ["a", "b"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_runs_when_its_queue_is_held_goes_on_and_the_longest_wait_counts(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", turned_away(), Script())
        stage.runner.plays("b", Script(says=[10 * SECOND], ending=turned_away().ending), Script())
        stage.runner.plays("c", Script(says=[20 * SECOND]))
        await stage.submit(*(a_task(key, **AGENT) for key in "abc"))
        async with stage.working():
            began = stage.clock.now()
            await stage.passes(30 * SECOND)

            assert (await stage.task("c")).state is TaskState.COMPLETED
            (held,) = await backend.queues.paused()
            assert held.until is not None
            assert held.until - began >= 10 * SECOND + MINUTE


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_who_waits_for_the_end_of_all_work_waits_for_a_hold_that_ends_soon(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", turned_away(5 * SECOND), Script())
        await stage.submit(a_task("a", **AGENT))
        async with stage.working():
            await stage.submit(a_task("b", **AGENT), request_id="later")

            def nothing_left(horizon: timedelta) -> Any:
                return until_nothing_is_left(
                    backend, stage.dispatcher, tenant=TENANT, queues=["default"], horizon=horizon
                )

            await asyncio.wait_for(nothing_left(SECOND), 10)
            assert (await stage.task("b", "later")).state is TaskState.PENDING

            await stage.in_time(nothing_left(MINUTE))
            assert (await stage.task("a")).state is TaskState.COMPLETED
            assert (await stage.task("b", "later")).state is TaskState.COMPLETED
