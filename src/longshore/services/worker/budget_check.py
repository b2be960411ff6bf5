"""The budget check of an attempt: whether its agent may call the model once more.

Four budgets apply: the step's, the task's, the job's and the one of the tenant's day. The first two
belong to the attempt alone and are checked here. The other two are shared: an amount is reserved
before it is spent, and settled when the response has arrived. When a budget is used up, the agent
stops and its task is parked.

While the last request is neither granted nor refused, it waits until responses on their way are
settled, and is decided again. A refusal is final.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter

from longshore.core.agents.plan import AgentPlan, read_plan
from longshore.core.budgets import (
    NO_BUDGET,
    Allowance,
    Budget,
    BudgetScope,
    Exhausted,
    Reservation,
    StaleReservation,
    day_budget_name,
    exhaustion,
    job_budget_name,
    next_day_start,
    with_allowance,
)
from longshore.core.definitions.definition import RunnerKind
from longshore.core.events.types import NO_USAGE, Usage
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.errors import LeaseLost
from longshore.ports.runner import AttemptSpec, SpendRequest
from longshore.services.resilience import log_and_continue
from longshore.services.worker.context import WorkerContext
from longshore.services.worker.output import AttemptReports

logger = logging.getLogger(__name__)

_RETRY_PAUSE = timedelta(seconds=1)
_dollars = attrgetter("cost_usd", "seconds")


@dataclass(frozen=True, slots=True)
class BudgetStop:
    """A budget is used up, and nothing more is granted."""

    scope: BudgetScope
    exhausted: Exhausted
    label: str  # names the budget in messages
    until: datetime | None = None  # when the budget starts anew; None: never by itself
    allowance: Allowance | None = None  # of the task, at the moment of the check

    @property
    def reason(self) -> str:
        """Which budget is used up, for people."""
        return f"budget of {self.label}: {self.exhausted}"


@dataclass(slots=True)
class _SharedBudgetUse:
    """What this attempt uses of a shared budget."""

    spent: Usage = NO_USAGE  # by responses for which an amount was reserved there
    pending: dict[int, Usage] = field(default_factory=dict)  # reserved, by request number

    def reservation(self, row: TaskRow) -> Reservation:
        """Returns what the attempt has open in the budget."""
        reserved = sum(self.pending.values(), NO_USAGE)
        return Reservation(task_id=row.id, attempt=row.attempt, spent=self.spent, reserved=reserved)


@dataclass(slots=True)
class BudgetCheck:
    """Decides what one attempt may spend.

    Args:
        reports: Have the task's row as last read.
        stopped: Done when the attempt was asked to stop.
        renew: Records the attempt's usage durably. Returns whether that succeeded.
    """

    context: WorkerContext
    reports: AttemptReports
    stopped: asyncio.Future[None]
    renew: Callable[[], Awaitable[bool]]
    plan: AgentPlan
    stop: BudgetStop | None = None  # the budget that is used up, if any
    waiting: SpendRequest | None = None  # to be decided again after the next settlement
    _recorded: bool = True  # whether all spend is recorded durably
    _job: JobRow | None = None
    _spent: Usage = NO_USAGE
    _pending: dict[int, Usage] = field(default_factory=dict)
    _step_starts: dict[str, Usage] = field(default_factory=dict)  # spend at the start of each step
    _shares: dict[str, _SharedBudgetUse] = field(default_factory=dict)

    async def open(self) -> bool:
        """Read which budgets apply. Returns whether there is any."""
        await self._refresh_job()
        own = self.plan.budget or any(step.budget for step in self.plan.steps)
        return bool(own or self.context.day_budget or self._job_budget)

    async def _refresh_job(self) -> None:
        self._job = await self.context.reservations.read_job(self.reports.row)

    @property
    def _job_budget(self) -> Budget:
        if self._job is None:
            return NO_BUDGET
        return with_allowance(self._job.spec.budget, self._job.allowance)

    async def decide(self, request: SpendRequest) -> None:
        """Decide whether the requested amount may be spent: see ``stop`` and ``waiting``.

        Raises:
            LeaseLost: another process has ended the attempt.
        """
        await self._record_spend()
        if self.stop is not None:
            return
        request = replace(request, spent=max(request.spent, self._spent, key=_dollars))
        self._step_starts.setdefault(request.step, request.spent)
        stop = self._check_own(request) or await self._reserve_shared(request)
        self.waiting = None
        if stop is None:
            self._pending[request.number] = request.estimate
        elif stop.exhausted.reserved and sum(self._pending.values(), NO_USAGE) != NO_USAGE:
            # Other responses of this attempt may cost less than was reserved for them.
            self.waiting = request
        else:
            self.stop = stop

    def _check_own(self, request: SpendRequest) -> BudgetStop | None:
        row, pending = self.reports.row, sum(self._pending.values(), NO_USAGE)
        in_step = request.spent - self._step_starts[request.step]
        budgets = [
            (BudgetScope.STEP, f"step {step.name!r}", step.budget, in_step)
            for step in self.plan.steps
            if step.name == request.step
        ]
        budgets.append((BudgetScope.TASK, "the task", self.plan.budget, row.usage + request.spent))
        for scope, label, budget, spent in budgets:
            limit = with_allowance(budget, row.allowance)
            if exhausted := exhaustion(limit, spent, spent + pending):
                return BudgetStop(scope, exhausted, label, allowance=row.allowance)
        return None

    async def _reserve_shared(self, request: SpendRequest) -> BudgetStop | None:
        try:
            if exhausted := await self._reserve_from_job(request):
                return BudgetStop(BudgetScope.JOB, exhausted, "the job")
            now, limit = self.context.backend.clock.now(), self.context.day_budget
            if limit and (exhausted := await self._reserve(day_budget_name(now), limit, request)):
                until = next_day_start(now)
                return BudgetStop(BudgetScope.DAY, exhausted, "the day", until=until)
        except StaleReservation as stale:
            reason = "another process has ended the attempt"
            raise LeaseLost(self.reports.row.id, reason) from stale
        return None

    async def _reserve_from_job(self, request: SpendRequest) -> Exhausted | None:
        if self._job is None or not self._job.spec.budget:
            return None
        name = job_budget_name(self._job.id)
        if await self._reserve(name, self._job_budget, request) is None:
            return None
        await self._refresh_job()  # an operator may have raised it meanwhile
        return await self._reserve(name, self._job_budget, request)

    async def _reserve(self, name: str, limit: Budget, request: SpendRequest) -> Exhausted | None:
        row, share = self.reports.row, self._shares.setdefault(name, _SharedBudgetUse())
        exhausted = await self.context.reservations.reserve(
            row.spec.tenant, name, limit, share.reservation(row), request.estimate
        )
        if exhausted is None:
            share.pending[request.number] = request.estimate
        return exhausted

    async def _record_spend(self) -> None:
        """Wait until past spend is recorded durably: a crash must not lose it."""
        while not self._recorded and not self.stopped.done():
            await self.context.backend.clock.sleep(_RETRY_PAUSE)
            self._recorded = await self.renew()
        if not self._recorded:
            raise LeaseLost(self.reports.row.id, "the attempt ends with unrecorded spend")

    async def settle(self, number: int, spent: Usage, *, recorded: bool | None = None) -> None:
        """A response has arrived or never will: the attempt has now spent this much in total.

        Args:
            recorded: Whether that is recorded durably; None: there was nothing new to record.
        """
        if recorded is not None:
            self._recorded = recorded
        cost, self._spent = spent - self._spent, spent
        self._pending.pop(number, None)
        shares = {name: share for name, share in self._shares.items() if number in share.pending}
        for share in shares.values():  # all of them, before a settlement below can fail
            del share.pending[number]
            share.spent += cost
        for name, share in shares.items():
            row = self.reports.row
            await self.context.reservations.settle(row.spec.tenant, name, share.reservation(row))

    async def close(self) -> None:
        """Close the attempt's reservations; it has ended.

        A reservation that stays open is closed by the next attempt that needs it.
        """
        for name, share in self._shares.items():
            with log_and_continue(
                logger,
                "budget.close_failed",
                unavailable="reservation.close_failed",
                task_id=self.reports.row.id,
                budget=name,
            ):
                await self.context.reservations.close(self.reports.row, name, spent=share.spent)


async def open_budget_check(
    context: WorkerContext,
    spec: AttemptSpec,
    reports: AttemptReports,
    stopped: asyncio.Future[None],
    renew: Callable[[], Awaitable[bool]],
) -> BudgetCheck | None:
    """Returns the opened budget check of an attempt; None if no budget limits it.

    Raises:
        LeaseLost: another process has ended the attempt.
        BackendUnavailable: the budgets cannot be read.
    """
    if spec.definition.runner is not RunnerKind.AGENT:
        return None
    plan, _ = read_plan(spec.definition.options)
    if plan is None:
        return None
    check = BudgetCheck(context, reports, stopped, renew, plan)
    if not await check.open():
        return None
    await check.decide(SpendRequest(0, "", NO_USAGE, NO_USAGE))
    return check
