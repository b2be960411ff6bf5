"""Alerting: what is to be told of a health check, and what has been told.

A check runs every few minutes and finds the same stuck task each time; whoever is told each time
stops reading. So a problem is told once, again when it changes, and again after a cool-down; when
it is over, that is told once too. What counts as told is what was delivered, nothing else: ``Told``
is changed by ``told_after`` when a notice has got through, and a notice that did not is simply
found again by the next check. Each channel has its own ``Told``, so one that is down does not make
the others repeat themselves.

Dead letters and parked tasks are told in the same way, all of a tenant's as one (``piles``). What a
check could not find out is no news, and least of all that something is over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from longshore.core.events.kinds import expected, inside, mapping, moment_of, ms_of, text, whole
from longshore.core.events.types import HealthSummary
from longshore.core.health import CheckedTask, Health, HealthReport
from longshore.core.piles import (
    Pile,
    PileNotice,
    ToldPile,
    cooled,
    pile_notice_of,
    read_pile,
    told_pile_after,
    written_pile,
)
from longshore.errors import UsageError

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


@dataclass(frozen=True, slots=True)
class Told:
    """What a channel has been told of one tenant: of tasks by their ids, and of piles."""

    problems: Mapping[str, ToldProblem] = field(default_factory=dict)
    dead: ToldPile | None = None
    parked: ToldPile | None = None


NOTHING_TOLD = Told()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A problem that was told and is over."""

    task_id: str
    attempt: int  # of which it was told
    was: Health
    now: CheckedTask | None  # None: it is no longer processing


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found out of one tenant; None: it could not find out."""

    tenant: str
    at: datetime
    tasks: HealthReport | None = None
    dead: Pile | None = None
    parked: Pile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What one channel is to be told of one check; there may be nothing."""

    tenant: str
    at: datetime
    summary: HealthSummary | None  # of everything that runs, told before or not; None: not known
    urgent: tuple[CheckedTask, ...] = ()
    warnings: tuple[CheckedTask, ...] = ()
    recovered: tuple[Recovered, ...] = ()
    dead: PileNotice | None = None
    parked: PileNotice | None = None

    def __bool__(self) -> bool:
        of_tasks = self.urgent or self.warnings or self.recovered
        return bool(of_tasks or self.dead or self.parked)


def notice_of(found: Finding, told: Told, *, cool_down: timedelta) -> Notice:
    """What is to be told of a check to a channel that was told this much before."""
    notice = Notice(tenant=found.tenant, at=found.at, summary=None)
    if found.tasks is not None:
        notice = _notice_of_tasks(found.tasks, told, cool_down)
    return replace(
        notice,
        dead=pile_notice_of(found.dead, told.dead, now=found.at, cool_down=cool_down),
        parked=pile_notice_of(found.parked, told.parked, now=found.at, cool_down=cool_down),
    )


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
    if cooled(last.at, now, cool_down):
        return True
    # It was over and is back. A warning that comes and goes would fill the channel.
    return last.over and task.health.urgent


def told_after(told: Told, notice: Notice, *, cool_down: timedelta) -> Told:
    """What the channel has been told once this notice was delivered.

    An empty notice counts as delivered: what is over and long ago is then forgotten.
    """
    problems = {
        task_id: last
        for task_id, last in told.problems.items()
        if not (last.over and cooled(last.at, notice.at, cool_down))
    }
    for gone in notice.recovered:
        problems[gone.task_id] = replace(told.problems[gone.task_id], over=True)
    for task in (*notice.urgent, *notice.warnings):
        problems[task.task_id] = ToldProblem(attempt=task.attempt, health=task.health, at=notice.at)
    return Told(
        problems,
        told_pile_after(told.dead, notice.dead, notice.at),
        told_pile_after(told.parked, notice.parked, notice.at),
    )


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

    Piles stand beside the tasks, where a version that knows nothing of them does not look.
    """
    document = {
        "format": _FORMAT,
        "channels": {
            name: {task_id: _written(last) for task_id, last in told.problems.items()}
            for name, told in channels.items()
        },
        "deadLetters": {
            name: written_pile(told.dead) for name, told in channels.items() if told.dead
        },
        "parkedTasks": {
            name: written_pile(told.parked) for name, told in channels.items() if told.parked
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
        dead = _piles(document, "deadLetters")
        parked = _piles(document, "parkedTasks")
        return {
            name: Told(_problems(mapping(tasks.get(name, {}))), dead.get(name), parked.get(name))
            for name in dict.fromkeys((*tasks, *dead, *parked))
        }
    except UsageError as wrong:
        raise inside("what was told", wrong) from None


def _problems(tasks: Mapping[str, Any]) -> dict[str, ToldProblem]:
    return {task_id: _read(mapping(last)) for task_id, last in tasks.items()}


def _piles(document: Mapping[str, Any], name: str) -> dict[str, ToldPile]:
    # A file from before there was this: nothing has been told of them.
    return {
        channel: read_pile(mapping(last))
        for channel, last in mapping(document.get(name, {})).items()
    }


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
