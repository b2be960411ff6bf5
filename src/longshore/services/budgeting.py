"""Budgeting: operators look at what was spent, and allow more; what rested for want of it goes on.

An addition to a job is written into the job's row together with an intent, which whoever finds it
open carries out: its tasks that are parked for want of the job's budget become pending again. Those
parked for a day go on by themselves when the next one begins; the sweeper sees to that.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from longshore.core import commands as c
from longshore.core import job as jobs
from longshore.core.agents.plan import read_plan
from longshore.core.budgets import (
    MOST,
    NO_BUDGET,
    Account,
    Budget,
    Scope,
    allowed_more,
    day_account,
    job_account,
    raised,
)
from longshore.core.definition import RunnerKind
from longshore.core.events.event import Context
from longshore.core.events.types import OperatorActed, Usage
from longshore.core.ids import is_request_id
from longshore.core.numbers import NO_NUMBERS
from longshore.core.rows import Intent, IntentKind, JobRow, TaskRow
from longshore.core.states import TaskState
from longshore.errors import CommandRefused, NotFound, UsageError
from longshore.ports.backend import Backend
from longshore.services.accounting import Accounting
from longshore.services.edges import stepped_over
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

_AT_ONCE = 100
_ENTITY_ID = "budget"
_SWEEPER = "sweeper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A budget, and what is spent of it."""

    limit: Budget
    spent: Usage
    reserved: Usage = field(default_factory=Usage)  # for answers that are on their way
    added: Budget = NO_BUDGET  # of the limit, by operators


class Budgeting:
    """Shows budgets and adds to them.

    Args:
        day: What a tenant may spend in a day.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        accounting: Accounting,
        day: Budget = NO_BUDGET,
        app: str = "longshore",
    ) -> None:
        self._backend = backend
        self._transitions = transitions
        self._accounting = accounting
        self._day = day
        self._app = app

    async def of_day(self, tenant: str) -> Standing:
        """What the tenant may spend today, and has spent."""
        account = await self._accounting.read(tenant, day_account(self._backend.clock.now()))
        return _standing(account, self._day)

    async def of_job(self, tenant: str, job_id: str) -> Standing:
        """What may be spent on a job, and was.

        Raises:
            NotFound: the tenant has no such job.
        """
        job = await self._job(tenant, job_id)
        if not job.spec.budget:
            return Standing(limit=NO_BUDGET, spent=job.usage)  # of the tasks that have ended
        account = await self._accounting.read(tenant, job_account(job_id))
        standing = _standing(account, raised(job.spec.budget, job.allowance))
        return replace(standing, added=job.allowance.added if job.allowance else NO_BUDGET)

    async def of_task(self, tenant: str, task_id: str) -> Standing:
        """What may be spent on a task in all its attempts, and was.

        Raises:
            NotFound: the tenant has no such task.
        """
        row = await self._transitions.read(task_id)
        if row is None or row.spec.tenant != tenant:
            raise NotFound("task", task_id)
        now = row.lease.usage if row.lease else Usage()
        return Standing(
            limit=raised(await self._budget_of(row), row.allowance),
            spent=row.usage + now,
            added=row.allowance.added if row.allowance else NO_BUDGET,
        )

    async def _budget_of(self, row: TaskRow, *, steps: bool = False) -> Budget:
        """A task's own; with ``steps`` also what its steps have, in sum."""
        spec = row.spec
        if spec.definition_version == 0:
            return NO_BUDGET  # one that everybody has
        definition = await self._transitions.persistently(
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

    async def add_to_task(
        self, tenant: str, task_id: str, more: Budget, *, by: str, request_id: str
    ) -> TaskRow:
        """Allow more to be spent on a task; if it rests for want of that, it goes on.

        Raises:
            NotFound: the tenant has no such task.
            CommandRefused: it has ended.
            UsageError: the task has no such budget, nothing is added, or the id is not one.
        """
        _check(more, request_id)
        row = await self._transitions.read(task_id)
        if row is None or row.spec.tenant != tenant:
            raise NotFound("task", task_id)
        command = c.AddBudget(more=more, by=by, request_id=request_id)
        if row.allowance is not None and request_id in row.allowance.requests:
            return row
        own = await self._budget_of(row, steps=True)
        if not row.state.terminal and (unlimited := own.unlimited_of(more)):
            what = " and ".join(unlimited)
            message = f"task {task_id} has no budget in {what}: nothing limits it"
            raise UsageError(message)
        try:
            return await self._transitions.task(task_id, command)
        except CommandRefused:
            # It may have been ours, with its answer lost.
            row = await self._transitions.read(task_id)
            if row and row.allowance and request_id in row.allowance.requests:
                return row
            raise

    async def add_to_job(
        self, tenant: str, job_id: str, more: Budget, *, by: str, request_id: str
    ) -> JobRow:
        """Allow more to be spent on a job; its tasks that rest for want of that go on.

        Raises:
            NotFound: the tenant has no such job.
            CommandRefused: it has ended.
            UsageError: the job has no such budget, nothing is added, or the id is not one.
        """
        _check(more, request_id)
        job = await self._job(tenant, job_id)
        if unlimited := job.spec.budget.unlimited_of(more):
            message = f"job {job_id} has no budget in {' and '.join(unlimited)}: nothing limits it"
            raise UsageError(message)

        async def decide(row: JobRow, now: datetime, change_id: str) -> jobs.JobDecision:
            intent = Intent(
                id=change_id, kind=IntentKind.UNPARK, numbers=NO_NUMBERS, round=row.round, by=by
            )
            command = jobs.AddJobBudget(more=more, by=by, request_id=request_id, intent=intent)
            return jobs.apply(row, command, now=now, change_id=change_id)

        try:
            job = await self._transitions.job(job_id, decide)
        except CommandRefused:
            # It may have been ours, with its answer lost.
            job = await self._job(tenant, job_id)
            if not (job.allowance and request_id in job.allowance.requests):
                raise
        for intent in job.intents:
            if intent.kind is IntentKind.UNPARK:
                await self.finish(job, intent)
        return await self._job(tenant, job_id)

    async def add_to_day(self, tenant: str, more: Budget, *, by: str, request_id: str) -> Standing:
        """Allow the tenant more for today; its tasks that rest for want of that go on.

        Raises:
            UsageError: nothing limits the day, nothing is added, or the request id is not one.
        """
        _check(more, request_id)
        if unlimited := self._day.unlimited_of(more):
            message = f"the day has no budget in {' and '.join(unlimited)}: nothing limits it"
            raise UsageError(message)
        now = self._backend.clock.now()
        name = day_account(now)

        def decide(account: Account) -> Account | None:
            allowance = allowed_more(account.allowance, more, request_id)
            return None if allowance is None else replace(account, allowance=allowance)

        if await self._accounting.change(tenant, name, decide) is not None:
            await self._note(tenant, name, f"{more} added", by, now)
        async for row in self._parked(tenant):
            await self._unpark(row, c.Unpark(scope=Scope.DAY, by=by))
        return await self.of_day(tenant)

    async def _note(self, tenant: str, subject: str, detail: str, by: str, now: datetime) -> None:
        acted = OperatorActed(by=by, action="budget.added", subject=subject, detail=detail)
        with stepped_over(logger, "budget.untold", tenant=tenant):
            await self._backend.events.append(
                tenant=tenant,
                app=self._app,
                entity_id=_ENTITY_ID,
                body=acted,
                context=Context(origin="operator", source="user"),
                now=now,
            )

    async def finish(self, job: JobRow, intent: Intent) -> bool:
        """Let go on what rests for want of a job's budget; False: somebody was faster."""
        async for row in self._parked(job.spec.tenant, job.id):
            await self._unpark(row, c.Unpark(scope=Scope.JOB, by=intent.by))
        return await self._transitions.close(job.id, intent) is not None

    async def _parked(self, tenant: str, job_id: str | None = None) -> AsyncIterator[TaskRow]:
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
            await self._transitions.task(row.id, command)
        except (CommandRefused, NotFound):
            return False  # for want of another budget, or it goes on already
        return True

    async def unpark(self) -> int:
        """Let go on what may: those whose day is over, and of each shared budget of which
        something is left again, because others took less than they had reserved, one; how many.
        """
        return await self._unpark_due() + await self._unpark_one_each()

    async def _unpark_one_each(self) -> int:
        ids = await self._all_parked()
        rows = await self._transitions.persistently(lambda: self._backend.ledger.tasks(ids))
        first: dict[tuple[str, str], TaskRow] = {}
        for row in rows:
            if (name := self._account_of(row)) is not None:
                first.setdefault((row.spec.tenant, name), row)
        done = 0
        for (tenant, name), row in first.items():
            with stepped_over(logger, "task.still_parked", task_id=row.id):
                limit = await self._limit(row)
                used_up = not limit or await self._accounting.used_up(tenant, name, limit)
                if row.parked and not used_up:
                    done += await self._unpark(row, c.Unpark(scope=row.parked.scope, by=_SWEEPER))
        return done

    async def _all_parked(self) -> list[str]:
        """All of them: many that rest for something else must not hide one that may go on."""
        limit = _AT_ONCE
        while len(found := await self._backend.ledger.parked(limit=limit)) >= limit:
            limit *= 2
        return [task.task_id for task in found]

    def _account_of(self, row: TaskRow) -> str | None:
        """The shared account for want of which a task rests."""
        match row.parked.scope if row.parked else None:
            case Scope.JOB:
                return job_account(row.spec.job_id)
            case Scope.DAY:
                return day_account(self._backend.clock.now())
        return None

    async def _limit(self, row: TaskRow) -> Budget:
        if row.parked is not None and row.parked.scope is Scope.DAY:
            return self._day
        job = await self._accounting.job_of(row)
        return NO_BUDGET if job is None else raised(job.spec.budget, job.allowance)

    async def _unpark_due(self) -> int:
        done, mended = 0, True
        while mended:
            now = self._backend.clock.now()
            found = await self._backend.ledger.parked(limit=_AT_ONCE, due_by=now)
            mended = False
            for task in found:
                with stepped_over(logger, "task.still_parked", task_id=task.task_id):
                    row = await self._transitions.read(task.task_id)
                    command = c.Unpark(scope=Scope.DAY, by=_SWEEPER, due=True)
                    if row is not None and await self._unpark(row, command):
                        mended, done = True, done + 1
        return done

    async def attempt_lost(self, row: TaskRow, *, began: datetime) -> None:
        """Somebody has ended the lease of an attempt: what it had reserved is free again."""
        if row.usage != Usage():
            await self._accounting.forget(row, began, self._backend.clock.now())

    async def _job(self, tenant: str, job_id: str) -> JobRow:
        job = await self._transitions.persistently(lambda: self._backend.ledger.job(job_id))
        if job is None or job.spec.tenant != tenant:
            raise NotFound("job", job_id)
        return job


def _standing(account: Account, limit: Budget) -> Standing:
    added = account.allowance.added if account.allowance else NO_BUDGET
    return Standing(
        limit=raised(limit, account.allowance),
        spent=account.spent,
        reserved=sum((one.reserved for one in account.holdings), Usage()),
        added=added,
    )


def _check(more: Budget, request_id: str) -> None:
    if not is_request_id(request_id):
        message = "a request id must be 1 to 256 printable characters"
        raise UsageError(message)
    if not more:
        message = "nothing is added: name dollars, tokens or minutes"
        raise UsageError(message)
    amounts = (more.usd, more.tokens, more.minutes)
    if not all(0 < amount <= MOST for amount in amounts if amount is not None):
        message = f"what is added must be above 0, and {MOST:,} at most"
        raise UsageError(message)
