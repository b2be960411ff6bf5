"""Ends that were not dispatched: the sweeper carries out what follows once, from rows alone."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.jobs.numbers import NumberSet
from longshore.core.queues import message_body
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Change
from longshore.core.tasks.rows import JobRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.services import reads
from longshore.services.sweeper import Repairs
from tests.unit.services.harness import (
    BACKENDS,
    REQUEST,
    SECOND,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort
from tests.unit.services.samples import DIAMOND

TICK = timedelta(milliseconds=1)
MINUTE = timedelta(minutes=1)
SETTLED_AFTER = timedelta(seconds=30)


async def rewrite_job(harness: ServiceHarness, job: JobRow, **fields: object) -> JobRow:
    """The job's row as nothing in here would leave it."""
    row = replace(job, version=job.version + 1, change_id="by-hand", **fields)
    await harness.backend.ledger.commit(Change(row=row, expected_version=job.version))
    return row


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_whose_parents_completed_is_notified_without_an_event(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        await harness.complete(task_id("a"))

        harness.clock.advance(SETTLED_AFTER)
        repairs = await harness.sweeper.sweep()

        assert repairs == Repairs(ends_recorded=1)
        assert (await harness.job()).completed == NumberSet([0])
        states = await harness.states()
        assert [states[key] for key in "bcd"] == [
            TaskState.PENDING,
            TaskState.PENDING,
            TaskState.WAITING,
        ]
        # The message of its parent may still be there: no worker has dropped it.
        ready = await harness.messages()
        assert ready[-2:] == [message_body(task_id(key)) for key in "bc"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_whose_last_end_was_not_recorded_completes_and_emits_it_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.complete(task_id("a"))

        harness.clock.advance(SETTLED_AFTER)
        await harness.sweeper.sweep()
        await harness.dispatch()
        again = await harness.sweeper.sweep()

        assert not again
        assert (await harness.job()).state is JobState.COMPLETED
        assert await harness.job_event_types() == ["Job Created", "Job Completed"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_failure_that_was_not_recorded_is_emitted_and_blocks_its_dependents(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        await harness.fail(task_id("a"))

        harness.clock.advance(SETTLED_AFTER)
        await harness.sweeper.sweep()

        job = await harness.job()
        assert (job.state, job.blocked) == (JobState.FAILED, NumberSet([1, 2, 3]))
        assert await harness.job_event_types() == ["Job Created", "Job Failure Detected"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_end_is_left_to_the_dispatcher_for_a_while(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        await harness.complete(task_id("a"))

        harness.clock.advance(SETTLED_AFTER - TICK)
        early = await harness.sweeper.sweep()
        harness.clock.advance(TICK)
        late = await harness.sweeper.sweep()

        assert not early
        assert late["ends_recorded"] == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_dispatcher_that_begins_with_the_sweeper_gets_the_time_to_catch_up(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        await harness.complete(task_id("a"))
        harness.clock.advance(timedelta(hours=1))

        sweeping = asyncio.ensure_future(harness.sweeper.run())
        await harness.advance(SETTLED_AFTER)
        early = (await harness.task("b")).state
        await harness.advance(MINUTE)

        assert early is TaskState.WAITING
        assert (await harness.task("b")).state is TaskState.PENDING
        assert harness.sweeper.repairs == Repairs(ends_recorded=1)
        sweeping.cancel()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_whole_jobs_run_to_their_end_without_any_event(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        jobs = [f"request-{number}" for number in range(3)]
        for request in jobs:
            await harness.submit(*DIAMOND, request_id=request)

        for wave in ("a", "bc", "d"):
            for request in jobs:
                for key in wave:
                    await harness.complete(task_id(key, request))
            harness.clock.advance(SETTLED_AFTER)
            await harness.sweeper.sweep()

        assert harness.sweeper.repairs == Repairs(ends_recorded=12)
        for request in jobs:
            assert (await harness.job(request)).state is JobState.COMPLETED
            for key in "abcd":
                assert (await harness.event_types(key, request)).count("Task Pending") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["unrecorded_ends", "get_job", "get_tasks", "commit"])
@scenario
async def test_two_sweepers_at_once_record_an_end_once(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        await harness.complete(task_id("a"))
        harness.clock.advance(SETTLED_AFTER)
        ledger = InterposedPort(backend.ledger, method, before=other.sweeper.sweep)
        item = harness.with_ports(ledger=ledger)

        await item.sweeper.sweep()

        assert item.sweeper.repairs["ends_recorded"] + other.sweeper.repairs["ends_recorded"] == 1
        assert (await harness.event_types("b")).count("Task Pending") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_that_cannot_be_settled_does_not_keep_others_from_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        # Too many dependents for the row, so that there is a document to lose.
        children = [make_task(f"{'child' * 10}-{number}", "a") for number in range(40)]
        await harness.submit(make_task(), *children, request_id="stuck")
        for key in await backend.blobs.list_keys("jobs/"):
            await backend.blobs.delete(key)
        await harness.submit(make_task(), *children)
        for request in ("stuck", "request-1"):
            await harness.complete(task_id("a", request))

        harness.clock.advance(SETTLED_AFTER)
        repairs = await harness.sweeper.sweep()

        assert repairs == Repairs(ends_recorded=1)
        states = set((await harness.states()).values())
        assert states == {TaskState.COMPLETED, TaskState.PENDING}
        assert (await harness.job("stuck")).completed == NumberSet()


async def resume_too_early(harness: ServiceHarness, request_id: str = REQUEST) -> None:
    """A waiting task whose parent's end was dispatched while it was cancelled."""
    parent, child = task_id("a", request_id), task_id("b", request_id)
    await harness.submit(make_task("a"), make_task("b", "a"), request_id=request_id)
    await harness.transitions.apply_to_task(child, c.RequestCancel(by="ann"))
    await harness.complete(parent)
    await harness.dispatch()
    job = await harness.job(request_id)
    await rewrite_job(harness, job, cancelled=NumberSet(), round=2, finished_at=None)
    # Decided before the parent had completed.
    await harness.transitions.apply_to_task(child, c.Resume(round=2, by="ann"))


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_waiting_task_that_missed_its_parents_is_notified_from_the_job_s_row(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await resume_too_early(harness)
        stuck = await harness.task("b")

        repairs = await harness.sweeper.sweep()
        again = await harness.sweeper.sweep()

        assert (stuck.state, stuck.awaits) == (TaskState.WAITING, NumberSet([0]))
        assert repairs == Repairs(dependents_notified=1)
        assert not again
        assert (await harness.task("b")).state is TaskState.PENDING
        await harness.finish()
        assert (await harness.job()).state is JobState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["unnotified_dependents", "get_task", "commit"])
@scenario
async def test_two_sweepers_at_once_send_a_task_on_once(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await resume_too_early(harness)
        ledger = InterposedPort(backend.ledger, method, before=other.sweeper.sweep)
        item = harness.with_ports(ledger=ledger)

        await item.sweeper.sweep()

        assert (
            item.sweeper.repairs["dependents_notified"]
            + other.sweeper.repairs["dependents_notified"]
            == 1
        )
        assert (await harness.event_types("b")).count("Task Pending") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_missing_final_event_of_a_finished_job_is_emitted(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.complete(task_id("a"))
        await rewrite_job(harness, await harness.job(), completed=NumberSet([0]))
        ledger = InterposedPort(backend.ledger, "unreported_ends", after=other.sweeper.sweep)
        item = harness.with_ports(ledger=ledger)

        await item.sweeper.sweep()

        job = await harness.job()
        assert item.sweeper.repairs["jobs_ended"] + other.sweeper.repairs["jobs_ended"] == 1
        assert (job.end_emitted_round, job.finished_at) == (1, harness.clock.now())
        assert await harness.job_event_types() == ["Job Created", "Job Completed"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_that_goes_its_way_is_left_alone(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        await harness.submit(*DIAMOND, request_id="fails")
        await harness.complete(task_id("a"))
        await harness.fail(task_id("a", "fails"))
        await harness.dispatch()
        await harness.claim(task_id("b"))
        await harness.claim(task_id("c"))
        harness.clock.advance(SETTLED_AFTER + SECOND)
        before = [
            await backend.ledger.get_job(job_id(request)) for request in ("request-1", "fails")
        ]

        repairs = await harness.sweeper.sweep()

        assert not repairs
        after = [
            await backend.ledger.get_job(job_id(request)) for request in ("request-1", "fails")
        ]
        assert after == before


async def end_unrecorded(harness: ServiceHarness, request_id: str) -> None:
    """A task whose end its job has not recorded."""
    await harness.submit(make_task(), request_id=request_id)
    await harness.complete(task_id("a", request_id))


async def end_without_event(harness: ServiceHarness, request_id: str) -> None:
    """A job that is over and has no event of its end."""
    await end_unrecorded(harness, request_id)
    await rewrite_job(harness, await harness.job(request_id), completed=NumberSet([0]))


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    ("leave", "repair"),
    [
        (end_unrecorded, "ends_recorded"),
        (resume_too_early, "dependents_notified"),
        (end_without_event, "jobs_ended"),
    ],
)
@scenario
async def test_one_sweep_repairs_more_than_one_page(
    kind: str,
    leave: Callable[[ServiceHarness, str], Awaitable[None]],
    repair: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "AT_ONCE", 2)
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        for number in range(5):
            await leave(harness, f"request-{number}")

        harness.clock.advance(SETTLED_AFTER)
        repairs = await harness.sweeper.sweep()

        assert repairs == Repairs(**{repair: 5})
