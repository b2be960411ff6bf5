"""What people have heard of a health check, channel by channel, and what they hear too often.

A channel that has taken a notice is not told the same again before the cool-down, by nobody: not by
the process that told it, and not by one that comes after it. Excused is whoever could not know:
what was told had not been stored, or cannot be read, or an older version came late and was written
over it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from longshore.core.alerts import (
    CHANNEL_STATE_PREFIX,
    EMPTY_CHANNEL_STATE,
    BacklogChange,
    ChannelState,
    HealthNotice,
)
from longshore.core.health import HealthPolicy
from longshore.core.undelivered import UndeliveredNotice
from longshore.errors import AlertFailed
from longshore.services.health import (
    AlertSender,
    HealthCheck,
    HealthCheckPolicy,
    channel_states_from_json,
)
from verification.simulation.faults import Fault
from verification.simulation.workload import ActionKind

if TYPE_CHECKING:
    from verification.simulation.processes import Process
    from verification.simulation.simulation import Simulation


CHANNELS = ("pager", "room")
DEAD_LETTERS = "dead letters"
# Sort keys of backlogs are in whole milliseconds.
_TICK = timedelta(milliseconds=2)
_MAX_DELAY_S = 8.0
_MAX_RETRY_AFTER_S = 8.0


@dataclass(frozen=True, slots=True)
class _AlertItem:
    """One thing that a notice tells: of a task, or of all dead letters."""

    subject: str
    content: tuple[Any, ...]  # if this is the same, so is the news
    resolved: bool = False
    reopens: bool = False  # if it was over, this is news


@dataclass(slots=True)
class _DeliveredAlert:
    """What a channel has taken, of one subject."""

    item: _AlertItem
    at: datetime
    by: str
    stored: bool = False  # it stands in the store
    overwritten: bool = False  # something older came late and is there instead
    excused: bool = False  # whoever told it had trouble to store it


class AlertMonitor:
    """All channels of a run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._sent: dict[tuple[str, str], None] = {}  # by channel and subject: taken or not
        self._delivered: dict[tuple[str, str], _DeliveredAlert] = {}
        self._readers: dict[str, None] = {}  # processes that could read what was told before them

    def on_sent(self, channel: str, notice: HealthNotice, by: str) -> None:
        """A notice gets to where people are."""
        for news in _items_in(notice):
            which = channel, news.subject
            known = self._delivered.get(which)
            if known is not None and self._is_repeat(known, news, notice.at):
                self._check_repeat(channel, known, by)
            if news.resolved and which not in self._sent:
                text = f"{by} tells {channel} that it is over, and had told nothing of it"
                self._simulation.report_violation(0, news.subject, text)
            self._sent[which] = None

    def _is_repeat(self, previous: _DeliveredAlert, item: _AlertItem, at: datetime) -> bool:
        if item.resolved:
            return previous.item.resolved and previous.item.content == item.content
        cool_down = self._simulation.settings.health.cool_down
        same = previous.item.content == item.content
        cooled = abs(at - previous.at) >= cool_down - _TICK
        return same and not cooled and not (previous.item.resolved and item.reopens)

    def _check_repeat(self, channel: str, previous: _DeliveredAlert, by: str) -> None:
        if previous.overwritten or (
            by != previous.by and not (previous.stored and by in self._readers)
        ):
            return
        what = "that it is over" if previous.item.resolved else str(previous.item.content)
        text = f"{by} tells {channel} {what}, which {previous.by} has told at {previous.at}"
        self._simulation.report_violation(0, previous.item.subject, text)

    def on_accepted(self, channel: str, notice: HealthNotice, by: str) -> None:
        """A channel has told the process that it has the notice."""
        for news in _items_in(notice):
            which = channel, news.subject
            self._simulation.action_counts[
                ActionKind.ALERT_RESOLVED if news.resolved else ActionKind.ALERT
            ] += 1
            known = self._delivered.pop(which, None)
            if not news.resolved or news.subject == DEAD_LETTERS:
                self._delivered[which] = _DeliveredAlert(news, notice.at, by)
            elif known is not None and known.stored:
                # Else it was perhaps never known to the one who tells this.
                over = replace(known.item, resolved=True)
                self._delivered[which] = _DeliveredAlert(over, known.at, by)

    def on_stored(self, key: str, data: bytes | None) -> None:
        """What was told is stored, in the place of what was there; None: there is nothing."""
        if key.startswith(CHANNEL_STATE_PREFIX):
            channels = channel_states_from_json(data) if data else {}
            for (channel, _), known in self._delivered.items():
                known.stored = _is_stored(channels, channel, known)
                known.overwritten &= not known.stored

    def on_stored_late(self, key: str) -> None:
        """What was just written was given up long ago."""
        if key.startswith(CHANNEL_STATE_PREFIX):
            for known in self._delivered.values():
                known.overwritten |= not known.stored

    def on_store_failed(self, key: str, by: str) -> None:
        """A process was told that it could not store something, or was not told that it has."""
        if key.startswith(CHANNEL_STATE_PREFIX):
            for known in self._delivered.values():
                known.excused |= known.by == by

    def on_read(self, key: str, by: str) -> None:
        """A process knows what was told."""
        if key.startswith(CHANNEL_STATE_PREFIX):
            self._readers[by] = None

    def on_check_started(self, by: str) -> None:
        """A process looks at everything anew: what it told before should be stored by now."""
        for (channel, subject), known in self._delivered.items():
            if known.by == by and not (known.stored or known.overwritten or known.excused):
                known.excused = True  # once is enough
                if not self._may_be_dropped(known):
                    text = f"{by} has told {channel} of it and does not keep that"
                    self._simulation.report_violation(0, subject, text)

    def _may_be_dropped(self, alert: _DeliveredAlert) -> bool:
        # By the clock of the machine that checks, which may be a little before or after ours.
        margin = self._simulation.settings.worker.skew_margin
        long_ago = self._simulation.settings.health.cool_down - 2 * margin
        return alert.item.resolved and self._simulation.clock.now() - alert.at >= long_ago

    def uninformed_channels(self, *, dead_letters: bool) -> list[str]:
        """Where people would be told something, now that nothing runs; by the next check."""
        worried = [
            f"{channel} of {subject}"
            for (channel, subject), known in self._delivered.items()
            if subject != DEAD_LETTERS and known.stored and not known.item.resolved
        ]
        for channel in CHANNELS:
            known_dead = self._delivered.get((channel, DEAD_LETTERS))
            believed = known_dead is not None and not known_dead.item.resolved
            # Whoever told it may have died before it was stored: then nobody knows of it now.
            stored = known_dead is not None and known_dead.stored
            if (dead_letters and not believed) or (not dead_letters and believed and stored):
                worried.append(f"{channel} of {DEAD_LETTERS}")
        return worried


def _items_in(notice: HealthNotice) -> Iterator[_AlertItem]:
    for task in (*notice.urgent, *notice.warnings):
        yield _AlertItem(
            task.task_id, (task.attempt, task.health.value), reopens=task.health.urgent
        )
    for gone in notice.recovered:
        yield _AlertItem(gone.task_id, (gone.attempt, gone.previous.value), resolved=True)
    if notice.dead_letters is not None and notice.dead_letters.change is BacklogChange.NONE_LEFT:
        yield _AlertItem(DEAD_LETTERS, (), resolved=True)
    elif notice.dead_letters is not None:
        found = notice.dead_letters.backlog
        yield _AlertItem(
            DEAD_LETTERS, (found.minimum_count, *found.newest[0].sort_key), reopens=True
        )


def _is_stored(channels: Mapping[str, ChannelState], channel: str, alert: _DeliveredAlert) -> bool:
    """Whether the store says what a channel was sent."""
    item, state = alert.item, channels.get(channel, EMPTY_CHANNEL_STATE)
    if item.subject == DEAD_LETTERS:
        last = state.dead_letters
        if last is None or item.resolved:
            return last is None and item.resolved
        return (last.minimum_count, *last.newest_key, last.at) == (*item.content, alert.at)
    problem = state.problems.get(item.subject)
    if problem is None:
        return False
    stored = (problem.attempt, problem.health.value, problem.at, problem.resolved)
    return stored == (*item.content, alert.at, item.resolved)


class SimulatedChannel:
    """See ``ports.alerts.Alerts``; as one process reaches it."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._simulation = process.simulation
        self._name = name
        self._rng = self._simulation.random_for(f"{name} of {process.name}")

    @property
    def channel(self) -> str:
        return self._name

    async def send(self, notice: HealthNotice | UndeliveredNotice) -> None:
        if not isinstance(notice, HealthNotice):  # nothing is undelivered here
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
        over = [f"{gone.task_id} is over" for gone in notice.recovered]
        dead = (
            [f"{DEAD_LETTERS}: {notice.dead_letters.change.value}"] if notice.dead_letters else []
        )
        self._simulation.record(who, f"tells {self._name}", ", ".join([*tasks, *over, *dead]))
        self._simulation.alert_monitor.on_sent(self._name, notice, who)
        if faults.occurs(Fault.ALERT_ANSWER_LOST, rng):
            raise self._failure()
        self._simulation.alert_monitor.on_accepted(self._name, notice, who)

    def _failure(self) -> Exception:
        rng = self._rng
        if rng.random() < 0.2:
            return RuntimeError("a library broke")
        rest = timedelta(seconds=rng.random() * _MAX_RETRY_AFTER_S) if rng.random() < 0.3 else None
        return AlertFailed(self._name, "it does not want to", rest)


def make_health_check(process: Process) -> HealthCheck:
    """A health check as it is always made, but for the channels."""
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
        policy=HealthCheckPolicy(every=health.every, thresholds=thresholds),
    )
