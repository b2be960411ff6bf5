"""Rules that ``Application`` applies itself, beside calling services."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from longshore.core.dead_letters import DeadLetterFilter
from longshore.errors import CommandRefused, NotFound
from longshore.services.app import Application, Caller, NoResult
from tests.interfaces.test_application import TENANT, Store, full_store, job_id, task_id

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
