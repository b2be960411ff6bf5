"""Jobs are accepted whole or not at all, once, and whatever dies in between."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.definition import Definition, RunnerKind
from longshore.core.events.codec import properties_of
from longshore.core.overflow import EVENT_SIZE_LIMIT_BYTES
from longshore.core.states import JobState, Priority, TaskState
from longshore.core.values import INLINE_LIMIT_BYTES
from longshore.errors import AlreadyExists, BackendUnavailable, InvalidJob, UsageError
from longshore.ports.backend import Backend
from longshore.testing.flaky import Flaky
from tests.unit.services.ports import Crash, Interposed, crashing, recorded
from tests.unit.services.stage import (
    BACKENDS,
    IN_MEMORY,
    INPUT_LIMIT_BYTES,
    REQUEST,
    TASK_LIMIT,
    TENANT,
    Stage,
    a_task,
    job_id,
    opened,
    scenario,
    task_id,
)

LARGE = "x" * (INLINE_LIMIT_BYTES * 2)
DIAMOND = (
    a_task("a"),
    a_task("b", "a"),
    a_task("c", "a", input={"argv": ["echo", LARGE]}),
    a_task("d", "b", "c"),
)
TWO_MINUTES = timedelta(minutes=2)


async def nothing_is_stored(backend: Backend) -> bool:
    jobs = await backend.ledger.list_jobs(TENANT)
    tasks = await backend.ledger.list_tasks(TENANT)
    blobs = await backend.blobs.keys("")
    return not (jobs.items or tasks.items or blobs)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_accepted_job_has_its_rows_its_event_and_a_ring_for_each_root(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)

        accepted = await stage.submit(*DIAMOND)

        assert accepted.created
        assert accepted.roots == ("a",)
        assert accepted.job == await stage.job()
        assert accepted.job.total == 4
        assert accepted.job.intents == ()
        assert accepted.job.state is JobState.RUNNING
        assert await stage.states() == {
            "a": TaskState.PENDING,
            "b": TaskState.WAITING,
            "c": TaskState.WAITING,
            "d": TaskState.WAITING,
        }
        assert await stage.job_told() == ["Job Created"]
        assert await stage.told("a") == ["Task Pending"]
        assert await stage.told("d") == []
        assert await stage.messages() == [f'{{"requestId":"{task_id("a")}"}}']


def chain(length: int) -> list[dict[str, Any]]:
    return [a_task(f"t{n}", *([f"t{n - 1}"] if n else [])) for n in range(length)]


REFUSED: list[tuple[str, Any, list[str]]] = [
    ("not an object", [], [""]),
    ("no tasks", {}, ["tasks"]),
    ("empty", {"tasks": []}, ["tasks"]),
    ("too many", {"tasks": chain(TASK_LIMIT + 1)}, ["tasks"]),
    ("a bad id", {"tasks": [a_task("a b")]}, ["tasks[0].taskId"]),
    ("an id too long", {"tasks": [a_task("a" * 129)]}, ["tasks[0].taskId"]),
    ("an id twice", {"tasks": [a_task("a"), a_task("a")]}, ["tasks[1].taskId"]),
    ("an unknown parent", {"tasks": [a_task("a", "z")]}, ["tasks[0].dependsOn[0]"]),
    ("its own parent", {"tasks": [a_task("a", "a")]}, ["tasks[0].dependsOn[0]"]),
    ("a cycle", {"tasks": [a_task("a", "b"), a_task("b", "a")]}, ["tasks[0].dependsOn[0]"]),
    ("an unknown name", {"tasks": [a_task(name="nobody")]}, ["tasks[0].name"]),
    ("a large input", {"tasks": [a_task(input="x" * INPUT_LIMIT_BYTES)]}, ["tasks[0].input"]),
]


@pytest.mark.parametrize(
    ("document", "paths"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
@scenario
async def test_a_document_that_is_no_job_is_refused_and_nothing_is_stored(
    document: Any, paths: list[str], tmp_path: Path
) -> None:
    async with opened("atomic memory", tmp_path) as backend:
        stage = Stage(backend)

        with pytest.raises(InvalidJob) as caught:
            await stage.producer.submit(TENANT, REQUEST, document)

        assert [problem.path for problem in caught.value.problems] == paths
        assert await nothing_is_stored(backend)


@scenario
async def test_a_cycle_is_told_in_order(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)

        with pytest.raises(InvalidJob, match="c -> b -> a -> c"):
            await stage.submit(a_task("c", "b"), a_task("b", "a"), a_task("a", "c"))


@scenario
async def test_all_problems_are_told_at_once_also_those_that_only_the_store_knows(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)

        with pytest.raises(InvalidJob) as caught:
            await stage.submit(
                a_task("a", name="nobody"),
                a_task("a b"),
                a_task("c", "z"),
                a_task("d", name="nobody"),
                a_task("e", name="no name"),
            )

        assert sorted(problem.path for problem in caught.value.problems) == [
            "tasks[0].name",
            "tasks[1].taskId",
            "tasks[2].dependsOn[0]",
            "tasks[3].name",
            "tasks[4].name",
        ]


@scenario
async def test_of_very_many_unknown_names_only_some_are_looked_up(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        definitions = Flaky(backend.definitions, "get", times=0)
        stage = Stage(backend).with_ports(definitions=definitions)

        with pytest.raises(InvalidJob) as caught:
            await stage.submit(*(a_task(f"t{n}", name=f"name-{n}") for n in range(1000)))

        assert len(caught.value.problems) == 100
        assert definitions.calls == 100


@scenario
async def test_one_definition_is_looked_up_once_however_many_tasks_name_it(tmp_path: Path) -> None:
    async with opened("atomic memory", tmp_path) as backend:
        definitions = Flaky(backend.definitions, "get", times=0)
        stage = Stage(backend).with_ports(definitions=definitions)

        await stage.submit(*(a_task(f"t{n}") for n in range(50)))

        assert definitions.calls == 1


@pytest.mark.parametrize("request_id", ["", "x" * 257, "two\nlines"], ids=repr)
@scenario
async def test_a_request_id_that_is_none_is_refused(request_id: str, tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        with pytest.raises(UsageError):
            await Stage(backend).submit(a_task(), request_id=request_id)

        assert await nothing_is_stored(backend)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_keeps_the_newest_version_of_its_definition(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        own = Definition(name="own", runner=RunnerKind.COMMAND, queue="slow", priority=Priority.LOW)
        await backend.definitions.put(TENANT, own)
        await backend.definitions.put(
            TENANT, Definition(name="own", runner=RunnerKind.PYTHON, queue="fast")
        )

        await stage.submit(a_task(name="own"), a_task("b", name="own", queue="other"))
        await backend.definitions.delete(TENANT, "own")

        assert (await stage.task("a")).spec.definition_version == 2
        assert (await stage.task("a")).spec.queue == "fast"
        assert (await stage.task("b")).spec.queue == "other"
        with pytest.raises(InvalidJob):
            await stage.submit(a_task(name="own"), request_id="another")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_same_request_gives_the_same_job_and_the_same_answer(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        first = await stage.submit(*DIAMOND)
        await stage.complete(task_id("a"))
        backwards = {"tasks": [dict(reversed(task.items())) for task in DIAMOND]}

        again = await stage.producer.submit(TENANT, REQUEST, backwards)

        assert not again.created
        assert again.job == await stage.job()
        assert again.job.id == first.job.id
        assert again.roots == first.roots
        assert (await stage.job_told()).count("Job Created") == 1
        assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_same_request_id_with_another_body_is_refused_and_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task(input=LARGE))
        before = await stage.job(), await stage.task("a"), await backend.blobs.keys("")

        with pytest.raises(AlreadyExists):
            await stage.submit(a_task(input=LARGE + "!"))

        assert (await stage.job(), await stage.task("a"), await backend.blobs.keys("")) == before


@scenario
async def test_the_same_request_is_known_also_when_its_definition_is_gone(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        await backend.definitions.put(TENANT, Definition(name="own", runner=RunnerKind.COMMAND))
        await stage.submit(a_task(name="own"))
        await backend.definitions.delete(TENANT, "own")

        again = await stage.submit(a_task(name="own"))

        assert not again.created


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_moment_of_yaml_is_accepted_on_every_ledger(kind: str, tmp_path: Path) -> None:
    moment = datetime(2031, 1, 1, tzinfo=UTC)
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)

        await stage.submit(a_task(runAt=moment))

        assert (await stage.task("a")).due_at == moment


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_whatever_a_row_refers_to_is_stored_before_the_row(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        watched, calls = recorded(backend)
        children = [f"child-{n}" for n in range(200)]

        await Stage(watched).submit(
            a_task("root", input=LARGE), *(a_task(key, "root") for key in children)
        )

        first_commit = calls.index("ledger.commit")
        assert calls[:first_commit].count("blobs.put") >= 3  # input, dependents, graph
        assert "blobs.put" not in calls[first_commit:]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_large_input_comes_back_as_it_was(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)

        await stage.submit(a_task(input={"text": LARGE}))
        row = await stage.task("a")

        assert row.spec.input is not None
        assert not row.spec.input.inline
        assert await stage.documents.load(row.spec.input) == {"text": LARGE}


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize(
    ("port", "method"),
    [("ledger", "job"), ("definitions", "get"), ("blobs", "put"), ("ledger", "commit")],
)
@scenario
async def test_two_clients_with_one_request_id_and_two_inputs_do_not_harm_each_other(
    kind: str, port: str, method: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        other = a_task("a", input={"text": LARGE + "other"})
        kept: list[str] = []

        async def the_other_client_submits() -> None:
            try:
                await stage.submit(other)
            except AlreadyExists:
                return
            kept.append("other")

        interposed = Interposed(getattr(backend, port), method, before=the_other_client_submits)
        try:
            mine = a_task("a", input={"text": LARGE + "mine"})
            await stage.with_ports(**{port: interposed}).submit(mine)
        except AlreadyExists:
            pass
        else:
            kept.append("mine")

        row = await stage.task("a")
        assert interposed.calls
        assert len(kept) == 1
        assert await stage.documents.load(row.spec.input) == {"text": LARGE + kept[0]}
        assert (await stage.job_told()).count("Job Created") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_event_of_a_job_with_thousands_of_tasks_is_whole_for_its_reader(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        tasks = [
            a_task("large", input={"text": LARGE}),
            a_task("odd", input={"_ref": {"key": "k"}}),
        ]
        tasks += [a_task(f"task-number-{n}", "large") for n in range(4_998)]

        await stage.submit(*tasks)
        created = await backend.events.latest(TENANT, f"JOB#{job_id()}")
        assert created is not None
        carried = properties_of(created)
        whole = await stage.documents.whole(carried)

        assert "tasks" not in carried
        assert len(json.dumps(carried)) < EVENT_SIZE_LIMIT_BYTES
        assert whole["totalTasks"] == 5_000
        assert [task["taskId"] for task in whole["tasks"]] == [task["taskId"] for task in tasks]
        assert [task["input"] for task in whole["tasks"]] == [task["input"] for task in tasks]


@scenario
async def test_a_task_may_be_called_as_a_reference_is(tmp_path: Path) -> None:
    async with opened("atomic memory", tmp_path) as backend:
        stage = Stage(backend)

        await stage.submit(a_task("_literal"))
        await stage.finish()
        ended = await backend.events.latest(TENANT, f"JOB#{job_id()}")
        assert ended is not None
        whole = await stage.documents.whole(properties_of(ended))

        assert whole["taskStatuses"] == {"_literal": "completed"}


async def everything_is_in_order(stage: Stage) -> None:
    """Whatever died before, what is here now can be run to its end."""
    await stage.passes(TWO_MINUTES)
    await stage.sweeper.sweep()
    states = await stage.states()
    job = await stage.job()

    assert job.intents == ()
    assert len(states) == job.total == len(DIAMOND)
    assert await stage.messages() == [f'{{"requestId":"{task_id("a")}"}}']
    await stage.finish()
    assert (await stage.job()).state is JobState.COMPLETED
    assert (await stage.job_told()) == ["Job Created", "Job Completed"]
    for key in states:
        assert (await stage.told(key)).count("Task Pending") == 1
    row = await stage.task("c")
    assert await stage.documents.load(row.spec.input) == DIAMOND[2]["input"]


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_a_submit_that_dies_at_any_call_is_finished_by_the_sweeper_or_never_was(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    outcomes = []
    for at in range(1, 100):
        async with opened(kind, tmp_path) as backend:
            dying = crashing(backend, at, after_the_call=after_the_call)
            stage = Stage(backend)
            try:
                await Stage(dying).submit(*DIAMOND)
            except Crash:
                outcomes.append("crashed")
            else:
                outcomes.append("passed")

            if await backend.ledger.job(job_id()) is None:
                assert await stage.states() == {}
                assert await stage.messages() == []
                outcomes[-1] = "never was"
                assert (await stage.submit(*DIAMOND)).created
            await everything_is_in_order(stage)
        if outcomes[-1] == "passed":
            break

    assert outcomes[-1] == "passed"
    assert {"never was", "crashed"} <= set(outcomes)


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_a_submit_that_died_at_any_call_can_be_repeated(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    for at in range(1, 100):
        async with opened(kind, tmp_path) as backend:
            stage = Stage(backend)
            try:
                await Stage(crashing(backend, at, after_the_call=after_the_call)).submit(*DIAMOND)
            except Crash:
                again = await stage.submit(*DIAMOND)
            else:
                break

            assert again.job.id == job_id()
            assert again.roots == ("a",)
            await everything_is_in_order(stage)
    assert at > 5


@pytest.mark.parametrize("happens", ["sweep", "work"])
@scenario
async def test_whoever_comes_between_any_two_writes_of_a_submit_does_no_harm(
    happens: str, tmp_path: Path
) -> None:
    for at in range(1, 100):
        async with opened("memory", tmp_path) as backend:
            stage = Stage(backend)

            async def somebody_is_fast(stage: Stage = stage) -> None:
                await (stage.sweeper.sweep() if happens == "sweep" else stage.finish())

            ledger = Interposed(backend.ledger, "commit", after=somebody_is_fast, at=at)
            accepted = await stage.with_ports(ledger=ledger).submit(*DIAMOND)
            if ledger.calls < at:
                break
            await stage.finish()

            job = await stage.job()
            assert accepted.created
            assert job.state is JobState.COMPLETED
            assert job.intents == ()
            for key in "abcd":
                assert (await stage.told(key)).count("Task Pending") == 1
    assert at > 5


@scenario
async def test_two_sweepers_that_finish_one_submit_count_it_once(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        with pytest.raises(Crash):
            await Stage(crashing(backend, 8, after_the_call=True)).submit(*DIAMOND)
        one, other = Stage(backend), Stage(backend)
        ledger = Interposed(backend.ledger, "commit", before=other.sweeper.sweep, at=2)
        one = one.with_ports(ledger=ledger)

        await one.sweeper.sweep()

        finished = [stage.sweeper.repairs.intents_finished for stage in (one, other)]
        assert finished == [0, 1]
        assert (await other.job()).intents == ()


@scenario
async def test_a_job_accepted_under_a_higher_limit_is_finished_under_a_lower_one(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        with pytest.raises(Crash):
            await Stage(crashing(backend, 8, after_the_call=True)).submit(*DIAMOND)
        stage = Stage(backend, task_limit=1)

        await everything_is_in_order(stage)


@scenario
async def test_a_submit_is_finished_with_the_definitions_it_began_with(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        own = Definition(name="own", runner=RunnerKind.COMMAND, queue="first")
        await backend.definitions.put(TENANT, own)
        tasks = [a_task(key, name="own") for key in "abcd"]
        with pytest.raises(Crash):
            await Stage(crashing(backend, 8, after_the_call=True)).submit(*tasks)
        half = len(await stage.states())
        await backend.definitions.put(TENANT, replace(own, queue="second"))

        await stage.sweeper.sweep()

        rows = [await stage.task(key) for key in "abcd"]
        assert 0 < half < 4
        assert {(row.spec.queue, row.spec.definition_version) for row in rows} == {("first", 1)}


@scenario
async def test_a_submit_that_cannot_be_finished_does_not_keep_others_from_it(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        dying = Stage(crashing(backend, 8, after_the_call=True))
        with pytest.raises(Crash):
            await dying.submit(*DIAMOND, request_id="stuck")
        for key in await backend.blobs.keys("jobs/"):
            await backend.blobs.delete(key)
        with pytest.raises(Crash):
            await Stage(crashing(backend, 8, after_the_call=True)).submit(*DIAMOND)

        await stage.sweeper.sweep()

        assert (await stage.job("stuck")).intents != ()
        assert (await stage.job()).intents == ()


@pytest.mark.parametrize(
    ("port", "method"),
    [("ledger", "job"), ("definitions", "get"), ("blobs", "put"), ("ledger", "commit")],
)
@scenario
async def test_a_store_out_of_reach_is_told_and_a_later_try_succeeds(
    port: str, method: str, tmp_path: Path
) -> None:
    async with opened("atomic memory", tmp_path) as backend:
        stage = Stage(backend)
        flaky = Flaky(getattr(backend, port), method, times=None)

        with pytest.raises(BackendUnavailable):
            await stage.in_time(stage.with_ports(**{port: flaky}).submit(*DIAMOND))
        accepted = await stage.submit(*DIAMOND)

        assert accepted.created
        await everything_is_in_order(stage)
