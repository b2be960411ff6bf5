"""The ledger's clauses about failed and parked tasks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from longshore.core.budgets import Budget, BudgetScope, BudgetUnit
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.backend import Backend
from longshore.ports.ledger import FailedTask
from longshore.testing.contracts.ledger_listings import ended_job
from longshore.testing.contracts.samples import apply_command, claim, commit, leased_task, new_task
from longshore.testing.contracts.suite import START, PortContract, clause

SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


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

        assert [
            failed.task_id for failed in await backend.ledger.failed_tasks("acme", limit=10)
        ] == [task.id]
        assert await backend.ledger.failed_tenants(limit=10) == ["acme"]
        assert (await backend.ledger.list_jobs("acme")).items == (job,)
        assert (await backend.ledger.list_jobs("acme", state=JobState.FAILED)).items == (job,)

    @clause
    async def test_the_last_to_fail_comes_first_whenever_it_was_created(
        self, backend: Backend
    ) -> None:
        for key, seconds in (("a", 2), ("b", 3), ("c", 1), ("d", 3)):
            await failed_task(backend, key, at=START + seconds * SECOND)

        tasks = await backend.ledger.failed_tasks("acme", limit=10)

        assert [task.task_id for task in tasks] == [f"job-one_{key}" for key in "dbac"]

    @clause
    async def test_no_more_failed_tasks_come_than_the_limit(self, backend: Backend) -> None:
        for number in range(4):
            await failed_task(backend, f"t{number}", at=START + number * SECOND)

        tasks = await backend.ledger.failed_tasks("acme", limit=2)

        assert [task.task_id for task in tasks] == ["job-one_t3", "job-one_t2"]

    @clause
    async def test_a_task_that_ended_otherwise_or_has_another_round_has_not_failed(
        self, backend: Backend
    ) -> None:
        leased = await leased_task(backend, "done")
        done = c.Complete(fence=leased.fence, result=None, duration=SECOND)
        await commit(backend, apply_command(leased, done))
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

        tasks = await backend.ledger.failed_tasks("acme", limit=10)

        assert [task.task_id for task in tasks] == [ours.id]

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
    leased = await commit(backend, claim(await commit(backend, new_task(key, **fields))))
    failure = Failure(category=category, message="broke")
    failed = c.AttemptFailed(fence=leased.fence, failure=failure, jitter=0.0, duration=SECOND)
    return await commit(backend, apply_command(leased, failed, now=at))


class ParkedClauses(PortContract):
    """``parked``."""

    @clause
    async def test_where_nothing_rests_nothing_is_found(self, backend: Backend) -> None:
        await leased_task(backend, "held")
        await commit(backend, new_task("pending"))
        await commit(backend, new_task("waiting", awaits=[0]))

        assert await backend.ledger.parked_tasks(limit=10) == []

    @clause
    async def test_a_parked_task_is_listed_with_its_due_time(self, backend: Backend) -> None:
        until = START + timedelta(hours=9, microseconds=1)
        row = await parked_task(backend, "a", until=until)

        assert await backend.ledger.parked_tasks(limit=10) == [row.id]
        assert await backend.ledger.get_task(row.id) == row

    @clause
    async def test_those_come_first_that_go_on_soonest_and_last_those_that_never_do(
        self, backend: Backend
    ) -> None:
        for key, seconds in (("a", None), ("b", 3), ("c", 1), ("d", None), ("e", 2), ("f", 1)):
            until = None if seconds is None else START + seconds * SECOND
            await parked_task(backend, key, until=until)

        tasks = await backend.ledger.parked_tasks(limit=10)

        assert tasks == [f"job-one_{key}" for key in "cfebad"]

    @clause
    async def test_no_more_parked_tasks_come_than_the_limit(self, backend: Backend) -> None:
        for number in range(4):
            await parked_task(backend, f"t{number}", until=START + number * SECOND)

        tasks = await backend.ledger.parked_tasks(limit=2)

        assert tasks == ["job-one_t0", "job-one_t1"]

    @clause
    async def test_a_task_that_goes_on_or_is_cancelled_rests_no_more(
        self, backend: Backend
    ) -> None:
        goes_on = await parked_task(backend, "goes-on", until=START)
        await commit(backend, apply_command(goes_on, c.Unpark(scope=BudgetScope.DAY, by="ann")))
        cancelled = await parked_task(backend, "cancelled", until=START)
        await commit(backend, apply_command(cancelled, c.RequestCancel(by="ann")))

        assert await backend.ledger.parked_tasks(limit=10) == []

    @clause
    async def test_a_task_that_is_parked_anew_is_found_once_with_its_new_time(
        self, backend: Backend
    ) -> None:
        row = await parked_task(backend, "a", until=START)
        pending = await commit(
            backend, apply_command(row, c.Unpark(scope=BudgetScope.DAY, by="ann"))
        )
        leased = await commit(backend, claim(pending))
        await commit(backend, apply_command(leased, park_change(leased, START + SECOND)))

        assert await backend.ledger.parked_tasks(limit=10) == [row.id]

    @clause
    async def test_what_is_added_to_a_task_that_rests_on_leaves_it_where_it_is(
        self, backend: Backend
    ) -> None:
        row = await parked_task(backend, "a", until=START)
        add = c.AddBudget(amount=Budget(usd=1.0), by="ann", request_id="r1")
        added = await commit(backend, apply_command(row, add))

        assert await backend.ledger.parked_tasks(limit=10) == [row.id]
        assert await backend.ledger.get_task(row.id) == added

    @clause
    async def test_parked_tasks_of_all_tenants_are_found(self, backend: Backend) -> None:
        theirs = await parked_task(backend, "a", tenant="evil", job_id="job-two", until=START)
        ours = await parked_task(backend, "b", until=START + SECOND)

        tasks = await backend.ledger.parked_tasks(limit=10)

        assert tasks == [theirs.id, ours.id]

    @clause
    async def test_parked_tasks_are_listed_by_their_state_and_are_neither_unqueued_nor_leased(
        self, backend: Backend
    ) -> None:
        row = await parked_task(backend, "a", until=START)
        await commit(backend, new_task("pending"))

        listed = await backend.ledger.list_tasks("acme", state=TaskState.PARKED)
        later = START + timedelta(days=2)

        assert listed.items == (row,)
        assert await backend.ledger.task_states("job-one") == {
            "a": TaskState.PARKED,
            "pending": TaskState.PENDING,
        }
        unqueued = await backend.ledger.unqueued_tasks(
            due_by=later, enqueued_before=later, limit=10
        )
        assert row.id not in unqueued
        assert await backend.ledger.leased_tasks(limit=10) == []


def park_change(row: TaskRow, until: datetime | None) -> c.Park:
    """What a worker says whose task lacks a budget."""
    scope = BudgetScope.JOB if until is None else BudgetScope.DAY
    return c.Park(
        fence=row.fence,
        scope=scope,
        unit=BudgetUnit.USD,
        reason="all is spent",
        duration=SECOND,
        until=until,
    )


async def parked_task(
    backend: Backend, key: str, *, until: datetime | None, **fields: Any
) -> TaskRow:
    """A task whose first attempt found nothing left to spend."""
    leased = await commit(backend, claim(await commit(backend, new_task(key, **fields))))
    return await commit(backend, apply_command(leased, park_change(leased, until)))
