"""A resume whose answer was lost is the caller's own, however far it has come since."""

from pathlib import Path

import pytest

from longshore.errors import OutcomeUnknown
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.harness import task_id as id_of
from tests.unit.services.port_wrappers import InterposedPort


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_resume_that_went_on_while_its_answer_was_lost_is_not_refused(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        await harness.fail(id_of("a"))
        await harness.dispatch()

        async def goes_on() -> None:
            await other.sweeper.sweep()
            # The job's row is changed by what others do, and ours is no longer its last change.
            await other.complete(id_of("b"))
            await other.dispatch()

        ledger = InterposedPort(backend.ledger, "commit", after=goes_on)
        lost = FlakyPort(ledger, "commit", after_write=True)
        unlucky = harness.with_ports(ledger=lost)

        resumed = await harness.advance_until_done(
            unlucky.operator_commands.resume(job_id(), [id_of("a")], by="ann")
        )

        assert lost.failures == 1
        assert (resumed.tasks, resumed.round) == ((id_of("a"),), 2)
        assert (await harness.job_event_types()).count("Job Resumed") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_resume_is_refused_if_another_caller_was_faster(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task("a"))
        await harness.fail(id_of("a"))
        await harness.dispatch()

        async def faster() -> None:
            await other.operator_commands.resume(job_id(), [id_of("a")], by="bob")

        ledger = InterposedPort(backend.ledger, "commit", before=faster)
        # The caller does not know whether the first try was carried out; it was not.
        late = harness.with_ports(ledger=FlakyPort(ledger, "commit", OutcomeUnknown("lost")))

        resumed = await harness.advance_until_done(
            late.operator_commands.resume(job_id(), [id_of("a")], by="ann")
        )

        assert resumed.tasks == ()
        assert list(resumed.refused) == [id_of("a")]
