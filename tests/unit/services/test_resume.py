"""Failed tasks are resumed: once despite concurrent requests, and completely despite crashes."""

import asyncio
from pathlib import Path

import pytest

from longshore.core.jobs.job import CancelJob
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.queues import message_body
from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import JobRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import NotFound
from longshore.testing.flaky_port import FlakyPort
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

A = task_id("a")


async def resume(harness: ServiceHarness, *keys: str) -> tuple[str, ...]:
    resumed = await harness.operator_commands.resume(
        job_id(), [task_id(key) for key in keys], by="ann"
    )
    return tuple(id_.partition("_")[2] for id_ in resumed.tasks)


async def rounds_of(harness: ServiceHarness, key: str) -> list[int]:
    """The rounds in which a task became pending."""
    events = await harness.history(key)
    return [event.body.round for event in events if event.type == "Task Pending"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_failed_task_runs_again_and_what_waited_behind_it_continues(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("before"), make_task("a", "before"), make_task("after", "a"))
        await harness.complete(task_id("before"))
        await harness.dispatch()
        await harness.fail(A)
        await harness.dispatch()
        failed = await harness.job()

        resumed = await resume(harness, "a")

        row, job = await harness.task("a"), await harness.job()
        assert (failed.state, job.state) == (JobState.FAILED, JobState.RUNNING)
        assert resumed == ("a",)
        assert (row.state, row.round, row.attempts_used) == (TaskState.PENDING, 2, 0)
        assert (job.round, job.blocked, job.intents) == (2, NO_NUMBERS, ())
        assert message_body(A) in await harness.messages()
        await harness.finish()
        assert (await harness.job()).state is JobState.COMPLETED
        assert await rounds_of(harness, "before") == [1]
        assert await harness.job_event_types() == [
            "Job Created",
            "Job Failure Detected",
            "Job Resumed",
            "Job Completed",
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_failure_that_the_job_has_not_recorded_can_be_resumed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.fail(A)

        assert await resume(harness, "a") == ("a",)

        # The event of the first failure is still to be dispatched, and must not end the new round.
        await harness.dispatch()
        assert (await harness.job()).state is JobState.RUNNING
        await harness.finish()
        assert (await harness.job()).state is JobState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_two_who_resume_one_task_at_once_give_it_one_new_round(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stages = [ServiceHarness(backend) for _ in range(4)]
        await stages[0].submit(make_task(), make_task("b"))
        await stages[0].fail(A)

        answers = await asyncio.gather(*(resume(harness, "a") for harness in stages))

        assert sorted(answers) == [(), (), (), ("a",)]
        assert await rounds_of(stages[0], "a") == [1, 2]
        assert (await stages[0].job_event_types()).count("Job Resumed") == 1


@scenario
async def test_one_who_comes_between_the_job_and_its_tasks_leaves_them_to_the_first(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.fail(A)
        await harness.dispatch()
        answers = []

        async def also_resumes() -> None:
            answers.append(await other.operator_commands.resume(job_id(), [A], by="ann"))

        ledger = InterposedPort(backend.ledger, "commit", after=also_resumes)
        resumed = await resume(harness.with_ports(ledger=ledger), "a")

        assert resumed == ("a",)
        assert answers[0].refused == {A: "another request is resuming it"}
        assert await rounds_of(harness, "a") == [1, 2]
        assert (await harness.job()).intents == ()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_tasks_that_cannot_be_resumed_are_returned_with_a_reason_and_the_rest_is_resumed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"), make_task("c"))
        await harness.fail(A)
        await harness.complete(task_id("b"))
        request = [task_id(key) for key in ("a", "b", "c", "never")]

        resumed = await harness.operator_commands.resume(job_id(), request, by="ann")

        assert resumed.tasks == (A,)
        assert resumed.round == 2
        assert {id_.partition("_")[2]: why for id_, why in resumed.refused.items()} == {
            "b": "the task is completed: only what failed or was cancelled can be resumed",
            "c": "the task is pending: only what failed or was cancelled can be resumed",
            "never": "there is no such task",
        }


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_nothing_to_resume_changes_nothing(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        before = await harness.job()

        resumed = await harness.operator_commands.resume(job_id(), [A], by="ann")

        assert (resumed.tasks, resumed.round) == ((), 1)
        assert await harness.job() == before


@scenario
async def test_a_missing_job_is_reported(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        with pytest.raises(NotFound):
            await ServiceHarness(backend).operator_commands.resume(job_id(), [A], by="ann")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_behind_another_failed_task_stays_waiting(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        tasks = [make_task("a"), make_task("b"), make_task("x", "a"), make_task("y", "a", "b")]
        await harness.submit(*tasks)
        await harness.fail(A)
        await harness.fail(task_id("b"))
        await harness.dispatch()

        await resume(harness, "a")
        await harness.finish()

        states = await harness.states()
        assert (states["a"], states["x"]) == (TaskState.COMPLETED, TaskState.COMPLETED)
        assert (states["b"], states["y"]) == (TaskState.FAILED, TaskState.WAITING)
        assert (await harness.job()).state is JobState.FAILED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_that_is_being_cancelled_is_not_resumed(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        await harness.fail(A)

        await harness.transitions.apply_to_job(job_id(), CancelJob(by="ann"))
        resumed = await harness.operator_commands.resume(job_id(), [A], by="ann")

        assert resumed.refused == {A: "the job is being cancelled"}
        assert (await harness.task("a")).state is TaskState.FAILED


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_a_resume_that_dies_at_any_call_is_finished_or_never_was(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    outcomes = set()
    for at in range(1, 100):
        async with open_backend(kind, tmp_path / str(at)) as backend:
            harness = ServiceHarness(backend)
            await harness.submit(make_task("a"), make_task("b"), make_task("c", "a", "b"))
            await harness.fail(A)
            await harness.fail(task_id("b"))
            dying = ServiceHarness(crash_at(backend, at, after_call=after_the_call))
            died = False
            try:
                await resume(dying, "a", "b")
            except Crash:
                died = True

            await harness.sweeper.sweep()
            states = {(await harness.task(key)).state for key in ("a", "b")}
            assert len(states) == 1
            outcomes.add((died, *states))
            if states == {TaskState.FAILED}:
                assert await resume(harness, "a", "b") == ("a", "b")
            await harness.finish()
            assert (await harness.job()).state is JobState.COMPLETED
            assert (await harness.job()).intents == ()
            for key in ("a", "b"):
                assert await rounds_of(harness, key) == [1, 2]
            assert (await harness.job_event_types()).count("Job Resumed") == 1
        if not died:
            break

    assert outcomes >= {(True, TaskState.FAILED), (False, TaskState.PENDING)}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_resume_with_a_lost_answer_succeeds(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.fail(A)
        await harness.dispatch()
        ledger = FlakyPort(backend.ledger, "commit", after_write=True)

        resumed = await harness.advance_until_done(resume(harness.with_ports(ledger=ledger), "a"))

        assert resumed == ("a",)
        assert await rounds_of(harness, "a") == [1, 2]


@pytest.mark.parametrize("kind", ["atomic memory", "sqlite"])
@scenario
async def test_a_resume_with_a_lost_answer_succeeds_although_the_task_was_claimed_since(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.fail(A)
        await harness.dispatch()
        flaky = FlakyPort(backend.ledger, "commit", after_write=True)

        async def other_worker_claims() -> None:
            await harness.claim(A, "worker-2")

        # The second commit is the repetition of the first.
        ledger = InterposedPort(flaky, "commit", before=other_worker_claims, at=2)
        resumed = await harness.advance_until_done(resume(harness.with_ports(ledger=ledger), "a"))

        assert resumed == ("a",)
        assert (await harness.task("a")).state is TaskState.PROCESSING
        assert await rounds_of(harness, "a") == [1, 2]


@scenario
async def test_a_resume_with_a_lost_answer_succeeds_although_the_job_changed_since(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        await harness.fail(A)
        await harness.dispatch()
        flaky = FlakyPort(backend.ledger, "commit", after_write=True)

        async def another_task_ends() -> None:
            await harness.complete(task_id("b"))
            await harness.dispatch()

        ledger = InterposedPort(flaky, "commit", before=another_task_ends, at=2)
        resumed = await harness.advance_until_done(resume(harness.with_ports(ledger=ledger), "a"))

        assert resumed == ("a",)
        assert await rounds_of(harness, "a") == [1, 2]
        assert (await harness.job_event_types()).count("Job Resumed") == 1
        assert (await harness.job()).intents == ()


@pytest.mark.parametrize(
    ("method", "at"),
    [("get_job", 1), ("get_task", 1), ("commit", 1), ("get_job", 2), ("commit", 2)],
)
@scenario
async def test_two_who_finish_one_resume_count_it_once(
    method: str, at: int, tmp_path: Path
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        await harness.fail(A)
        await harness.dispatch()
        dying = InterposedPort(backend.ledger, "commit", after=_die)
        with pytest.raises(Crash):
            await resume(harness.with_ports(ledger=dying), "a")
        left: list[JobRow] = []

        async def another_is_faster() -> None:
            await other.sweeper.sweep()
            await other.fail(A)
            await other.dispatch()
            left.append(await other.job())

        ledger = InterposedPort(backend.ledger, method, before=another_is_faster, at=at)
        item = harness.with_ports(ledger=ledger)
        await item.sweeper.sweep()

        finished = [process.sweeper.repairs["intents_finished"] for process in (item, other)]
        assert finished == [0, 1]
        (job,) = left
        assert await harness.job() == job
        assert (job.round, job.failed, job.blocked) == (2, NumberSet([0]), NumberSet([1]))
        assert await rounds_of(harness, "a") == [1, 2]


async def _die() -> None:
    raise Crash


@scenario
async def test_a_task_that_failed_again_before_the_resume_was_closed_is_not_taken_back(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.fail(A)
        await harness.dispatch()

        async def fails_again() -> None:
            await harness.fail(A)
            await harness.dispatch()

        ledger = InterposedPort(backend.ledger, "commit", after=fails_again, at=2)
        await resume(harness.with_ports(ledger=ledger), "a")

        assert (await harness.job()).state is JobState.FAILED
        assert (await harness.task("a")).round == 2
        assert await resume(harness, "a") == ("a",)
        assert (await harness.task("a")).round == 3


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancelled_task_can_be_resumed_too(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.transitions.apply_to_task(A, c.RequestCancel(by="ann"))

        assert await resume(harness, "a") == ("a",)

        await harness.finish()
        assert (await harness.job()).state is JobState.COMPLETED
