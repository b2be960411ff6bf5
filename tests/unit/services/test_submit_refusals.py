"""What is no job is refused with all that is wrong with it, and nothing is stored."""

from pathlib import Path
from typing import Any

import pytest

from longshore.errors import InvalidJob, UsageError
from longshore.ports.backend import Backend
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    INPUT_LIMIT_BYTES,
    REQUEST,
    TASK_LIMIT,
    TENANT,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
)


async def nothing_is_stored(backend: Backend) -> bool:
    jobs = await backend.ledger.list_jobs(TENANT)
    tasks = await backend.ledger.list_tasks(TENANT)
    blobs = await backend.blobs.list_keys("")
    return not (jobs.items or tasks.items or blobs)


def chain(length: int) -> list[dict[str, Any]]:
    return [make_task(f"t{n}", *([f"t{n - 1}"] if n else [])) for n in range(length)]


REFUSED: list[tuple[str, Any, list[str]]] = [
    ("not an object", [], [""]),
    ("no tasks", {}, ["tasks"]),
    ("empty", {"tasks": []}, ["tasks"]),
    ("too many", {"tasks": chain(TASK_LIMIT + 1)}, ["tasks"]),
    ("a bad id", {"tasks": [make_task("a b")]}, ["tasks[0].taskId"]),
    ("an id too long", {"tasks": [make_task("a" * 129)]}, ["tasks[0].taskId"]),
    ("an id twice", {"tasks": [make_task("a"), make_task("a")]}, ["tasks[1].taskId"]),
    ("an unknown parent", {"tasks": [make_task("a", "z")]}, ["tasks[0].dependsOn[0]"]),
    ("its own parent", {"tasks": [make_task("a", "a")]}, ["tasks[0].dependsOn[0]"]),
    ("a cycle", {"tasks": [make_task("a", "b"), make_task("b", "a")]}, ["tasks[0].dependsOn[0]"]),
    ("an unknown name", {"tasks": [make_task(name="missing")]}, ["tasks[0].name"]),
    ("a large input", {"tasks": [make_task(input="x" * INPUT_LIMIT_BYTES)]}, ["tasks[0].input"]),
]


@pytest.mark.parametrize(
    ("document", "paths"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
@scenario
async def test_a_document_that_is_no_job_is_refused_and_nothing_is_stored(
    document: Any, paths: list[str], tmp_path: Path
) -> None:
    async with open_backend("atomic memory", tmp_path) as backend:
        harness = ServiceHarness(backend)

        with pytest.raises(InvalidJob) as caught:
            await harness.producer.submit(TENANT, REQUEST, document)

        assert [problem.path for problem in caught.value.problems] == paths
        assert await nothing_is_stored(backend)


@scenario
async def test_a_cycle_is_reported_in_sequence(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)

        with pytest.raises(InvalidJob, match="c -> b -> a -> c"):
            await harness.submit(make_task("c", "b"), make_task("b", "a"), make_task("a", "c"))


@scenario
async def test_all_problems_are_reported_at_once_including_those_that_only_the_store_shows(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)

        with pytest.raises(InvalidJob) as caught:
            await harness.submit(
                make_task("a", name="missing"),
                make_task("a b"),
                make_task("c", "z"),
                make_task("d", name="missing"),
                make_task("e", name="no name"),
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
    async with open_backend("memory", tmp_path) as backend:
        definitions = FlakyPort(backend.definitions, "get", times=0)
        harness = ServiceHarness(backend).with_ports(definitions=definitions)

        with pytest.raises(InvalidJob) as caught:
            await harness.submit(*(make_task(f"t{n}", name=f"name-{n}") for n in range(1000)))

        assert len(caught.value.problems) == 100
        assert definitions.calls == 100


@scenario
async def test_one_definition_is_looked_up_once_however_many_tasks_name_it(tmp_path: Path) -> None:
    async with open_backend("atomic memory", tmp_path) as backend:
        definitions = FlakyPort(backend.definitions, "get", times=0)
        harness = ServiceHarness(backend).with_ports(definitions=definitions)

        await harness.submit(*(make_task(f"t{n}") for n in range(50)))

        assert definitions.calls == 1


@pytest.mark.parametrize("request_id", ["", "x" * 257, "two\nlines"], ids=repr)
@scenario
async def test_a_request_id_that_is_none_is_refused(request_id: str, tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        with pytest.raises(UsageError):
            await ServiceHarness(backend).submit(make_task(), request_id=request_id)

        assert await nothing_is_stored(backend)
