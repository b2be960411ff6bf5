"""What work costs on AWS, in write units and requests, counted by the rules of its price list."""

from datetime import timedelta
from pathlib import Path

from longshore.core.states import JobState
from longshore.testing.clock import FakeClock
from longshore.testing.runner import Script
from tests.aws.standin import stand_in
from tests.aws.units import CountingAws
from tests.aws.whole import whole_aws
from tests.unit.services.stage import Stage, a_task, job_id, scenario

SOON = timedelta(seconds=2)


@scenario
async def test_a_job_of_one_task_costs_no_more_than_it_did(tmp_path: Path) -> None:
    clock = FakeClock()
    aws = CountingAws(stand_in().place, clock)
    async with whole_aws(tmp_path, clock, aws) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script())
        aws.units.clear()
        async with stage.working():
            await stage.submit(a_task())
            await stage.passes(SOON)
            await stage.dispatch()
            await stage.passes(SOON)
        job = await backend.ledger.job(job_id())

    assert job is not None
    assert job.state is JobState.COMPLETED
    of_ledger = {kind: units for kind, units in aws.units.items() if kind.startswith("ledger")}
    # Job and task are written three times each, and some of it is a little over a kilobyte.
    assert of_ledger["ledger"] <= 10
    assert of_ledger["ledger/listing"] <= 2
    assert of_ledger["ledger/state"] <= 6
    assert of_ledger["ledger/name"] == 0
    assert aws.requests["sqs.send_message_batch"] == 1
