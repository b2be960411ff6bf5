"""A cancellation whose answer was lost is the caller's own, however far it has come since."""

from pathlib import Path

import pytest

from longshore.core.tasks.states import JobState
from longshore.errors import CommandRefused
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    IN_MEMORY,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_cancellation_that_went_on_while_its_answer_was_lost_is_not_refused(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))

        async def goes_on() -> None:
            await other.sweeper.sweep()
            await other.dispatch()

        ledger = InterposedPort(backend.ledger, "commit", after=goes_on)
        lost = FlakyPort(ledger, "commit", after_write=True)
        unlucky = harness.with_ports(ledger=lost)

        await harness.advance_until_done(unlucky.operator_commands.cancel_job(job_id(), by="ann"))

        assert lost.failures == 1
        assert (await harness.job()).state is JobState.CANCELLED
        assert (await harness.job_event_types()).count("Job Cancelled") == 1


@pytest.mark.parametrize("cancelled_again", [True, False])
@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_cancellation_whose_job_was_resumed_while_its_answer_was_lost_is_not_repeated(
    kind: str, cancelled_again: bool, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))

        async def is_resumed() -> None:
            # Where the tasks are changed in other commits, the sweeper finishes that first.
            await other.sweeper.sweep()
            await other.dispatch()
            await other.operator_commands.resume(job_id(), [task_id("a"), task_id("b")], by="bob")
            if cancelled_again:
                await other.operator_commands.cancel_job(job_id(), by="bob")

        ledger = InterposedPort(backend.ledger, "commit", after=is_resumed)
        lost = FlakyPort(ledger, "commit", after_write=True)
        unlucky = harness.with_ports(ledger=lost)

        await harness.advance_until_done(unlucky.operator_commands.cancel_job(job_id(), by="ann"))

        job = await harness.job()
        assert (lost.failures, job.round) == (1, 2)
        assert job.state is (JobState.CANCELLED if cancelled_again else JobState.RUNNING)
        assert (job.cancel.by if job.cancel else None) == ("bob" if cancelled_again else None)


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_cancellation_of_a_job_that_another_caller_cancelled_meanwhile_is_refused(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task("a"))

        async def faster() -> None:
            await other.operator_commands.cancel_job(job_id(), by="bob")
            await other.dispatch()

        ledger = InterposedPort(backend.ledger, "commit", before=faster)
        late = harness.with_ports(ledger=ledger)

        with pytest.raises(CommandRefused):
            await harness.advance_until_done(late.operator_commands.cancel_job(job_id(), by="ann"))


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_cancellation_of_a_job_that_was_resumed_after_another_cancellation_is_carried_out(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task("a"))

        async def faster() -> None:
            await other.operator_commands.cancel_job(job_id(), by="bob")
            await other.sweeper.sweep()
            await other.dispatch()
            await other.operator_commands.resume(job_id(), [task_id("a")], by="bob")

        ledger = InterposedPort(backend.ledger, "commit", before=faster)
        late = harness.with_ports(ledger=ledger)

        await harness.advance_until_done(late.operator_commands.cancel_job(job_id(), by="ann"))

        job = await harness.job()
        assert (job.state, job.round, job.cancel.by) == (JobState.CANCELLED, 2, "ann")
