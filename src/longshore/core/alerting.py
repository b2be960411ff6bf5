"""Alerting: what is to be told of a health check, and what has been told.

A check runs every few minutes and finds the same stuck task each time; whoever is told each time
stops reading. So a problem is told once, again when it changes, and again after a cool-down; when
it is over, that is told once too. What counts as told is what was delivered, nothing else: ``Told``
is changed by ``told_after`` when a notice has got through, and a notice that did not is simply
found again by the next check. Each channel has its own ``Told``, so one that is down does not make
the others repeat themselves.

Dead letters are told in the same way, all of a tenant's as one: when there are some, when new ones
have come, after a cool-down, and when none is left. What a check could not find out is no news, and
least of all that something is over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from longshore.core.events.kinds import expected, inside, mapping, moment_of, ms_of, text, whole
from longshore.core.events.types import HealthSummary
from longshore.core.health import CheckedTask, Health, HealthReport
from longshore.errors import UsageError

COUNTED_LIMIT = 1_000
"""So many dead letters are counted, the newest; of others only that there are more."""

LISTING = "longshore dead list"
"""The command that shows all of them."""

_FORMAT = 1
_FOLDER = "health/"
_FILE = "/told.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldProblem:
    """What a channel was last told of one task."""

    attempt: int
    health: Health
    at: datetime
    over: bool = False  # that it is over has been told as well


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDead:
    """One of the dead letters that came last."""

    id: str
    queue: str
    at: datetime

    @property
    def place(self) -> tuple[int, str]:
        """Where it stands among others: by milliseconds, in which moments are kept."""
        return ms_of(self.at), self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadKind:
    """Dead letters of one queue and category."""

    queue: str
    category: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadCount:
    """A tenant's dead letters at one moment."""

    total: int = 0  # of those that were counted
    more: bool = False  # there are others, which were not
    kinds: tuple[DeadKind, ...] = ()
    newest: tuple[NewDead, ...] = ()  # a few, the last to come first; none only if there is none

    @property
    def at_least(self) -> int:
        """How many there are, as far as was counted."""
        return self.total + self.more


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldDead:
    """What a channel was last told of a tenant's dead letters, when there were some."""

    at_least: int
    newest: tuple[int, str]  # the place of the one that had come last
    at: datetime


@dataclass(frozen=True, slots=True)
class Told:
    """What a channel has been told of one tenant: of tasks by their ids, and of dead letters."""

    problems: Mapping[str, ToldProblem] = field(default_factory=dict)
    dead: ToldDead | None = None


NOTHING_TOLD = Told()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A problem that was told and is over."""

    task_id: str
    attempt: int  # of which it was told
    was: Health
    now: CheckedTask | None  # None: it is no longer processing


class DeadNews(StrEnum):
    """What there is to tell of dead letters."""

    FIRST = "first"  # there are some, where there were none
    MORE = "more"  # new ones have come since they were last told
    STILL = "still"  # they are there as before
    NONE_LEFT = "none_left"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadNotice:
    """Dead letters that are to be told, or that there are none any more."""

    news: DeadNews
    found: DeadCount


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found out of one tenant; None: it could not find out."""

    tenant: str
    at: datetime
    tasks: HealthReport | None = None
    dead: DeadCount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What one channel is to be told of one check; there may be nothing."""

    tenant: str
    at: datetime
    summary: HealthSummary | None  # of everything that runs, told before or not; None: not known
    urgent: tuple[CheckedTask, ...] = ()
    warnings: tuple[CheckedTask, ...] = ()
    recovered: tuple[Recovered, ...] = ()
    dead: DeadNotice | None = None

    def __bool__(self) -> bool:
        return bool(self.urgent or self.warnings or self.recovered or self.dead)


def notice_of(found: Finding, told: Told, *, cool_down: timedelta) -> Notice:
    """What is to be told of a check to a channel that was told this much before."""
    notice = Notice(tenant=found.tenant, at=found.at, summary=None)
    if found.tasks is not None:
        notice = _notice_of_tasks(found.tasks, told, cool_down)
    if found.dead is not None:
        notice = replace(notice, dead=_notice_of_dead(found.dead, told.dead, found.at, cool_down))
    return notice


def _notice_of_dead(
    found: DeadCount, last: ToldDead | None, now: datetime, cool_down: timedelta
) -> DeadNotice | None:
    if not found.newest:
        return DeadNotice(news=DeadNews.NONE_LEFT, found=found) if last else None
    if last is None:
        return DeadNotice(news=DeadNews.FIRST, found=found)
    # Each sees what the other does not: one comes as one goes, or by a clock that is behind.
    if found.newest[0].place > last.newest or found.at_least > last.at_least:
        return DeadNotice(news=DeadNews.MORE, found=found)
    still = DeadNotice(news=DeadNews.STILL, found=found)
    return still if _cooled(last.at, now, cool_down) else None


def _notice_of_tasks(report: HealthReport, told: Told, cool_down: timedelta) -> Notice:
    problems = {task.task_id: task for task in report.tasks if task.health is not Health.HEALTHY}
    news = [
        task
        for task in problems.values()
        if _is_news(task, told.problems.get(task.task_id), report.at, cool_down)
    ]
    running = {task.task_id: task for task in report.tasks}
    return Notice(
        tenant=report.tenant,
        at=report.at,
        summary=report.summary,
        urgent=tuple(task for task in news if task.health.urgent),
        warnings=tuple(task for task in news if not task.health.urgent),
        recovered=tuple(
            Recovered(
                task_id=task_id, attempt=last.attempt, was=last.health, now=running.get(task_id)
            )
            for task_id, last in sorted(told.problems.items())
            if not last.over and task_id not in problems
        ),
    )


def _is_news(
    task: CheckedTask, last: ToldProblem | None, now: datetime, cool_down: timedelta
) -> bool:
    if last is None or (last.attempt, last.health) != (task.attempt, task.health):
        return True
    if _cooled(last.at, now, cool_down):
        return True
    # It was over and is back. A warning that comes and goes would fill the channel.
    return last.over and task.health.urgent


def _cooled(told_at: datetime, now: datetime, cool_down: timedelta) -> bool:
    # Either way: a clock that was set back must not silence a problem for as long.
    return abs(now - told_at) >= cool_down


def told_after(told: Told, notice: Notice, *, cool_down: timedelta) -> Told:
    """What the channel has been told once this notice was delivered.

    An empty notice counts as delivered: what is over and long ago is then forgotten.
    """
    problems = {
        task_id: last
        for task_id, last in told.problems.items()
        if not (last.over and _cooled(last.at, notice.at, cool_down))
    }
    for gone in notice.recovered:
        problems[gone.task_id] = replace(told.problems[gone.task_id], over=True)
    for task in (*notice.urgent, *notice.warnings):
        problems[task.task_id] = ToldProblem(attempt=task.attempt, health=task.health, at=notice.at)
    return Told(problems, _told_dead_after(told.dead, notice))


def _told_dead_after(last: ToldDead | None, notice: Notice) -> ToldDead | None:
    if notice.dead is None:
        return last
    found = notice.dead.found
    if not found.newest:
        return None
    newest = found.newest[0].place
    return ToldDead(at_least=found.at_least, newest=newest, at=notice.at)


def told_key(tenant: str) -> str:
    """Where it is kept what has been told of a tenant."""
    return f"{_FOLDER}{tenant}{_FILE}"


TOLD_PREFIX = _FOLDER
"""What every ``told_key`` begins with."""


def tenant_of(key: str) -> str | None:
    """The tenant of a ``told_key``; None if it is none."""
    if not (key.startswith(_FOLDER) and key.endswith(_FILE)):
        return None
    return key.removeprefix(_FOLDER).removesuffix(_FILE)


def told_to_json(channels: Mapping[str, Told]) -> str:
    """What all channels have been told of one tenant, to be kept.

    Dead letters stand beside the tasks, where a version that knows nothing of them does not look.
    """
    document = {
        "format": _FORMAT,
        "channels": {
            name: {task_id: _written(last) for task_id, last in told.problems.items()}
            for name, told in channels.items()
        },
        "deadLetters": {
            name: _written_dead(told.dead) for name, told in channels.items() if told.dead
        },
    }
    return json.dumps(document, separators=(",", ":"))


def _written(last: ToldProblem) -> dict[str, Any]:
    return {
        "attempt": last.attempt,
        "health": last.health.value,
        "at": ms_of(last.at),
        "over": last.over,
    }


def _written_dead(last: ToldDead) -> dict[str, Any]:
    newest_at, newest_id = last.newest
    return {
        "atLeast": last.at_least,
        "newestAt": newest_at,
        "newestId": newest_id,
        "at": ms_of(last.at),
    }


def told_from_json(kept: str | bytes) -> dict[str, Told]:
    """The inverse of ``told_to_json``, in whole milliseconds.

    Raises:
        UsageError: it is not what that wrote.
    """
    try:
        document = json.loads(kept)
    except (ValueError, RecursionError) as error:
        message = "what was told: expected JSON"
        raise UsageError(message) from error
    try:
        if mapping(document).get("format") != _FORMAT:
            raise expected(f"format {_FORMAT}")
        tasks = mapping(document.get("channels"))
        # A file from before there was this: nothing has been told of them.
        dead = mapping(document.get("deadLetters", {}))
        return {
            name: Told(
                _problems(mapping(tasks.get(name, {}))),
                _read_dead(mapping(dead[name])) if name in dead else None,
            )
            for name in (*tasks, *(name for name in dead if name not in tasks))
        }
    except UsageError as wrong:
        raise inside("what was told", wrong) from None


def _problems(tasks: Mapping[str, Any]) -> dict[str, ToldProblem]:
    return {task_id: _read(mapping(last)) for task_id, last in tasks.items()}


def _read(last: Mapping[str, Any]) -> ToldProblem:
    try:
        health = Health(text(last.get("health")))
    except ValueError:
        raise expected(f"one of {', '.join(Health)}") from None
    return ToldProblem(
        attempt=whole(last.get("attempt")),
        health=health,
        at=moment_of(last.get("at")),
        over=last.get("over") is True,
    )


def _read_dead(last: Mapping[str, Any]) -> ToldDead:
    return ToldDead(
        at_least=whole(last.get("atLeast")),
        newest=(whole(last.get("newestAt")), text(last.get("newestId"))),
        at=moment_of(last.get("at")),
    )
