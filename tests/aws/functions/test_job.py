"""A job from its submission to its end, through the functions and what feeds them."""

from longshore.core.tasks.states import JobState
from tests.aws.functions.installation import TENANT, FunctionInstallation
from tests.unit.services.harness import make_task


def test_a_job_goes_from_its_submission_to_its_end(installation: FunctionInstallation) -> None:
    accepted = installation.submit(make_task("a"), make_task("b", "a"))
    job_id = accepted.job.id
    first, second = f"{job_id}_a", f"{job_id}_b"

    installation.deliver_all()
    installation.run_worker(first)
    installation.deliver_all()
    installation.run_worker(second)
    installation.deliver_all()

    job = installation.job(job_id)
    assert job.state is JobState.COMPLETED
    page = installation.run(lambda all_: all_.backend.events.query(TENANT, job_id=job_id))
    events = [(event.entity, event.type) for event in page.items]
    assert events.count((f"JOB#{job_id}", "Job Completed")) == 1
    assert (f"TASK#{second}", "Task Completed") in events
    for entity, last in ((f"JOB#{job_id}", job.last_sequence), (f"TASK#{second}", None)):
        history = [event.sequence for event in page.items if event.entity == entity]
        assert history == list(range(1, (last or len(history)) + 1))
