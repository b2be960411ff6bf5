"""A resume whose answer was lost is the caller's own, however far it has come since."""

from pathlib import Path

import pytest

from longshore.errors import OutcomeUnknown
from longshore.testing.flaky import Flaky
from tests.unit.services.ports import Interposed
from tests.unit.services.stage import BACKENDS, Stage, a_task, job_id, opened, scenario
from tests.unit.services.stage import task_id as id_of


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_resume_that_went_on_while_its_answer_was_lost_is_not_refused(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, other = Stage(backend), Stage(backend)
        await stage.submit(a_task("a"), a_task("b"))
        await stage.fail(id_of("a"))
        await stage.dispatch()

        async def goes_on() -> None:
            await other.sweeper.sweep()
            # The job's row is changed by what others do, and ours is no longer its last change.
            await other.complete(id_of("b"))
            await other.dispatch()

        ledger = Interposed(backend.ledger, "commit", after=goes_on)
        lost = Flaky(ledger, "commit", after_the_write=True)
        unlucky = stage.with_ports(ledger=lost)

        resumed = await stage.in_time(unlucky.resuming.resume(job_id(), [id_of("a")], by="ann"))

        assert lost.failures == 1
        assert (resumed.tasks, resumed.round) == ((id_of("a"),), 2)
        assert (await stage.job_told()).count("Job Resumed") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_resume_for_which_somebody_else_was_faster_is_refused(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, other = Stage(backend), Stage(backend)
        await stage.submit(a_task("a"))
        await stage.fail(id_of("a"))
        await stage.dispatch()

        async def faster() -> None:
            await other.resuming.resume(job_id(), [id_of("a")], by="bob")

        ledger = Interposed(backend.ledger, "commit", before=faster)
        # Nobody knows whether the first try was carried out; it was not.
        late = stage.with_ports(ledger=Flaky(ledger, "commit", OutcomeUnknown("lost")))

        resumed = await stage.in_time(late.resuming.resume(job_id(), [id_of("a")], by="ann"))

        assert resumed.tasks == ()
        assert list(resumed.refused) == [id_of("a")]
