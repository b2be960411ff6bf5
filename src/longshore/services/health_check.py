"""The health check: looks at everything that runs now, tells history, and tells people.

A worker that hangs, or a task that runs for ever, shows nowhere else: its lease is renewed and its
row looks well. The check reads rows, each once, however long ago their task began. One process of
the machine does it, and goes on whatever breaks: a check that ended silently would look like a
house in perfect health.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

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

logger = logging.getLogger(__name__)

ROLE = "health-check"
ENTITY_ID = "health-check"
"""Every tenant's checks are the history of ``SYSTEM#health-check``."""

_AT_ONCE = 500
# Whoever just began lets the sweeper end the leases of those who died before.
_SETTLES = timedelta(seconds=30)
# How often others ask whether the role is free, and how soon a check that failed is made again.
_LOOKS_EVERY = timedelta(seconds=10)

PolicyOf = Callable[[TaskRow], HealthPolicy]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckPolicy:
    """How often is checked, and what counts as healthy where a definition does not say."""

    every: timedelta = timedelta(minutes=5)
    thresholds: HealthPolicy = field(default_factory=HealthPolicy)


class HealthCheck:
    """Finds tasks that are stuck or run too long."""

    def __init__(
        self,
        *,
        backend: Backend,
        presence: Presence,
        alerting: Alerting,
        app: str,
        policy: HealthCheckPolicy,
    ) -> None:
        self._backend = backend
        self._presence = presence
        self._alerting = alerting
        self._app = app
        self._policy = policy

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
        """Check every tenant that has something running, or had when people were told of it."""
        rows = await self._processing()
        tenants = {row.spec.tenant for row in rows}
        with stepped_over(logger, "health.told_tenants_unknown"):
            tenants |= await self._alerting.tenants()
        reports: list[HealthReport] = []
        for tenant in sorted(tenants):
            with stepped_over(logger, "health.tenant_broken", tenant=tenant):
                reports.append(await self._report(tenant, rows))
        await self._tell(reports)
        return reports

    async def check(self, tenant: str) -> HealthReport:
        """Check everything of a tenant that runs now; history and people are told."""
        report = await self._report(tenant, await self._processing())
        await self._tell([report])
        return report

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

    async def _report(self, tenant: str, rows: Iterable[TaskRow]) -> HealthReport:
        mine = [row for row in rows if row.spec.tenant == tenant]
        # A listing may lag: what people were told of is over only if its own row says so.
        told = await self._alerting.task_ids(tenant) - {row.id for row in mine}
        mine += await self._rows(sorted(told))
        policy_of = await self._policies(mine)
        now = self._backend.clock.now()
        return report_of(tenant, mine, now=now, policy_of=policy_of)

    async def _tell(self, reports: Sequence[HealthReport]) -> None:
        """History and people, each whether or not the other could be told."""
        unreachable: BackendUnavailable | None = None
        try:
            for report in reports:
                with stepped_over(logger, "health.not_recorded", tenant=report.tenant):
                    await self._record(report)
        except BackendUnavailable as error:
            unreachable = error
        await self._alerting.tell(reports)
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
        rows = await self._rows(list(dict.fromkeys(task.task_id for task in held)))
        return [row for row in rows if row.state is TaskState.PROCESSING]

    async def _rows(self, task_ids: Sequence[str]) -> list[TaskRow]:
        rows: list[TaskRow] = []
        for start in range(0, len(task_ids), _AT_ONCE):
            some = task_ids[start : start + _AT_ONCE]
            try:
                rows += await self._backend.ledger.tasks(some)
            except BackendUnavailable:
                raise
            except Exception:  # a row among them is damaged: which one is told below
                logger.exception("health.rows_unreadable")
                rows += await self._one_by_one(some)
        return rows

    async def _one_by_one(self, task_ids: Sequence[str]) -> list[TaskRow]:
        rows = []
        for task_id in task_ids:
            with stepped_over(logger, "health.task_unreadable", task_id=task_id):
                if (row := await self._backend.ledger.task(task_id)) is not None:
                    rows.append(row)
        return rows

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
