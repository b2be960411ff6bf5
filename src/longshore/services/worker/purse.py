"""The purse of an attempt: what its agent may still spend, asked before each question to a model.

Four budgets may stand in the way: that of the step, of the task, of the job, and of the tenant's
day. The first two are the attempt's alone and looked at here; the others are shared, so what is
wanted is reserved there before it is spent, and settled when the answer has come. What is
used up stops the agent, and its task is parked.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Protocol

from longshore.core.agents.plan import AgentPlan, read_plan
from longshore.core.budgets import (
    NO_BUDGET,
    RESERVED,
    Allowance,
    Budget,
    Scope,
    Stale,
    day_account,
    day_after,
    exhausted,
    job_account,
    raised,
)
from longshore.core.definition import RunnerKind
from longshore.core.events.types import Usage
from longshore.core.rows import JobRow, TaskRow
from longshore.errors import BackendUnavailable, LeaseLost
from longshore.ports.clock import Clock
from longshore.ports.runner import Asked, WorkOrder
from longshore.services.accounting import Accounting
from longshore.services.worker.tools import Tools

logger = logging.getLogger(__name__)

NOTHING = Usage()
_AFTER_TROUBLE = timedelta(seconds=1)
_dollars = attrgetter("cost_usd", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """A budget of which nothing is left."""

    scope: Scope
    reason: str
    until: datetime | None = None  # when there is a new one
    reserved: bool = False  # it is not all spent: something is on its way
    allowance: Allowance | None = None  # of the task, as it was when this was found


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something may be spent."""

    stop: str | None = None  # why not; None: it may
    wait: bool = False  # that is not known yet


@dataclass(slots=True)
class _Share:
    """What this attempt has of a shared account."""

    spent: Usage = NOTHING  # by answers for which something was reserved there
    asked: dict[int, Usage] = field(default_factory=dict)  # on its way

    @property
    def reserved(self) -> Usage:
        return sum(self.asked.values(), NOTHING)


class Spender(Protocol):
    """The attempt, as far as a purse has to know it."""

    @property
    def row(self) -> TaskRow:
        """As it was last heard of."""
        ...

    @property
    def ends(self) -> bool:
        """Whether somebody wants it to end."""
        ...

    async def renew(self) -> bool:
        """Write down what it has spent; whether that was heard."""
        ...


class Purse:
    """What one attempt may spend.

    Args:
        day: What a tenant may spend in a day.
    """

    def __init__(
        self,
        accounting: Accounting,
        clock: Clock,
        spender: Spender,
        plan: AgentPlan,
        *,
        day: Budget,
    ) -> None:
        self._accounting = accounting
        self._clock = clock
        self._spender = spender
        self._plan = plan
        self._day = day
        self._known = True  # whether what was spent is written down
        self._job: JobRow | None = None
        self._spent = NOTHING
        self._asked: dict[int, Usage] = {}
        self._steps: dict[str, Usage] = {}  # what had been spent when each began
        self._shares: dict[str, _Share] = {}
        self.exhausted: Exhausted | None = None
        self.waiting: Asked | None = None

    async def open(self) -> bool:
        """Find out which budgets there are; whether there is any."""
        await self._look_at_job()
        own = self._plan.budget or any(step.budget for step in self._plan.steps)
        return bool(own or self._day or self._of_job)

    async def _look_at_job(self) -> None:
        self._job = await self._accounting.job_of(self._spender.row)

    @property
    def _of_job(self) -> Budget:
        return (
            NO_BUDGET if self._job is None else raised(self._job.spec.budget, self._job.allowance)
        )

    async def admits(self, asked: Asked) -> Verdict:
        """Whether what is asked for may be spent. Once it may not, nothing is any more.

        What is only reserved, for other questions of this attempt, may be left when their answers
        are there: then ``waiting`` is to be asked for again.

        Raises:
            LeaseLost: somebody else has ended the attempt.
        """
        await self._write_down()
        self.waiting = None
        if self.exhausted is None:
            asked = replace(asked, spent=max(asked.spent, self._spent, key=_dollars))
            self._steps.setdefault(asked.step, asked.spent)
            left = self._own_exhausted(asked) or await self._shared_exhausted(asked)
            if left is None:
                self._asked[asked.number] = asked.wanted
            elif left.reserved and self._on_the_way:
                self.waiting = asked
                return Verdict(wait=True)
            self.exhausted = left
        return Verdict(None if self.exhausted is None else self.exhausted.reason)

    @property
    def _on_the_way(self) -> bool:
        return any(wanted != NOTHING for wanted in self._asked.values())

    def _own_exhausted(self, asked: Asked) -> Exhausted | None:
        if (left := self._used_up(asked, NOTHING)) is not None:
            return left
        left = self._used_up(asked, sum(self._asked.values(), NOTHING))
        return None if left is None else replace(left, reserved=True)

    def _used_up(self, asked: Asked, on_the_way: Usage) -> Exhausted | None:
        row = self._spender.row
        step = next((one for one in self._plan.steps if one.name == asked.step), None)
        if step is not None:
            spent = asked.spent - self._steps[asked.step] + on_the_way
            if why := exhausted(raised(step.budget, row.allowance), spent):
                reason = f"budget of step {step.name!r}: {why}"
                return Exhausted(scope=Scope.STEP, reason=reason, allowance=row.allowance)
        spent = row.usage + asked.spent + on_the_way
        if why := exhausted(raised(self._plan.budget, row.allowance), spent):
            reason = f"budget of the task: {why}"
            return Exhausted(scope=Scope.TASK, reason=reason, allowance=row.allowance)
        return None

    async def _shared_exhausted(self, asked: Asked) -> Exhausted | None:
        try:
            if why := await self._reserve_of_job(asked):
                return _shared(Scope.JOB, why)
            now = self._clock.now()
            if self._day and (why := await self._reserve(day_account(now), self._day, asked)):
                return _shared(Scope.DAY, why, until=day_after(now))
        except Stale as stale:
            raise LeaseLost(self._spender.row.id, "somebody else has ended the attempt") from stale
        return None

    async def _reserve_of_job(self, asked: Asked) -> str | None:
        if self._job is None or not self._job.spec.budget:
            return None
        name = job_account(self._job.id)
        if await self._reserve(name, self._of_job, asked) is None:
            return None
        await self._look_at_job()  # somebody may have added something meanwhile
        return await self._reserve(name, self._of_job, asked)

    async def _reserve(self, name: str, limit: Budget, asked: Asked) -> str | None:
        share = self._shares.setdefault(name, _Share())
        why = await self._accounting.reserve(
            self._spender.row,
            name,
            limit,
            spent=share.spent,
            reserved=share.reserved,
            wanted=asked.wanted,
        )
        if why is None:
            share.asked[asked.number] = asked.wanted
        return why

    async def _write_down(self) -> None:
        """Nothing more is spent before it is known what was: whoever dies now cannot say it."""
        while not self._known and not self._spender.ends:
            await self._clock.sleep(_AFTER_TROUBLE)
            self._known = await self._spender.renew()
        if not self._known:
            raise LeaseLost(self._spender.row.id, "it ends, and what it spent is not written down")

    async def settle(self, number: int, spent: Usage, *, known: bool | None = None) -> None:
        """An answer has come, or will not; with it the attempt has spent this much in all.

        Args:
            known: Whether that is written down; None: there was nothing new to write.
        """
        if known is not None:
            self._known = known
        cost, self._spent = spent - self._spent, spent
        self._asked.pop(number, None)
        shares = {name: one for name, one in self._shares.items() if number in one.asked}
        for share in shares.values():  # all, before telling one of them can fail
            del share.asked[number]
            share.spent += cost
        for name, share in shares.items():
            await self._accounting.settle(
                self._spender.row, name, spent=share.spent, reserved=share.reserved
            )

    async def close(self) -> None:
        """The attempt is over."""
        for name, share in self._shares.items():
            try:
                await self._accounting.close(self._spender.row, name, spent=share.spent)
            except BackendUnavailable as error:  # whoever needs it closes it, as it was last told
                logger.warning("account.left_open", extra={"account": name, "error": str(error)})


def _shared(scope: Scope, why: str, until: datetime | None = None) -> Exhausted:
    reason = f"budget of the {scope.value}: {why}"
    return Exhausted(scope=scope, reason=reason, until=until, reserved=why.endswith(RESERVED))


async def purse_for(order: WorkOrder, tools: Tools, spender: Spender) -> Purse | None:
    """The purse of an attempt, opened; None if it is no agent's, or nothing limits it.

    Raises:
        LeaseLost: somebody else has ended the attempt.
        BackendUnavailable: nobody can tell what it may spend.
    """
    if order.definition.runner is not RunnerKind.AGENT:
        return None
    plan, _ = read_plan(order.definition.options)
    if plan is None:
        return None
    purse = Purse(tools.accounting, tools.backend.clock, spender, plan, day=tools.day_budget)
    if not await purse.open():
        return None
    await purse.admits(Asked(0, "", NOTHING, NOTHING))
    return purse
