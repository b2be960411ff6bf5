"""Rules that ``Application`` applies itself, beside calling services."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from longshore.core.dead_letters import DeadLetterFilter
from longshore.errors import CommandRefused, NotFound
from longshore.services.app import Application, Caller, NoResult
from tests.interfaces.test_application import TENANT, Store, a_task, full_store, job_id, task_id

ALICE = Caller(tenant=TENANT, name="alice", is_operator=False, is_admin=False)


def with_store(scenario: Callable[[Store, Application], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        store = await full_store()
        return await scenario(store, store.services.application(ALICE))

    return asyncio.run(run())


def test_a_command_names_its_caller_in_the_history() -> None:
    async def scenario(store: Store, application: Application) -> str:
        await application.cancel_job(job_id("open"), reason="no longer needed")
        history = await store.services.backend.events.history(TENANT, f"JOB#{job_id('open')}")
        return str(getattr(history[-1].body, "by", None))

    assert with_store(scenario) == "alice"


def test_resume_without_tasks_resumes_those_that_failed_or_were_cancelled() -> None:
    async def scenario(_: Store, application: Application) -> tuple[list[str], dict[str, str]]:
        resumed = await application.resume(job_id("failed"))
        return resumed.tasks, resumed.refused

    tasks, refused = with_store(scenario)

    assert (tasks, refused) == (["x"], {})


def test_a_job_without_failed_or_cancelled_tasks_cannot_be_resumed() -> None:
    async def scenario(_: Store, application: Application) -> None:
        await application.resume(job_id("done"))

    with pytest.raises(CommandRefused, match="failed or was cancelled"):
        with_store(scenario)


def test_a_task_without_a_result_says_so() -> None:
    async def scenario(_: Store, application: Application) -> None:
        await application.get_result(task_id("open", "p"))

    with pytest.raises(NoResult, match="has no result"):
        with_store(scenario)


def test_a_caller_without_the_operator_scope_does_not_see_dead_messages() -> None:
    async def scenario(store: Store, application: Application) -> tuple[int, int]:
        operator = store.services.application(Caller(tenant=TENANT, name="bob"))
        everything = await operator.list_dead_letters(DeadLetterFilter())
        orphans = [item for item in everything.dead_letters if item.kind == "message"]
        assert orphans
        for orphan in orphans:
            with pytest.raises(NotFound):
                await application.get_dead_letter(orphan.id)
        visible = await application.list_dead_letters(DeadLetterFilter())
        return everything.count - visible.count, len(orphans)

    hidden, orphans = with_store(scenario)

    assert hidden == orphans


def test_each_submit_without_a_request_id_is_a_new_job() -> None:
    async def scenario(_: Store, application: Application) -> tuple[str, str]:
        document = {"tasks": [{"taskId": "t", "name": "command", "input": {"argv": ["true"]}}]}
        first = await application.submit(document)
        second = await application.submit(document)
        return first.job_id, second.job_id

    first, second = with_store(scenario)

    assert first != second


def test_resuming_a_queue_that_is_not_paused_is_refused() -> None:
    async def scenario(_: Store, application: Application) -> None:
        await application.resume_queue("never-paused")

    with pytest.raises(CommandRefused, match="not paused"):
        with_store(scenario)


def test_a_cancellation_by_another_tenant_changes_nothing() -> None:
    async def scenario(store: Store, _: Application) -> None:
        ledger = store.services.backend.ledger
        before = await ledger.get_job(job_id("open"))
        other = store.services.application(Caller(tenant="other", name="eve"))
        with pytest.raises(NotFound):
            await other.cancel_job(job_id("open"))
        assert await ledger.get_job(job_id("open")) == before

    with_store(scenario)


async def files_of(application: Application, task: str) -> dict[str, str]:
    """The files of a task with their content, read with the listing."""
    listed = (await application.list_artifacts(task)).artifacts
    files = {}
    for item in listed:
        content = await (await application.open_artifact(task, item.name)).read()
        assert len(content) == item.bytes, item.name
        files[item.name] = content.decode()
    return files


def test_every_ended_task_has_a_result_file_and_a_summary_without_storing_them() -> None:
    async def scenario(store: Store, application: Application) -> list[dict[str, str]]:
        await store.submit("files", a_task("small"), a_task("large"))
        await store.complete("files", "small", {"n": 1, "text": "zwölf"})
        await store.complete("files", "large", "x" * 5_000)
        keys = list(await store.services.backend.blobs.list_keys("task/logs/", limit=1_000))
        assert not [key for key in keys if task_id("files", "") in key]
        tasks = [task_id("files", "small"), task_id("files", "large"), task_id("failed", "x")]
        return [await files_of(application, task) for task in tasks]

    small, large, failed = with_store(scenario)

    assert small == {
        "attempt-1/artifacts/task-result.json": '{"n":1,"text":"zwölf"}',
        "attempt-1/logs/summary.log": "task: completed after 1s\n",
    }
    assert large["attempt-1/artifacts/task-result.json"] == f'"{"x" * 5_000}"'
    (summary,) = failed.values()
    assert summary.startswith("task: failed after 1s")
    assert "broke" in summary


def test_a_task_that_has_not_ended_has_no_such_files() -> None:
    async def scenario(store: Store, application: Application) -> list[dict[str, str]]:
        tasks = [task_id("running", "r"), task_id("open", "p")]
        return [await files_of(application, task) for task in tasks]

    assert with_store(scenario) == [{}, {}]


def test_a_file_that_an_attempt_stored_has_precedence_and_pages_are_in_order() -> None:
    async def scenario(store: Store, application: Application) -> tuple[dict[str, str], list[str]]:
        task = task_id("files", "a")
        await store.submit("files", a_task("a"))
        await store.complete("files", "a", 1)
        folder = f"task/logs/{task}/attempt-1"
        for name in ("logs/summary.log", "artifacts/a.csv", "artifacts/z.csv"):
            await store.services.backend.blobs.put(f"{folder}/{name}", b"own")
        names, after = [], ""
        while page := (await application.list_artifacts(task, limit=1, after=after)).artifacts:
            names += [item.name for item in page]
            after = names[-1]
        return await files_of(application, task), names

    files, names = with_store(scenario)

    assert files["attempt-1/logs/summary.log"] == "own"
    assert names == sorted(files)
    assert [name.rpartition("/")[2] for name in names] == [
        "a.csv",
        "task-result.json",
        "z.csv",
        "summary.log",
    ]
