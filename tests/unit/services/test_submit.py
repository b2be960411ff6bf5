"""A job is accepted whole and once, and all that it refers to is kept."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.events.codec import EVENT_SIZE_LIMIT_BYTES, properties_of
from longshore.core.tasks.states import JobState, Priority, TaskState
from longshore.errors import AlreadyExists, InvalidJob
from tests.unit.services.harness import (
    BACKENDS,
    IN_MEMORY,
    REQUEST,
    TENANT,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort, record_calls
from tests.unit.services.samples import LARGE
from tests.unit.services.samples import LARGE_DIAMOND as DIAMOND


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_accepted_job_has_its_rows_its_event_and_a_message_for_each_root(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)

        accepted = await harness.submit(*DIAMOND)

        assert accepted.created
        assert accepted.keys == ("a",)
        job = await harness.job()
        assert accepted.job == job.spec
        assert accepted.total == job.total == 4
        assert job.intents == ()
        assert accepted.state is job.state is JobState.RUNNING
        assert await harness.states() == {
            "a": TaskState.PENDING,
            "b": TaskState.WAITING,
            "c": TaskState.WAITING,
            "d": TaskState.WAITING,
        }
        assert await harness.job_event_types() == ["Job Created"]
        assert await harness.event_types("a") == ["Task Pending"]
        assert await harness.event_types("d") == []
        assert await harness.messages() == [f'{{"requestId":"{task_id("a")}"}}']


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_app_of_a_job_is_in_its_events_and_those_of_all_its_tasks(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        producer = ServiceHarness(backend).producer
        document = {"tasks": [make_task("a")], "app": "billing"}  # not that of the service

        job_id = (await producer.submit(TENANT, "of another app", document)).job.id
        await producer.add_tasks(TENANT, job_id, "more", {"tasks": [make_task("b")]})

        entities = [f"JOB#{job_id}", f"TASK#{job_id}_a", f"TASK#{job_id}_b"]
        apps = [[e.app for e in await backend.events.history(TENANT, name)] for name in entities]
        assert apps == [["billing", "billing"], ["billing"], ["billing"]]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_keeps_the_newest_version_of_its_definition(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        own = Definition(
            name="own",
            runner=RunnerKind.COMMAND,
            overridable=("argv",),
            queue="slow",
            priority=Priority.LOW,
        )
        await backend.definitions.put(TENANT, own)
        await backend.definitions.put(
            TENANT, Definition(name="own", runner=RunnerKind.PYTHON, queue="fast")
        )

        await harness.submit(make_task(name="own"), make_task("b", name="own", queue="other"))
        await backend.definitions.delete(TENANT, "own")

        assert (await harness.task("a")).spec.definition_version == 2
        assert (await harness.task("a")).spec.queue == "fast"
        assert (await harness.task("b")).spec.queue == "other"
        with pytest.raises(InvalidJob):
            await harness.submit(make_task(name="own"), request_id="another")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_same_request_gives_the_same_job_and_the_same_answer(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        first = await harness.submit(*DIAMOND)
        await harness.complete(task_id("a"))
        backwards = {"tasks": [dict(reversed(task.items())) for task in DIAMOND]}

        again = await harness.producer.submit(TENANT, REQUEST, backwards)

        assert not again.created
        assert again.job == (await harness.job()).spec
        assert again.job.id == first.job.id
        assert again.keys == first.keys
        assert (await harness.job_event_types()).count("Job Created") == 1
        assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_same_request_id_with_another_body_is_refused_and_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task(input=LARGE))
        before = await harness.job(), await harness.task("a"), await backend.blobs.list_keys("")

        with pytest.raises(AlreadyExists):
            await harness.submit(make_task(input=LARGE + "!"))

        assert (
            await harness.job(),
            await harness.task("a"),
            await backend.blobs.list_keys(""),
        ) == before


@scenario
async def test_the_same_request_is_known_also_when_its_definition_is_gone(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await backend.definitions.put(
            TENANT, Definition(name="own", runner=RunnerKind.COMMAND, overridable=("argv",))
        )
        await harness.submit(make_task(name="own"))
        await backend.definitions.delete(TENANT, "own")

        again = await harness.submit(make_task(name="own"))

        assert not again.created


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_moment_of_yaml_is_accepted_on_every_ledger(kind: str, tmp_path: Path) -> None:
    moment = datetime(2031, 1, 1, tzinfo=UTC)
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)

        await harness.submit(make_task(runAt=moment))

        assert (await harness.task("a")).due_at == moment


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_everything_that_a_row_refers_to_is_stored_before_the_row(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        watched, calls = record_calls(backend)
        children = [f"child-{n}" for n in range(200)]

        await ServiceHarness(watched).submit(
            make_task("root", input=LARGE), *(make_task(key, "root") for key in children)
        )

        step = "ledger.create_jobs" if backend.ledger.atomic else "ledger.commit"
        first_commit = calls.index(step)
        assert calls[:first_commit].count("blobs.put") >= 3  # input, dependents, graph
        assert "blobs.put" not in calls[first_commit:]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_large_input_comes_back_as_it_was(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)

        await harness.submit(make_task(input={"text": LARGE}))
        row = await harness.task("a")

        assert row.spec.input is not None
        assert row.spec.input.text is None
        assert await harness.documents.load(row.spec.input) == {"text": LARGE}


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize(
    ("port", "method"),
    [("ledger", "get_job"), ("definitions", "get"), ("blobs", "put"), ("ledger", "commit")],
)
@scenario
async def test_two_clients_with_one_request_id_and_two_inputs_do_not_harm_each_other(
    kind: str, port: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        other = make_task("a", input={"text": LARGE + "other"})
        stored: list[str] = []

        async def the_other_client_submits() -> None:
            try:
                await harness.submit(other)
            except AlreadyExists:
                return
            stored.append("other")

        if method == "commit" and backend.ledger.atomic:
            method = "create_jobs"
        interposed = InterposedPort(getattr(backend, port), method, before=the_other_client_submits)
        try:
            mine = make_task("a", input={"text": LARGE + "mine"})
            await harness.with_ports(**{port: interposed}).submit(mine)
        except AlreadyExists:
            pass
        else:
            stored.append("mine")

        row = await harness.task("a")
        assert interposed.calls
        assert len(stored) == 1
        assert await harness.documents.load(row.spec.input) == {"text": LARGE + stored[0]}
        assert (await harness.job_event_types()).count("Job Created") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_event_of_a_job_with_thousands_of_tasks_is_whole_for_its_reader(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        tasks = [
            make_task("large", input={"text": LARGE}),
            make_task("odd", input={"_ref": {"key": "k"}}),
        ]
        tasks += [make_task(f"task-number-{n}", "large") for n in range(4_998)]

        await harness.submit(*tasks)
        created = await backend.events.latest(TENANT, f"JOB#{job_id()}")
        assert created is not None
        carried = properties_of(created)
        original = await harness.documents.restore(carried)

        if not backend.ledger.atomic:
            assert "tasks" not in carried
            assert len(json.dumps(carried)) < EVENT_SIZE_LIMIT_BYTES
        assert original["totalTasks"] == 5_000
        assert [task["taskId"] for task in original["tasks"]] == [task["taskId"] for task in tasks]
        assert [task["input"] for task in original["tasks"]] == [task["input"] for task in tasks]


@scenario
async def test_a_task_may_be_called_as_a_reference_is(tmp_path: Path) -> None:
    async with open_backend("atomic memory", tmp_path) as backend:
        harness = ServiceHarness(backend)

        await harness.submit(make_task("_literal"))
        await harness.finish()
        ended = await backend.events.latest(TENANT, f"JOB#{job_id()}")
        assert ended is not None
        original = await harness.documents.restore(properties_of(ended))

        assert original["taskStatuses"] == {"_literal": "completed"}
