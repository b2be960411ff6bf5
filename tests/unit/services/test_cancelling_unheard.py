"""A cancellation whose answer was lost is the caller's own, however far it has come since."""

from pathlib import Path

import pytest

from longshore.core.states import JobState
from longshore.errors import CommandRefused
from longshore.testing.flaky import Flaky
from tests.unit.services.ports import Interposed
from tests.unit.services.stage import IN_MEMORY, Stage, a_task, job_id, opened, scenario


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_cancellation_that_went_on_while_its_answer_was_lost_is_not_refused(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, other = Stage(backend), Stage(backend)
        await stage.submit(a_task("a"), a_task("b", "a"))

        async def goes_on() -> None:
            await other.sweeper.sweep()
            await other.dispatch()

        ledger = Interposed(backend.ledger, "commit", after=goes_on)
        lost = Flaky(ledger, "commit", after_the_write=True)
        unlucky = stage.with_ports(ledger=lost)

        await stage.in_time(unlucky.cancelling.cancel(job_id(), by="ann"))

        assert lost.failures == 1
        assert (await stage.job()).state is JobState.CANCELLED
        assert (await stage.job_told()).count("Job Cancelled") == 1


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_cancellation_of_a_job_that_somebody_else_cancelled_meanwhile_is_refused(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, other = Stage(backend), Stage(backend)
        await stage.submit(a_task("a"))

        async def faster() -> None:
            await other.cancelling.cancel(job_id(), by="bob")
            await other.dispatch()

        ledger = Interposed(backend.ledger, "commit", before=faster)
        late = stage.with_ports(ledger=ledger)

        with pytest.raises(CommandRefused):
            await stage.in_time(late.cancelling.cancel(job_id(), by="ann"))
