"""A review decision counts once, for the result that was seen, and dependents then continue."""

from pathlib import Path
from typing import Any

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.maximums import FEEDBACK_LIMIT_CHARACTERS, MAX_REVISIONS
from longshore.core.queues import message_body
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import CommandRefused, NotFound
from longshore.ports.backend import Backend
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
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


async def in_review(backend: Backend, *behind: dict[str, Any]) -> ServiceHarness:
    """A stage on which the first attempt of the task "a" is in review."""
    harness = ServiceHarness(backend)
    await backend.definitions.put(
        TENANT,
        Definition(
            name="reviewed", runner=RunnerKind.COMMAND, overridable=("argv",), requires_review=True
        ),
    )
    await harness.submit(make_task("a", name="reviewed"), *behind)
    await harness.complete(A, {"draft": 1})
    return harness


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_waited_for_an_approval_continues_at_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend, make_task("b", "a"))

        row = await harness.operator_commands.approve(TENANT, A, by="rita")

        assert row == await harness.task("a")
        assert await harness.states() == {"a": TaskState.COMPLETED, "b": TaskState.PENDING}
        assert message_body(task_id("b")) in await harness.messages()
        assert (await harness.event_types("a"))[-2:] == ["Task Approved", "Task Completed"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_ends_with_the_approval_of_its_last_task(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)

        await harness.operator_commands.approve(TENANT, A, by="rita")

        assert (await harness.job()).state is JobState.COMPLETED
        assert await harness.job_event_types() == ["Job Created", "Job Completed"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_revision_is_a_new_attempt_with_the_feedback(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend, make_task("b", "a"))
        seen = (await harness.task("a")).result

        row = await harness.operator_commands.revise(TENANT, A, by="rita", feedback="shorter")

        assert row == await harness.task("a")
        assert (row.state, row.revision, row.feedback) == (TaskState.PENDING, 1, "shorter")
        assert row.previous_result == seen
        assert message_body(A) in await harness.messages()
        await harness.complete(A, {"draft": 2})
        assert (await harness.task("a")).state is TaskState.IN_REVIEW
        assert (await harness.task("b")).state is TaskState.WAITING


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_after_the_last_revision_only_an_approval_is_left(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)
        review = harness.operator_commands
        for number in range(MAX_REVISIONS):
            await review.revise(TENANT, A, by="rita", feedback=f"again {number}")
            await harness.complete(A)
        last = f"again {MAX_REVISIONS - 1}"

        with pytest.raises(CommandRefused, match="revised 5 times already: approve it or cancel"):
            await review.revise(TENANT, A, by="rita", feedback=last)

        assert (await harness.task("a")).revision == MAX_REVISIONS
        await review.approve(TENANT, A, by="rita")
        assert (await harness.job()).state is JobState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    "feedback",
    ["", "  ", "x" * (FEEDBACK_LIMIT_CHARACTERS + 1), "\ud83d"],
    ids=["empty", "blank", "too long", "not text"],
)
@scenario
async def test_feedback_that_cannot_be_taken_changes_nothing(
    feedback: str, kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)
        before = await harness.task("a")

        with pytest.raises(CommandRefused, match="feedback must"):
            await harness.operator_commands.revise(TENANT, A, by="rita", feedback=feedback)

        assert await harness.task("a") == before


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_longest_feedback_of_the_widest_characters_is_kept(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)
        feedback = "\U0001f600" * FEEDBACK_LIMIT_CHARACTERS

        await harness.operator_commands.revise(TENANT, A, by="rita", feedback=feedback)

        assert (await harness.task("a")).feedback == feedback


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_another_tenant_s_task_is_not_there(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)
        before = await harness.task("a")

        with pytest.raises(NotFound):
            await harness.operator_commands.approve("umbrella", A, by="rita")
        with pytest.raises(NotFound):
            await harness.operator_commands.revise("umbrella", A, by="rita", feedback="shorter")
        with pytest.raises(NotFound):
            await harness.operator_commands.approve(TENANT, task_id("missing"), by="rita")

        assert await harness.task("a") == before


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_is_not_in_review_cannot_be_reviewed(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())

        with pytest.raises(CommandRefused, match="the task is pending, not in review"):
            await harness.operator_commands.approve(TENANT, A, by="rita")
        await harness.complete(A)
        with pytest.raises(CommandRefused, match="the task is completed, not in review"):
            await harness.operator_commands.approve(TENANT, A, by="rita")
        with pytest.raises(CommandRefused, match="the task is completed, not in review"):
            await harness.operator_commands.revise(TENANT, A, by="rita", feedback="shorter")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_second_approval_succeeds(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)
        first = await harness.operator_commands.approve(TENANT, A, by="rita")

        second = await harness.operator_commands.approve(TENANT, A, by="rita")

        assert second == first
        assert (await harness.event_types("a")).count("Task Approved") == 1
        with pytest.raises(CommandRefused):
            await harness.operator_commands.approve(TENANT, A, by="bob")


@scenario
async def test_an_approval_that_the_job_did_not_record_is_finished_by_a_repeated_request(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await in_review(backend, make_task("b", "a"))
        dying = harness.with_ports(
            ledger=FlakyPort(backend.ledger, "get_job", RuntimeError("died"))
        )
        with pytest.raises(RuntimeError, match="died"):
            await dying.operator_commands.approve(TENANT, A, by="rita")
        assert (await harness.task("b")).state is TaskState.WAITING

        await harness.operator_commands.approve(TENANT, A, by="rita")

        assert (await harness.task("b")).state is TaskState.PENDING


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_revision_that_is_requested_twice_happens_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)
        review = harness.operator_commands
        await review.revise(TENANT, A, by="rita", feedback="shorter")

        again = await review.revise(TENANT, A, by="rita", feedback="shorter")
        await harness.claim(A)
        late = await review.revise(TENANT, A, by="rita", feedback="shorter")

        assert (again.revision, late.revision) == (1, 1)
        assert (await harness.event_types("a")).count("Task Revision Requested") == 1
        with pytest.raises(CommandRefused):
            await review.revise(TENANT, A, by="bob", feedback="shorter")
        with pytest.raises(CommandRefused):
            await review.revise(TENANT, A, by="rita", feedback="longer")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_decision_is_about_the_result_that_was_seen(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)
        review = harness.operator_commands
        await review.revise(TENANT, A, by="rita", feedback="shorter", attempt=1)
        await harness.complete(A, {"draft": 2})

        with pytest.raises(CommandRefused, match="attempt 2, not of 1"):
            await review.approve(TENANT, A, by="bob", attempt=1)
        late = await review.revise(TENANT, A, by="rita", feedback="shorter", attempt=1)

        assert (late.state, late.revision) == (TaskState.IN_REVIEW, 1)
        await review.approve(TENANT, A, by="bob", attempt=2)
        assert (await review.approve(TENANT, A, by="bob", attempt=2)).attempt == 2
        with pytest.raises(CommandRefused):
            await review.approve(TENANT, A, by="bob", attempt=1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_revision_whose_answer_was_lost_and_that_has_been_done_is_not_asked_for_again(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)
        flaky = FlakyPort(backend.ledger, "commit", after_write=True)

        async def other_worker_completes() -> None:
            await harness.complete(A, {"draft": 2})

        # The second commit is the repetition of the first.
        ledger = InterposedPort(flaky, "commit", before=other_worker_completes, at=2)
        unlucky = harness.with_ports(ledger=ledger).operator_commands
        row = await harness.advance_until_done(
            unlucky.revise(TENANT, A, by="rita", feedback="shorter")
        )

        assert flaky.failures == 1
        assert (row.state, row.revision, row.attempt) == (TaskState.IN_REVIEW, 1, 2)
        assert (await harness.event_types("a")).count("Task Revision Requested") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_repeated_decision_succeeds_after_a_later_decision(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)
        review = harness.operator_commands
        for number, (by, feedback) in enumerate([("rita", "shorter"), ("bob", "longer")], start=1):
            await review.revise(TENANT, A, by=by, feedback=feedback, attempt=number)
            await harness.complete(A)
        await review.approve(TENANT, A, by="bob", attempt=3)

        late = await review.revise(TENANT, A, by="rita", feedback="shorter", attempt=1)

        assert (late.state, late.revision) == (TaskState.COMPLETED, 2)
        for attempt, by, feedback in [
            (2, "rita", "shorter"),
            (1, "bob", "longer"),
            (1, "rita", "longer"),
            (None, "rita", "shorter"),
        ]:
            with pytest.raises(CommandRefused):
                await review.revise(TENANT, A, by=by, feedback=feedback, attempt=attempt)
        assert (await harness.event_types("a")).count("Task Revision Requested") == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_approval_with_a_lost_answer_succeeds(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)
        ledger = FlakyPort(backend.ledger, "commit", after_write=True)

        row = await harness.advance_until_done(
            harness.with_ports(ledger=ledger).operator_commands.approve(TENANT, A, by="rita")
        )

        assert row.state is TaskState.COMPLETED
        assert (await harness.job()).state is JobState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_of_a_concurrent_approval_and_cancellation_one_is_committed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await in_review(backend)

        async def faster() -> None:
            await harness.operator_commands.cancel_job(job_id(), by="bob")

        ledger = InterposedPort(backend.ledger, "commit", before=faster)
        with pytest.raises(CommandRefused, match="the task is cancelled"):
            await harness.with_ports(ledger=ledger).operator_commands.approve(TENANT, A, by="rita")

        assert (await harness.job()).state is JobState.CANCELLED
