"""What agents really spend, compared with what is recorded.

A budget may be exceeded by one answer of the model per attempt. That includes an answer whose cost
was not recorded because its worker died.
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
"""The cost of an answer of the model."""
TASK_BUDGET = Budget(usd=2.0)
_ROUNDING_USD = 1e-6


class Spending:
    """The charges of a run."""

    def __init__(self) -> None:
        self._charges: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))

    def charge(self, task_id: str, attempt: int, usd: float) -> None:
        """The model has answered a request."""
        self._charges[task_id][attempt] += usd

    async def check(self, simulation: Simulation, rows: Mapping[str, TaskRow]) -> None:
        """Report budgets that were exceeded, and charges that were recorded wrongly."""
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
        charges = self._charges.get(row.id, {})
        paid, recorded = sum(charges.values()), row.usage.cost_usd
        if recorded > paid + _ROUNDING_USD:
            simulation.report_violation(
                11, row.id, f"has a recorded cost of {recorded:.2f}, but {paid:.2f} was charged"
            )
        if paid - recorded > len(charges) * HIGH_COST_USD + _ROUNDING_USD:
            simulation.report_violation(
                11, row.id, f"has cost {paid:.2f}, but only {recorded:.2f} was recorded"
            )
        limit = with_allowance(TASK_BUDGET, row.allowance)
        if paid > (limit.usd or 0.0) + len(charges) * HIGH_COST_USD + _ROUNDING_USD:
            simulation.report_violation(11, row.id, f"has cost {paid:.2f} with a budget of {limit}")
        parked_for_task = row.parked is not None and row.parked.scope is BudgetScope.TASK
        if parked_for_task and exhaustion(limit, row.usage) is None:
            simulation.report_violation(
                1, row.id, f"is parked with {recorded:.2f} of {limit} spent"
            )

    def _check_job(
        self, simulation: Simulation, job: JobRow, tasks: list[TaskRow], shared: SharedBudget
    ) -> None:
        charges = [usd for row in tasks for usd in self._charges.get(row.id, {}).values()]
        limit = with_allowance(job.spec.budget, job.allowance)
        if sum(charges) > (limit.usd or 0.0) + len(charges) * HIGH_COST_USD + _ROUNDING_USD:
            simulation.report_violation(
                11, job.id, f"has cost {sum(charges):.2f} with a budget of {limit}"
            )
        if shared.spent.cost_usd > sum(charges) + _ROUNDING_USD:
            text = f"has {shared.spent.cost_usd:.2f} spent, but {sum(charges):.2f} was charged"
            simulation.report_violation(11, job.id, text)
        if any(reservation.reserved != Usage() for reservation in shared.reservations):
            task_ids = {
                reservation.task_id
                for reservation in shared.reservations
                if reservation.reserved != Usage()
            }
            # The next attempt that needs them releases them.
            simulation.record("budgets", "still reserved", ", ".join(sorted(task_ids)))
        parked = [row for row in tasks if row.state is TaskState.PARKED and _parked_for_job(row)]
        if parked and shared_exhaustion(shared, limit) is None:
            names = ", ".join(row.spec.key for row in parked)
            spent = shared.spent.cost_usd
            simulation.report_violation(
                1, job.id, f"{names} parked with {spent:.2f} of {limit} spent"
            )


def _parked_for_job(row: TaskRow) -> bool:
    return row.parked is not None and row.parked.scope is BudgetScope.JOB
