"""The ledger's clauses about tasks that failed for good: whose, and which were the last."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.backend import Backend
from longshore.ports.ledger import FailedTask
from longshore.testing.contracts.ledger_listings import ended_job
from longshore.testing.contracts.samples import (
    apply_command,
    claim,
    commit,
    leased_task,
    new_task,
)
from longshore.testing.contracts.suite import START, PortContract, clause

SECOND = timedelta(seconds=1)


class FailedClauses(PortContract):
    """``failed`` and ``failed_tenants``."""

    @clause
    async def test_where_nothing_failed_nothing_is_found(self, backend: Backend) -> None:
        await leased_task(backend, "held")
        await commit(backend, new_task("pending"))
        await commit(backend, new_task("waiting", awaits=[0]))

        assert await backend.ledger.failed_tasks("acme", limit=10) == []
        assert await backend.ledger.failed_tenants(limit=10) == []

    @clause
    async def test_a_failed_task_is_listed_with_its_queue_category_and_time(
        self, backend: Backend
    ) -> None:
        row = await failed_task(backend, "a", ErrorCategory.AUTH, at=START + SECOND, queue="mail")

        assert row.finished_at is not None
        assert await backend.ledger.failed_tasks("acme", limit=10) == [
            FailedTask(
                task_id=row.id,
                queue="mail",
                category=ErrorCategory.AUTH,
                failed_at=row.finished_at,
            )
        ]

    @clause
    async def test_failed_tasks_and_failed_jobs_are_not_taken_for_each_other(
        self, backend: Backend
    ) -> None:
        task = await failed_task(backend, "a")
        job = await ended_job(backend, TaskState.FAILED)

        assert [one.task_id for one in await backend.ledger.failed_tasks("acme", limit=10)] == [
            task.id
        ]
        assert await backend.ledger.failed_tenants(limit=10) == ["acme"]
        assert (await backend.ledger.list_jobs("acme")).items == (job,)
        assert (await backend.ledger.list_jobs("acme", state=JobState.FAILED)).items == (job,)

    @clause
    async def test_the_last_to_fail_comes_first_whenever_it_was_created(
        self, backend: Backend
    ) -> None:
        for key, seconds in (("a", 2), ("b", 3), ("c", 1), ("d", 3)):
            await failed_task(backend, key, at=START + seconds * SECOND)

        found = await backend.ledger.failed_tasks("acme", limit=10)

        assert [task.task_id for task in found] == [f"job-one_{key}" for key in "dbac"]

    @clause
    async def test_no_more_failed_tasks_come_than_the_limit(self, backend: Backend) -> None:
        for number in range(4):
            await failed_task(backend, f"t{number}", at=START + number * SECOND)

        found = await backend.ledger.failed_tasks("acme", limit=2)

        assert [task.task_id for task in found] == ["job-one_t3", "job-one_t2"]

    @clause
    async def test_a_task_that_ended_otherwise_or_has_another_round_has_not_failed(
        self, backend: Backend
    ) -> None:
        held = await leased_task(backend, "done")
        done = c.Complete(fence=held.fence, result=None, duration=SECOND)
        await commit(backend, apply_command(held, done))
        pending = await commit(backend, new_task("cancelled"))
        await commit(backend, apply_command(pending, c.RequestCancel(by="ann")))
        again = await failed_task(backend, "again")
        await commit(backend, apply_command(again, c.Resume(round=2, by="ann")))

        assert await backend.ledger.failed_tasks("acme", limit=10) == []
        assert await backend.ledger.failed_tenants(limit=10) == []

    @clause
    async def test_failed_tasks_of_another_tenant_are_not_among_them(
        self, backend: Backend
    ) -> None:
        await failed_task(backend, "theirs", tenant="evil", job_id="job-two")
        ours = await failed_task(backend, "ours")

        found = await backend.ledger.failed_tasks("acme", limit=10)

        assert [task.task_id for task in found] == [ours.id]

    @clause
    async def test_tenants_with_failed_tasks_come_once_each_in_order(
        self, backend: Backend
    ) -> None:
        for number, tenant in enumerate(("c", "a", "b", "a", "c")):
            await failed_task(backend, "t", tenant=tenant, job_id=f"job-{number}")
        await commit(backend, new_task("pending", tenant="fine", job_id="job-fine"))

        assert await backend.ledger.failed_tenants(limit=10) == ["a", "b", "c"]
        assert await backend.ledger.failed_tenants(limit=2) == ["a", "b"]
        assert await backend.ledger.failed_tenants(limit=2, after="b") == ["c"]
        assert await backend.ledger.failed_tenants(limit=2, after="c") == []


async def failed_task(
    backend: Backend,
    key: str,
    category: ErrorCategory = ErrorCategory.VALIDATION,
    *,
    at: datetime = START,
    **fields: Any,
) -> TaskRow:
    """A task whose one attempt has failed for good."""
    held = await commit(backend, claim(await commit(backend, new_task(key, **fields))))
    failure = Failure(category=category, message="broke")
    failed = c.AttemptFailed(fence=held.fence, failure=failure, jitter=0.0, duration=SECOND)
    return await commit(backend, apply_command(held, failed, now=at))
