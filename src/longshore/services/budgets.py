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
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from longshore.core import budgets
from longshore.core.agents.plan import read_plan
from longshore.core.budgets import (
    MAX_AMOUNT,
    NO_BUDGET,
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
from longshore.core.events.types import OperatorActed, Usage
from longshore.core.ids import is_request_id
from longshore.core.jobs import job as jobs
from longshore.core.jobs.numbers import NO_NUMBERS
from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import Intent, IntentKind, JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import CommandRefused, NotFound, UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.resilience import log_and_continue
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

_AT_ONCE = 100
_ENTITY_ID = "budget"
_SWEEPER = "sweeper"


Decide = Callable[[SharedBudget], SharedBudget | Exhausted | None]
"""Returns the changed budget, what of it is used up, or None for no change."""


class BudgetReservations:
    """Reads and changes shared budgets."""

    def __init__(self, backend: Backend, transitions: Transitions) -> None:
        self._budgets = backend.budgets
        self._ledger = backend.ledger
        self._transitions = transitions

    async def read(self, tenant: str, name: str) -> SharedBudget:
        """Returns a shared budget; one that was never used is empty."""
        stored = await self._transitions.retry_unavailable(lambda: self._budgets.get(tenant, name))
        return stored or SharedBudget(tenant=tenant, name=name)

    async def read_job(self, row: TaskRow) -> JobRow | None:
        """Returns the row of a task's job."""
        return await self._transitions.retry_unavailable(
            lambda: self._ledger.get_job(row.spec.job_id)
        )

    async def change(
        self, tenant: str, name: str, decide: Decide
    ) -> SharedBudget | Exhausted | None:
        """Change a shared budget and return the last decision; a changed budget as stored.

        Raises:
            BackendUnavailable: the budgets could not be reached, after several tries.
        """
        change_id = self._transitions.new_id()
        while True:
            current = await self.read(tenant, name)
            decision = decide(current)
            if not isinstance(decision, SharedBudget):
                return decision
            written = replace(decision, version=current.version + 1, change_id=change_id)
            try:
                await self._commit(written)
            except VersionConflict:
                continue
            return written

    async def _commit(self, budget: SharedBudget) -> None:
        await self._transitions.retry_unavailable(lambda: self._budgets.commit(budget))

    async def reserve(
        self,
        row: TaskRow,
        name: str,
        limit: Budget,
        *,
        spent: Usage,
        reserved: Usage,
        requested: Usage,
    ) -> Exhausted | None:
        """Reserve an amount for an attempt. Returns what is used up, or None if it was granted.

        Before a refusal, reservations of attempts that have ended are closed.

        Raises:
            StaleReservation: another process has closed this attempt's reservation.
        """

        def decide(budget: SharedBudget) -> SharedBudget | Exhausted:
            return budgets.reserve(
                budget,
                limit,
                task_id=row.id,
                attempt=row.attempt,
                spent=spent,
                reserved=reserved,
                requested=requested,
            )

        tenant = row.spec.tenant
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
        ids = [reservation.task_id for reservation in reservations]
        rows = await self._transitions.retry_unavailable(lambda: self._ledger.get_tasks(ids))
        holders = {(row.id, row.attempt) for row in rows if row.lease is not None}
        leaked = [item for item in reservations if (item.task_id, item.attempt) not in holders]
        for item in leaked:
            await self._close_reservation(tenant, name, item)
            logger.warning("reservation.leaked", extra={"budget": name, "task_id": item.task_id})
        return bool(leaked)

    async def _close_reservation(self, tenant: str, name: str, reservation: Reservation) -> None:
        await self.change(
            tenant,
            name,
            lambda budget: budgets.close(
                budget, task_id=reservation.task_id, attempt=reservation.attempt
            ),
        )

    async def settle(self, row: TaskRow, name: str, *, spent: Usage, reserved: Usage) -> None:
        """Record what an attempt has spent and still has reserved."""
        await self.change(
            row.spec.tenant,
            name,
            lambda budget: budgets.settle(
                budget, task_id=row.id, attempt=row.attempt, spent=spent, reserved=reserved
            ),
        )

    async def close(self, row: TaskRow, name: str, *, spent: Usage | None = None) -> None:
        """Close the reservation of an attempt that has ended."""
        await self.change(
            row.spec.tenant,
            name,
            lambda budget: budgets.close(budget, task_id=row.id, attempt=row.attempt, spent=spent),
        )

    async def close_lost_attempt(self, row: TaskRow, *moments: datetime) -> None:
        """Close the reservations of an attempt whose lease another process has ended.

        Args:
            moments: One of each day in which the attempt may have spent something.
        """
        for name in dict.fromkeys(
            (job_budget_name(row.spec.job_id), *map(day_budget_name, moments))
        ):
            await self.close(row, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """A budget and what is spent of it."""

    limit: Budget
    spent: Usage
    reserved: Usage = field(default_factory=Usage)  # for responses on their way
    added: Budget = NO_BUDGET  # the part of the limit that operators added


class BudgetOperations:
    """Shows budgets and adds to them.

    Args:
        day_budget: What a tenant may spend in a day.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        reservations: BudgetReservations,
        day_budget: Budget = NO_BUDGET,
        app: str = "longshore",
    ) -> None:
        self._backend = backend
        self._transitions = transitions
        self._reservations = reservations
        self._day_budget = day_budget
        self._app = app

    async def get_day_budget(self, tenant: str) -> BudgetStatus:
        """Returns the tenant's budget for today."""
        shared = await self._reservations.read(tenant, day_budget_name(self._backend.clock.now()))
        return _status(shared, self._day_budget)

    async def get_job_budget(self, tenant: str, job_id: str) -> BudgetStatus:
        """Returns the budget of a job.

        Raises:
            NotFound: the tenant has no such job.
        """
        job = await self._job(tenant, job_id)
        if not job.spec.budget:
            return BudgetStatus(limit=NO_BUDGET, spent=job.usage)  # of ended tasks
        shared = await self._reservations.read(tenant, job_budget_name(job_id))
        status = _status(shared, with_allowance(job.spec.budget, job.allowance))
        return replace(status, added=job.allowance.added if job.allowance else NO_BUDGET)

    async def get_task_budget(self, tenant: str, task_id: str) -> BudgetStatus:
        """Returns the budget of a task, for all its attempts together.

        Raises:
            NotFound: the tenant has no such task.
        """
        row = await self._transitions.read(task_id)
        if row is None or row.spec.tenant != tenant:
            raise NotFound("task", task_id)
        now = row.lease.usage if row.lease else Usage()
        return BudgetStatus(
            limit=with_allowance(await self._task_budget(row), row.allowance),
            spent=row.usage + now,
            added=row.allowance.added if row.allowance else NO_BUDGET,
        )

    async def _task_budget(self, row: TaskRow, *, steps: bool = False) -> Budget:
        """Returns the task's own budget; with ``steps``, plus the sum of its steps' budgets."""
        spec = row.spec
        if spec.definition_version == 0:
            return NO_BUDGET  # a built-in definition
        definition = await self._transitions.retry_unavailable(
            lambda: self._backend.definitions.get(
                spec.tenant, spec.definition, version=spec.definition_version
            )
        )
        if definition is None or definition.runner is not RunnerKind.AGENT:
            return NO_BUDGET
        plan, _ = read_plan(definition.options)
        if plan is None:
            return NO_BUDGET
        return sum((step.budget for step in plan.steps if steps), plan.budget)

    async def add_to_task_budget(
        self, tenant: str, task_id: str, amount: Budget, *, by: str, request_id: str
    ) -> TaskRow:
        """Raise a task's budget; a task that is parked because of it becomes pending.

        Raises:
            NotFound: the tenant has no such task.
            CommandRefused: it has ended.
            UsageError: the task has no such budget, nothing is added, or the id is not one.
        """
        _check_addition(amount, request_id)
        row = await self._transitions.read(task_id)
        if row is None or row.spec.tenant != tenant:
            raise NotFound("task", task_id)
        command = c.AddBudget(amount=amount, by=by, request_id=request_id)
        if row.allowance is not None and request_id in row.allowance.requests:
            return row
        own = await self._task_budget(row, steps=True)
        if not row.state.terminal and (unlimited := own.unlimited_units(amount)):
            what = " and ".join(unlimited)
            message = f"task {task_id} has no budget in {what}: nothing limits it"
            raise UsageError(message)
        try:
            return await self._transitions.apply_to_task(task_id, command)
        except CommandRefused:
            # An earlier try may have been committed and its answer lost.
            row = await self._transitions.read(task_id)
            if row and row.allowance and request_id in row.allowance.requests:
                return row
            raise

    async def add_to_job_budget(
        self, tenant: str, job_id: str, amount: Budget, *, by: str, request_id: str
    ) -> JobRow:
        """Raise a job's budget; tasks that are parked because of it become pending.

        Raises:
            NotFound: the tenant has no such job.
            CommandRefused: it has ended.
            UsageError: the job has no such budget, nothing is added, or the id is not one.
        """
        _check_addition(amount, request_id)
        job = await self._job(tenant, job_id)
        if unlimited := job.spec.budget.unlimited_units(amount):
            message = f"job {job_id} has no budget in {' and '.join(unlimited)}: nothing limits it"
            raise UsageError(message)

        async def decide(row: JobRow, now: datetime, change_id: str) -> jobs.JobDecision:
            intent = Intent(
                id=change_id, kind=IntentKind.UNPARK, numbers=NO_NUMBERS, round=row.round, by=by
            )
            command = jobs.AddJobBudget(amount=amount, by=by, request_id=request_id, intent=intent)
            return jobs.apply(row, command, now=now, change_id=change_id)

        try:
            job = await self._transitions.apply_to_job(job_id, decide)
        except CommandRefused:
            # An earlier try may have been committed and its answer lost.
            job = await self._job(tenant, job_id)
            if not (job.allowance and request_id in job.allowance.requests):
                raise
        for intent in job.intents:
            if intent.kind is IntentKind.UNPARK:
                await self.finish_intent(job, intent)
        return await self._job(tenant, job_id)

    async def add_to_day_budget(
        self, tenant: str, amount: Budget, *, by: str, request_id: str
    ) -> BudgetStatus:
        """Raise the tenant's budget for today; tasks parked because of it become pending.

        Raises:
            UsageError: nothing limits the day, nothing is added, or the request id is not one.
        """
        _check_addition(amount, request_id)
        if unlimited := self._day_budget.unlimited_units(amount):
            message = f"the day has no budget in {' and '.join(unlimited)}: nothing limits it"
            raise UsageError(message)
        now = self._backend.clock.now()
        name = day_budget_name(now)

        def decide(budget: SharedBudget) -> SharedBudget | None:
            allowance = add_allowance(budget.allowance, amount, request_id)
            return None if allowance is None else replace(budget, allowance=allowance)

        if await self._reservations.change(tenant, name, decide) is not None:
            await self._emit_added(tenant, name, f"{amount} added", by, now)
        async for row in self._iter_parked(tenant):
            await self._unpark(row, c.Unpark(scope=BudgetScope.DAY, by=by))
        return await self.get_day_budget(tenant)

    async def _emit_added(
        self, tenant: str, subject: str, detail: str, by: str, now: datetime
    ) -> None:
        acted = OperatorActed(by=by, action="budget.added", subject=subject, detail=detail)
        with log_and_continue(logger, "budget.event_lost", tenant=tenant):
            await self._backend.events.append(
                tenant=tenant,
                app=self._app,
                entity_id=_ENTITY_ID,
                body=acted,
                context=EventContext(origin="operator", source="user"),
                now=now,
            )

    async def finish_intent(self, job: JobRow, intent: Intent) -> bool:
        """Unpark the tasks that wait for the job's budget.

        Returns False if another process closed the intent first.
        """
        async for row in self._iter_parked(job.spec.tenant, job.id):
            await self._unpark(row, c.Unpark(scope=BudgetScope.JOB, by=intent.by))
        return await self._transitions.close_intent(job.id, intent) is not None

    async def _iter_parked(self, tenant: str, job_id: str | None = None) -> AsyncIterator[TaskRow]:
        cursor: str | None = None
        while True:
            page = await self._backend.ledger.list_tasks(
                tenant, job_id=job_id, state=TaskState.PARKED, limit=_AT_ONCE, cursor=cursor
            )
            for row in page.items:
                yield row
            if (cursor := page.cursor) is None:
                return

    async def _unpark(self, row: TaskRow, command: c.Unpark) -> bool:
        try:
            await self._transitions.apply_to_task(row.id, command)
        except (CommandRefused, NotFound):
            return False  # it waits for another budget, or is no longer parked
        return True

    async def unpark_ready(self) -> int:
        """Unpark tasks that may run again, and return how many.

        These are the tasks whose day is over and, for each shared budget that has something left
        again because others spent less than they had reserved, one task.
        """
        return await self._unpark_due() + await self._unpark_one_per_budget()

    async def _unpark_one_per_budget(self) -> int:
        ids = await self._list_parked()
        rows = await self._transitions.retry_unavailable(
            lambda: self._backend.ledger.get_tasks(ids)
        )
        first: dict[tuple[str, str], TaskRow] = {}
        for row in rows:
            if (name := self._shared_budget_name(row)) is not None:
                first.setdefault((row.spec.tenant, name), row)
        done = 0
        for (tenant, name), row in first.items():
            with log_and_continue(logger, "task.unpark_failed", task_id=row.id):
                limit = await self._shared_limit(row)
                used_up = not limit or await self._reservations.exhaustion(tenant, name, limit)
                if row.parked and not used_up:
                    done += await self._unpark(row, c.Unpark(scope=row.parked.scope, by=_SWEEPER))
        return done

    async def _list_parked(self) -> list[str]:
        """Returns the ids of all parked tasks, so that none hides behind a page limit."""
        limit = _AT_ONCE
        while len(parked := await self._backend.ledger.parked_tasks(limit=limit)) >= limit:
            limit *= 2
        return [task.task_id for task in parked]

    def _shared_budget_name(self, row: TaskRow) -> str | None:
        """Returns the shared budget that a parked task waits for."""
        match row.parked.scope if row.parked else None:
            case BudgetScope.JOB:
                return job_budget_name(row.spec.job_id)
            case BudgetScope.DAY:
                return day_budget_name(self._backend.clock.now())
        return None

    async def _shared_limit(self, row: TaskRow) -> Budget:
        if row.parked is not None and row.parked.scope is BudgetScope.DAY:
            return self._day_budget
        job = await self._reservations.read_job(row)
        return NO_BUDGET if job is None else with_allowance(job.spec.budget, job.allowance)

    async def _unpark_due(self) -> int:
        done, progress = 0, True
        while progress:
            now = self._backend.clock.now()
            due = await self._backend.ledger.parked_tasks(limit=_AT_ONCE, due_by=now)
            progress = False
            for task in due:
                with log_and_continue(logger, "task.unpark_failed", task_id=task.task_id):
                    row = await self._transitions.read(task.task_id)
                    command = c.Unpark(scope=BudgetScope.DAY, by=_SWEEPER, due=True)
                    if row is not None and await self._unpark(row, command):
                        progress, done = True, done + 1
        return done

    async def release_reservations(self, row: TaskRow, *, started_at: datetime) -> None:
        """Close the reservations of an attempt whose lease was ended."""
        if row.usage != Usage():
            await self._reservations.close_lost_attempt(row, started_at, self._backend.clock.now())

    async def _job(self, tenant: str, job_id: str) -> JobRow:
        job = await self._transitions.retry_unavailable(
            lambda: self._backend.ledger.get_job(job_id)
        )
        if job is None or job.spec.tenant != tenant:
            raise NotFound("job", job_id)
        return job


def _status(budget: SharedBudget, limit: Budget) -> BudgetStatus:
    added = budget.allowance.added if budget.allowance else NO_BUDGET
    return BudgetStatus(
        limit=with_allowance(limit, budget.allowance),
        spent=budget.spent,
        reserved=sum((item.reserved for item in budget.reservations), Usage()),
        added=added,
    )


def _check_addition(amount: Budget, request_id: str) -> None:
    if not is_request_id(request_id):
        message = "a request id must be 1 to 256 printable characters"
        raise UsageError(message)
    if not amount:
        message = "nothing is added: name dollars, tokens or minutes"
        raise UsageError(message)
    amounts = (amount.usd, amount.tokens, amount.minutes)
    if not all(0 < amount <= MAX_AMOUNT for amount in amounts if amount is not None):
        message = f"what is added must be above 0, and {MAX_AMOUNT:,} at most"
        raise UsageError(message)
