"""A client submits and reads jobs; no task runs, because there is no worker."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import longshore
from longshore.adapters.shared import failpoints
from longshore.core.definitions.reader import read_definition
from longshore.core.ids import job_id_of
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import JobState, Priority, TaskState
from longshore.errors import (
    AlreadyExists,
    BackendUnavailable,
    ConfigurationError,
    InvalidJob,
    NotFound,
    TaskCancelledError,
    UsageError,
)
from longshore.settings import load_settings
from longshore.wiring.services import open_services
from tests.interfaces.python_tasks import count, fetch

COMMAND = {"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["true"]}}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def client(folder: Path) -> Iterator[longshore.Client]:
    with longshore.Client(folder) as opened:
        yield opened


def stored(folder: Path, *task_ids: str) -> list[TaskRow]:
    """The rows, read as another process would."""

    async def read() -> list[TaskRow]:
        async with open_services(load_settings({"data_dir": folder})) as services:
            return await services.backend.ledger.get_tasks(task_ids)

    return asyncio.run(read())


def versions(folder: Path, name: str) -> int:
    async def read() -> int:
        async with open_services(load_settings({"data_dir": folder})) as services:
            definition = await services.backend.definitions.get("default", name)
            return definition.version if definition else 0

    return asyncio.run(read())


def test_a_job_is_on_disk_when_submit_returns(client: longshore.Client, folder: Path) -> None:
    job = client.submit(count.of(fetch.of("a")))

    first, second = stored(folder, f"{job.id}_fetch", f"{job.id}_count")

    assert (first.state, second.state) == (TaskState.PENDING, TaskState.WAITING)
    assert second.spec.queue == "counting"
    assert second.spec.priority is Priority.HIGH
    assert second.spec.retry.max_attempts == 5


def test_the_same_request_is_the_same_job(client: longshore.Client) -> None:
    first = client.submit(fetch.of("a"), request_id="nightly")
    again = client.submit(fetch.of("a"), request_id="nightly")
    other = client.submit(fetch.of("a"))

    assert first.id == again.id == job_id_of("default", "nightly")
    assert (first.created, again.created) == (True, False)
    assert first.request_id == "nightly"
    assert other.id != first.id
    assert other.request_id


def test_the_same_request_with_another_input_is_refused(client: longshore.Client) -> None:
    client.submit(fetch.of("a"), request_id="nightly")

    with pytest.raises(AlreadyExists):
        client.submit(fetch.of("b"), request_id="nightly")


def test_a_definition_gets_a_new_version_only_when_it_changes(
    client: longshore.Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit(fetch.of("a"))
    client.submit(fetch.of("b"))
    assert versions(folder, fetch.name) == 1

    changed = longshore.task(queue="other")(fetch.__wrapped__)
    monkeypatch.setattr("tests.interfaces.python_tasks.fetch", changed)
    job = client.submit(changed.of("a"))

    assert versions(folder, fetch.name) == 2
    (row,) = stored(folder, f"{job.id}_fetch")
    assert (row.spec.definition_version, row.spec.queue) == (2, "other")


def test_options_of_a_submit_go_into_the_tasks(client: longshore.Client, folder: Path) -> None:
    moment = datetime(2130, 1, 31, 12, tzinfo=UTC)

    late = client.submit(fetch.of("a"), run_at=moment, queue="slow", name="monthly")
    later = client.submit(COMMAND, delay=timedelta(hours=1), priority="low", max_attempts=7)

    (first,) = stored(folder, f"{late.id}_fetch")
    (second,) = stored(folder, f"{later.id}_a")
    assert (first.spec.not_before, first.spec.queue) == (moment, "slow")
    assert late.status().name == "monthly"
    assert second.spec.not_before - second.spec.created_at == timedelta(hours=1)
    assert (second.spec.priority, second.spec.retry.max_attempts) == (Priority.LOW, 7)


def test_a_job_that_cannot_be_accepted_stores_nothing(folder: Path) -> None:
    settings = {"sizes.max_tasks_per_job": 2}
    calls = [fetch.of(str(number)) for number in range(3)]

    with (
        longshore.Client(folder, settings=settings) as client,
        pytest.raises(InvalidJob, match="3 tasks are more than the 2"),
    ):
        client.submit(calls)

    assert versions(folder, fetch.name) == 0


def test_a_document_brings_its_own_definitions(client: longshore.Client) -> None:
    document = {
        "definitions": [{"name": "list", "runner": "command", "options": {"argv": ["ls"]}}],
        "tasks": [{"taskId": "here", "name": "list"}],
    }

    status = client.submit(document).status()

    assert status.tasks["here"].state is TaskState.PENDING
    with pytest.raises(InvalidJob, match="no definition is called 'missing'"):
        client.submit({"tasks": [{"taskId": "a", "name": "missing"}]})


def test_a_function_that_no_worker_could_find_is_refused(client: longshore.Client) -> None:
    with pytest.raises(UsageError, match="a lambda cannot be a task"):
        client.submit(longshore.task(lambda: 1).of())


def test_many_jobs_are_submitted_together_and_come_back_in_order(
    client: longshore.Client,
) -> None:
    ids = [f"request-{number}" for number in range(50)]

    jobs = client.submit_many((fetch.of(id_) for id_ in ids), request_ids=ids, priority="low")

    assert [job.id for job in jobs] == [job_id_of("default", id_) for id_ in ids]
    assert {job.status().total for job in jobs} == {1}
    assert len({job.id for job in client.submit_many([COMMAND] * 5)}) == 5


def test_submit_many_checks_all_jobs_before_it_sends_any(client: longshore.Client) -> None:
    with pytest.raises(UsageError, match="a lambda"):
        client.submit_many([fetch.of("a"), longshore.task(lambda: 1).of()], request_ids=["a", "b"])
    with pytest.raises(UsageError, match="1 jobs need as many request ids, not 2"):
        client.submit_many([fetch.of("a")], request_ids=["a", "b"])

    with pytest.raises(NotFound):
        client.job(job_id_of("default", "a"))


def test_submit_many_accepts_the_valid_jobs_beside_an_invalid_one(client: longshore.Client) -> None:
    wrong = {"tasks": [{"taskId": "a", "name": "missing"}]}

    with pytest.raises(InvalidJob):
        client.submit_many([COMMAND, wrong, COMMAND], request_ids=["a", "b", "c"])

    assert client.job(job_id_of("default", "c")).status().state is JobState.RUNNING


def test_a_job_is_found_by_its_id(client: longshore.Client) -> None:
    job = client.submit(fetch.of("a"), request_id="nightly")

    job_again = client.job(job.id)

    assert (job_again.id, job_again.request_id, job_again.created) == (job.id, "nightly", False)
    assert repr(job_again) == f"<job {job.id}>"
    with pytest.raises(NotFound, match="no job 'job-none'"):
        client.job("job-none")


def test_a_tenant_does_not_see_jobs_of_another(client: longshore.Client, folder: Path) -> None:
    job = client.submit(fetch.of("a"))

    with longshore.Client(folder, settings={"tenant": "other"}) as other, pytest.raises(NotFound):
        other.job(job.id)


def test_a_client_that_is_not_open_says_how_to_open_it(folder: Path) -> None:
    client = longshore.Client(folder)
    with pytest.raises(UsageError, match=r"with longshore\.Client\(\) as client"):
        client.submit(fetch.of("a"))
    with client:
        job = client.submit(fetch.of("a"))
    with pytest.raises(UsageError, match="not open"):
        job.status()


def test_a_client_can_be_opened_again_but_not_twice(folder: Path) -> None:
    client = longshore.Client(folder)
    threads = threading.active_count()
    with client:
        job = client.submit(fetch.of("a"))
        with pytest.raises(UsageError, match="open already"):
            client.__enter__()
    with client:
        assert client.job(job.id).status().total == 1

    assert threading.active_count() == threads


def test_a_data_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with (
        pytest.raises(BackendUnavailable, match=r"the data folder .* cannot be used"),
        longshore.Client(tmp_path / "file" / "data"),
    ):
        pass


def test_invalid_settings_are_refused_when_the_client_is_created(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="no setting is called 'worker"):
        longshore.Client(folder, settings={"worker.concurency": 5})


def test_the_folder_is_that_of_the_command_line_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with longshore.Client() as client:
        job = client.submit(fetch.of("a"))
        job.cancel()
        with pytest.raises(TaskCancelledError) as cancelled:
            job.result()

    assert (tmp_path / ".longshore" / "longshore.db").exists()
    assert cancelled.value.inspect_command == f"longshore logs {job.id}_fetch"


def test_the_asynchronous_client_does_the_same(folder: Path) -> None:
    async def scenario() -> None:
        async with longshore.AsyncClient(folder) as client:
            job = await client.submit(count.of(fetch.of("a")), request_id="nightly")
            again = await client.submit_many([count.of(fetch.of("a"))], request_ids=["nightly"])
            assert [item.id for item in again] == [job.id]
            assert (await job.status()).total == 2
            with pytest.raises(TimeoutError):
                await job.wait(timeout=0.02)
            await (await client.job(job.id)).cancel()
            assert await job.wait() is JobState.CANCELLED
            types = [event.type async for event in job.events()]
            assert types[-1] == "Job Cancelled"
            assert await job.resume(*["fetch"]) == ["fetch"]
        with pytest.raises(UsageError, match="not open"):
            await job.status()

    asyncio.run(scenario())


def test_a_client_serves_many_threads(client: longshore.Client) -> None:
    totals: list[Any] = []

    def submit(number: int) -> None:
        totals.append(client.submit(fetch.of(str(number))).status().total)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert totals == [1] * 8


@pytest.fixture
def without_portal(client: longshore.Client, monkeypatch: pytest.MonkeyPatch) -> longshore.Client:
    """A client whose calls fail if they need its event loop."""

    def refuse(work: Any) -> None:
        work.close()
        pytest.fail("the call has used the event loop")

    monkeypatch.setattr(client._portal, "call", refuse)
    return client


def test_a_submit_runs_on_the_thread_of_its_caller(
    without_portal: longshore.Client, folder: Path
) -> None:
    job = without_portal.submit(fetch.of("a"))
    large = without_portal.submit(fetch.of("x" * 200_000))
    many = without_portal.submit_many([fetch.of("b"), fetch.of("c")])

    assert job.created
    rows = stored(folder, *(f"{item.id}_fetch" for item in (job, large, *many)))
    assert len(rows) == 4


def test_a_submit_blocks_an_event_loop_that_runs_on_its_thread(
    without_portal: longshore.Client,
) -> None:
    async def submit() -> tuple[Any, asyncio.AbstractEventLoop]:
        return without_portal.submit(fetch.of("a")), asyncio.get_running_loop()

    with asyncio.Runner() as runner:
        job, loop = runner.run(submit())

        assert job.created
        assert loop is runner.get_loop()


def test_many_threads_submit_at_once(client: longshore.Client, folder: Path) -> None:
    jobs: list[Any] = []

    def submit(thread: int) -> None:
        jobs.extend(client.submit(fetch.of(f"{thread}-{number}")) for number in range(10))

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({job.id for job in jobs}) == 60
    assert len(stored(folder, *(f"{job.id}_fetch" for job in jobs))) == 60


def test_a_submit_whose_commit_failed_is_repeated_and_is_one_new_job(
    client: longshore.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit(fetch.of("first"))
    failures = iter(["write.committing", "write.committed"])
    awaited = next(failures)

    def fail(point: str) -> None:
        nonlocal awaited
        if point == awaited:
            awaited = next(failures, "")
            raise OSError("disk I/O error")

    monkeypatch.setattr(failpoints, "_armed", fail)
    job = client.submit(fetch.of("a"))
    monkeypatch.undo()

    assert awaited == ""
    assert job.created
    assert [event.type for event in job.events()].count("Job Created") == 1


def test_a_process_that_was_forked_opens_the_folder_again(
    client: longshore.Client, folder: Path
) -> None:
    before = client.submit(fetch.of("before"))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            job = client.submit(fetch.of("in the child"))
            try:
                before.status()
            except UsageError:
                os.write(writing, f"{job.id} {client.job(before.id).id}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        ids = answers.read().split()
    os.waitpid(child, 0)

    after = client.submit(fetch.of("after"))

    assert ids[1:] == [before.id]
    assert len(stored(folder, *(f"{id_}_fetch" for id_ in (before.id, after.id, ids[0])))) == 3


def test_a_child_that_was_forked_keeps_no_write_lock_of_its_dead_parent(folder: Path) -> None:
    program = f"""
import os, sys, signal
import longshore
from longshore.adapters.shared import failpoints

def stop(point):
    if point == "write.committing" and armed:
        if os.fork():
            os.kill(os.getpid(), signal.SIGKILL)
        sys.stdin.read()
        os._exit(0)

armed = False
with longshore.Client({str(folder)!r}) as client:
    client.submit({COMMAND!r})
    failpoints.arm(stop)
    armed = True
    client.submit({COMMAND!r})
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        assert process.wait(60) == -signal.SIGKILL
        with longshore.Client(folder) as client:
            assert client.submit(COMMAND).created


def test_many_jobs_are_one_transaction(client: longshore.Client) -> None:
    client.submit(COMMAND)
    commits: list[int] = []
    database = client._client.connection().services.backend.ledger._database  # type: ignore[attr-defined]
    database._writer._connection.set_commit_hook(lambda: bool(commits.append(1)))

    jobs = client.submit_many([COMMAND] * 300)

    assert len({job.id for job in jobs}) == 300
    assert len(commits) == 1
    client.submit_many([COMMAND] * 1200)
    assert 2 < len(commits) <= 5


def test_submit_many_again_gives_the_same_jobs_and_creates_the_missing(
    client: longshore.Client,
) -> None:
    ids = [f"r{number}" for number in range(5)]
    first = client.submit_many([COMMAND] * 3, request_ids=ids[:3])

    again = client.submit_many([COMMAND] * 5, request_ids=ids)

    assert [job.id for job in again[:3]] == [job.id for job in first]
    assert [job.created for job in again] == [False, False, False, True, True]


def test_a_definition_that_has_changed_since_the_last_submit_is_used(
    client: longshore.Client, folder: Path
) -> None:
    document = {"tasks": [{"taskId": "a", "name": "report", "input": {"argv": ["true"]}}]}
    definition = {
        "name": "report",
        "runner": "command",
        "overridable": ["argv"],
        "queue": "old",
    }
    client.submit({**document, "definitions": [definition]})

    async def change() -> None:
        async with open_services(load_settings({"data_dir": folder})) as services:
            newer = read_definition({**definition, "queue": "new"})
            await services.backend.definitions.put("default", newer)

    asyncio.run(change())
    job = client.submit(document)

    assert [row.spec.queue for row in stored(folder, f"{job.id}_a")] == ["new"]

    async def delete() -> None:
        async with open_services(load_settings({"data_dir": folder})) as services:
            await services.backend.definitions.delete("default", "report")

    asyncio.run(delete())
    with pytest.raises(InvalidJob, match="no definition is called 'report'"):
        client.submit(document)


def test_a_process_that_is_killed_in_submit_many_leaves_whole_jobs_only(folder: Path) -> None:
    document = {"tasks": [{**COMMAND["tasks"][0], "taskId": key} for key in "abc"]}
    program = f"""
import os, signal, sys
import longshore
from longshore.adapters.shared import failpoints

left = int(sys.argv[2])
def kill(point):
    global left
    if point == sys.argv[1]:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

with longshore.Client({str(folder)!r}) as client:
    failpoints.arm(kill)
    ids = [f"r{{number}}" for number in range(900)]
    client.submit_many([{document!r}] * 900, request_ids=ids)
"""
    counts = []
    for point, times in (
        ("create.rows_written", 1),
        ("write.committing", 2),
        ("write.committed", 2),
    ):
        ended = subprocess.run(
            [sys.executable, "-c", program, point, str(times)], check=False, timeout=120
        )
        assert ended.returncode == -signal.SIGKILL
        jobs = asyncio.run(listed_jobs(folder))
        counts.append(len(jobs))
        assert all(tasks == 3 for tasks in jobs.values())

    assert counts[0] == 0 < counts[1] < counts[2] < 900
    with longshore.Client(folder) as client:
        ids = [f"r{number}" for number in range(900)]
        created = [job.created for job in client.submit_many([document] * 900, request_ids=ids)]
    assert created.count(False) == counts[2]
    assert set(asyncio.run(listed_jobs(folder)).values()) == {3}


async def listed_jobs(folder: Path) -> dict[str, int]:
    """How many tasks each job has that is stored."""
    async with open_services(load_settings({"data_dir": folder})) as services:
        ledger = services.backend.ledger
        jobs = await ledger.list_jobs("default", limit=1000)
        return {row.id: len(await ledger.task_states(row.id)) for row in jobs.items}
