"""One task is cancelled, the others continue; no request affects another tenant."""

from pathlib import Path

import pytest

from longshore.core.ids import task_id_of
from longshore.core.jobs.numbers import NumberSet
from longshore.core.maximums import REASON_LIMIT_CHARACTERS
from longshore.core.tasks import commands as c
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import CommandRefused, NotFound, UsageError
from longshore.testing.flaky_port import FlakyPort
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
from tests.unit.services.port_wrappers import InterposedPort

A = task_id("a")
OTHER = "umbrella"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_pending_task_ends_at_once_and_what_is_behind_it_is_blocked(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(
            make_task("a"), make_task("b", "a"), make_task("c", "b"), make_task("d")
        )

        row = await harness.operator_commands.cancel_task(TENANT, A, by="ann", reason="wrong day")

        job = await harness.job()
        assert row == await harness.task("a")
        assert (row.state, row.cancel.by, row.cancel.reason) == ("cancelled", "ann", "wrong day")
        assert (job.cancelled, job.blocked) == (NumberSet([0]), NumberSet([1, 2]))
        assert job.state is JobState.RUNNING
        await harness.finish()
        assert await harness.states() == {
            "a": TaskState.CANCELLED,
            "b": TaskState.WAITING,
            "c": TaskState.WAITING,
            "d": TaskState.COMPLETED,
        }
        assert (await harness.job()).state is JobState.CANCELLED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_waiting_task_is_cancelled_and_its_parents_continue(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"), make_task("c", "b"))

        await harness.operator_commands.cancel_task(TENANT, task_id("b"), by="ann")
        await harness.finish()

        assert await harness.states() == {
            "a": TaskState.COMPLETED,
            "b": TaskState.CANCELLED,
            "c": TaskState.WAITING,
        }
        assert (await harness.job()).blocked == NumberSet([2])


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_was_cancelled_alone_can_be_resumed(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        await harness.operator_commands.cancel_task(TENANT, A, by="ann")

        await harness.operator_commands.resume(job_id(), [A], by="ann", tenant=TENANT)
        await harness.finish()

        assert (await harness.job()).state is JobState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_running_task_is_cancelled_when_its_worker_confirms(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        claimed = await harness.claim(A)

        request = await harness.operator_commands.cancel_task(TENANT, A, by="ann")

        assert (request.state, request.cancel.by) == (TaskState.PROCESSING, "ann")
        assert (await harness.job()).blocked == NumberSet()
        await harness.transitions.apply_to_task(A, c.ConfirmCancel(fence=claimed.fence))
        await harness.dispatch()
        assert (await harness.task("a")).state is TaskState.CANCELLED
        assert (await harness.job()).blocked == NumberSet([1])


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_running_task_ends_without_a_word_when_its_lease_is_over(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        await harness.claim(A)
        await harness.operator_commands.cancel_task(TENANT, A, by="ann")

        harness.clock.advance(LEASE.duration + LEASE.skew_margin)
        await harness.sweeper.sweep()
        await harness.dispatch()

        assert (await harness.task("a")).state is TaskState.CANCELLED
        assert (await harness.job()).state is JobState.CANCELLED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_outcome_that_was_committed_first_stays_and_is_in_the_answer(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        claimed = await harness.claim(A)

        async def completes() -> None:
            done = c.Complete(fence=claimed.fence, result=None, duration=SECOND)
            await harness.transitions.apply_to_task(A, done)

        late = harness.with_ports(ledger=InterposedPort(backend.ledger, "commit", before=completes))
        with pytest.raises(CommandRefused, match="completed already"):
            await late.operator_commands.cancel_task(TENANT, A, by="ann")

        await harness.finish()
        assert (await harness.job()).state is JobState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_one_that_is_being_cancelled_is_left_to_it(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.claim(A)
        await harness.operator_commands.cancel_task(TENANT, A, by="ann")

        row = await harness.operator_commands.cancel_task(TENANT, A, by="bob")

        assert (row.state, row.cancel.by) == (TaskState.PROCESSING, "ann")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_second_cancellation_succeeds(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        first = await harness.operator_commands.cancel_task(TENANT, A, by="ann", reason="late")

        again = await harness.operator_commands.cancel_task(TENANT, A, by="ann", reason="late")

        assert again == first
        assert (await harness.event_types("a")).count("Task Cancelled") == 1
        with pytest.raises(CommandRefused, match="cancelled already"):
            await harness.operator_commands.cancel_task(TENANT, A, by="bob", reason="late")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancellation_that_the_job_did_not_record_is_finished_by_a_repeated_request(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        dying = harness.with_ports(
            ledger=FlakyPort(backend.ledger, "get_job", RuntimeError("died"))
        )
        with pytest.raises(RuntimeError, match="died"):
            await dying.operator_commands.cancel_task(TENANT, A, by="ann")
        assert (await harness.job()).state is JobState.RUNNING

        await harness.operator_commands.cancel_task(TENANT, A, by="ann")

        assert (await harness.job()).state is JobState.CANCELLED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancellation_whose_answer_was_lost_does_not_take_back_a_resume(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        flaky = FlakyPort(backend.ledger, "commit", after_write=True)

        async def resumed() -> None:
            assert (await harness.operator_commands.resume(job_id(), [A], by="bob")).tasks == (A,)

        # The second commit is the repetition of the first.
        ledger = InterposedPort(flaky, "commit", before=resumed, at=2)
        unlucky = harness.with_ports(ledger=ledger).operator_commands
        with pytest.raises(CommandRefused, match="in round 2 already"):
            await harness.advance_until_done(unlucky.cancel_task(TENANT, A, by="ann"))

        assert (await harness.task("a")).state is TaskState.PENDING


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_jobs_of_another_tenant_cannot_be_cancelled_or_resumed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        await harness.fail(A)
        await harness.dispatch()
        before = await harness.job(), await harness.task("a"), await harness.task("b")

        with pytest.raises(NotFound):
            await harness.operator_commands.cancel_task(OTHER, task_id("b"), by="eve")
        with pytest.raises(NotFound):
            await harness.operator_commands.cancel_task(TENANT, task_id("missing"), by="eve")
        with pytest.raises(NotFound):
            await harness.operator_commands.cancel_job(job_id(), by="eve", tenant=OTHER)
        with pytest.raises(NotFound):
            await harness.operator_commands.resume(job_id(), [A], by="eve", tenant=OTHER)

        assert (await harness.job(), await harness.task("a"), await harness.task("b")) == before
        await harness.operator_commands.cancel_job(job_id(), by="ann", tenant=TENANT)
        assert (await harness.job()).state is JobState.CANCELLED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_of_another_job_is_not_resumed_with_this_one(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        theirs = (
            await harness.producer.submit(OTHER, "request-1", {"tasks": [make_task()]})
        ).job.id
        strange = task_id_of(theirs, "a")
        for id_ in (A, strange):
            await harness.fail(id_)
        await harness.dispatch()
        before = await backend.ledger.get_job(theirs), await backend.ledger.get_task(strange)

        resumed = await harness.operator_commands.resume(
            job_id(), [strange, A], by="eve", tenant=TENANT
        )

        assert resumed.tasks == (A,)
        assert resumed.refused == {strange: "there is no such task"}
        assert (
            await backend.ledger.get_job(theirs),
            await backend.ledger.get_task(strange),
        ) == before


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    "reason",
    ["x" * (REASON_LIMIT_CHARACTERS + 1), "\ud83d", "\x1b[2J"],
    ids=["too long", "not text", "control characters"],
)
@scenario
async def test_a_reason_that_cannot_be_kept_changes_nothing(
    reason: str, kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        before = await harness.task("a"), await harness.job()

        with pytest.raises(UsageError, match="the reason must"):
            await harness.operator_commands.cancel_task(TENANT, A, by="ann", reason=reason)
        with pytest.raises(UsageError, match="the reason must"):
            await harness.operator_commands.cancel_job(job_id(), by="ann", reason=reason)

        assert (await harness.task("a"), await harness.job()) == before


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_empty_reason_is_no_reason(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())

        row = await harness.operator_commands.cancel_task(TENANT, A, by="ann", reason=" ")

        assert row.cancel.reason is None
