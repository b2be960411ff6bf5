"""What people have heard of a health check, channel by channel, and what they hear too often.

A channel that has taken a notice is not told the same again before the cool-down, by nobody: not by
the process that told it, and not by one that comes after it. Excused is whoever could not know:
what was told had not been stored, or cannot be read, or an older version came late and was written
over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from longshore.core.alerting import TOLD_PREFIX, Notice
from longshore.core.events.kinds import ms_of
from longshore.core.piles import PileNews
from longshore.testing.simulation.deeds import Deed

if TYPE_CHECKING:
    from longshore.testing.simulation.world import World

CHANNELS = ("pager", "room")
DEAD = "dead letters"
# Moments are stored in whole milliseconds.
_TICK = timedelta(milliseconds=2)


@dataclass(frozen=True, slots=True)
class _News:
    """One thing that a notice tells: of a task, or of all dead letters."""

    subject: str
    what: tuple[Any, ...]  # if this is the same, so is the news
    over: bool = False
    back: bool = False  # if it was over, this is news


@dataclass(slots=True)
class _Heard:
    """What a channel has taken, of one subject."""

    news: _News
    at: datetime
    by: str
    kept: bool = False  # it stands in the store
    lost: bool = False  # something older came late and is there instead
    excused: bool = False  # whoever told it had trouble to store it


class Ears:
    """All channels of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._said: dict[tuple[str, str], None] = {}  # by channel and subject: taken or not
        self._heard: dict[tuple[str, str], _Heard] = {}
        self._knows: dict[str, None] = {}  # processes that could read what was told before them

    def say(self, channel: str, notice: Notice, by: str) -> None:
        """A notice gets to where people are."""
        for news in _news_in(notice):
            which = channel, news.subject
            known = self._heard.get(which)
            if known is not None and self._again(known, news, notice.at):
                self._judge(channel, known, by)
            if news.over and which not in self._said:
                text = f"{by} tells {channel} that it is over, and had told nothing of it"
                self._world.breach(0, news.subject, text)
            self._said[which] = None

    def _again(self, known: _Heard, news: _News, at: datetime) -> bool:
        if news.over:
            return known.news.over and known.news.what == news.what
        cool_down = self._world.settings.health.cool_down
        same = known.news.what == news.what
        cooled = abs(at - known.at) >= cool_down - _TICK
        return same and not cooled and not (known.news.over and news.back)

    def _judge(self, channel: str, known: _Heard, by: str) -> None:
        if known.lost or (by != known.by and not (known.kept and by in self._knows)):
            return
        what = "that it is over" if known.news.over else str(known.news.what)
        text = f"{by} tells {channel} {what}, which {known.by} has told at {known.at}"
        self._world.breach(0, known.news.subject, text)

    def taken(self, channel: str, notice: Notice, by: str) -> None:
        """A channel has told the process that it has the notice."""
        for news in _news_in(notice):
            which = channel, news.subject
            self._world.done[Deed.ALL_CLEAR if news.over else Deed.ALERT] += 1
            known = self._heard.pop(which, None)
            if not news.over or news.subject == DEAD:
                self._heard[which] = _Heard(news, notice.at, by)
            elif known is not None and known.kept:
                # Else it was perhaps never known to the one who tells this.
                over = replace(known.news, over=True)
                self._heard[which] = _Heard(over, known.at, by)

    def written(self, key: str, data: bytes | None) -> None:
        """What was told is stored, in the place of what was there; None: there is nothing."""
        if key.startswith(TOLD_PREFIX):
            document = json.loads(data) if data else {}
            for (channel, _), known in self._heard.items():
                known.kept = _stands_in(document, channel, known)
                known.lost &= not known.kept

    def written_late(self, key: str) -> None:
        """What was just written was given up long ago."""
        if key.startswith(TOLD_PREFIX):
            for known in self._heard.values():
                known.lost |= not known.kept

    def not_written(self, key: str, by: str) -> None:
        """A process was told that it could not store something, or was not told that it has."""
        if key.startswith(TOLD_PREFIX):
            for known in self._heard.values():
                known.excused |= known.by == by

    def read(self, key: str, by: str) -> None:
        """A process knows what was told."""
        if key.startswith(TOLD_PREFIX):
            self._knows[by] = None

    def check_begins(self, by: str) -> None:
        """A process looks at everything anew: what it told before should be stored by now."""
        for (channel, subject), known in self._heard.items():
            if known.by == by and not (known.kept or known.lost or known.excused):
                known.excused = True  # once is enough
                if not self._forgettable(known):
                    text = f"{by} has told {channel} of it and does not keep that"
                    self._world.breach(0, subject, text)

    def _forgettable(self, known: _Heard) -> bool:
        # By the clock of the machine that checks, which may be a little before or after ours.
        margin = self._world.settings.worker.skew_margin
        long_ago = self._world.settings.health.cool_down - 2 * margin
        return known.news.over and self._world.clock.now() - known.at >= long_ago

    def unaware(self, *, dead_letters: bool) -> list[str]:
        """Where people would be told something, now that nothing runs; by the next check."""
        worried = [
            f"{channel} of {subject}"
            for (channel, subject), known in self._heard.items()
            if subject != DEAD and known.kept and not known.news.over
        ]
        for channel in CHANNELS:
            known_dead = self._heard.get((channel, DEAD))
            believed = known_dead is not None and not known_dead.news.over
            # Whoever told it may have died before it was stored: then nobody knows of it now.
            stored = known_dead is not None and known_dead.kept
            if (dead_letters and not believed) or (not dead_letters and believed and stored):
                worried.append(f"{channel} of {DEAD}")
        return worried


def _news_in(notice: Notice) -> Iterator[_News]:
    for task in (*notice.urgent, *notice.warnings):
        yield _News(task.task_id, (task.attempt, task.health.value), back=task.health.urgent)
    for gone in notice.recovered:
        yield _News(gone.task_id, (gone.attempt, gone.was.value), over=True)
    if notice.dead is not None and notice.dead.news is PileNews.NONE_LEFT:
        yield _News(DEAD, (), over=True)
    elif notice.dead is not None:
        found = notice.dead.found
        yield _News(DEAD, (found.at_least, *found.newest[0].place), back=True)


def _stands_in(document: Mapping[str, Any], channel: str, known: _Heard) -> bool:
    """Whether the store says what a channel has heard."""
    news, at = known.news, ms_of(known.at)
    if news.subject == DEAD:
        there = document.get("deadLetters", {}).get(channel)
        if there is None or news.over:
            return there is None and news.over
        return (there["atLeast"], there["newestAt"], there["newestId"], there["at"]) == (
            *news.what,
            at,
        )
    there = document.get("channels", {}).get(channel, {}).get(news.subject)
    if there is None:
        return False
    told = (there["attempt"], there["health"], there["at"], there["over"])
    return told == (*news.what, at, news.over)
