"""The health check: looks at all that runs now and all that lies, tells history and people.

A worker that hangs, or a task that runs for ever, shows nowhere else: its lease is renewed and its
row looks well. The check reads rows, each once, however long ago their task began. One process of
the machine does it, and goes on whatever breaks: a check that ended silently would look like a
house in perfect health.

What lies is the other half, dead letters and parked tasks: nobody looks at them again unless told
that they are there. Neither half waits for the other: what cannot be read in one is no reason not
to tell of the other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from longshore.core.alerting import Finding
from longshore.core.definition import Definition
from longshore.core.events.event import Context
from longshore.core.health import CheckedTask, HealthPolicy, HealthReport, checked, report_of
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.errors import BackendUnavailable, NotFound
from longshore.ports.backend import Backend
from longshore.ports.presence import Presence
from longshore.services.alerting import Alerting
from longshore.services.edges import stepped_over
from longshore.services.piles import Lying, Piles
from longshore.services.reading import read_rows

logger = logging.getLogger(__name__)

ROLE = "health-check"
ENTITY_ID = "health-check"
"""Every tenant's checks are the history of ``SYSTEM#health-check``."""

DEFAULT_TENANT = "default"
"""Who looks after the queues where nobody else is named, as in the settings."""

_AT_ONCE = 500
# Whoever just began lets the sweeper end the leases of those who died before.
_SETTLES = timedelta(seconds=30)
# How often others ask whether the role is free, and how soon a check that failed is made again.
_LOOKS_EVERY = timedelta(seconds=10)

PolicyOf = Callable[[TaskRow], HealthPolicy]
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckPolicy:
    """How often is checked, and what counts as healthy where a definition does not say."""

    every: timedelta = timedelta(minutes=5)
    thresholds: HealthPolicy = field(default_factory=HealthPolicy)


class HealthCheck:
    """Finds tasks that are stuck or run too long, dead letters, and parked tasks.

    A dead message that leads to no task belongs to no tenant. So that it is told once and not to
    each of them, it is told to ``tenant``, who looks after the queues.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        presence: Presence,
        alerting: Alerting,
        app: str,
        policy: HealthCheckPolicy,
        tenant: str = DEFAULT_TENANT,
    ) -> None:
        self._backend = backend
        self._presence = presence
        self._alerting = alerting
        self._app = app
        self._policy = policy
        self._piles = Piles(backend=backend, alerting=alerting, tenant=tenant)

    async def run(self) -> None:
        """Check at a steady pace while this process is the one to do it; until cancelled."""
        clock = self._backend.clock
        next_check: timedelta | None = None  # None: it is for another process
        while True:
            try:
                if next_check is None and self._presence.leads(ROLE):
                    next_check = clock.elapsed() + min(_SETTLES, self._policy.every)
                if next_check is not None and clock.elapsed() >= next_check:
                    next_check = clock.elapsed() + self._policy.every
                    await self.check_all()
            except BackendUnavailable as error:
                next_check = clock.elapsed() + min(_LOOKS_EVERY, self._policy.every)
                logger.warning("health.unavailable", extra={"error": str(error)})
            except Exception:  # the edge: nobody else would notice that nobody looks
                logger.exception("health.broken")
            await clock.sleep(self._until(next_check))

    def _until(self, next_check: timedelta | None) -> timedelta:
        if next_check is None:
            return min(_LOOKS_EVERY, self._policy.every)
        return max(next_check - self._backend.clock.elapsed(), timedelta(milliseconds=1))

    async def check_all(self) -> list[HealthReport]:
        """Check every tenant that has something running, or had when people were told of it.

        People are told of these, and of the dead letters and parked tasks of every tenant.
        """
        lying = await self._piles.lying()
        reports, idle = await self._or_tell_of(lying, self._reports(lying.tenants))
        await self._tell(reports, self._findings([*reports, *idle], lying))
        return reports

    async def check(self, tenant: str) -> HealthReport:
        """Check everything of a tenant that runs now; history and people are told."""
        lying = await self._piles.lying([tenant])
        report = await self._or_tell_of(lying, self._report_of(tenant))
        await self._tell([report], self._findings([report], lying))
        return report

    async def _or_tell_of(self, lying: Lying, looking: Awaitable[ResultT]) -> ResultT:
        """What comes of a look at tasks; if nothing does, what lies is told all the same."""
        try:
            return await looking
        except Exception:
            await self._alerting.tell(self._findings([], lying))
            raise

    async def check_one(self, tenant: str, task_id: str) -> CheckedTask | None:
        """How one task looks now, told to nobody else; None if it is not processing.

        Raises:
            NotFound: the tenant has no such task.
        """
        row = await self._backend.ledger.task(task_id)
        if row is None or row.spec.tenant != tenant:
            raise NotFound("task", task_id)
        policy_of = await self._policies([row])
        return checked(row, now=self._backend.clock.now(), policy=policy_of(row))

    async def _reports(
        self, others: Iterable[str]
    ) -> tuple[list[HealthReport], list[HealthReport]]:
        """Of those who have something running or had, and of ``others`` who have not."""
        rows = await self._processing()
        running = {row.spec.tenant for row in rows}
        tenants = {*running, *others, *await self._piles.told_tenants()}
        reports: list[HealthReport] = []
        idle: list[HealthReport] = []
        for tenant in sorted(tenants):
            with stepped_over(logger, "health.tenant_broken", tenant=tenant):
                told = await self._alerting.told_tasks(tenant)
                report = await self._report(tenant, rows, told)
                # What lies may do so for years: nothing runs, and history need not say so.
                (reports if told or tenant in running else idle).append(report)
        return reports, idle

    async def _report_of(self, tenant: str) -> HealthReport:
        rows = await self._processing()
        return await self._report(tenant, rows, await self._alerting.told_tasks(tenant))

    async def _report(
        self, tenant: str, rows: Iterable[TaskRow], told: Mapping[str, bool]
    ) -> HealthReport:
        mine = [row for row in rows if row.spec.tenant == tenant]
        # A listing may lag: what people were told of is over only if its own row says so.
        believed = {task_id for task_id, over in told.items() if not over}
        others = sorted(believed - {row.id for row in mine})
        mine += (await read_rows(self._backend.ledger, others)).rows
        policy_of = await self._policies(mine)
        now = self._backend.clock.now()
        return report_of(tenant, mine, now=now, policy_of=policy_of)

    def _findings(self, reports: Sequence[HealthReport], lying: Lying) -> list[Finding]:
        """Both halves of the check together, by tenant."""
        now = self._backend.clock.now()
        tasks = {report.tenant: report for report in reports}
        return [
            Finding(
                tenant=tenant,
                at=tasks[tenant].at if tenant in tasks else now,
                tasks=tasks.get(tenant),
                dead=lying.dead.get(tenant),
                parked=lying.parked.get(tenant),
            )
            for tenant in sorted({*tasks, *lying.tenants})
        ]

    async def _tell(self, reports: Sequence[HealthReport], found: Sequence[Finding]) -> None:
        """History and people, each whether or not the other could be told."""
        unreachable: BackendUnavailable | None = None
        try:
            for report in reports:
                with stepped_over(logger, "health.not_recorded", tenant=report.tenant):
                    await self._record(report)
        except BackendUnavailable as error:
            unreachable = error
        await self._alerting.tell(found)
        if unreachable is not None:
            raise unreachable

    async def _record(self, report: HealthReport) -> None:
        await self._backend.events.append(
            tenant=report.tenant,
            app=self._app,
            entity_id=ENTITY_ID,
            body=report.event(),
            context=Context(origin="health-check"),
            now=report.at,
        )

    async def _processing(self) -> list[TaskRow]:
        """The rows of all tasks that are processing, of every tenant, in one reading."""
        limit = _AT_ONCE
        while len(held := await self._backend.ledger.held(limit=limit)) >= limit:
            limit *= 2
        ids = list(dict.fromkeys(task.task_id for task in held))
        read = await read_rows(self._backend.ledger, ids)
        return [row for row in read.rows if row.state is TaskState.PROCESSING]

    async def _policies(self, rows: Iterable[TaskRow]) -> PolicyOf:
        """What holds for each task: as its definition says, and that is read once."""
        usual = self._policy.thresholds
        named = {_definition_of(row) for row in rows}
        policies: dict[tuple[str, str, int], HealthPolicy] = {}
        for tenant, name, version in sorted(named):
            found: Definition | None = None
            with stepped_over(logger, "health.definition_unreadable", definition=name):
                found = await self._backend.definitions.get(tenant, name, version=version)
            own = found.health if found else None
            policies[tenant, name, version] = own.within(usual) if own else usual
        return lambda row: policies[_definition_of(row)]


def _definition_of(row: TaskRow) -> tuple[str, str, int]:
    return row.spec.tenant, row.spec.definition, row.spec.definition_version
