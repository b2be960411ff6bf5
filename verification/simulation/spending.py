"""What agents really spend, as only the one who sends the bills can know.

A budget may be gone over by one answer for each attempt that spent from it, and by no more: an
answer whose cost nobody could write down before its worker died is that one, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from longshore.core.budgets import (
    Budget,
    BudgetScope,
    SharedBudget,
    exhaustion,
    job_budget_name,
    shared_exhaustion,
    with_allowance,
)
from longshore.core.events.types import Usage
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState

if TYPE_CHECKING:
    from verification.simulation.simulation import Simulation

LOW_COST_USD, HIGH_COST_USD = 0.5, 1.5
"""Dollars that an answer costs."""
TASK_BUDGET = Budget(usd=2.0)
_ROUNDING_USD = 1e-6


class Spending:
    """The bills of a run."""

    def __init__(self) -> None:
        self._charges: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))

    def charge(self, task_id: str, attempt: int, usd: float) -> None:
        """An answer was given."""
        self._charges[task_id][attempt] += usd

    async def check(self, simulation: Simulation, rows: Mapping[str, TaskRow]) -> None:
        """Add what is wrong to the world's breaches."""
        jobs: dict[str, list[TaskRow]] = defaultdict(list)
        for row in rows.values():
            jobs[row.spec.job_id].append(row)
            self._check_task(simulation, row)
        for job_id, tasks in jobs.items():
            job = await simulation.backend.ledger.get_job(job_id)
            name = job_budget_name(job_id)
            account = await simulation.backend.budgets.get(tasks[0].spec.tenant, name)
            if job is not None and job.spec.budget:
                self._check_job(
                    simulation, job, tasks, account or SharedBudget(tenant="", name=name)
                )

    def _check_task(self, simulation: Simulation, row: TaskRow) -> None:
        bills = self._charges.get(row.id, {})
        paid, told = sum(bills.values()), row.usage.cost_usd
        if told > paid + _ROUNDING_USD:
            simulation.report_violation(
                11, row.id, f"is said to have cost {told:.2f}, and {paid:.2f} was paid"
            )
        if paid - told > len(bills) * HIGH_COST_USD + _ROUNDING_USD:
            simulation.report_violation(
                11, row.id, f"has cost {paid:.2f}, and only {told:.2f} was written down"
            )
        limit = with_allowance(TASK_BUDGET, row.allowance)
        if paid > (limit.usd or 0.0) + len(bills) * HIGH_COST_USD + _ROUNDING_USD:
            simulation.report_violation(11, row.id, f"has cost {paid:.2f} with a budget of {limit}")
        own = row.parked is not None and row.parked.scope is BudgetScope.TASK
        if own and exhaustion(limit, row.usage) is None:
            simulation.report_violation(1, row.id, f"is parked with {told:.2f} of {limit} spent")

    def _check_job(
        self, simulation: Simulation, job: JobRow, tasks: list[TaskRow], shared: SharedBudget
    ) -> None:
        bills = [usd for row in tasks for usd in self._charges.get(row.id, {}).values()]
        limit = with_allowance(job.spec.budget, job.allowance)
        if sum(bills) > (limit.usd or 0.0) + len(bills) * HIGH_COST_USD + _ROUNDING_USD:
            simulation.report_violation(
                11, job.id, f"has cost {sum(bills):.2f} with a budget of {limit}"
            )
        if shared.spent.cost_usd > sum(bills) + _ROUNDING_USD:
            text = f"its account says {shared.spent.cost_usd:.2f}, and {sum(bills):.2f} was paid"
            simulation.report_violation(11, job.id, text)
        if any(held.reserved != Usage() for held in shared.reservations):
            open_ = {held.task_id for held in shared.reservations if held.reserved != Usage()}
            # They are let go by whoever is in want of them.
            simulation.record("bank", "still reserved", ", ".join(sorted(open_)))
        parked = [row for row in tasks if row.state is TaskState.PARKED and _parked_for_job(row)]
        if parked and shared_exhaustion(shared, limit) is None:
            names = ", ".join(row.spec.key for row in parked)
            spent = shared.spent.cost_usd
            simulation.report_violation(
                1, job.id, f"{names} parked with {spent:.2f} of {limit} spent"
            )


def _parked_for_job(row: TaskRow) -> bool:
    return row.parked is not None and row.parked.scope is BudgetScope.JOB
