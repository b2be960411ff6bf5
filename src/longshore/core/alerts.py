"""Alerts: what a channel must be sent after a health check, and what it was sent before.

A check runs every few minutes and finds the same stuck task each time. A problem is therefore
reported once, again when it changes, and again after a cool-down; its end is reported once too.
Only a delivered notice counts: ``state_after`` changes the channel's state after a delivery, and
the next check repeats a notice that was not delivered. Each channel has its own state, so that a
channel that is down does not make the others repeat notices.

Backlogs that need an operator (dead letters, parked tasks) are reported in the same way, one notice
per tenant and kind: when the backlog appears, when it has new items, after a cool-down, and when it
is empty. What a check could not read is not reported, and above all not as resolved.

Messages that a worker rejected are a backlog too. They were deleted, so they are items for a fixed
time, and without reminders: no one can settle them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from longshore.core.budgets import TASK_SCOPES, BudgetScope
from longshore.core.dead_letters import DeadLetter
from longshore.core.events.codec import to_ms
from longshore.core.events.event import Event
from longshore.core.events.types import HealthSummary, MessageRejected
from longshore.core.health import CheckedTask, Health, HealthReport
from longshore.core.tasks.rows import TaskRow

COUNT_LIMIT = 1_000
"""How many items of a backlog are counted, the newest first."""

REJECTED_MESSAGE_LIFETIME = timedelta(days=1)
"""How long a rejected message is an item: an alert must survive a channel that is down."""

_NEWEST_SHOWN = 5


class BacklogKind(StrEnum):
    """What needs an operator."""

    DEAD_LETTERS = "dead_letters"
    PARKED_TASKS = "parked_tasks"
    REJECTED_MESSAGES = "rejected_messages"


class ParkedBudget(StrEnum):
    """Which budget a parked task waits for."""

    OWN = "own"  # the task's, or one of its steps'
    JOB = BudgetScope.JOB.value
    DAY = BudgetScope.DAY.value


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogItem:
    """A dead letter, a parked task or a rejected message."""

    id: str
    queue: str
    # The category of a dead letter, the budget that a parked task waits for, or why a message was
    # rejected.
    reason: str
    at: datetime  # when it was added

    @property
    def sort_key(self) -> tuple[int, str]:
        """Sort key, in milliseconds, as times are stored."""
        return to_ms(self.at), self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogGroup:
    """The items of a backlog with the same queue and reason."""

    queue: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """A tenant's dead letters, parked tasks or rejected messages at one moment."""

    total: int = 0  # counted items
    truncated: bool = False  # there are more items than were counted
    groups: tuple[BacklogGroup, ...] = ()  # the most frequent first
    newest: tuple[BacklogItem, ...] = ()  # the last added first; empty only if the backlog is empty

    @property
    def minimum_count(self) -> int:
        """How many items there are at least."""
        return self.total + self.truncated


EMPTY_BACKLOG = Backlog()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedBacklog:
    """What a channel was last sent about a backlog that was not empty."""

    minimum_count: int
    newest_key: tuple[int, str]  # sort key of the newest item
    at: datetime


class BacklogChange(StrEnum):
    """How a backlog has changed since the last notice."""

    FIRST = "first"  # there are items, and there were none
    MORE = "more"  # there are new items
    STILL = "still"  # no change since the cool-down began
    NONE_LEFT = "none_left"


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogNotice:
    """A notice about a backlog, or about its end."""

    change: BacklogChange
    backlog: Backlog


def dead_letter_item(letter: DeadLetter) -> BacklogItem:
    """Returns a dead letter as an item of a backlog."""
    return BacklogItem(id=letter.id, queue=letter.queue, reason=letter.kind, at=letter.at)


def parked_task_item(row: TaskRow) -> BacklogItem | None:
    """Returns a parked task as an item of a backlog; None if it is no longer parked."""
    if row.parked is None:
        return None
    scope = row.parked.scope
    why = ParkedBudget.OWN if scope in TASK_SCOPES else ParkedBudget(scope.value)
    return BacklogItem(id=row.id, queue=row.spec.queue, reason=why.value, at=row.parked.at)


def rejected_message_item(event: Event) -> BacklogItem | None:
    """Returns a rejected message as an item of a backlog; None if an operator discarded it."""
    body = event.body
    if not isinstance(body, MessageRejected) or event.context.origin == "operator":
        return None
    return BacklogItem(id=body.message_id, queue=body.queue, reason=body.reason, at=event.at)


def backlog_of(items: Iterable[BacklogItem], *, limit: int = COUNT_LIMIT) -> Backlog:
    """Returns the backlog of these items; an item that occurs twice counts once."""
    named = {item.id: item for item in items}
    newest = sorted(named.values(), key=lambda item: item.sort_key, reverse=True)
    counts = Counter((item.queue, item.reason) for item in newest[:limit])
    kinds = [
        BacklogGroup(queue=queue, reason=why, count=count) for (queue, why), count in counts.items()
    ]
    return Backlog(
        total=counts.total(),
        truncated=len(newest) > limit,
        groups=tuple(sorted(kinds, key=lambda kind: (-kind.count, kind.queue, kind.reason))),
        newest=tuple(newest[:_NEWEST_SHOWN]),
    )


def _change_of(
    kind: BacklogKind,
    backlog: Backlog,
    last: ReportedBacklog | None,
    now: datetime,
    cool_down: timedelta,
) -> BacklogChange | None:
    """Returns what a channel with this state must be sent; None: nothing."""
    if not backlog.newest:
        return BacklogChange.NONE_LEFT if last else None
    if last is None:
        return BacklogChange.FIRST
    # Check both: the count misses a swap, and the time misses items written with a slow clock.
    if backlog.newest[0].sort_key > last.newest_key or backlog.minimum_count > last.minimum_count:
        return BacklogChange.MORE
    if kind is BacklogKind.REJECTED_MESSAGES:
        return None
    return BacklogChange.STILL if cool_down_passed(last.at, now, cool_down) else None


def cool_down_passed(reported_at: datetime, now: datetime, cool_down: timedelta) -> bool:
    """Whether a notice of that time may be repeated."""
    # In both directions: a clock that was set back must not silence a problem.
    return abs(now - reported_at) >= cool_down


_FOLDER = "health/"
_FILE = "/notified.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedProblem:
    """What a channel was last sent about one task."""

    attempt: int
    health: Health
    at: datetime
    resolved: bool = False  # its end was reported too


@dataclass(frozen=True, slots=True)
class ChannelState:
    """What a channel was sent about one tenant: tasks by id, and backlogs that are not empty."""

    problems: Mapping[str, ReportedProblem] = field(default_factory=dict)
    backlogs: Mapping[BacklogKind, ReportedBacklog] = field(default_factory=dict)


EMPTY_CHANNEL_STATE = ChannelState()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredTask:
    """A reported problem that is resolved."""

    task_id: str
    attempt: int  # that was reported
    previous: Health
    current: CheckedTask | None  # None: it is no longer processing


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """The result of a check for one tenant, without what could not be read."""

    tenant: str
    at: datetime
    tasks: HealthReport | None = None
    backlogs: Mapping[BacklogKind, Backlog] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthNotice:
    """What one channel is sent after a check; it may be empty."""

    tenant: str
    at: datetime
    summary: HealthSummary | None  # of all running tasks; None: not read
    urgent: tuple[CheckedTask, ...] = ()
    warnings: tuple[CheckedTask, ...] = ()
    recovered: tuple[RecoveredTask, ...] = ()
    backlogs: Mapping[BacklogKind, BacklogNotice] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.urgent or self.warnings or self.recovered or self.backlogs)


def notice_of(finding: HealthFinding, state: ChannelState, *, cool_down: timedelta) -> HealthNotice:
    """Returns the notice of a check for a channel with this state."""
    notice = HealthNotice(tenant=finding.tenant, at=finding.at, summary=None)
    if finding.tasks is not None:
        notice = _notice_of_tasks(finding.tasks, state, cool_down)
    backlogs: dict[BacklogKind, BacklogNotice] = {}
    for kind, backlog in finding.backlogs.items():
        change = _change_of(kind, backlog, state.backlogs.get(kind), finding.at, cool_down)
        if change is not None:
            backlogs[kind] = BacklogNotice(change=change, backlog=backlog)
    return replace(notice, backlogs=backlogs)


def _notice_of_tasks(
    report: HealthReport, state: ChannelState, cool_down: timedelta
) -> HealthNotice:
    problems = {task.task_id: task for task in report.tasks if task.health is not Health.HEALTHY}
    news = [
        task
        for task in problems.values()
        if _should_report(task, state.problems.get(task.task_id), report.at, cool_down)
    ]
    running = {task.task_id: task for task in report.tasks}
    return HealthNotice(
        tenant=report.tenant,
        at=report.at,
        summary=report.summary,
        urgent=tuple(task for task in news if task.health.urgent),
        warnings=tuple(task for task in news if not task.health.urgent),
        recovered=tuple(
            RecoveredTask(
                task_id=task_id,
                attempt=last.attempt,
                previous=last.health,
                current=running.get(task_id),
            )
            for task_id, last in sorted(state.problems.items())
            if not last.resolved and task_id not in problems
        ),
    )


def _should_report(
    task: CheckedTask, last: ReportedProblem | None, now: datetime, cool_down: timedelta
) -> bool:
    if last is None or (last.attempt, last.health) != (task.attempt, task.health):
        return True
    if cool_down_passed(last.at, now, cool_down):
        return True
    # It is back. A warning that comes and goes is not repeated: it would fill the channel.
    return last.resolved and task.health.urgent


def state_after(state: ChannelState, notice: HealthNotice, *, cool_down: timedelta) -> ChannelState:
    """Returns the channel's state after a notice was delivered.

    An empty notice counts as delivered: problems that were resolved long ago are dropped.
    """
    problems = {
        task_id: last
        for task_id, last in state.problems.items()
        if not (last.resolved and cool_down_passed(last.at, notice.at, cool_down))
    }
    for gone in notice.recovered:
        problems[gone.task_id] = replace(state.problems[gone.task_id], resolved=True)
    for task in (*notice.urgent, *notice.warnings):
        problems[task.task_id] = ReportedProblem(
            attempt=task.attempt, health=task.health, at=notice.at
        )
    backlogs = dict(state.backlogs)
    for kind, item in notice.backlogs.items():
        backlogs.pop(kind, None)
        if item.backlog.newest:
            backlogs[kind] = ReportedBacklog(
                minimum_count=item.backlog.minimum_count,
                newest_key=item.backlog.newest[0].sort_key,
                at=notice.at,
            )
    return ChannelState(problems, backlogs)


def channel_state_key(tenant: str) -> str:
    """Returns the blob key of the channels' states of a tenant."""
    return f"{_FOLDER}{tenant}{_FILE}"


CHANNEL_STATE_PREFIX = _FOLDER
"""What every ``channel_state_key`` begins with."""


def tenant_of_key(key: str) -> str | None:
    """Returns the tenant of a ``channel_state_key``; None if the key is another one."""
    if not (key.startswith(_FOLDER) and key.endswith(_FILE)):
        return None
    return key.removeprefix(_FOLDER).removesuffix(_FILE)
