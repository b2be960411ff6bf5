"""Simulated alert channels, and a monitor that checks what each channel receives.

Within the cool-down, no process may send the same notice to a channel that has accepted it. A
process is excused if it could not know of the notice: the state of the channel was not stored or
could not be read, or a late write has replaced it by an older state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from longshore.core.alerts import (
    CHANNEL_STATE_PREFIX,
    EMPTY_CHANNEL_STATE,
    BacklogChange,
    BacklogKind,
    ChannelState,
    HealthNotice,
)
from longshore.core.events.codec import to_ms
from longshore.core.events.event import Event
from longshore.core.events.types import MessageRejected
from longshore.core.health import HealthPolicy
from longshore.core.undelivered import UndeliveredNotice
from longshore.errors import AlertFailed
from longshore.services.health import (
    AlertSender,
    HealthCheck,
    channel_states_from_json,
)
from verification.simulation.faults import Fault
from verification.simulation.workload import QUEUES, ActionKind

if TYPE_CHECKING:
    from verification.simulation.processes import Process
    from verification.simulation.simulation import Simulation


CHANNELS = ("pager", "room")
DEAD_LETTERS = "dead letters"
REJECTED = "rejected messages"
_BACKLOGS = {DEAD_LETTERS: BacklogKind.DEAD_LETTERS, REJECTED: BacklogKind.REJECTED_MESSAGES}
# Sort keys of backlogs are in whole milliseconds.
_TICK = timedelta(milliseconds=2)
_MAX_DELAY_S = 8.0
_MAX_RETRY_AFTER_S = 8.0


@dataclass(frozen=True, slots=True)
class _AlertItem:
    """One item of a notice: a task, or a backlog."""

    subject: str
    content: tuple[Any, ...]  # equal content means the same alert
    resolved: bool = False
    reopens: bool = False  # sent again if it was resolved before


@dataclass(slots=True)
class _DeliveredAlert:
    """The last alert about a subject that a channel has accepted."""

    item: _AlertItem
    at: datetime
    by: str
    stored: bool = False  # the store has it
    overwritten: bool = False  # a late write has replaced it by an older state
    excused: bool = False  # its sender could not store it
    misled: set[str] = field(default_factory=set)  # processes that last read the older state


class AlertMonitor:
    """Observes all channels of a run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._sent: dict[tuple[str, str], None] = {}  # by channel and subject, also if not accepted
        self._delivered: dict[tuple[str, str], _DeliveredAlert] = {}
        self._informed: set[tuple[str, tuple[Any, ...]]] = set()  # of rejected messages, by channel
        self._readers: dict[str, None] = {}  # processes that have read the stored state

    def on_sent(self, channel: str, notice: HealthNotice, by: str) -> None:
        """A channel has received a notice."""
        for item in _items_in(notice):
            which = channel, item.subject
            delivered = self._delivered.get(which)
            if delivered is not None and self._is_repeat(delivered, item, notice.at):
                self._check_repeat(channel, delivered, by)
            if item.resolved and which not in self._sent:
                text = (
                    f"{by} sends to {channel} that it is resolved, but {channel} was never alerted"
                )
                self._simulation.report_violation(0, item.subject, text)
            self._sent[which] = None

    def _is_repeat(self, previous: _DeliveredAlert, item: _AlertItem, at: datetime) -> bool:
        if item.resolved:
            return previous.item.resolved and previous.item.content == item.content
        cool_down = self._simulation.settings.health.cool_down
        same = previous.item.content == item.content
        cooled = abs(at - previous.at) >= cool_down - _TICK
        return same and not cooled and not (previous.item.resolved and item.reopens)

    def _check_repeat(self, channel: str, previous: _DeliveredAlert, by: str) -> None:
        if (
            previous.overwritten
            or by in previous.misled
            or (by != previous.by and not (previous.stored and by in self._readers))
        ):
            return
        what = "that it is resolved" if previous.item.resolved else str(previous.item.content)
        text = f"{by} sends to {channel} {what}, which {previous.by} sent at {previous.at}"
        self._simulation.report_violation(0, previous.item.subject, text)

    def on_accepted(self, channel: str, notice: HealthNotice, by: str) -> None:
        """The process got the answer that the channel has the notice."""
        for item in _items_in(notice):
            which = channel, item.subject
            self._simulation.action_counts[
                ActionKind.ALERT_RESOLVED if item.resolved else ActionKind.ALERT
            ] += 1
            if item.subject == REJECTED:
                self._informed.add((channel, item.content))
            delivered = self._delivered.pop(which, None)
            if not item.resolved or item.subject in _BACKLOGS:
                self._delivered[which] = _DeliveredAlert(item, notice.at, by)
            elif delivered is not None and delivered.stored:
                # Otherwise the sender may not have known of the first alert.
                resolved = replace(delivered.item, resolved=True)
                self._delivered[which] = _DeliveredAlert(resolved, delivered.at, by)

    def on_stored(self, key: str, data: bytes | None) -> None:
        """The state of the channels was written; None means that it was deleted."""
        if key.startswith(CHANNEL_STATE_PREFIX):
            channels = channel_states_from_json(data) if data else {}
            for (channel, _), delivered in self._delivered.items():
                delivered.stored = _is_stored(channels, channel, delivered)
                delivered.overwritten &= not delivered.stored

    def on_stored_late(self, key: str) -> None:
        """The last write was a late one: its process had given it up."""
        if key.startswith(CHANNEL_STATE_PREFIX):
            for delivered in self._delivered.values():
                delivered.overwritten |= not delivered.stored

    def on_store_failed(self, key: str, by: str) -> None:
        """A write of a process failed, or its answer was lost."""
        if key.startswith(CHANNEL_STATE_PREFIX):
            for delivered in self._delivered.values():
                delivered.excused |= delivered.by == by

    def on_read(self, key: str, by: str) -> None:
        """A process has read the state of the channels."""
        if key.startswith(CHANNEL_STATE_PREFIX):
            self._readers[by] = None
            for delivered in self._delivered.values():
                if delivered.overwritten:
                    delivered.misled.add(by)
                else:
                    delivered.misled.discard(by)

    def on_check_started(self, by: str) -> None:
        """A process starts its next check: what it sent before should be stored by now."""
        for (channel, subject), delivered in self._delivered.items():
            if delivered.by == by and not (
                delivered.stored or delivered.overwritten or delivered.excused
            ):
                delivered.excused = True  # report it once
                if not self._may_be_dropped(delivered):
                    text = f"{by} has alerted {channel} and did not store that"
                    self._simulation.report_violation(0, subject, text)

    def _may_be_dropped(self, alert: _DeliveredAlert) -> bool:
        # The clock of the checking machine may be a little ahead or behind.
        margin = self._simulation.settings.worker.skew_margin
        long_ago = self._simulation.settings.health.cool_down - 2 * margin
        return alert.item.resolved and self._simulation.clock.now() - alert.at >= long_ago

    def uninformed_channels(
        self, *, dead_letters: bool, rejections: Sequence[Event] = ()
    ) -> list[str]:
        """The alerts that the next check would still send, now that nothing runs.

        Args:
            rejections: The rejected messages in the history.
        """
        rejected: dict[str, datetime] = {}
        for event in rejections:
            body = event.body
            if isinstance(body, MessageRejected) and event.context.origin != "operator":
                rejected.setdefault(body.message_id, event.at)
        missing = [
            f"{channel} of {subject}"
            for (channel, subject), delivered in self._delivered.items()
            if subject not in _BACKLOGS and delivered.stored and not delivered.item.resolved
        ]
        for channel in CHANNELS:
            dead_letter_alert = self._delivered.get((channel, DEAD_LETTERS))
            is_open = dead_letter_alert is not None and not dead_letter_alert.item.resolved
            # Its sender may have died before it stored the alert, so no process knows of it.
            stored = dead_letter_alert is not None and dead_letter_alert.stored
            if (dead_letters and not is_open) or (not dead_letters and is_open and stored):
                missing.append(f"{channel} of {DEAD_LETTERS}")
            newest = max(((to_ms(at), name) for name, at in rejected.items()), default=())
            if rejected and (channel, (len(rejected), *newest)) not in self._informed:
                missing.append(f"{channel} of {REJECTED}")
        return missing


def _items_in(notice: HealthNotice) -> Iterator[_AlertItem]:
    for task in (*notice.urgent, *notice.warnings):
        yield _AlertItem(
            task.task_id, (task.attempt, task.health.value), reopens=task.health.urgent
        )
    for gone in notice.recovered:
        yield _AlertItem(gone.task_id, (gone.attempt, gone.previous.value), resolved=True)
    for subject, kind in _BACKLOGS.items():
        news = notice.backlogs.get(kind)
        if news is not None and news.change is BacklogChange.NONE_LEFT:
            yield _AlertItem(subject, (), resolved=True)
        elif news is not None:
            content = news.backlog.minimum_count, *news.backlog.newest[0].sort_key
            yield _AlertItem(subject, content, reopens=True)


def _is_stored(channels: Mapping[str, ChannelState], channel: str, alert: _DeliveredAlert) -> bool:
    """Whether the store says what a channel was sent."""
    item, state = alert.item, channels.get(channel, EMPTY_CHANNEL_STATE)
    if (kind := _BACKLOGS.get(item.subject)) is not None:
        last = state.backlogs.get(kind)
        if last is None or item.resolved:
            return last is None and item.resolved
        return (last.minimum_count, *last.newest_key, last.at) == (*item.content, alert.at)
    problem = state.problems.get(item.subject)
    if problem is None:
        return False
    stored = (problem.attempt, problem.health.value, problem.at, problem.resolved)
    return stored == (*item.content, alert.at, item.resolved)


class SimulatedChannel:
    """See ``ports.alerts.Alerts``; a channel as one process reaches it."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._simulation = process.simulation
        self._name = name
        self._rng = self._simulation.random_for(f"{name} of {process.name}")

    @property
    def channel(self) -> str:
        return self._name

    async def send(self, notice: HealthNotice | UndeliveredNotice) -> None:
        if not isinstance(notice, HealthNotice):  # the simulation has no undelivered messages
            raise TypeError(notice)
        faults, rng, who = self._simulation.faults, self._rng, self._process.name
        await self._process.wait_until_running()
        if faults.occurs(Fault.ALERT_SLOW, rng):
            await asyncio.sleep(rng.random() * _MAX_DELAY_S)
        if faults.occurs(Fault.ALERT_HANGS, rng):
            await asyncio.Event().wait()
        if faults.occurs(Fault.ALERT_FAILS, rng):
            raise self._failure()
        await self._process.wait_until_running()
        tasks = [task.task_id for task in (*notice.urgent, *notice.warnings)]
        resolved = [f"{gone.task_id} is resolved" for gone in notice.recovered]
        backlogs = [
            f"{subject}: {notice.backlogs[kind].change.value}"
            for subject, kind in _BACKLOGS.items()
            if kind in notice.backlogs
        ]
        self._simulation.record(
            who, f"alerts {self._name}", ", ".join([*tasks, *resolved, *backlogs])
        )
        self._simulation.alert_monitor.on_sent(self._name, notice, who)
        if faults.occurs(Fault.ALERT_ANSWER_LOST, rng):
            raise self._failure()
        self._simulation.alert_monitor.on_accepted(self._name, notice, who)

    def _failure(self) -> Exception:
        rng = self._rng
        if rng.random() < 0.2:
            return RuntimeError("a library broke")
        rest = timedelta(seconds=rng.random() * _MAX_RETRY_AFTER_S) if rng.random() < 0.3 else None
        return AlertFailed(self._name, "refused", rest)


def make_health_check(process: Process) -> HealthCheck:
    """A health check, wired as usual except for its channels."""
    services = process.services
    health, alerts = services.settings.health, services.settings.alerts
    thresholds = HealthPolicy(
        longest_run=health.longest_run,
        healthy_within=health.healthy_within,
        warning_within=health.warning_within,
    )
    channels = [SimulatedChannel(process, name) for name in CHANNELS]
    return HealthCheck(
        backend=services.backend,
        worker_registry=services.worker_registry,
        alert_sender=AlertSender(
            services.backend, channels, cool_down=health.cool_down, timeout=alerts.timeout
        ),
        app=services.settings.app,
        tenant=services.settings.tenant,
        queues=QUEUES,
        every=health.every,
        thresholds=thresholds,
    )
