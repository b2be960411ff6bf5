"""What a client reads about its jobs while no worker runs."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import longshore
from longshore.core.tasks.states import JobState
from longshore.errors import CommandRefused, NotFound, TaskCancelledError, UsageError
from longshore.services.worker.worker import Worker
from tests.interfaces.python_tasks import count, fetch, total


@pytest.fixture
def client(tmp_path: Path) -> Iterator[longshore.Client]:
    with longshore.Client(tmp_path / "data") as opened:
        yield opened


def test_status_describes_the_job_and_each_task(client: longshore.Client) -> None:
    job = client.submit(total.of({"a": fetch.of("a"), "b": fetch.of("b")}))

    status = job.status()

    assert (status.id, status.name, status.total) == (job.id, "total", 3)
    assert (status.state, status.completed, status.round) == (JobState.RUNNING, 0, 1)
    assert {key: task.state.value for key, task in status.tasks.items()} == {
        "fetch-1": "pending",
        "fetch-2": "pending",
        "total": "waiting",
    }
    assert status.tasks["total"].id == f"{job.id}_total"
    assert status.finished_at is None


def test_waiting_ends_when_the_time_is_up(client: longshore.Client) -> None:
    job = client.submit(fetch.of("a"))

    with pytest.raises(TimeoutError, match=f"{job.id} has not ended within 20ms"):
        job.wait(timeout="20ms")
    with pytest.raises(TimeoutError):
        job.result(timeout=0.02)
    with pytest.raises(TimeoutError):
        job.results(timeout=timedelta(milliseconds=20))
    with pytest.raises(ValueError, match="not a duration"):
        job.wait(timeout="long")


def test_a_cancelled_job_has_ended_without_a_result(client: longshore.Client) -> None:
    pages = fetch.of("a")
    job = client.submit(count.of(pages))

    job.cancel("changed my mind")

    assert job.wait(timeout=5) is JobState.CANCELLED
    for ask in (job.result, job.results, lambda: job.result(pages), lambda: job.result("fetch")):
        with pytest.raises(TaskCancelledError, match="cancelled by user") as cancelled:
            ask()
        assert cancelled.value.category == "cancelled"
        assert f"longshore logs {job.id}_" in cancelled.value.inspect_command
        assert "--data-dir" in cancelled.value.inspect_command
    with pytest.raises(CommandRefused, match="the job is cancelled"):
        job.cancel()


def test_cancelled_tasks_can_be_resumed(client: longshore.Client) -> None:
    job = client.submit(count.of(fetch.of("a")))
    job.cancel()

    assert sorted(job.resume()) == ["count", "fetch"]

    status = job.status()
    assert (status.state, status.round) == (JobState.RUNNING, 2)
    with pytest.raises(CommandRefused, match="nothing to resume: no task failed or was cancelled"):
        job.resume()
    with pytest.raises(CommandRefused, match="only what failed or was cancelled"):
        job.resume("fetch")
    with pytest.raises(CommandRefused, match="there is no such task"):
        job.resume("missing")


def test_events_are_listed_in_the_order_in_which_they_happened(client: longshore.Client) -> None:
    job = client.submit(fetch.of("a"))
    before = [event.type for event in job.events()]
    job.cancel()

    after = [event.type for event in job.events(follow=True)]

    assert before == ["Job Created", "Task Pending"]
    assert after == [*before, "Task Cancelled", "Job Cancelled"]


def test_all_events_of_a_large_job_are_listed_once(client: longshore.Client) -> None:
    job = client.submit([fetch.of(str(number)) for number in range(600)])

    events = list(job.events())

    assert len(events) == len({event.id for event in events}) == 601


def test_events_can_be_followed_while_they_happen(client: longshore.Client) -> None:
    job = client.submit(fetch.of("a"))
    seen = []

    for event in job.events(follow=True):
        seen.append(event.type)
        if event.type == "Task Pending":
            job.cancel()

    assert seen[-1] == "Job Cancelled"


def test_a_stream_can_be_left_before_its_end(client: longshore.Client) -> None:
    job = client.submit(fetch.of("a"))

    events = job.events(follow=True)
    first = next(events)
    events.close()

    assert first.type == "Job Created"
    assert list(job.output(follow=False)) == []


def test_a_task_that_is_not_of_the_job_is_refused(client: longshore.Client) -> None:
    job = client.submit(fetch.of("a"))

    with pytest.raises(UsageError, match="is not a task of"):
        job.result(fetch.of("a"))
    with pytest.raises(UsageError, match="is not a task of"):
        client.job(job.id).key_of(fetch.of("a"))
    with pytest.raises(NotFound):
        job.result("missing")


def test_a_job_that_ends_in_several_tasks_has_no_one_result(client: longshore.Client) -> None:
    job = client.job(client.submit([fetch.of("a"), fetch.of("b")]).id)

    with pytest.raises(UsageError, match=r"ends in 2 tasks \(fetch-1, fetch-2\): name one"):
        job.result()


def test_key_of_returns_the_key_of_a_call(client: longshore.Client) -> None:
    pages = fetch.of("a").with_options(key="front")

    assert client.submit(count.of(pages)).key_of(pages) == "front"


@pytest.mark.parametrize("ask", ["wait", "result", "results", "output", "events"])
def test_a_waiting_call_raises_the_error_that_ended_the_worker_of_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    async def broken(self: object) -> None:
        message = "no module named 'shop'"
        raise UsageError(message)

    errors = []

    def wait_for_job() -> None:
        with longshore.Client(tmp_path / "data", worker=True) as client:
            job = client.submit(fetch.of("a"))
            try:
                list(job.events(follow=True) if ask == "events" else getattr(job, ask)())
            except UsageError as error:
                errors.append(error)
                raise

    monkeypatch.setattr(Worker, "run", broken)

    with pytest.raises(UsageError, match="no module named 'shop'"):
        wait_for_job()
    # The call itself raised it, not only the closing of the client.
    assert len(errors) == 1
