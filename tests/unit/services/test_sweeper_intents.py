"""Operations on many rows that died half way are carried out by the next sweep, each once."""

from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.jobs import job as jobs
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.commands import RequestCancel
from longshore.core.tasks.states import JobState, TaskState
from longshore.services import reads
from longshore.services.sweeper import Repairs
from tests.unit.services.harness import (
    BACKENDS,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import Crash, InterposedPort, crash_at
from tests.unit.services.samples import DIAMOND

SECOND = timedelta(seconds=1)
CHAIN = (make_task("a"), make_task("b", "a"), make_task("c", "b"))
IDS = [task_id(key) for key in "abc"]


@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_a_cancellation_that_dies_at_any_call_is_finished_by_the_sweeper_or_never_was(
    after_the_call: bool, tmp_path: Path
) -> None:
    outcomes = set()
    for at in range(1, 100):
        async with open_backend("memory", tmp_path) as backend:
            harness = ServiceHarness(backend)
            await harness.submit(*DIAMOND)
            dying = ServiceHarness(crash_at(backend, at, after_call=after_the_call))
            try:
                await dying.operator_commands.cancel_job(job_id(), by="ann")
            except Crash:
                begun = (await harness.job()).cancel is not None
                outcomes.add("half done" if begun else "never was")
            else:
                break

            if (await harness.job()).cancel is not None:
                await harness.sweeper.sweep()
                await harness.dispatch()
                assert (await harness.job()).intents == ()
                assert set((await harness.states()).values()) == {TaskState.CANCELLED}
                assert await harness.job_event_types() == ["Job Created", "Job Cancelled"]
                for key in "abcd":
                    assert (await harness.event_types(key)).count("Task Cancelled") == 1
    assert outcomes == {"half done", "never was"}


@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_a_resume_that_dies_at_any_call_is_finished_by_the_sweeper_or_never_was(
    after_the_call: bool, tmp_path: Path
) -> None:
    outcomes = set()
    for at in range(1, 100):
        async with open_backend("memory", tmp_path) as backend:
            harness = ServiceHarness(backend)
            await harness.submit(*CHAIN)
            await harness.operator_commands.cancel_job(job_id(), by="ann")
            await harness.dispatch()
            dying = ServiceHarness(crash_at(backend, at, after_call=after_the_call))
            try:
                await dying.operator_commands.resume(job_id(), IDS, by="ann")
            except Crash:
                begun = (await harness.job()).round == 2
                outcomes.add("half done" if begun else "never was")
            else:
                break

            if (await harness.job()).round == 2:
                await harness.sweeper.sweep()
                await harness.finish()
                assert (await harness.job()).state is JobState.COMPLETED
                assert (await harness.job()).intents == ()
                assert await harness.job_event_types() == [
                    "Job Created",
                    "Job Cancelled",
                    "Job Resumed",
                    "Job Completed",
                ]
    assert outcomes == {"half done", "never was"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancelled_job_that_is_resumed_continues_in_the_order_of_its_dependencies(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*CHAIN)
        await harness.complete(task_id("a"))
        await harness.dispatch()
        await harness.operator_commands.cancel_job(job_id(), by="ann")
        await harness.dispatch()

        await harness.operator_commands.resume(job_id(), IDS[1:], by="ann")

        states = await harness.states()
        assert [states[key] for key in "abc"] == [
            TaskState.COMPLETED,
            TaskState.PENDING,
            TaskState.WAITING,
        ]
        await harness.finish()
        assert (await harness.job()).state is JobState.COMPLETED
        assert (await harness.event_types("c"))[:3] == [
            "Task Cancelled",
            "Task Waiting",
            "Task Pending",
        ]
        assert (await harness.history("c"))[1].body.round == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_parent_that_completes_while_its_child_is_being_resumed_is_not_missed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*CHAIN)
        await harness.transitions.apply_to_task(task_id("b"), RequestCancel(by="ann"))
        await harness.dispatch()

        async def the_parent_completes() -> None:
            await harness.complete(task_id("a"))
            await harness.dispatch()

        # Between the look at the job and the commit.
        ledger = InterposedPort(backend.ledger, "get_tasks", after=the_parent_completes, at=2)
        await harness.with_ports(ledger=ledger).operator_commands.resume(
            job_id(), [task_id("b")], by="ann"
        )
        await harness.dispatch()
        await harness.sweeper.sweep()

        assert ledger.calls >= 2
        assert (await harness.task("b")).state is TaskState.PENDING
        assert (await harness.event_types("b")).count("Task Pending") == 1


@scenario
async def test_a_job_that_was_cancelled_while_it_was_created_is_created_first(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        with pytest.raises(Crash):
            await ServiceHarness(crash_at(backend, 5, after_call=True)).submit(*DIAMOND)
        half = await harness.states()

        cancel = jobs.CancelJob(by="ann", later=True)
        await harness.transitions.apply_to_job(job_id(), cancel)

        repairs = await harness.sweeper.sweep()

        assert 0 < len(half) < 4
        assert repairs == Repairs(intents_finished=2)
        assert set((await harness.states()).values()) == {TaskState.CANCELLED}
        assert (await harness.job()).intents == ()


@scenario
async def test_two_sweepers_that_finish_one_cancellation_count_it_once(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        with pytest.raises(Crash):
            await ServiceHarness(
                crash_at(backend, 3, after_call=True)
            ).operator_commands.cancel_job(job_id(), by="ann")
        ledger = InterposedPort(backend.ledger, "commit", before=other.sweeper.sweep, at=2)
        item = harness.with_ports(ledger=ledger)

        await item.sweeper.sweep()

        finished = [harness.sweeper.repairs["intents_finished"] for harness in (item, other)]
        assert sorted(finished) == [0, 1]


@scenario
async def test_a_submit_is_finished_with_the_retries_it_was_accepted_with(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        accepted_with = RetryPolicy(max_attempts=7, base=1.5 * SECOND, cap=20 * SECOND)
        dying = ServiceHarness(crash_at(backend, 5, after_call=True), retry=accepted_with)
        with pytest.raises(Crash):
            await dying.submit(*DIAMOND)
        harness = ServiceHarness(backend)
        half = len(await harness.states())

        await harness.sweeper.sweep()

        rows = [await harness.task(key) for key in "abcd"]
        assert 0 < half < 4
        assert {row.spec.retry for row in rows} == {accepted_with}


@scenario
async def test_more_intents_than_are_read_at_once_are_all_finished_in_one_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "AT_ONCE", 2)
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        requests = [f"request-{number}" for number in range(5)]
        for request_id in requests:
            with pytest.raises(Crash):
                await ServiceHarness(crash_at(backend, 5, after_call=True)).submit(
                    *DIAMOND, request_id=request_id
                )

        repairs = await harness.sweeper.sweep()

        assert repairs == Repairs(intents_finished=5)
        assert [len(await harness.states(request_id)) for request_id in requests] == [4] * 5


@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_a_job_that_is_cancelled_while_it_is_resumed_is_cancelled_whole(
    after_the_call: bool, tmp_path: Path
) -> None:
    half_done = 0
    for at in range(1, 100):
        async with open_backend("memory", tmp_path) as backend:
            harness = ServiceHarness(backend)
            await harness.submit(*CHAIN)
            await harness.operator_commands.cancel_job(job_id(), by="ann")
            dying = ServiceHarness(crash_at(backend, at, after_call=after_the_call))
            try:
                await dying.operator_commands.resume(job_id(), IDS, by="ann")
            except Crash:
                if (await harness.job()).state is JobState.CANCELLED:
                    continue
            else:
                break
            half_done += 1
            await harness.operator_commands.cancel_job(job_id(), by="bob")

            # A service that finishes the rest of the resume must not undo the cancellation.
            await harness.sweeper.sweep()
            await harness.dispatch()
            assert set((await harness.states()).values()) == {TaskState.CANCELLED}
            job = await harness.job()
            assert (job.state, job.intents) == (JobState.CANCELLED, ())
    assert half_done > 2


@scenario
async def test_finishing_a_resume_changes_nothing_after_the_job_is_cancelled(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*CHAIN)
        await harness.operator_commands.cancel_job(job_id(), by="ann")
        dying = ServiceHarness(crash_at(backend, 8, after_call=True))
        with pytest.raises(Crash):
            await dying.operator_commands.resume(job_id(), IDS, by="ann")
        half_done = await harness.job()
        (intent,) = half_done.intents

        async def cancel() -> None:
            await harness.operator_commands.cancel_job(job_id(), by="bob")

        ledger = InterposedPort(backend.ledger, "commit", before=cancel, at=1)
        await harness.with_ports(ledger=ledger).operator_commands.finish_resume(half_done, intent)

        assert set((await harness.states()).values()) == {TaskState.CANCELLED}
        assert (await harness.job()).state is JobState.CANCELLED
