"""When a task ends the dispatcher releases its dependents and ends its job."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.events.types import JobCompleted, JobFailureDetected
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.testing.flaky_port import FlakyPort
from longshore.testing.worker_registry import FakeWorkerRegistry
from tests.unit.services.harness import (
    BACKENDS,
    IN_MEMORY,
    NO_WAIT,
    SECOND,
    TENANT,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.samples import DIAMOND

WAITING, PENDING, COMPLETED = TaskState.WAITING, TaskState.PENDING, TaskState.COMPLETED


async def last_of_job(harness: ServiceHarness) -> Any:
    event = await harness.backend.events.latest(TENANT, f"JOB#{job_id()}")
    assert event is not None
    return event.body


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_diamond_is_run_from_its_top_to_its_bottom(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)

        seen = []
        for key in ("", *"acbd"):
            if key:
                await harness.complete(task_id(key))
            await harness.dispatch()
            states = await harness.states()
            seen.append([states[key] for key in "abcd"])

        assert seen == [
            [PENDING, WAITING, WAITING, WAITING],
            [COMPLETED, PENDING, PENDING, WAITING],
            [COMPLETED, PENDING, COMPLETED, WAITING],
            [COMPLETED, COMPLETED, COMPLETED, PENDING],
            [COMPLETED] * 4,
        ]
        assert (await harness.job()).state is JobState.COMPLETED
        assert await harness.job_event_types() == ["Job Created", "Job Completed"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_final_event_of_a_job_has_the_state_of_every_task(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)

        await harness.finish()

        assert await last_of_job(harness) == JobCompleted(
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
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(
            make_task("top"), *(make_task(key, "top") for key in middle), make_task("end", *middle)
        )
        await harness.complete(task_id("top"))
        await harness.dispatch()
        fanned_out = list((await harness.states()).values()).count(PENDING)
        for key in middle[:-1]:
            await harness.complete(task_id(key))
        await harness.dispatch()
        before = (await harness.task("end")).state
        await harness.complete(task_id(middle[-1]))
        await harness.dispatch()
        after = (await harness.task("end")).state

        assert fanned_out == width
        assert (before, after) == (WAITING, PENDING)
        assert await harness.event_types("end") == ["Task Pending"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_failure_blocks_only_its_dependents_and_is_emitted_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(
            *DIAMOND,
            make_task("e", "d"),
            make_task("alone"),
            make_task("alone-2", "alone"),
            make_task("f"),
        )
        await harness.complete(task_id("a"))
        await harness.dispatch()

        await harness.fail(task_id("b"))
        await harness.dispatch()
        notices = await last_of_job(harness)
        running = (await harness.job()).state
        await harness.fail(task_id("f"))
        await harness.finish()

        assert isinstance(notices, JobFailureDetected)
        assert notices.failed_key == "b"
        assert notices.task_statuses == {
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
        job = await harness.job()
        assert job.state is JobState.FAILED
        assert await harness.job_event_types() == ["Job Created", "Job Failure Detected"]
        states = await harness.states()
        assert states["alone-2"] is states["c"] is COMPLETED
        assert states["d"] is states["e"] is WAITING


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("ending", ["timeout", "cancel"])
@scenario
async def test_a_timeout_and_a_cancellation_are_ends_too(
    kind: str, ending: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        if ending == "timeout":
            fence = (await harness.claim(task_id("a"))).fence
            late = c.TimeOut(
                fence=fence, timeout=SECOND, elapsed=SECOND, signal="SIGTERM", jitter=0.0
            )
            await harness.transitions.apply_to_task(task_id("a"), late)
        else:
            await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        await harness.dispatch()

        job = await harness.job()
        assert job.state is (JobState.FAILED if ending == "timeout" else JobState.CANCELLED)
        assert len(job.blocked) == 3
        assert len(await harness.job_event_types()) == 2


@scenario
async def test_a_failure_that_is_to_be_tried_again_is_no_end(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        await harness.fail(task_id("a"), ErrorCategory.NETWORK)

        deliveries = await harness.dispatch()

        assert deliveries == 0
        assert await harness.job_event_types() == ["Job Created"]


class Counting:
    """A ledger that counts the rows that are read and written."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.reads = 0
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def get_task(self, task_id: str) -> TaskRow | None:
        self.reads += 1
        return await self._ledger.get_task(task_id)

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        self.reads += len(task_ids)
        return await self._ledger.get_tasks(task_ids)

    async def get_job(self, job_id: str) -> Any:
        self.reads += 1
        return await self._ledger.get_job(job_id)

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        result = await self._ledger.task_states(job_id)
        self.reads += len(result)
        return result

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
        async with open_backend(kind, tmp_path) as backend:
            harness = ServiceHarness(backend)
            keys = [f"t{number}" for number in range(size)]
            parents = {key: [keys[n - 1]] for n, key in enumerate(keys) if n and shape == "chain"}
            await harness.submit(*(make_task(key, *parents.get(key, [])) for key in keys))
            counting = Counting(backend.ledger)
            watching = harness.with_ports(ledger=counting)
            for key in keys[:3]:
                await harness.complete(task_id(key))
                await watching.dispatch()
            work.append((counting.reads, counting.writes))

    assert work[0] == work[1]
    assert work[0][0] <= 3 * 4
    assert work[0][1] <= 3 * 2


@scenario
async def test_a_dispatcher_continues_after_the_store_was_out_of_reach(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        ledger = FlakyPort(backend.ledger, "get_tasks", times=3)
        running = asyncio.ensure_future(harness.with_ports(ledger=ledger).dispatcher.run())
        await harness.complete(task_id("a"))

        await harness.advance(timedelta(seconds=10))

        assert ledger.failures == 3
        assert (await harness.task("b")).state is PENDING
        running.cancel()


@scenario
async def test_a_process_without_the_role_sweeps_rarely(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend, worker_registry=FakeWorkerRegistry(leading=False))
        await harness.submit(*DIAMOND)
        await harness.complete(task_id("a"))
        running = asyncio.ensure_future(harness.dispatcher.run())

        await harness.advance(timedelta(seconds=9))
        before = (await harness.task("b")).state
        await harness.advance(timedelta(seconds=2))
        after = (await harness.task("b")).state

        assert (before, after) == (WAITING, PENDING)
        running.cancel()


@scenario
async def test_a_dispatcher_that_becomes_the_leader_starts_at_once(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        presence = FakeWorkerRegistry(leading=False)
        harness = ServiceHarness(backend, worker_registry=presence)
        await harness.submit(*DIAMOND)
        running = asyncio.ensure_future(harness.dispatcher.run())
        await harness.advance(SECOND)

        presence.leading = True
        await harness.advance(SECOND)
        await harness.complete(task_id("a"))
        await harness.advance(NO_WAIT)

        assert (await harness.task("b")).state is PENDING
        running.cancel()
