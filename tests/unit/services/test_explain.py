"""The reasons why a task or job waits are complete, and are read from the store with few calls."""

from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.explain import ReasonCode, Remedy, RemedyAction, WhyReason
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.states import TaskState
from longshore.errors import NotFound
from longshore.services.explain import Explainer
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    SECOND,
    TENANT,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import Crash, InterposedPort, record_calls

A = task_id("a")
HERE = "worker-1"
RESUME = Remedy(RemedyAction.RESUME_JOB, job_id())


def make_explainer(harness: ServiceHarness) -> Explainer:
    return Explainer(
        backend=harness.backend,
        documents=harness.documents,
        worker_registry=harness.worker_registry,
        lease=LEASE,
    )


async def why(harness: ServiceHarness, id_: str) -> list[WhyReason]:
    return await make_explainer(harness).why(TENANT, id_)


async def codes(harness: ServiceHarness, id_: str) -> list[tuple[str, str | None]]:
    """The kinds of the reasons, and the keys of the tasks that they are about."""
    reasons = await why(harness, id_)
    return [(item.code.value, item.task_id and item.task_id.partition("_")[2]) for item in reasons]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_is_due_without_a_worker_or_on_a_paused_queue(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())

        assert await codes(harness, A) == [("due", "a"), ("no_worker", None)]
        harness.worker_registry.register(HERE, ["default"])
        assert await codes(harness, A) == [("due", "a")]
        await harness.operator_commands.pause_queue("default", by="olga", reason="disk")
        assert await codes(harness, A) == [("due", "a"), ("queue_paused", None)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_whole_chain_down_to_the_task_that_runs(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.worker_registry.register(HERE, ["default"])
        await harness.submit(
            make_task("a"), make_task("b", "a"), make_task("x"), make_task("c", "x", "b")
        )
        await harness.complete(task_id("x"))
        await harness.dispatch()
        await harness.claim(A)

        reasons = await why(harness, task_id("c"))

        assert [item.text for item in reasons] == [
            "Task 'c' waits for 'b' (waiting).",
            "Task 'b' waits for 'a' (processing).",
            "Worker 'worker-1' runs task 'a', attempt 1 of 3; its last heartbeat was 0.0 s ago.",
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_behind_a_failure_the_failure_is_named_and_the_command_that_helps(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(
            make_task("z"), make_task("a"), make_task("b", "a"), make_task("c", "z", "b")
        )
        failed = await harness.fail(A)
        await harness.dispatch()

        reasons = await why(harness, task_id("c"))

        assert [item.code for item in reasons] == [
            ReasonCode.BEHIND_FAILURE,
            ReasonCode.BEHIND_FAILURE,
            ReasonCode.FAILED,
        ]
        assert reasons[0].text == (
            "Task 'c' waits for 'b' (waiting), 'z' (pending), and cannot run because 'a' failed."
        )
        assert reasons[2].text.startswith("Task 'a' failed (validation: broke)")
        assert (reasons[2].task_id, reasons[2].since) == (A, failed.finished_at)
        assert {item.remedy for item in reasons} == {RESUME}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_behind_a_cancelled_task(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"), make_task("c", "b"))
        await harness.operator_commands.cancel_task(TENANT, task_id("b"), by="ann", reason="late")

        assert await codes(harness, task_id("c")) == [("behind_failure", "c"), ("cancelled", "b")]
        (cancelled,) = await why(harness, task_id("b"))
        assert cancelled.text == "ann cancelled task 'b' (late)."


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_for_later_and_one_that_is_tried_again(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.worker_registry.register(HERE, ["default"])
        await harness.submit(make_task("a", delay=3600), make_task("b"))
        claimed = await harness.claim(task_id("b"))
        broke = Failure(category=ErrorCategory.NETWORK, message="no route")
        failed = c.AttemptFailed(fence=claimed.fence, failure=broke, jitter=0.5, duration=SECOND)
        row = await harness.transitions.apply_to_task(claimed.id, failed)

        (later,) = await why(harness, A)
        (again,) = await why(harness, claimed.id)

        assert later.code is ReasonCode.DELAYED
        assert later.until == (await harness.task("a")).due_at
        assert (again.code, again.until) == (ReasonCode.BACKING_OFF, row.due_at)
        assert again.text.startswith("Task 'b' failed (network: no route) and is retried")
        assert again.text.endswith("it has used 1 of its 3 attempts.")
        harness.clock.advance(SECOND)
        assert await codes(harness, claimed.id) == [("due", "b")]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_falls_silent_and_one_whose_process_is_gone(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.worker_registry.register("worker-2", ["default"])
        await harness.submit(make_task())
        claimed = await harness.claim(A)

        harness.clock.advance(LEASE.renew_every * 2)
        assert await codes(harness, A) == [("running", "a"), ("worker_silent", "a")]
        assert (await why(harness, A))[1].until == claimed.lease.expires_at + LEASE.skew_margin
        harness.worker_registry.kill(HERE)
        assert await codes(harness, A) == [("running", "a"), ("worker_gone", "a")]
        harness.worker_registry.kill("worker-2")
        assert (await codes(harness, A))[2] == ("no_worker", None)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_running_task_with_a_cancel_request(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        await harness.claim(A)
        await harness.operator_commands.cancel_task(TENANT, A, by="ann")

        assert await codes(harness, A) == [("running", "a"), ("cancelling", "a")]

        await harness.operator_commands.cancel_job(job_id(), by="bob")
        assert await codes(harness, A) == [
            ("running", "a"),
            ("cancelling", "a"),
            ("cancelling", None),
        ]
        assert await codes(harness, task_id("b")) == [("cancelled", "b")]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_result_in_review_holds_up_what_is_behind_it(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        reviewed = Definition(
            name="reviewed", runner=RunnerKind.COMMAND, overridable=("argv",), requires_review=True
        )
        await backend.definitions.put(TENANT, reviewed)
        await harness.submit(make_task("a", name="reviewed"), make_task("b", "a"))
        row = await harness.complete(A)

        waiting, review = await why(harness, task_id("b"))

        assert waiting.text == "Task 'b' waits for 'a' (in review)."
        assert (review.code, review.since) == (ReasonCode.IN_REVIEW, row.last_event_at)
        assert review.remedy == Remedy(RemedyAction.APPROVE_TASK, A)
        assert (await codes(harness, job_id()))[1:] == [("in_review", "a")]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_parent_whose_end_is_not_recorded_yet(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"), make_task("c", "b"))
        await harness.complete(A)

        assert await codes(harness, task_id("c")) == [
            ("waiting", "c"),
            ("waiting", "b"),
            ("moving_on", "a"),
        ]
        assert await codes(harness, A) == [("completed", "a")]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_long_chain_is_explained_briefly_with_few_reads(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.worker_registry.register(HERE, ["default"])
        chain = [make_task(f"t{n}", f"t{n - 1}") for n in range(1, 300)]
        await harness.submit(make_task("t0"), *chain)
        watched, calls = record_calls(backend)

        reasons = await why(
            ServiceHarness(watched, worker_registry=harness.worker_registry), task_id("t299")
        )

        notices = [item.task_id and item.task_id.partition("_")[2] for item in reasons]
        assert notices == ["t299", "t298", "t297", "t296", "t295", "t294", None, "t0"]
        assert reasons[6].text == "293 more tasks in between, each waiting for the next."
        assert calls.count("ledger.get_tasks") == 1


@scenario
async def test_a_task_that_is_not_waiting_is_explained_without_its_job_s_graph(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*[make_task(f"t{n}" * 8) for n in range(100)])
        watched, calls = record_calls(backend)

        await why(ServiceHarness(watched), task_id("t7" * 8))

        assert calls == ["ledger.get_task", "ledger.get_job"]


@scenario
async def test_a_task_that_is_still_being_put_in_place(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)

        async def die() -> None:
            raise Crash

        dying = harness.with_ports(ledger=InterposedPort(backend.ledger, "commit", after=die))
        with pytest.raises(Crash):
            await dying.submit(make_task("a"), make_task("b", "a"))

        assert await codes(harness, task_id("b")) == [("being_created", "b")]
        assert await codes(harness, job_id()) == [
            ("running", None),
            ("being_created", None),
            ("moving_on", None),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_running_job_is_explained_by_its_failures_and_what_it_waits_for(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.worker_registry.register(HERE, ["default"])
        await harness.submit(
            make_task("a"), make_task("b", "a"), make_task("c"), make_task("d"), make_task("e")
        )
        await harness.complete(task_id("e"))
        await harness.fail(A)
        await harness.claim(task_id("d"))
        await harness.dispatch()

        reasons = await why(harness, job_id())

        assert reasons[0].text == (
            "The job is under way: 1 of 5 tasks completed, 1 failed, 1 waiting behind those."
        )
        assert (await codes(harness, job_id()))[1:] == [
            ("failed", "a"),
            ("running", "d"),
            ("due", "c"),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_wide_job_is_explained_by_a_few_tasks_and_that_there_are_more(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*[make_task(f"t{n}") for n in range(20)])

        notices = await codes(harness, job_id())

        assert [code for code, _ in notices] == ["running", *["due"] * 3, "no_worker", "left_out"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_ended_job_is_explained_with_its_state_and_the_remedy(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*[make_task(f"t{n}") for n in range(5)])
        for n in range(5):
            await harness.fail(task_id(f"t{n}"))
        await harness.dispatch()

        failed = await why(harness, job_id())
        assert [item.code.value for item in failed] == ["failed", *["failed"] * 3, "left_out"]
        assert failed[0].remedy == RESUME
        assert failed[0].since == (await harness.job()).finished_at

        ids = [task_id(f"t{n}") for n in range(5)]
        await harness.operator_commands.resume(job_id(), ids, by="ann")
        await harness.finish()
        (completed,) = await why(harness, job_id())
        assert completed.text == "The job is completed: 5 of 5 tasks completed."


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_another_tenant_s_tasks_and_jobs_are_not_there(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))

        for id_ in (A, task_id("b"), job_id(), "job-none"):
            with pytest.raises(NotFound):
                await make_explainer(harness).why("umbrella", id_)
        for id_ in (task_id("missing"), "job-none_a", "job-none", "", "_"):
            with pytest.raises(NotFound):
                await make_explainer(harness).why(TENANT, id_)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_explaining_changes_nothing(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        await harness.claim(A)
        before = await harness.task("a"), await harness.task("b"), await harness.job()
        harness.clock.advance(timedelta(minutes=5) + SECOND)

        for id_ in (A, task_id("b"), job_id()):
            await why(harness, id_)

        assert (await harness.task("a"), await harness.task("b"), await harness.job()) == before
        assert (await harness.task("a")).state is TaskState.PROCESSING
