"""Ends of which nobody took note: what was to follow from them follows, once, from rows alone."""

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
from longshore.services.sweeper import Repairs, SweeperPolicy
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
SETTLED_AFTER = SweeperPolicy().settle_after


async def rewrite_job(harness: ServiceHarness, job: JobRow, **fields: object) -> JobRow:
    """The job's row as nothing in here would leave it."""
    row = replace(job, version=job.version + 1, change_id="by-hand", **fields)
    await harness.backend.ledger.commit(Change(row=row, expected_version=job.version))
    return row


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_whose_parents_are_all_done_is_sent_on_although_no_event_told_of_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(*DIAMOND)
        await stage.complete(task_id("a"))

        stage.clock.advance(SETTLED_AFTER)
        repairs = await stage.sweeper.sweep()

        assert repairs == Repairs(ends_recorded=1)
        assert (await stage.job()).completed == NumberSet([0])
        states = await stage.states()
        assert [states[key] for key in "bcd"] == [
            TaskState.PENDING,
            TaskState.PENDING,
            TaskState.WAITING,
        ]
        # That of its parent is still there: nobody has come to drop it.
        assert await stage.messages() == [message_body(task_id(key)) for key in "abc"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_whose_last_end_was_lost_is_completed_and_tells_so_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        await stage.complete(task_id("a"))

        stage.clock.advance(SETTLED_AFTER)
        await stage.sweeper.sweep()
        await stage.dispatch()
        again = await stage.sweeper.sweep()

        assert not again
        assert (await stage.job()).state is JobState.COMPLETED
        assert await stage.job_event_types() == ["Job Created", "Job Completed"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_failure_that_was_lost_is_told_and_holds_back_what_is_behind_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(*DIAMOND)
        await stage.fail(task_id("a"))

        stage.clock.advance(SETTLED_AFTER)
        await stage.sweeper.sweep()

        job = await stage.job()
        assert (job.state, job.blocked) == (JobState.FAILED, NumberSet([1, 2, 3]))
        assert await stage.job_event_types() == ["Job Created", "Job Failure Detected"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_end_is_left_to_the_dispatcher_for_a_while(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(*DIAMOND)
        await stage.complete(task_id("a"))

        stage.clock.advance(SETTLED_AFTER - TICK)
        early = await stage.sweeper.sweep()
        stage.clock.advance(TICK)
        late = await stage.sweeper.sweep()

        assert not early
        assert late.ends_recorded == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_dispatcher_that_begins_with_the_sweeper_gets_the_time_to_catch_up(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(*DIAMOND)
        await stage.complete(task_id("a"))
        stage.clock.advance(timedelta(hours=1))

        sweeping = asyncio.ensure_future(stage.sweeper.run())
        await stage.advance(SETTLED_AFTER)
        early = (await stage.task("b")).state
        await stage.advance(MINUTE)

        assert early is TaskState.WAITING
        assert (await stage.task("b")).state is TaskState.PENDING
        assert stage.sweeper.repairs == Repairs(ends_recorded=1)
        sweeping.cancel()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_whole_jobs_run_to_their_end_without_any_event_being_heard(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        jobs = [f"request-{number}" for number in range(3)]
        for request in jobs:
            await stage.submit(*DIAMOND, request_id=request)

        for wave in ("a", "bc", "d"):
            for request in jobs:
                for key in wave:
                    await stage.complete(task_id(key, request))
            stage.clock.advance(SETTLED_AFTER)
            await stage.sweeper.sweep()

        assert stage.sweeper.repairs == Repairs(ends_recorded=12)
        for request in jobs:
            assert (await stage.job(request)).state is JobState.COMPLETED
            for key in "abcd":
                assert (await stage.event_types(key, request)).count("Task Pending") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["unrecorded_ends", "get_job", "get_tasks", "commit"])
@scenario
async def test_two_sweepers_at_once_record_an_end_once(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, other = ServiceHarness(backend), ServiceHarness(backend)
        await stage.submit(*DIAMOND)
        await stage.complete(task_id("a"))
        stage.clock.advance(SETTLED_AFTER)
        ledger = InterposedPort(backend.ledger, method, before=other.sweeper.sweep)
        one = stage.with_ports(ledger=ledger)

        await one.sweeper.sweep()

        assert one.sweeper.repairs.ends_recorded + other.sweeper.repairs.ends_recorded == 1
        assert (await stage.event_types("b")).count("Task Pending") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_that_cannot_be_settled_does_not_keep_others_from_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        # Too many dependents for the row, so that there is a document to lose.
        children = [make_task(f"{'child' * 10}-{number}", "a") for number in range(40)]
        await stage.submit(make_task(), *children, request_id="stuck")
        for key in await backend.blobs.list_keys("jobs/"):
            await backend.blobs.delete(key)
        await stage.submit(make_task(), *children)
        for request in ("stuck", "request-1"):
            await stage.complete(task_id("a", request))

        stage.clock.advance(SETTLED_AFTER)
        repairs = await stage.sweeper.sweep()

        assert repairs == Repairs(ends_recorded=1)
        states = set((await stage.states()).values())
        assert states == {TaskState.COMPLETED, TaskState.PENDING}
        assert (await stage.job("stuck")).completed == NumberSet()


async def resume_too_early(harness: ServiceHarness, request_id: str = REQUEST) -> None:
    """A waiting task that its parent's end was told of while it was cancelled."""
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
async def test_a_task_that_did_not_hear_of_its_parents_is_sent_on_by_what_its_job_knows(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await resume_too_early(stage)
        stuck = await stage.task("b")

        repairs = await stage.sweeper.sweep()
        again = await stage.sweeper.sweep()

        assert (stuck.state, stuck.awaits) == (TaskState.WAITING, NumberSet([0]))
        assert repairs == Repairs(dependents_notified=1)
        assert not again
        assert (await stage.task("b")).state is TaskState.PENDING
        await stage.finish()
        assert (await stage.job()).state is JobState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["unnotified_dependents", "get_task", "commit"])
@scenario
async def test_two_sweepers_at_once_send_a_task_on_once(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, other = ServiceHarness(backend), ServiceHarness(backend)
        await resume_too_early(stage)
        ledger = InterposedPort(backend.ledger, method, before=other.sweeper.sweep)
        one = stage.with_ports(ledger=ledger)

        await one.sweeper.sweep()

        assert (
            one.sweeper.repairs.dependents_notified + other.sweeper.repairs.dependents_notified == 1
        )
        assert (await stage.event_types("b")).count("Task Pending") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_finished_job_without_its_event_tells_it(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, other = ServiceHarness(backend), ServiceHarness(backend)
        await stage.submit(make_task())
        await stage.complete(task_id("a"))
        await rewrite_job(stage, await stage.job(), completed=NumberSet([0]))
        ledger = InterposedPort(backend.ledger, "unreported_ends", after=other.sweeper.sweep)
        one = stage.with_ports(ledger=ledger)

        await one.sweeper.sweep()

        job = await stage.job()
        assert one.sweeper.repairs.jobs_ended + other.sweeper.repairs.jobs_ended == 1
        assert (job.end_emitted_round, job.finished_at) == (1, stage.clock.now())
        assert await stage.job_event_types() == ["Job Created", "Job Completed"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_that_goes_its_way_is_left_alone(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(*DIAMOND)
        await stage.submit(*DIAMOND, request_id="fails")
        await stage.complete(task_id("a"))
        await stage.fail(task_id("a", "fails"))
        await stage.dispatch()
        await stage.claim(task_id("b"))
        await stage.claim(task_id("c"))
        stage.clock.advance(SETTLED_AFTER + SECOND)
        before = [
            await backend.ledger.get_job(job_id(request)) for request in ("request-1", "fails")
        ]

        repairs = await stage.sweeper.sweep()

        assert not repairs
        after = [
            await backend.ledger.get_job(job_id(request)) for request in ("request-1", "fails")
        ]
        assert after == before


async def end_unrecorded(harness: ServiceHarness, request_id: str) -> None:
    """A task of whose end its job has not heard."""
    await harness.submit(make_task(), request_id=request_id)
    await harness.complete(task_id("a", request_id))


async def end_without_event(harness: ServiceHarness, request_id: str) -> None:
    """A job that is over and has not told so."""
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
async def test_more_than_are_read_at_once_are_all_mended_in_one_sweep(
    kind: str,
    leave: Callable[[ServiceHarness, str], Awaitable[None]],
    repair: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "AT_ONCE", 2)
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        for number in range(5):
            await leave(stage, f"request-{number}")

        stage.clock.advance(SETTLED_AFTER)
        repairs = await stage.sweeper.sweep()

        assert repairs == Repairs(**{repair: 5})
