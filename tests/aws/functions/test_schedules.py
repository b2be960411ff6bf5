"""sweeper, health-check and health-check-single: by the clock and by hand, always in time."""

import asyncio
from typing import Any

import pytest

from longshore.adapters.aws.calls import Answer
from longshore.errors import BackendUnavailable, NotFound, UsageError
from longshore.interfaces.lambdas.container import OutOfTime
from tests.aws.functions.house import TENANT, House
from tests.aws.trouble import Call, throttled
from tests.unit.services.stage import a_task

TICK = {
    "version": "0",
    "detail-type": "Scheduled Event",
    "source": "aws.events",
    "resources": ["arn:aws:events:eu-central-1:000000000000:rule/longshore-x-sweeper"],
    "detail": {},
}


async def hangs(call: Call) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


def half_submitted(house: House, request_id: str) -> None:
    """A job whose submitter dies when the job's row is written and none of its tasks' is."""
    house.do(lambda all_: asyncio.sleep(0))
    passes = house.trouble

    async def once(call: Call) -> Answer:
        answer = await call()
        passes.meet("update_item", *[throttled] * 50)
        return answer

    passes.meet("update_item", once)
    with pytest.raises(BackendUnavailable):
        house.submit(a_task("a"), request_id=request_id)
    passes._mishaps.clear()


def test_a_sweep_mends_what_a_crash_left_behind(house: House) -> None:
    half_submitted(house, "half")

    assert house.invoke("sweeper", TICK) == {
        "finished": True,
        "repaired": {"intents_finished": 1},
    }
    assert house.invoke("sweeper", TICK) == {"finished": True, "repaired": {}}


def test_a_sweep_that_takes_too_long_ends_in_time_and_the_next_goes_on_behind_it(
    house: House,
) -> None:
    house.invoke("sweeper", TICK)
    half_submitted(house, "half again")
    sweeping = house.opened[0]
    sweeping.meet("query", hangs)  # the first question is for leases

    assert house.invoke("sweeper", TICK, seconds=1.8) == {"finished": False}
    begun = len(sweeping.made)
    answer = house.invoke("sweeper", TICK)

    assert answer == {"finished": True, "repaired": {"intents_finished": 1}}
    # What comes behind the leases in a sweep comes first now.
    first = sweeping.made[begun][1]
    assert "open#" not in str(first["ExpressionAttributeValues"])
    assert house.invoke("sweeper", TICK) == {"finished": True, "repaired": {}}


def test_a_check_tells_history_how_everything_is_that_runs(house: House) -> None:
    job_id = house.submit(a_task("a"), request_id="checked").job.id
    house.claim(f"{job_id}_a")

    answer = house.invoke("health_check", TICK)

    assert answer["tenants"][TENANT]["totalProcessing"] == 1
    assert [one.type for one in house.history("SYSTEM#health-check")] == ["Task Health Check"]
    single = house.invoke("health_check_single", {"taskId": f"{job_id}_a"})
    assert single["requestId"] == f"{job_id}_a"
    assert (single["status"], single["health"]) == ("processing", "healthy")


def test_a_check_that_takes_too_long_says_so_in_time(house: House) -> None:
    house.invoke("health_check", TICK)
    house.trouble.meet("query", *[hangs] * 20)

    with pytest.raises(OutOfTime):
        house.invoke("health_check", TICK, seconds=1.8)


@pytest.mark.parametrize("event", [None, {}, {"taskId": 7}, {"taskId": "no id!"}, []])
def test_a_question_for_no_task_says_what_to_ask(house: House, event: Any) -> None:
    with pytest.raises(UsageError, match='"taskId"'):
        house.invoke("health_check_single", event)


def test_another_tenants_task_is_not_found(house: House) -> None:
    task_id = f"{house.submit(a_task('a'), request_id='theirs').job.id}_a"

    with pytest.raises(NotFound):
        house.invoke("health_check_single", {"taskId": task_id, "tenantId": "others"})
    with pytest.raises(NotFound):
        house.invoke("health_check_single", {"taskId": "job-none_a"})
