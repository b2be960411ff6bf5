"""The ledger's clauses about tasks that rest because a budget is used up: which, and until when."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from longshore.core.budgets import Budget, BudgetScope
from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from longshore.ports.ledger import ParkedTask
from longshore.testing.contracts.samples import apply_command, claim, commit, leased_task, new_task
from longshore.testing.contracts.suite import START, PortContract, clause

SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


class ParkedClauses(PortContract):
    """``parked``."""

    @clause
    async def test_where_nothing_rests_nothing_is_found(self, backend: Backend) -> None:
        await leased_task(backend, "held")
        await commit(backend, new_task("pending"))
        await commit(backend, new_task("waiting", awaits=[0]))

        assert await backend.ledger.parked_tasks(limit=10) == []
        assert await backend.ledger.parked_tasks(limit=10, due_by=START + SECOND) == []

    @clause
    async def test_a_parked_task_is_listed_with_its_due_time(self, backend: Backend) -> None:
        until = START + timedelta(hours=9, microseconds=1)
        row = await parked_task(backend, "a", until=until)

        assert await backend.ledger.parked_tasks(limit=10) == [
            ParkedTask(task_id=row.id, due_at=until)
        ]
        assert await backend.ledger.get_task(row.id) == row

    @clause
    async def test_those_come_first_that_go_on_soonest_and_last_those_that_never_do(
        self, backend: Backend
    ) -> None:
        for key, seconds in (("a", None), ("b", 3), ("c", 1), ("d", None), ("e", 2), ("f", 1)):
            until = None if seconds is None else START + seconds * SECOND
            await parked_task(backend, key, until=until)

        found = await backend.ledger.parked_tasks(limit=10)

        assert [task.task_id for task in found] == [f"job-one_{key}" for key in "cfebad"]
        assert [task.due_at for task in found[-2:]] == [None, None]

    @clause
    async def test_only_those_are_due_whose_time_has_come(self, backend: Backend) -> None:
        await parked_task(backend, "never", until=None)
        due = await parked_task(backend, "due", until=START)
        later = await parked_task(backend, "later", until=START + MICROSECOND)

        now = await backend.ledger.parked_tasks(limit=10, due_by=START)
        then = await backend.ledger.parked_tasks(limit=10, due_by=START + MICROSECOND)

        assert [task.task_id for task in now] == [due.id]
        assert [task.task_id for task in then] == [due.id, later.id]
        assert await backend.ledger.parked_tasks(limit=10, due_by=START - MICROSECOND) == []

    @clause
    async def test_no_more_parked_tasks_come_than_the_limit(self, backend: Backend) -> None:
        for number in range(4):
            await parked_task(backend, f"t{number}", until=START + number * SECOND)

        found = await backend.ledger.parked_tasks(limit=2)
        due = await backend.ledger.parked_tasks(limit=2, due_by=START + 9 * SECOND)

        assert [task.task_id for task in found] == ["job-one_t0", "job-one_t1"]
        assert due == found

    @clause
    async def test_a_task_that_goes_on_or_is_cancelled_rests_no_more(
        self, backend: Backend
    ) -> None:
        goes_on = await parked_task(backend, "goes-on", until=START)
        await commit(backend, apply_command(goes_on, c.Unpark(scope=BudgetScope.DAY, by="ann")))
        cancelled = await parked_task(backend, "cancelled", until=START)
        await commit(backend, apply_command(cancelled, c.RequestCancel(by="ann")))

        assert await backend.ledger.parked_tasks(limit=10) == []
        assert await backend.ledger.parked_tasks(limit=10, due_by=START + SECOND) == []

    @clause
    async def test_a_task_that_is_parked_anew_is_found_once_with_its_new_time(
        self, backend: Backend
    ) -> None:
        row = await parked_task(backend, "a", until=START)
        pending = await commit(
            backend, apply_command(row, c.Unpark(scope=BudgetScope.DAY, by="ann"))
        )
        held = await commit(backend, claim(pending))
        await commit(backend, apply_command(held, park_change(held, START + SECOND)))

        assert await backend.ledger.parked_tasks(limit=10) == [
            ParkedTask(task_id=row.id, due_at=START + SECOND)
        ]

    @clause
    async def test_what_is_added_to_a_task_that_rests_on_leaves_it_where_it_is(
        self, backend: Backend
    ) -> None:
        row = await parked_task(backend, "a", until=START)
        add = c.AddBudget(amount=Budget(usd=1.0), by="ann", request_id="r1")
        added = await commit(backend, apply_command(row, add))

        assert await backend.ledger.parked_tasks(limit=10) == [
            ParkedTask(task_id=row.id, due_at=START)
        ]
        assert await backend.ledger.get_task(row.id) == added

    @clause
    async def test_parked_tasks_of_all_tenants_are_found(self, backend: Backend) -> None:
        theirs = await parked_task(backend, "a", tenant="evil", job_id="job-two", until=START)
        ours = await parked_task(backend, "b", until=START + SECOND)

        found = await backend.ledger.parked_tasks(limit=10)

        assert [task.task_id for task in found] == [theirs.id, ours.id]

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
        unrung = await backend.ledger.unqueued_tasks(due_by=later, enqueued_before=later, limit=10)
        assert row.id not in unrung
        assert await backend.ledger.leased_tasks(limit=10) == []


def park_change(row: TaskRow, until: datetime | None) -> c.Park:
    """What a worker says whose task lacks a budget."""
    scope = BudgetScope.JOB if until is None else BudgetScope.DAY
    return c.Park(fence=row.fence, scope=scope, reason="all is spent", duration=SECOND, until=until)


async def parked_task(
    backend: Backend, key: str, *, until: datetime | None, **fields: Any
) -> TaskRow:
    """A task whose first attempt found nothing left to spend."""
    held = await commit(backend, claim(await commit(backend, new_task(key, **fields))))
    return await commit(backend, apply_command(held, park_change(held, until)))
