"""When a task ends its dependents may start and its job may end, and somebody sees to it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core import commands as c
from longshore.core.events.types import JobCompleted, JobFailureDetected
from longshore.core.failures import ErrorCategory
from longshore.core.rows import TaskRow
from longshore.core.states import JobState, TaskState
from longshore.testing.flaky import Flaky
from longshore.testing.presence import FakePresence
from tests.unit.services.samples import DIAMOND
from tests.unit.services.stage import (
    BACKENDS,
    IN_MEMORY,
    NO_WAIT,
    SECOND,
    TENANT,
    Stage,
    a_task,
    job_id,
    opened,
    scenario,
    task_id,
)

WAITING, PENDING, COMPLETED = TaskState.WAITING, TaskState.PENDING, TaskState.COMPLETED


async def last_of_job(stage: Stage) -> Any:
    event = await stage.backend.events.latest(TENANT, f"JOB#{job_id()}")
    assert event is not None
    return event.body


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_diamond_is_run_from_its_top_to_its_bottom(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(*DIAMOND)

        seen = []
        for key in ("", *"acbd"):
            if key:
                await stage.complete(task_id(key))
            await stage.dispatch()
            states = await stage.states()
            seen.append([states[each] for each in "abcd"])

        assert seen == [
            [PENDING, WAITING, WAITING, WAITING],
            [COMPLETED, PENDING, PENDING, WAITING],
            [COMPLETED, PENDING, COMPLETED, WAITING],
            [COMPLETED, COMPLETED, COMPLETED, PENDING],
            [COMPLETED] * 4,
        ]
        assert (await stage.job()).state is JobState.COMPLETED
        assert await stage.job_told() == ["Job Created", "Job Completed"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_end_of_a_job_tells_the_state_of_every_task(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(*DIAMOND)

        await stage.finish()

        assert await last_of_job(stage) == JobCompleted(
            job_id=job_id(),
            total_tasks=4,
            task_statuses=dict.fromkeys("abcd", "completed"),
            round=1,
        )


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_wide_fan_out_comes_together_again(kind: str, tmp_path: Path) -> None:
    width = 300
    middle = [f"m{number}" for number in range(width)]
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(
            a_task("top"), *(a_task(key, "top") for key in middle), a_task("end", *middle)
        )
        await stage.complete(task_id("top"))
        await stage.dispatch()
        fanned_out = list((await stage.states()).values()).count(PENDING)
        for key in middle[:-1]:
            await stage.complete(task_id(key))
        await stage.dispatch()
        before = (await stage.task("end")).state
        await stage.complete(task_id(middle[-1]))
        await stage.dispatch()
        after = (await stage.task("end")).state

        assert fanned_out == width
        assert (before, after) == (WAITING, PENDING)
        assert await stage.told("end") == ["Task Pending"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_failure_blocks_only_what_is_behind_it_and_is_told_once(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(
            *DIAMOND, a_task("e", "d"), a_task("alone"), a_task("alone-2", "alone"), a_task("f")
        )
        await stage.complete(task_id("a"))
        await stage.dispatch()

        await stage.fail(task_id("b"))
        await stage.dispatch()
        told = await last_of_job(stage)
        running = (await stage.job()).state
        await stage.fail(task_id("f"))
        await stage.finish()

        assert isinstance(told, JobFailureDetected)
        assert told.failed_key == "b"
        assert told.task_statuses == {
            "a": "completed",
            "b": "failed",
            "c": "pending",
            "d": None,
            "e": None,
            "alone": "pending",
            "alone-2": None,
            "f": "pending",
        }
        assert running is JobState.RUNNING
        job = await stage.job()
        assert job.state is JobState.FAILED
        assert await stage.job_told() == ["Job Created", "Job Failure Detected"]
        states = await stage.states()
        assert states["alone-2"] is states["c"] is COMPLETED
        assert states["d"] is states["e"] is WAITING


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("ending", ["timeout", "cancel"])
@scenario
async def test_a_timeout_and_a_cancellation_are_ends_too(
    kind: str, ending: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(*DIAMOND)
        if ending == "timeout":
            fence = (await stage.claim(task_id("a"))).fence
            late = c.TimeOut(
                fence=fence, timeout=SECOND, elapsed=SECOND, signal="SIGTERM", roll=0.0
            )
            await stage.transitions.task(task_id("a"), late)
        else:
            await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann"))

        await stage.dispatch()

        job = await stage.job()
        assert job.state is (JobState.FAILED if ending == "timeout" else JobState.CANCELLED)
        assert len(job.blocked) == 3
        assert len(await stage.job_told()) == 2


@scenario
async def test_a_failure_that_is_to_be_tried_again_is_no_end(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(*DIAMOND)
        await stage.fail(task_id("a"), ErrorCategory.NETWORK)

        deliveries = await stage.dispatch()

        assert deliveries == 0
        assert await stage.job_told() == ["Job Created"]


class Counting:
    """A ledger that counts the rows that are read and written."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.reads = 0
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def task(self, task_id: str) -> TaskRow | None:
        self.reads += 1
        return await self._ledger.task(task_id)

    async def tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        self.reads += len(task_ids)
        return await self._ledger.tasks(task_ids)

    async def job(self, job_id: str) -> Any:
        self.reads += 1
        return await self._ledger.job(job_id)

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        found = await self._ledger.task_states(job_id)
        self.reads += len(found)
        return found

    async def commit(self, *changes: Any) -> Any:
        self.writes += len(changes)
        return await self._ledger.commit(*changes)


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("shape", ["wide", "chain"])
@scenario
async def test_the_work_for_a_completed_task_does_not_grow_with_its_job(
    kind: str, shape: str, tmp_path: Path
) -> None:
    work = []
    for size in (100, 1000):
        async with opened(kind, tmp_path) as backend:
            stage = Stage(backend)
            keys = [f"t{number}" for number in range(size)]
            parents = {key: [keys[n - 1]] for n, key in enumerate(keys) if n and shape == "chain"}
            await stage.submit(*(a_task(key, *parents.get(key, [])) for key in keys))
            counting = Counting(backend.ledger)
            watching = stage.with_ports(ledger=counting)
            for key in keys[:3]:
                await stage.complete(task_id(key))
                await watching.dispatch()
            work.append((counting.reads, counting.writes))

    assert work[0] == work[1]
    assert work[0][0] <= 3 * 4
    assert work[0][1] <= 3 * 2


@scenario
async def test_a_dispatcher_goes_on_after_the_store_was_out_of_reach(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(*DIAMOND)
        ledger = Flaky(backend.ledger, "tasks", times=3)
        running = asyncio.ensure_future(stage.with_ports(ledger=ledger).dispatcher.run())
        await stage.complete(task_id("a"))

        await stage.passes(timedelta(seconds=10))

        assert ledger.failures == 3
        assert (await stage.task("b")).state is PENDING
        running.cancel()


@scenario
async def test_one_that_does_not_lead_only_looks_whether_the_leader_stands_still(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend, presence=FakePresence(leading=False))
        await stage.submit(*DIAMOND)
        await stage.complete(task_id("a"))
        running = asyncio.ensure_future(stage.dispatcher.run())

        await stage.passes(timedelta(seconds=9))
        before = (await stage.task("b")).state
        await stage.passes(timedelta(seconds=2))
        after = (await stage.task("b")).state

        assert (before, after) == (WAITING, PENDING)
        running.cancel()


@scenario
async def test_one_that_begins_to_lead_follows_at_once(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        presence = FakePresence(leading=False)
        stage = Stage(backend, presence=presence)
        await stage.submit(*DIAMOND)
        running = asyncio.ensure_future(stage.dispatcher.run())
        await stage.passes(SECOND)

        presence.leading = True
        await stage.passes(SECOND)
        await stage.complete(task_id("a"))
        await stage.passes(NO_WAIT)

        assert (await stage.task("b")).state is PENDING
        running.cancel()
