"""Budgets: reservations of attempts, and the operators' view and additions.

``BudgetReservations`` changes a shared budget: read, decide, commit, and read again on a conflict.
A decision can be repeated without harm (see ``core.budgets``), so a lost answer costs another read
and nothing else.

``BudgetOperations`` shows budgets and adds to them. An addition to a job is written into the job's
row together with an intent, which any process that finds it open carries out: the job's parked
tasks become pending again. Tasks that are parked because of the day's budget resume when the next
day begins; the sweeper does that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from longshore.core import budgets
from longshore.core.agents.plan import read_plan
from longshore.core.budgets import (
    MAX_AMOUNT,
    NO_BUDGET,
    Allowance,
    Budget,
    BudgetScope,
    Exhausted,
    Reservation,
    SharedBudget,
    add_allowance,
    day_budget_name,
    job_budget_name,
    with_allowance,
)
from longshore.core.definitions.definition import RunnerKind
from longshore.core.events.event import EventContext
from longshore.core.events.types import NO_USAGE, OperatorActed, Usage
from longshore.core.ids import check_request_id, split_task_id
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.rows import Intent, IntentKind, JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import CommandRefused, UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.reads import get_definition, iter_tasks, list_all, read_rows
from longshore.services.resilience import log_and_continue
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

_ENTITY_ID = "budget"
_SWEEPER = "sweeper"


Decide = Callable[[SharedBudget], SharedBudget | Exhausted | None]
"""Returns the changed budget, what of it is used up, or None for no change."""


@dataclass(frozen=True)
class BudgetReservations:
    """Reads and changes shared budgets."""

    backend: Backend
    transitions: Transitions

    async def read(self, tenant: str, name: str) -> SharedBudget:
        """Returns a shared budget; one that was never used is empty."""
        stored = await self.transitions.retry_unavailable(
            lambda: self.backend.budgets.get(tenant, name)
        )
        return stored or SharedBudget(tenant=tenant, name=name)

    async def read_job(self, row: TaskRow) -> JobRow | None:
        """Returns the row of a task's job."""
        return await self.transitions.retry_unavailable(
            lambda: self.backend.ledger.get_job(row.spec.job_id)
        )

    async def change(
        self, tenant: str, name: str, decide: Decide
    ) -> SharedBudget | Exhausted | None:
        """Change a shared budget and return the last decision; a changed budget as stored.

        Raises:
            BackendUnavailable: the budgets could not be reached, after several tries.
        """
        change_id = self.transitions.new_id()
        while True:
            current = await self.read(tenant, name)
            decision = decide(current)
            if not isinstance(decision, SharedBudget):
                return decision
            written = replace(decision, version=current.version + 1, change_id=change_id)
            try:
                await self.transitions.retry_unavailable(
                    partial(self.backend.budgets.commit, written)
                )
            except VersionConflict:
                continue
            return written

    async def reserve(
        self, tenant: str, name: str, limit: Budget, own: Reservation, requested: Usage
    ) -> Exhausted | None:
        """Reserve an amount for an attempt. Returns what is used up, or None if it was granted.

        Before a refusal, reservations of attempts that have ended are closed.

        Raises:
            StaleReservation: another process has closed this attempt's reservation.
        """
        decide = partial(budgets.reserve, limit=limit, own=own, requested=requested)
        decision = await self.change(tenant, name, decide)
        if isinstance(decision, Exhausted) and await self._close_leaked(tenant, name):
            decision = await self.change(tenant, name, decide)
        return decision if isinstance(decision, Exhausted) else None

    async def exhaustion(self, tenant: str, name: str, limit: Budget) -> Exhausted | None:
        """Returns what of a shared budget is used up by attempts that are alive, or None."""
        exhausted = budgets.shared_exhaustion(await self.read(tenant, name), limit)
        if exhausted is not None and await self._close_leaked(tenant, name):
            exhausted = budgets.shared_exhaustion(await self.read(tenant, name), limit)
        return exhausted

    async def _close_leaked(self, tenant: str, name: str) -> bool:
        """Close the reservations of attempts that have ended. Returns whether there were any."""
        reservations = (await self.read(tenant, name)).reservations
        rows = await self.transitions.get_tasks([item.task_id for item in reservations])
        holders = {(row.id, row.attempt) for row in rows if row.lease is not None}
        leaked = [item for item in reservations if (item.task_id, item.attempt) not in holders]
        for item in leaked:
            close = partial(budgets.close, task_id=item.task_id, attempt=item.attempt)
            await self.change(tenant, name, close)
            logger.warning("reservation.leaked", extra={"budget": name, "task_id": item.task_id})
        return bool(leaked)

    async def settle(self, tenant: str, name: str, own: Reservation) -> None:
        """Record what an attempt has spent and still has reserved."""
        await self.change(tenant, name, partial(budgets.settle, own=own))

    async def close(self, row: TaskRow, name: str, *, spent: Usage | None = None) -> None:
        """Close the reservation of an attempt that has ended."""
        close = partial(budgets.close, task_id=row.id, attempt=row.attempt, spent=spent)
        await self.change(row.spec.tenant, name, close)

    async def close_lost_attempt(self, row: TaskRow) -> None:
        """Close the reservations of an attempt whose lease another process has ended."""
        if row.usage == Usage():
            return
        # The attempt may have spent something on its first day and today.
        days = (row.started_at or row.spec.created_at, self.backend.clock.now())
        for name in dict.fromkeys((job_budget_name(row.spec.job_id), *map(day_budget_name, days))):
            await self.close(row, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """A budget and what is spent of it."""

    limit: Budget
    spent: Usage
    reserved: Usage = NO_USAGE  # for responses on their way
    added: Budget = NO_BUDGET  # the part of the limit that operators added


@dataclass(frozen=True, kw_only=True)
class BudgetOperations:
    """Shows budgets and adds to them.

    Args:
        day_budget: What a tenant may spend in a day.
    """

    backend: Backend
    transitions: Transitions
    reservations: BudgetReservations
    day_budget: Budget
    app: str

    async def get(self, tenant: str, entity_id: str | None) -> BudgetStatus:
        """Returns the budget of a job or of a task, for all attempts together.

        Args:
            entity_id: None: what the tenant may spend today.

        Raises:
            NotFound: the tenant has no such job or task.
        """
        if entity_id is None:
            name = day_budget_name(self.backend.clock.now())
            shared = await self.reservations.read(tenant, name)
            return _status(self.day_budget, shared.allowance, shared.spent, shared.reservations)
        if split_task_id(entity_id)[1]:
            row = await self.transitions.get_task(tenant, entity_id)
            spent = row.usage + (row.lease.usage if row.lease else NO_USAGE)
            return _status(await self._task_budget(row), row.allowance, spent)
        job = await self.transitions.get_job(tenant, entity_id)
        if not job.spec.budget:
            return BudgetStatus(limit=NO_BUDGET, spent=job.usage)  # of ended tasks
        shared = await self.reservations.read(tenant, job_budget_name(entity_id))
        return _status(job.spec.budget, job.allowance, shared.spent, shared.reservations)

    async def _task_budget(self, row: TaskRow, *, steps: bool = False) -> Budget:
        """Returns the task's own budget; with ``steps``, plus the sum of its steps' budgets."""
        spec, version = row.spec, row.spec.definition_version
        definition = await self.transitions.retry_unavailable(
            lambda: get_definition(self.backend, spec.tenant, spec.definition, version)
        )
        if definition is None or definition.runner is not RunnerKind.AGENT:
            return NO_BUDGET
        plan, _ = read_plan(definition.options)
        if plan is None:
            return NO_BUDGET
        return sum((step.budget for step in plan.steps if steps), plan.budget)

    async def add(
        self, tenant: str, entity_id: str | None, amount: Budget, *, by: str, request_id: str
    ) -> BudgetStatus:
        """Raise a budget; tasks that are parked because of it become pending.

        Args:
            entity_id: Of a job or a task; None: what the tenant may spend today.

        Raises:
            NotFound: the tenant has no such job or task.
            CommandRefused: it has ended.
            UsageError: there is no such budget, nothing is added, or the request id is not one.
        """
        _check_addition(amount, request_id)
        command = c.AddBudget(amount=amount, by=by, request_id=request_id)
        if entity_id is None:
            await self._add_to_day(tenant, command)
        elif split_task_id(entity_id)[1]:
            await self._add_to_task(tenant, entity_id, command)
        else:
            await self._add_to_job(tenant, entity_id, command)
        return await self.get(tenant, entity_id)

    async def _add_to_task(self, tenant: str, task_id: str, command: c.AddBudget) -> None:
        row = await self.transitions.get_task(tenant, task_id)
        if not row.state.terminal:
            own = await self._task_budget(row, steps=True)
            _check_limited(own, command.amount, f"task {task_id}", "`budget` in its definition")
        try:
            await self.transitions.apply_to_task(task_id, command)
        except CommandRefused:
            if not _has_added(await self.transitions.get_task(tenant, task_id), command):
                raise

    async def _add_to_job(self, tenant: str, job_id: str, command: c.AddBudget) -> None:
        job = await self.transitions.get_job(tenant, job_id)
        _check_limited(job.spec.budget, command.amount, f"job {job_id}", "`budget` in the job file")
        try:
            job = await self.transitions.apply_to_job(job_id, command)
        except CommandRefused:
            job = await self.transitions.get_job(tenant, job_id)
            if not _has_added(job, command):
                raise
        for intent in job.intents:
            if intent.kind is IntentKind.UNPARK:
                await self.finish_unpark(job, intent)

    async def _add_to_day(self, tenant: str, command: c.AddBudget) -> None:
        _check_limited(self.day_budget, command.amount, "the day", "agent.*_per_day")
        now = self.backend.clock.now()
        name = day_budget_name(now)

        def decide(budget: SharedBudget) -> SharedBudget | None:
            allowance = add_allowance(budget.allowance, command.amount, command.request_id)
            return None if allowance is None else replace(budget, allowance=allowance)

        if await self.reservations.change(tenant, name, decide) is not None:
            detail = f"{command.amount} added"
            with log_and_continue(logger, "budget.event_lost", tenant=tenant):
                await self.backend.events.append(
                    tenant=tenant,
                    app=self.app,
                    entity_id=_ENTITY_ID,
                    body=OperatorActed(
                        by=command.by, action="budget.added", subject=name, detail=detail
                    ),
                    context=EventContext(origin="operator", source="user"),
                    now=now,
                )
        async for row in iter_tasks(self.backend.ledger, tenant, TaskState.PARKED):
            await self._unpark(row.id, c.Unpark(scope=BudgetScope.DAY, by=command.by))

    async def finish_unpark(self, job: JobRow, intent: Intent) -> bool:
        """Unpark the tasks that wait for the job's budget.

        Returns False if another process closed the intent first.
        """
        ledger = self.backend.ledger
        async for row in iter_tasks(ledger, job.spec.tenant, TaskState.PARKED, job_id=job.id):
            await self._unpark(row.id, c.Unpark(scope=BudgetScope.JOB, by=intent.by))
        return await self.transitions.close_intent(job.id, intent) is not None

    async def _unpark(self, task_id: str, command: c.Unpark) -> bool:
        # Refused: it waits for another budget, or is no longer parked.
        return not isinstance(await self.transitions.try_command(task_id, command), Refusal)

    async def unpark_ready(self) -> int:
        """Unpark tasks that may run again, and return how many.

        These are the tasks whose day is over and, for each shared budget that has something left
        again because others spent less than they had reserved, one task.
        """
        ledger, now, done = self.backend.ledger, self.backend.clock.now(), 0
        rows, _ = await read_rows(ledger, await list_all(ledger.parked_tasks))
        first: dict[tuple[str, str], TaskRow] = {}
        for row in rows:
            if row.due_at is not None and row.due_at <= now:
                with log_and_continue(logger, "task.unpark_failed", task_id=row.id):
                    command = c.Unpark(scope=BudgetScope.DAY, by=_SWEEPER, due=True)
                    done += await self._unpark(row.id, command)
            elif (name := self._shared_budget_name(row)) is not None:
                first.setdefault((row.spec.tenant, name), row)
        for (tenant, name), row in first.items():
            with log_and_continue(logger, "task.unpark_failed", task_id=row.id):
                limit = await self._shared_limit(row)
                used_up = not limit or await self.reservations.exhaustion(tenant, name, limit)
                if row.parked and not used_up:
                    command = c.Unpark(scope=row.parked.scope, by=_SWEEPER)
                    done += await self._unpark(row.id, command)
        return done

    def _shared_budget_name(self, row: TaskRow) -> str | None:
        """Returns the shared budget that a parked task waits for."""
        match row.parked.scope if row.parked else None:
            case BudgetScope.JOB:
                return job_budget_name(row.spec.job_id)
            case BudgetScope.DAY:
                return day_budget_name(self.backend.clock.now())
        return None

    async def _shared_limit(self, row: TaskRow) -> Budget:
        if row.parked is not None and row.parked.scope is BudgetScope.DAY:
            return self.day_budget
        job = await self.reservations.read_job(row)
        return NO_BUDGET if job is None else with_allowance(job.spec.budget, job.allowance)


def _status(
    limit: Budget,
    allowance: Allowance | None,
    spent: Usage,
    reservations: Sequence[Reservation] = (),
) -> BudgetStatus:
    return BudgetStatus(
        limit=with_allowance(limit, allowance),
        spent=spent,
        reserved=sum((item.reserved for item in reservations), NO_USAGE),
        added=allowance.added if allowance else NO_BUDGET,
    )


def _has_added(row: TaskRow | JobRow, command: c.AddBudget) -> bool:
    """Whether an earlier try of a refused command was committed, and its answer lost."""
    return row.allowance is not None and command.request_id in row.allowance.requests


def _check_limited(budget: Budget, amount: Budget, owner: str, setting: str) -> None:
    if unlimited := budget.unlimited_units(amount):
        message = f"{owner} has no limit in {' and '.join(unlimited)} to raise; {setting} sets one"
        raise UsageError(message)


def _check_addition(amount: Budget, request_id: str) -> None:
    check_request_id(request_id)
    if not amount:
        raise UsageError("nothing is added: name dollars, tokens or minutes")
    if not all(0 < number <= MAX_AMOUNT for number in amount.amounts.values()):
        raise UsageError(f"what is added must be above 0, and {MAX_AMOUNT:,} at most")
