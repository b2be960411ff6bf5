"""Tasks are added to a job under way: once, also behind old ones, and despite crashes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from longshore.core.definitions.definition import NO_DEFINITION
from longshore.core.tasks.rows import IntentKind
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import (
    AlreadyExists,
    CommandRefused,
    InvalidJob,
    NotFound,
    Problem,
    UsageError,
)
from longshore.services.worker.attempt_specs import build_attempt_spec
from tests.unit.services.harness import (
    BACKENDS,
    TENANT,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.harness import task_id as id_of
from tests.unit.services.port_wrappers import Crash, InterposedPort, crash_at
from tests.unit.services.samples import LARGE

PENDING, WAITING, COMPLETED = TaskState.PENDING, TaskState.WAITING, TaskState.COMPLETED
CANCELLED, FAILED = TaskState.CANCELLED, TaskState.FAILED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_added_tasks_are_part_of_the_job(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))

        added = await harness.add_tasks(make_task("b"), make_task("c", "b"))

        assert (added.keys, added.created) == (("b", "c"), True)
        assert added.total == 3
        assert IntentKind.ADD not in {intent.kind for intent in (await harness.job()).intents}
        assert await harness.states() == {"a": PENDING, "b": PENDING, "c": WAITING}
        await harness.finish()
        assert (await harness.job()).state is JobState.COMPLETED
        assert await harness.job_event_types() == [
            "Job Created",
            "Job Tasks Added",
            "Job Completed",
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_behind_one_that_runs_starts_when_that_has_completed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("z"))
        await harness.add_tasks(make_task("b", "a"))
        await harness.add_tasks(make_task("c", "a", "b"), request_id="addition-2")
        assert (await harness.job()).with_added_dependents

        await harness.complete(id_of("a"))
        await harness.dispatch()

        assert await harness.states() == {"a": COMPLETED, "z": PENDING, "b": PENDING, "c": WAITING}
        await harness.finish()
        assert set((await harness.states()).values()) == {COMPLETED}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_behind_one_that_has_completed_gets_its_result(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("z"))
        await harness.complete(id_of("a"), {"answer": 42})
        await harness.dispatch()

        await harness.add_tasks(make_task("b", "a"))

        row = await harness.claim(id_of("b"))
        spec = await build_attempt_spec(harness.worker_context(), row, row.fence)
        assert spec.dependency_outputs == {"a": {"answer": 42}}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_parent_whose_end_the_job_has_not_recorded_is_waited_for(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("z"))
        await harness.complete(id_of("a"))

        await harness.add_tasks(make_task("b", "a"))
        await harness.dispatch()

        assert (await harness.task("b")).state is PENDING


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_added_behind_a_failed_task_waits_and_runs_after_a_resume(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))
        await harness.fail(id_of("a"))
        await harness.dispatch()

        await harness.add_tasks(make_task("b", "a"), make_task("c"))

        assert (await harness.job()).state is JobState.RUNNING
        await harness.finish()
        job = await harness.job()
        assert (job.state, list(job.blocked)) == (JobState.FAILED, [1])
        await harness.operator_commands.resume(job_id(), [id_of("a")], by="ann")
        await harness.finish()
        assert (await harness.job()).state is JobState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_failure_blocks_what_was_added_behind_it(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))
        await harness.add_tasks(make_task("b", "a"), make_task("c", "b"))

        await harness.fail(id_of("a"))
        await harness.dispatch()

        job = await harness.job()
        assert (job.state, list(job.blocked)) == (JobState.FAILED, [1, 2])


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_same_request_adds_the_same_tasks_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))

        answers = await asyncio.gather(*(harness.add_tasks(make_task("b", "a")) for _ in range(5)))
        later = await ServiceHarness(backend).add_tasks(make_task("b", "a"))

        assert [answer.keys for answer in answers] == [("b",)] * 5
        assert [answer.created for answer in answers].count(True) == 1
        assert (later.keys, later.created) == (("b",), False)
        assert (await harness.job()).total == 2
        assert (await harness.job_event_types()).count("Job Tasks Added") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_same_request_with_other_tasks_is_refused(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))
        await harness.add_tasks(make_task("b"))

        for other in ({"tasks": [make_task("c")]}, {"tasks": [{1: {}, "": 2}]}, None):
            with pytest.raises(AlreadyExists, match="addition-1"):
                await harness.producer.add_tasks(TENANT, job_id(), "addition-1", other)

        assert (await harness.job()).total == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_two_requests_at_once_both_have_their_way(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))

        await asyncio.gather(
            *(
                harness.add_tasks(make_task(f"b{item}", "a"), request_id=f"addition-{item}")
                for item in range(5)
            )
        )

        await harness.finish()
        assert (await harness.job()).total == 6
        assert set((await harness.states()).values()) == {COMPLETED}


@scenario
async def test_all_problems_are_reported_at_once_and_nothing_is_changed(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend, task_limit=4)
        await harness.submit(make_task("a"), make_task("b"))
        before = await harness.job()

        with pytest.raises(InvalidJob) as caught:
            await harness.producer.add_tasks(
                TENANT,
                job_id(),
                "addition-1",
                {
                    "tasks": [
                        make_task("a"),
                        make_task("c", "aa"),
                        {**make_task("d"), "name": "missing"},
                    ],
                    "name": "x",
                },
            )

        assert caught.value.problems == (
            Problem(path="name", message="unknown field; expected only tasks"),
            Problem(path="tasks", message="5 tasks are more than the 4 that a job may have"),
            Problem(path="tasks[0].taskId", message="'a' is already the id of a task of this job"),
            Problem(path="tasks[1].dependsOn[0]", message="there is no task 'aa'"),
            Problem(path="tasks[2].name", message=NO_DEFINITION.format("missing")),
        )
        assert await harness.job() == before


@scenario
async def test_an_input_that_is_too_large_is_named_by_its_place_in_the_request(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))

        with pytest.raises(InvalidJob, match=r"tasks\[1\]\.input"):
            await harness.add_tasks(make_task("b"), make_task("c", input={"argv": ["x" * 200_000]}))


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_nothing_is_added_to_a_job_that_has_ended_or_is_being_cancelled(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))
        await harness.claim(id_of("a"))
        await harness.operator_commands.cancel_job(job_id(), by="ann")
        with pytest.raises(CommandRefused, match="being cancelled"):
            await harness.add_tasks(make_task("b"))

        await harness.submit(make_task("a"), request_id="request-2")
        await harness.finish()
        with pytest.raises(CommandRefused, match="completed"):
            await harness.producer.add_tasks(
                TENANT, job_id("request-2"), "x", {"tasks": [make_task("b")]}
            )


@scenario
async def test_another_tenant_s_job_is_not_there(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))

        with pytest.raises(NotFound):
            await harness.producer.add_tasks(
                "others", job_id(), "addition-1", {"tasks": [make_task("b")]}
            )
        with pytest.raises(UsageError):
            await harness.add_tasks(make_task("b"), request_id="")


@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_an_addition_that_dies_at_any_call_is_finished_by_the_sweeper_or_never_was(
    after_the_call: bool, tmp_path: Path
) -> None:
    outcomes = set()
    for at in range(1, 100):
        async with open_backend("memory", tmp_path) as backend:
            harness = ServiceHarness(backend)
            await harness.submit(make_task("a"), make_task("z"))
            dying = ServiceHarness(crash_at(backend, at, after_call=after_the_call))
            options: list[dict[str, Any]] = [
                make_task("b", "a"),
                make_task("c", "b", input={"argv": ["echo", LARGE]}),
            ]
            try:
                await dying.add_tasks(*options)
            except Crash:
                begun = (await harness.job()).total > 2
                outcomes.add("half done" if begun else "never was")
            else:
                break

            await harness.complete(id_of("a"))
            await harness.dispatch()
            await harness.sweeper.sweep()
            again = await harness.add_tasks(*options)
            assert again.keys == ("b", "c")
            await harness.finish()
            job = await harness.job()
            assert (job.intents, job.total, job.state) == ((), 4, JobState.COMPLETED)
            notices = await harness.job_event_types()
            assert notices == ["Job Created", "Job Tasks Added", "Job Completed"]
    assert outcomes == {"half done", "never was"}


@scenario
async def test_a_job_that_is_cancelled_while_tasks_are_added_is_cancelled_with_them(
    tmp_path: Path,
) -> None:
    for at in range(1, 100):
        async with open_backend("memory", tmp_path) as backend:
            harness = ServiceHarness(backend)
            await harness.submit(make_task("a"))
            dying = ServiceHarness(crash_at(backend, at, after_call=True))
            try:
                await dying.add_tasks(make_task("b", "a"), make_task("c"))
            except Crash:
                await harness.operator_commands.cancel_job(job_id(), by="ann")
            else:
                break

            await harness.sweeper.sweep()
            await harness.dispatch()
            assert set((await harness.states()).values()) == {CANCELLED}
            assert (await harness.job()).state is JobState.CANCELLED


@pytest.mark.parametrize("at", range(1, 5))
@scenario
async def test_a_parent_that_ends_while_tasks_are_added_behind_it_is_not_missed(
    at: int, tmp_path: Path
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        other = ServiceHarness(backend)
        await other.submit(make_task("a"), make_task("z"))

        async def end() -> None:
            await other.complete(id_of("a"))
            await other.dispatch()

        ledger = InterposedPort(backend.ledger, "commit", before=end, at=at)
        await (
            ServiceHarness(backend)
            .with_ports(ledger=ledger)
            .add_tasks(make_task("b", "a"), make_task("c", "a", "b"))
        )
        await other.dispatch()

        if ledger.calls >= at:
            # Without the sweeper's help.
            assert (await other.task("b")).state is PENDING
        await other.finish()
        assert (await other.task("c")).state is COMPLETED


@scenario
async def test_an_end_that_is_recorded_while_a_task_is_added_behind_it_reaches_it(
    tmp_path: Path,
) -> None:
    """The dispatcher has read the job before the addition, and records the end after it."""
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("z"))
        await harness.complete(id_of("a"))

        async def add() -> None:
            await harness.add_tasks(make_task("b", "a"))

        ledger = InterposedPort(backend.ledger, "commit", before=add, at=1)
        await ServiceHarness(backend).with_ports(ledger=ledger).dispatch()

        assert (await harness.task("b")).state is PENDING
        assert FAILED not in (await harness.states()).values()
