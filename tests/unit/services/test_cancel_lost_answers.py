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
