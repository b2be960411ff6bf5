"""A job from its submission to its end, through the functions and what feeds them."""

from longshore.core.states import JobState
from tests.aws.functions.house import TENANT, House
from tests.unit.services.stage import a_task


def test_a_job_goes_from_its_submission_to_its_end(house: House) -> None:
    accepted = house.submit(a_task("a"), a_task("b", "a"))
    job_id = accepted.job.id
    first, second = f"{job_id}_a", f"{job_id}_b"

    house.tell_all()
    house.work(first)
    house.tell_all()
    house.work(second)
    house.tell_all()

    job = house.job(job_id)
    assert job.state is JobState.COMPLETED
    page = house.do(lambda all_: all_.backend.events.query(TENANT, job_id=job_id))
    told = [(event.entity, event.type) for event in page.items]
    assert told.count((f"JOB#{job_id}", "Job Completed")) == 1
    assert (f"TASK#{second}", "Task Completed") in told
    for entity, last in ((f"JOB#{job_id}", job.last_sequence), (f"TASK#{second}", None)):
        history = [event.sequence for event in page.items if event.entity == entity]
        assert history == list(range(1, (last or len(history)) + 1))
