"""The health check: reports stuck tasks and backlogs to the event history and to people.

A worker that hangs and a task that never ends show nowhere else: the lease is renewed and the row
looks healthy. One process of the machine runs the check, and no error ends it: without the check,
every task would seem healthy.

A check has two parts. It reads the rows of all tasks that are processing, each once, and it reads
the backlogs that need an operator: dead letters, parked tasks and rejected messages. The parts are
independent: if one cannot be read, the other is reported all the same.

The findings are sent to every alert channel. Channels are notified concurrently, each about one
tenant after the other, within one time limit. A channel that fails is left alone until the next
check, which sends the same findings again: only a delivered notice counts. An alert that fails is
logged and has no other effect. What a channel was sent is stored in the blob store, so that a
restart repeats nothing. While the store is unavailable, the process uses its own copy: a full disk
must neither hide a problem nor repeat its alert at every check.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Literal

import msgspec

from longshore.core.alerts import (
    CHANNEL_STATE_PREFIX,
    COUNT_LIMIT,
    EMPTY_BACKLOG,
    EMPTY_CHANNEL_STATE,
    REJECTED_MESSAGE_LIFETIME,
    Backlog,
    BacklogItem,
    BacklogKind,
    ChannelState,
    HealthFinding,
    HealthNotice,
    backlog_of,
    channel_state_key,
    dead_letter_item,
    notice_of,
    parked_task_item,
    rejected_message_item,
    state_after,
    tenant_of_key,
)
from longshore.core.dead_letters import dead_letter_of_message
from longshore.core.definitions.definition import Definition
from longshore.core.events.event import EventContext
from longshore.core.events.types import EntityType
from longshore.core.health import (
    CheckedTask,
    HealthPolicy,
    HealthReport,
    check_task,
    report_of,
)
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.core.undelivered import UndeliveredNotice
from longshore.errors import AlertFailed, BackendError, BackendUnavailable, NotFound, UsageError
from longshore.ports.alerts import Alerts
from longshore.ports.backend import Backend
from longshore.ports.blobs import BlobStore
from longshore.ports.worker_registry import WorkerRegistry
from longshore.services.reads import iter_pages, list_all, read_rows, was_removed
from longshore.services.resilience import log_and_continue, race

logger = logging.getLogger(__name__)

# For a cancelled send to clean up; seconds of real time.
_GRACE_S = 1.0
_NO_TIME = timedelta(0)

ByChannel = dict[str, ChannelState]


class _StoredStates(msgspec.Struct):
    format: Literal[1]
    channels: ByChannel


def channel_states_to_json(channels: ByChannel) -> bytes:
    """Returns the states of all channels for one tenant as JSON."""
    return msgspec.json.encode(_StoredStates(1, channels))


def channel_states_from_json(data: bytes) -> ByChannel:
    """The inverse of ``channel_states_to_json``.

    Raises:
        UsageError: the document is not of that format.
    """
    try:
        return msgspec.json.decode(data, type=_StoredStates).channels
    except (ValueError, RecursionError) as error:
        raise UsageError(f"alert state: {error}") from error


@dataclass(slots=True)
class AlertRecords:
    """What the channels were sent about each tenant."""

    blobs: BlobStore
    _cache: dict[str, ByChannel] = field(default_factory=dict)
    _unsaved: set[str] = field(default_factory=set)  # tenants whose state in the store is older
    _write_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def tenants(self) -> set[str]:
        """Returns the tenants with a stored state: one of their problems may be resolved."""
        tenants: set[str] = set(self._unsaved)
        async for keys in iter_pages(partial(self.blobs.list_keys, CHANNEL_STATE_PREFIX)):
            tenants |= {tenant for key in keys if (tenant := tenant_of_key(key)) is not None}
        return tenants

    async def load(self, tenant: str) -> ByChannel:
        """Returns what was sent about a tenant, as far as it can be read."""
        if tenant not in self._unsaved:
            try:
                self._cache[tenant] = channel_states_from_json(
                    await self.blobs.get(channel_state_key(tenant))
                )
            except NotFound:
                self._cache[tenant] = {}
            except (BackendError, UsageError) as error:
                extra = {"tenant": tenant, "error": str(error)}
                logger.warning("alert.state_read_failed", extra=extra)
        return dict(self._cache.get(tenant, {}))

    async def save(self, tenant: str, notified: Mapping[str, ChannelState]) -> None:
        """Store what was sent; if the store is unavailable, it is stored next time."""
        async with self._write_lock:  # an older state must not overwrite a newer one
            something = {
                channel: state
                for channel, state in notified.items()
                if state != EMPTY_CHANNEL_STATE
            }
            if tenant not in self._unsaved and something == self._cache.get(tenant):
                return
            self._cache[tenant] = something
            self._unsaved.add(tenant)
            # The alert was sent, and the other channels are still notified.
            with log_and_continue(
                logger,
                "alert.state_save_failed",
                unavailable="alert.state_save_failed",
                tenant=tenant,
            ):
                await self._write(tenant, something)
                self._unsaved.discard(tenant)

    async def _write(self, tenant: str, notified: ByChannel) -> None:
        if notified:
            await self.blobs.put(channel_state_key(tenant), channel_states_to_json(notified))
        else:
            await self.blobs.delete(channel_state_key(tenant))


@dataclass(slots=True)
class AlertSender:
    """Sends each finding to each channel once."""

    backend: Backend
    channels: Sequence[Alerts] = ()
    cool_down: timedelta = timedelta(hours=1)
    timeout: timedelta = timedelta(seconds=20)
    _records: AlertRecords = field(init=False)
    _paused_until: dict[str, timedelta] = field(default_factory=dict)  # by channel, as it requested
    _no_channel_logged: bool = False

    def __post_init__(self) -> None:
        self._records = AlertRecords(self.backend.blobs)

    async def alerted_tenants(self) -> set[str]:
        """Returns the tenants with an open alert, as far as they can be read."""
        with log_and_continue(logger, "alert.tenants_read_failed"):
            return await self._records.tenants() if self.channels else set()
        return set()

    async def alerted_tasks(self, tenant: str) -> dict[str, bool]:
        """Returns the reported tasks, and whether every channel knows that they are resolved."""
        resolved: dict[str, bool] = {}
        if self.channels:
            for state in (await self._records.load(tenant)).values():
                for task_id, last in state.problems.items():
                    resolved[task_id] = resolved.get(task_id, True) and last.resolved
        return resolved

    async def send_findings(self, findings: Sequence[HealthFinding]) -> None:
        """Send every channel what is new to it. Never fails because of a channel."""
        if not self.channels:
            if any(
                notice_of(item, EMPTY_CHANNEL_STATE, cool_down=self.cool_down) for item in findings
            ):
                self._log_no_channel()
            return
        notified = {item.tenant: await self._records.load(item.tenant) for item in findings}
        sending = [
            asyncio.ensure_future(self._notify_channel(channel, findings, notified))
            for channel in self.channels
        ]
        try:
            async with race(asyncio.wait(sending), self.backend.clock.sleep(self.timeout)):
                pass
        finally:
            late = [future for future in sending if not future.done()]
            for future in late:
                future.cancel()
        if late:
            logger.warning("alert.timed_out", extra={"channels": len(late)})
            await asyncio.wait(late, timeout=_GRACE_S)
        for tenant, channels in notified.items():
            await self._records.save(tenant, channels)

    @property
    def channel_names(self) -> frozenset[str]:
        """The names of the channels."""
        return frozenset(channel.channel for channel in self.channels)

    async def send_notice(
        self, notice: UndeliveredNotice, *, notified: Collection[str] = ()
    ) -> frozenset[str]:
        """Send a notice to each channel not in ``notified``. Returns all notified channels.

        Never fails because of a channel. The caller stores the result.
        """
        if not self.channels:
            self._log_no_channel()
        others = [channel for channel in self.channels if channel.channel not in notified]
        results = await asyncio.gather(*(self._send(it, notice) for it in others))
        sent = {it.channel for it, success in zip(others, results, strict=True) if success}
        return frozenset({*notified, *sent})

    def _log_no_channel(self) -> None:
        if not self._no_channel_logged:
            self._no_channel_logged = True
            logger.warning("alert.skipped", extra={"reason": "no channel is set up"})

    async def _notify_channel(
        self, channel: Alerts, findings: Sequence[HealthFinding], notified: Mapping[str, ByChannel]
    ) -> None:
        """Notify one channel about each tenant, and update ``notified`` meanwhile."""
        name = channel.channel
        for finding in findings:
            channels = notified[finding.tenant]
            before = channels.get(name, EMPTY_CHANNEL_STATE)
            notice = notice_of(finding, before, cool_down=self.cool_down)
            if notice and not await self._send(channel, notice):
                return
            channels[name] = state_after(before, notice, cool_down=self.cool_down)
            if notice:
                # At once: if the process stops now, the next one must not repeat the notice.
                await self._records.save(finding.tenant, channels)

    async def _send(self, channel: Alerts, notice: HealthNotice | UndeliveredNotice) -> bool:
        name = channel.channel
        about = {"channel": name, "tenant": notice.tenant}
        if self.backend.clock.elapsed() < self._paused_until.get(name, _NO_TIME):
            logger.info("alert.delayed", extra={"channel": name})
            return False
        try:
            await channel.send(notice)
        except AlertFailed as error:
            logger.warning("alert.failed", extra={**about, "reason": error.reason})
            if error.retry_after is not None:
                self._paused_until[name] = self.backend.clock.elapsed() + error.retry_after
            return False
        except Exception as error:  # noqa: BLE001 - one channel must not stop the others
            # Without its text and traceback: a library may write secrets into them.
            logger.warning("alert.channel_failed", extra={**about, "error": type(error).__name__})
            return False
        logger.info("alert.sent", extra=about)
        return True


Backlogs = dict[str, dict[BacklogKind, Backlog]]
"""The backlogs of each tenant; one that could not be read is missing."""
TenantBacklogs = AsyncIterator[tuple[str, Backlog]]
TenantReports = tuple[list[HealthReport], list[HealthReport]]
"""Reports to record, and reports of idle tenants."""


ROLE = "health-check"
ENTITY_ID = "health-check"
"""The checks of every tenant are events of ``SYSTEM#health-check``."""

# After a start, the sweeper first ends the leases of workers that died before.
_STARTUP_DELAY = timedelta(seconds=30)
# How often a standby process tries to acquire the role, and the pause after a failed check.
_ROLE_POLL_INTERVAL = timedelta(seconds=10)

PolicyOf = Callable[[TaskRow], HealthPolicy]


@dataclass(frozen=True, kw_only=True)
class HealthCheck:
    """Finds tasks that are stuck or run too long, dead letters, parked tasks, rejected messages.

    A message without a task belongs to no tenant. It is reported to ``tenant``, which looks after
    the queues, and to no other.

    Args:
        thresholds: Where a definition sets none.
        queues: Whose rejected messages are reported.
    """

    backend: Backend
    worker_registry: WorkerRegistry
    alert_sender: AlertSender
    app: str
    every: timedelta = timedelta(minutes=5)
    thresholds: HealthPolicy = field(default_factory=HealthPolicy)
    tenant: str = "default"
    queues: Sequence[str] = ("default",)

    async def run(self) -> None:
        """Check at a steady pace while this process has the role; until cancelled."""
        clock = self.backend.clock
        next_check: timedelta | None = None  # None: another process has the role
        while True:
            try:
                if next_check is None and self.worker_registry.acquire_role(ROLE):
                    next_check = clock.elapsed() + min(_STARTUP_DELAY, self.every)
                if next_check is not None and clock.elapsed() >= next_check:
                    next_check = clock.elapsed() + self.every
                    await self.check_all()
            except BackendUnavailable as error:
                next_check = clock.elapsed() + min(_ROLE_POLL_INTERVAL, self.every)
                logger.warning("health.unavailable", extra={"error": str(error)})
            except Exception:  # no error may end the check
                logger.exception("health.check_failed")
            await clock.sleep(self._time_until(next_check))

    def _time_until(self, next_check: timedelta | None) -> timedelta:
        if next_check is None:
            return min(_ROLE_POLL_INTERVAL, self.every)
        return max(next_check - self.backend.clock.elapsed(), timedelta(milliseconds=1))

    async def check_all(self) -> list[HealthReport]:
        """Check every tenant with running tasks or an open alert, and all backlogs.

        Returns the reports of those tenants.
        """
        backlogs = await self.read_backlogs()
        return await self._record_and_alert(backlogs, self._reports(backlogs))

    async def check_tenant(self, tenant: str) -> HealthReport:
        """Check a tenant's running tasks and backlogs, record the report and send alerts."""
        backlogs = await self.read_backlogs([tenant])
        (report,) = await self._record_and_alert(backlogs, self._tenant_report(tenant))
        return report

    async def check_task(self, row: TaskRow) -> CheckedTask | None:
        """Returns the health of one task; None if it is not processing. Sends no alert."""
        policy_of = await self._policies([row])
        return check_task(row, now=self.backend.clock.now(), policy=policy_of(row))

    async def _reports(self, others: Iterable[str]) -> TenantReports:
        """Returns the reports of tenants with running tasks or open alerts, and of idle ones."""
        rows = await self._processing()
        running = {row.spec.tenant for row in rows}
        tenants = {*running, *others, *await self.alert_sender.alerted_tenants()}
        reports: list[HealthReport] = []
        idle: list[HealthReport] = []
        for tenant in sorted(tenants):
            with log_and_continue(logger, "health.tenant_check_failed", tenant=tenant):
                alerted = await self.alert_sender.alerted_tasks(tenant)
                report = await self._report(tenant, rows, alerted)
                # A backlog may stay for years: the history needs no report of an idle tenant.
                (reports if alerted or tenant in running else idle).append(report)
        return reports, idle

    async def _tenant_report(self, tenant: str) -> TenantReports:
        rows = await self._processing()
        alerted = await self.alert_sender.alerted_tasks(tenant)
        return [await self._report(tenant, rows, alerted)], []

    async def _report(
        self, tenant: str, rows: Iterable[TaskRow], alerted: Mapping[str, bool]
    ) -> HealthReport:
        mine = [row for row in rows if row.spec.tenant == tenant]
        # A listing may lag: an alert is resolved only if the task's own row says so.
        open_alerts = {task_id for task_id, resolved in alerted.items() if not resolved}
        others = sorted(open_alerts - {row.id for row in mine})
        mine += (await read_rows(self.backend.ledger, others))[0]
        policy_of = await self._policies(mine)
        now = self.backend.clock.now()
        return report_of(tenant, mine, now=now, policy_of=policy_of)

    async def _record_and_alert(
        self, backlogs: Backlogs, reading: Awaitable[TenantReports]
    ) -> list[HealthReport]:
        """Record the reports, and send the alerts even if reading or recording fails."""
        reports: list[HealthReport] = []
        idle: list[HealthReport] = []
        try:
            reports, idle = await reading
            for report in reports:
                with log_and_continue(logger, "health.report_lost", tenant=report.tenant):
                    await self._record(report)
        except Exception:
            await self._alert([*reports, *idle], backlogs)
            raise
        await self._alert([*reports, *idle], backlogs)
        return reports

    async def _alert(self, reports: Sequence[HealthReport], backlogs: Backlogs) -> None:
        now = self.backend.clock.now()
        tasks = {report.tenant: report for report in reports}
        await self.alert_sender.send_findings(
            [
                HealthFinding(
                    tenant=tenant,
                    at=tasks[tenant].at if tenant in tasks else now,
                    tasks=tasks.get(tenant),
                    backlogs=backlogs.get(tenant, {}),
                )
                for tenant in sorted({*tasks, *backlogs})
            ]
        )

    async def _record(self, report: HealthReport) -> None:
        for body in report.events():
            await self.backend.events.append(
                tenant=report.tenant,
                app=self.app,
                entity_id=ENTITY_ID,
                body=body,
                context=EventContext(origin="health-check"),
                now=report.at,
            )

    async def _processing(self) -> list[TaskRow]:
        """Returns the rows of all processing tasks of every tenant, from one listing."""
        leased = await list_all(self.backend.ledger.leased_tasks)
        ids = list(dict.fromkeys(task_id for task_id, _ in leased))
        rows, _ = await read_rows(self.backend.ledger, ids)
        return [row for row in rows if row.state is TaskState.PROCESSING]

    async def _policies(self, rows: Iterable[TaskRow]) -> PolicyOf:
        """Returns the policy of each task; each definition is read once."""
        usual = self.thresholds
        named = {_definition_of(row) for row in rows}
        policies: dict[tuple[str, str, int], HealthPolicy] = {}
        for tenant, name, version in sorted(named):
            definition: Definition | None = None
            with log_and_continue(logger, "definition.read_failed", definition=name):
                definition = await self.backend.definitions.get(tenant, name, version=version)
            own = definition.health if definition else None
            policies[tenant, name, version] = own.applied_to(usual) if own else usual
        return lambda row: policies[_definition_of(row)]

    # Backlogs -----------------------------------------------------------------------------------

    async def read_backlogs(self, tenants: Collection[str] | None = None) -> Backlogs:
        """Returns the backlogs of these tenants, or of all, as far as they can be read."""
        backlogs: Backlogs = defaultdict(dict)
        for kind, read in (
            (BacklogKind.DEAD_LETTERS, self._read_dead),
            (BacklogKind.PARKED_TASKS, self._read_parked),
            (BacklogKind.REJECTED_MESSAGES, self._read_rejected),
        ):
            # After an outage the next check reads again; this check continues.
            with log_and_continue(
                logger, "backlog.read_failed", unavailable="backlog.unavailable", backlog=kind.value
            ):
                async for tenant, backlog in read(tenants):
                    backlogs[tenant][kind] = backlog
        return backlogs

    async def _read_dead(self, tenants: Collection[str] | None) -> TenantBacklogs:
        messages = await self._orphan_messages()
        for tenant in sorted(set(tenants or await self._tenants_with_dead(messages))):
            with log_and_continue(
                logger, "backlog.read_failed", backlog="dead_letters", tenant=tenant
            ):
                own = messages if tenant == self.tenant else []
                yield tenant, backlog_of([*await self._failed(tenant), *own], limit=COUNT_LIMIT)

    async def _tenants_with_dead(self, messages: Sequence[BacklogItem]) -> set[str]:
        """Returns the tenants that have dead letters or an open alert."""
        names = await self.alert_sender.alerted_tenants()
        if messages:
            names.add(self.tenant)
        async for page in iter_pages(self.backend.ledger.failed_tenants):
            names.update(page)
        return names

    async def _failed(self, tenant: str) -> list[BacklogItem]:
        """Returns the newest failed tasks, one more than are counted if there are as many."""
        rows = await self.backend.ledger.failed_tasks(tenant, limit=COUNT_LIMIT + 1)
        return [
            BacklogItem(
                id=row.task_id,
                queue=row.queue,
                reason=str(row.category or "unknown"),
                at=row.failed_at,
            )
            for row in rows
        ]

    async def _orphan_messages(self) -> list[BacklogItem]:
        """Returns dead messages without a task; the next sweep settles all others."""
        if self.backend.queue is None:
            return []
        messages = await self.backend.queue.dead_letters(None, limit=COUNT_LIMIT + 1)
        ids = {message.task_id for message in messages if isinstance(message.task_id, str)}
        rows, _ = await read_rows(self.backend.ledger, sorted(ids))
        existing = {row.id for row in rows}
        existing |= {name for name in ids - existing if await was_removed(self.backend, name)}
        now = self.backend.clock.now()
        letters = [
            dead_letter_of_message(message, None, now=now, margin=_NO_TIME)
            for message in messages
            if message.task_id not in existing
        ]
        return [dead_letter_item(letter) for letter in letters if letter is not None]

    async def _read_parked(self, tenants: Collection[str] | None) -> TenantBacklogs:
        ids = await list_all(self.backend.ledger.parked_tasks)
        rows, unreadable = await read_rows(self.backend.ledger, ids)
        items: dict[str, list[BacklogItem]] = defaultdict(list)
        for row in rows:
            item = parked_task_item(row)
            if item is not None and (tenants is None or row.spec.tenant in tenants):
                items[row.spec.tenant].append(item)
        for tenant, own in items.items():
            yield tenant, backlog_of(own, limit=COUNT_LIMIT)
        if unreadable:
            return  # an unreadable row may be of any tenant, so no backlog is known to be empty
        for tenant in await self.alert_sender.alerted_tenants() if tenants is None else tenants:
            if tenant not in items:
                yield tenant, EMPTY_BACKLOG

    async def _read_rejected(self, tenants: Collection[str] | None) -> TenantBacklogs:
        if self.backend.queue is None or (tenants is not None and self.tenant not in tenants):
            return
        since = self.backend.clock.now() - REJECTED_MESSAGE_LIFETIME
        log, items = self.backend.events, list[BacklogItem]()
        for queue in self.queues:
            entity = f"{EntityType.QUEUE}#{queue}"
            latest = await log.latest(self.tenant, entity)
            if latest is None or latest.at <= since:
                continue
            first = max(latest.sequence - COUNT_LIMIT - 1, 0)
            events = await log.history(self.tenant, entity, after=first, limit=COUNT_LIMIT + 1)
            # In reverse: of a message that was rejected twice, the first time counts.
            items += [
                item
                for event in reversed(events)
                if event.at > since and (item := rejected_message_item(event)) is not None
            ]
        yield self.tenant, backlog_of(items, limit=COUNT_LIMIT)


def _definition_of(row: TaskRow) -> tuple[str, str, int]:
    return row.spec.tenant, row.spec.definition, row.spec.definition_version
