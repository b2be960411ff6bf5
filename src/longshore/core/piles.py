"""Piles: what lies until somebody sees to it, dead letters and parked tasks.

Nobody looks at them again unless told that they are there. All of a tenant's of one sort are told
as one: when there are some, when new ones have come, after a cool-down, and when none is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from longshore.core.budgets import OWN_SCOPES, Scope
from longshore.core.dead_letters import DeadLetter
from longshore.core.events.kinds import moment_of, ms_of, text, whole
from longshore.core.rows import TaskRow

COUNTED_LIMIT = 1_000
"""So many of a pile are counted, the newest; of others only that there are more."""

DEAD_LISTING = "longshore dead list"
"""The command that shows all dead letters."""
PARKED_LISTING = "longshore tasks --state parked"
"""The command that shows all parked tasks."""
TOP_UP = "longshore budget add ID --usd N"
"""The command that lets parked tasks go on; ID is a task's, a job's or ``today``."""

_NEWEST = 5


class Wanting(StrEnum):
    """For want of which budget a task is parked."""

    OWN = "own"  # of the task or of one of its steps
    JOB = Scope.JOB.value
    DAY = Scope.DAY.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PileItem:
    """One of a pile: a dead letter, or a parked task."""

    id: str
    queue: str
    why: str  # the category of a dead letter; for want of which budget a task is parked
    at: datetime  # when it came

    @property
    def place(self) -> tuple[int, str]:
        """Where it stands among others: by milliseconds, in which moments are kept."""
        return ms_of(self.at), self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class PileKind:
    """Those of a pile that are of one queue and have one reason."""

    queue: str
    why: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pile:
    """A tenant's dead letters, or parked tasks, at one moment."""

    total: int = 0  # of those that were counted
    more: bool = False  # there are others, which were not
    kinds: tuple[PileKind, ...] = ()  # the most frequent first
    newest: tuple[PileItem, ...] = ()  # a few, the last to come first; none only if there is none

    @property
    def at_least(self) -> int:
        """How many there are, as far as was counted."""
        return self.total + self.more


NOTHING_LIES = Pile()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPile:
    """What a channel was last told of a pile, when there was one."""

    at_least: int
    newest: tuple[int, str]  # the place of the one that had come last
    at: datetime


class PileNews(StrEnum):
    """What there is to tell of a pile."""

    FIRST = "first"  # there are some, where there were none
    MORE = "more"  # new ones have come since they were last told
    STILL = "still"  # they are there as before
    NONE_LEFT = "none_left"


@dataclass(frozen=True, slots=True, kw_only=True)
class PileNotice:
    """A pile that is to be told, or that there is none any more."""

    news: PileNews
    found: Pile


def dead_item(letter: DeadLetter) -> PileItem:
    """A dead letter, as one of a pile."""
    return PileItem(id=letter.id, queue=letter.queue, why=letter.kind, at=letter.at)


def parked_item(row: TaskRow) -> PileItem | None:
    """A parked task, as one of a pile; None if it is not parked any more."""
    if row.parked is None:
        return None
    scope = row.parked.scope
    why = Wanting.OWN if scope in OWN_SCOPES else Wanting(scope.value)
    return PileItem(id=row.id, queue=row.spec.queue, why=why.value, at=row.parked.at)


def pile_of(items: Iterable[PileItem], *, limit: int = COUNTED_LIMIT) -> Pile:
    """All of them together, the newest counted; one that is there twice is one."""
    named = {item.id: item for item in items}
    newest = sorted(named.values(), key=lambda item: item.place, reverse=True)
    counts = Counter((item.queue, item.why) for item in newest[:limit])
    kinds = [PileKind(queue=queue, why=why, count=count) for (queue, why), count in counts.items()]
    return Pile(
        total=counts.total(),
        more=len(newest) > limit,
        kinds=tuple(sorted(kinds, key=lambda kind: (-kind.count, kind.queue, kind.why))),
        newest=tuple(newest[:_NEWEST]),
    )


def pile_notice_of(
    found: Pile | None, last: ToldPile | None, *, now: datetime, cool_down: timedelta
) -> PileNotice | None:
    """What is to be told of a pile to a channel that was told this much before; None: nothing.

    What could not be found out is no news.
    """
    news = None if found is None else _news_of(found, last, now, cool_down)
    return None if found is None or news is None else PileNotice(news=news, found=found)


def _news_of(
    found: Pile, last: ToldPile | None, now: datetime, cool_down: timedelta
) -> PileNews | None:
    if not found.newest:
        return PileNews.NONE_LEFT if last else None
    if last is None:
        return PileNews.FIRST
    # Each sees what the other does not: one comes as one goes, or by a clock that is behind.
    if found.newest[0].place > last.newest or found.at_least > last.at_least:
        return PileNews.MORE
    return PileNews.STILL if cooled(last.at, now, cool_down) else None


def cooled(told_at: datetime, now: datetime, cool_down: timedelta) -> bool:
    """Whether what was told then may be told again."""
    # Either way: a clock that was set back must not silence a problem for as long.
    return abs(now - told_at) >= cool_down


def told_pile_after(
    last: ToldPile | None, notice: PileNotice | None, at: datetime
) -> ToldPile | None:
    """What the channel has been told of a pile once this was delivered."""
    if notice is None:
        return last
    found = notice.found
    if not found.newest:
        return None
    return ToldPile(at_least=found.at_least, newest=found.newest[0].place, at=at)


def written_pile(last: ToldPile) -> dict[str, Any]:
    """What was told of a pile, to be kept."""
    newest_at, newest_id = last.newest
    return {
        "atLeast": last.at_least,
        "newestAt": newest_at,
        "newestId": newest_id,
        "at": ms_of(last.at),
    }


def read_pile(last: Mapping[str, Any]) -> ToldPile:
    """The inverse of ``written_pile``, in whole milliseconds.

    Raises:
        UsageError: it is not what that wrote.
    """
    return ToldPile(
        at_least=whole(last.get("atLeast")),
        newest=(whole(last.get("newestAt")), text(last.get("newestId"))),
        at=moment_of(last.get("at")),
    )
