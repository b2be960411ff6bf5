"""sweeper, health-check and health-check-single: invoked by schedule or by hand, always in time."""

import asyncio
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsResponse
from longshore.errors import BackendUnavailable, NotFound, UsageError
from longshore.interfaces.lambdas.container import InvocationTimeout
from tests.aws.call_faults import Call, throttled
from tests.aws.functions.installation import TENANT, FunctionInstallation
from tests.unit.services.harness import make_task

TICK = {
    "version": "0",
    "detail-type": "Scheduled Event",
    "source": "aws.events",
    "resources": ["arn:aws:events:eu-central-1:000000000000:rule/longshore-x-sweeper"],
    "detail": {},
}


async def hangs(call: Call) -> AwsResponse:
    await asyncio.Event().wait()
    raise AssertionError


def half_submitted(installation: FunctionInstallation, request_id: str) -> None:
    """A job whose submitter dies when the job's row is written and none of its tasks' is."""
    installation.run(lambda all_: asyncio.sleep(0))
    client = installation.newest_client

    async def once(call: Call) -> AwsResponse:
        answer = await call()
        client.inject("update_item", *[throttled] * 50)
        return answer

    client.inject("update_item", once)
    with pytest.raises(BackendUnavailable):
        installation.submit(make_task("a"), request_id=request_id)
    client._faults.clear()


def test_a_sweep_repairs_a_half_submitted_job(installation: FunctionInstallation) -> None:
    half_submitted(installation, "half")

    assert installation.invoke("sweeper", TICK) == {
        "finished": True,
        "repaired": {"intents_finished": 1},
    }
    assert installation.invoke("sweeper", TICK) == {"finished": True, "repaired": {}}


def test_a_sweep_that_takes_too_long_ends_in_time_and_the_next_continues_after_it(
    installation: FunctionInstallation,
) -> None:
    installation.invoke("sweeper", TICK)
    half_submitted(installation, "half again")
    sweeping = installation.clients[0]
    sweeping.inject("query", hangs)  # the first query is for leases

    assert installation.invoke("sweeper", TICK, seconds=1.8) == {"finished": False}
    begun = len(sweeping.calls)
    answer = installation.invoke("sweeper", TICK)

    assert answer == {"finished": True, "repaired": {"intents_finished": 1}}
    # The next sweep begins with the step after the leases.
    first = sweeping.calls[begun][1]
    assert "open#" not in str(first["ExpressionAttributeValues"])
    assert installation.invoke("sweeper", TICK) == {"finished": True, "repaired": {}}


def test_a_check_records_the_health_of_running_tasks_in_the_history(
    installation: FunctionInstallation,
) -> None:
    job_id = installation.submit(make_task("a"), request_id="checked").job.id
    installation.claim(f"{job_id}_a")

    answer = installation.invoke("health-check", TICK)

    assert answer["tenants"][TENANT]["totalProcessing"] == 1
    assert [item.type for item in installation.history("SYSTEM#health-check")] == [
        "Task Health Check"
    ]
    single = installation.invoke("health-check-single", {"taskId": f"{job_id}_a"})
    assert single["requestId"] == f"{job_id}_a"
    assert (single["status"], single["health"]) == ("processing", "healthy")


def test_a_check_that_takes_too_long_raises_a_timeout_in_time(
    installation: FunctionInstallation,
) -> None:
    installation.invoke("health-check", TICK)
    installation.newest_client.inject("query", *[hangs] * 20)

    with pytest.raises(InvocationTimeout):
        installation.invoke("health-check", TICK, seconds=1.8)


@pytest.mark.parametrize("event", [None, {}, {"taskId": 7}, {"taskId": "no id!"}, []])
def test_a_single_check_without_a_task_id_names_the_field(
    installation: FunctionInstallation, event: Any
) -> None:
    with pytest.raises(UsageError, match='"taskId"'):
        installation.invoke("health-check-single", event)


def test_another_tenants_task_is_not_found(installation: FunctionInstallation) -> None:
    task_id = f"{installation.submit(make_task('a'), request_id='theirs').job.id}_a"

    with pytest.raises(NotFound):
        installation.invoke("health-check-single", {"taskId": task_id, "tenantId": "others"})
    with pytest.raises(NotFound):
        installation.invoke("health-check-single", {"taskId": "job-none_a"})
