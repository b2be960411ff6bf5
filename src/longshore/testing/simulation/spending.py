"""What agents really spend, as only the one who sends the bills can know.

A budget may be gone over by one answer for each attempt that spent from it, and by no more: an
answer whose cost nobody could write down before its worker died is that one, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from longshore.core.budgets import Account, Budget, Scope, exhausted, job_account, raised, used_up
from longshore.core.events.types import Usage
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import TaskState

if TYPE_CHECKING:
    from longshore.testing.simulation.world import World

CHEAP, DEAR = 0.5, 1.5
"""Dollars that an answer costs."""
TASK_BUDGET = Budget(usd=2.0)
_PENNY = 1e-6


class Spending:
    """The bills of a run."""

    def __init__(self) -> None:
        self._paid: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))

    def pay(self, task_id: str, attempt: int, usd: float) -> None:
        """An answer was given."""
        self._paid[task_id][attempt] += usd

    async def judge(self, world: World, rows: Mapping[str, TaskRow]) -> None:
        """Add what is wrong to the world's breaches."""
        jobs: dict[str, list[TaskRow]] = defaultdict(list)
        for row in rows.values():
            jobs[row.spec.job_id].append(row)
            self._judge_task(world, row)
        for job_id, tasks in jobs.items():
            job = await world.backend.ledger.job(job_id)
            name = job_account(job_id)
            account = await world.backend.accounts.account(tasks[0].spec.tenant, name)
            if job is not None and job.spec.budget:
                self._judge_job(world, job, tasks, account or Account(tenant="", name=name))

    def _judge_task(self, world: World, row: TaskRow) -> None:
        bills = self._paid.get(row.id, {})
        paid, told = sum(bills.values()), row.usage.cost_usd
        if told > paid + _PENNY:
            world.breach(11, row.id, f"is said to have cost {told:.2f}, and {paid:.2f} was paid")
        if paid - told > len(bills) * DEAR + _PENNY:
            world.breach(11, row.id, f"has cost {paid:.2f}, and only {told:.2f} was written down")
        limit = raised(TASK_BUDGET, row.allowance)
        if paid > (limit.usd or 0.0) + len(bills) * DEAR + _PENNY:
            world.breach(11, row.id, f"has cost {paid:.2f} with a budget of {limit}")
        own = row.parked is not None and row.parked.scope is Scope.TASK
        if own and exhausted(limit, row.usage) is None:
            world.breach(1, row.id, f"is parked with {told:.2f} of {limit} spent")

    def _judge_job(self, world: World, job: JobRow, tasks: list[TaskRow], account: Account) -> None:
        bills = [usd for row in tasks for usd in self._paid.get(row.id, {}).values()]
        limit = raised(job.spec.budget, job.allowance)
        if sum(bills) > (limit.usd or 0.0) + len(bills) * DEAR + _PENNY:
            world.breach(11, job.id, f"has cost {sum(bills):.2f} with a budget of {limit}")
        if account.spent.cost_usd > sum(bills) + _PENNY:
            text = f"its account says {account.spent.cost_usd:.2f}, and {sum(bills):.2f} was paid"
            world.breach(11, job.id, text)
        if any(held.reserved != Usage() for held in account.holdings):
            open_ = {held.task_id for held in account.holdings if held.reserved != Usage()}
            # They are let go by whoever is in want of them.
            world.note("bank", "still reserved", ", ".join(sorted(open_)))
        parked = [row for row in tasks if row.state is TaskState.PARKED and _for_job(row)]
        if parked and used_up(account, limit) is None:
            names = ", ".join(row.spec.key for row in parked)
            spent = account.spent.cost_usd
            world.breach(1, job.id, f"{names} parked with {spent:.2f} of {limit} spent")


def _for_job(row: TaskRow) -> bool:
    return row.parked is not None and row.parked.scope is Scope.JOB
