"""A notice as Slack shows it: one message of at most fifty blocks.

What does not fit is summed up, the worst being first. Ids stand as code, because the underscores in
them would make italics, and whatever comes from outside is escaped: a task called ``<!channel>``
must not wake everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from longshore.core.alerting import Notice, Recovered
from longshore.core.health import CheckedTask, Health
from longshore.core.piles import (
    DEAD_LISTING,
    PARKED_LISTING,
    TOP_UP,
    Pile,
    PileItem,
    PileKind,
    PileNews,
    PileNotice,
    Wanting,
)
from longshore.core.undelivered import Undelivered, UndeliveredNotice

BLOCKS_LIMIT = 50
"""https://docs.slack.dev/reference/block-kit/blocks"""

# Three texts of it, each character five when escaped, stay below the 3,000 of a section.
_LONGEST_TEXT = 128
_SHORT_TEXT = 64
_MINUTE = timedelta(minutes=1)
_SECOND = timedelta(seconds=1)
_PARTS = 3  # of tasks
# A headline and a line that sums up for each part, and the line at the end.
_ROOM = BLOCKS_LIMIT - 2 * _PARTS - 1
# Of a pile there are never more lines than this, so that both leave room for tasks.
_KINDS = 5
_NEWEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _PileWords:
    """How is spoken of one sort of pile."""

    sign: str
    name: str
    whys: Mapping[str, str] = field(default_factory=dict)  # in other words
    commands: tuple[str, ...]


_DEAD = _PileWords(
    sign=":red_circle:", name="Dead Letters", commands=(f"all of them: `{DEAD_LISTING}`",)
)
_PARKED = _PileWords(
    sign=":warning:",
    name="Parked Tasks",
    whys={
        Wanting.OWN: "for want of their own budget",
        Wanting.JOB: "for want of their job's budget",
        Wanting.DAY: "for want of the day's budget, until the next day begins",
    },
    commands=(
        f"all of them: `{PARKED_LISTING}`",
        f"to let them go on: `{TOP_UP}`, for a task, a job or `today`",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackMessage:
    """What is posted; ``text`` is what a notification shows."""

    text: str
    blocks: tuple[dict[str, Any], ...]


@dataclass(slots=True)
class _Writing:
    """A message as far as it is written; ``room`` is for lines of tasks."""

    room: int
    headlines: list[str] = field(default_factory=list)
    blocks: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, headline: str) -> None:
        self.headlines.append(headline)
        self.blocks.append(_section(f"*{headline}*"))

    def tasks(self, headline: str, lines: Sequence[str]) -> None:
        if lines:
            shown = lines[: self.room]
            self.room -= len(shown)
            self.begin(headline)
            self.blocks += [_section(line) for line in shown]
            if len(shown) < len(lines):
                self.blocks.append(_context(f"and {len(lines) - len(shown)} more"))


def message_of(notice: Notice | UndeliveredNotice) -> SlackMessage:
    """The notice as one message."""
    if isinstance(notice, UndeliveredNotice):
        return _message_of_undelivered(notice)
    return _message_of_health(notice)


def _message_of_undelivered(notice: UndeliveredNotice) -> SlackMessage:
    message = _Writing(room=_ROOM)
    headline = f":red_circle: Events: {len(notice.events)} not delivered"
    message.tasks(headline, [_undelivered(one, notice.at) for one in notice.events])
    where = f"tenant {_code(notice.tenant)}; each is kept, and can be told again"
    message.blocks.append(_context(where))
    return SlackMessage(text=headline, blocks=tuple(message.blocks))


def _undelivered(one: Undelivered, now: datetime) -> str:
    found = one.facts()
    told = (found.event_type, found.detail_type, one.reason, one.source, one.message_id)
    # More texts than of a task, so that each may be shorter.
    event_type, detail_type, reason, source, message_id = (text[:_SHORT_TEXT] for text in told)
    return (
        f"{_escaped(event_type)} of {_code(found.entity)} ({_escaped(detail_type)}), "
        f"{_age(now - found.at)} ago, at {found.at:%Y-%m-%d %H:%M:%S} UTC: "
        f"{_escaped(reason)}, {_code(source)}, message {_code(message_id)}"
    )


def _message_of_health(notice: Notice) -> SlackMessage:
    """What is urgent, what is not yet, what lies, what is over."""
    warnings = f":warning: Task Health: {len(notice.warnings)} tasks with delayed heartbeats"
    recovered = f":white_check_mark: Task Health: {len(notice.recovered)} tasks recovered"
    piles = [
        (_pile_headline(pile, words), _pile_lines(pile.found, words, notice.at))
        for pile, words in ((notice.dead, _DEAD), (notice.parked, _PARKED))
        if pile
    ]
    message = _Writing(room=_ROOM - sum(1 + len(lines) for _, lines in piles))
    message.tasks(_urgent_headline(notice.urgent), [_problem(task) for task in notice.urgent])
    message.tasks(warnings, [_problem(task) for task in notice.warnings])
    for headline, lines in piles:
        message.begin(headline)
        message.blocks += lines
    message.tasks(recovered, [_recovery(one) for one in notice.recovered])
    message.blocks.append(_context(_overview(notice)))
    return SlackMessage(text="\n".join(message.headlines), blocks=tuple(message.blocks))


def _urgent_headline(tasks: Sequence[CheckedTask]) -> str:
    overtime = sum(task.health is Health.OVERTIME for task in tasks)
    stuck = len(tasks) - overtime
    return f":red_circle: Task Health: {stuck} stuck tasks, {overtime} overtime tasks"


def _problem(task: CheckedTask) -> str:
    return (
        f"{_code(task.task_id)} {task.health.value}, running for {task.elapsed // _MINUTE} min, "
        f"last event {_escaped(task.last_event_type)} {_age(task.silence)} ago, "
        f"worker {_code(task.worker_id)}"
    )


def _recovery(one: Recovered) -> str:
    if one.now is None:
        becomes = "no longer running"
    elif one.now.attempt == one.attempt:
        becomes = "healthy again"
    else:
        becomes = f"healthy in attempt {one.now.attempt}"
    return f"{_code(one.task_id)} was {one.was.value}, is {becomes}"


def _pile_headline(pile: PileNotice, words: _PileWords) -> str:
    found = pile.found
    count = f"more than {found.total:,}" if found.more else f"{found.total:,}"
    said = {
        PileNews.FIRST: f"{words.sign} {words.name}: {count}",
        PileNews.MORE: f"{words.sign} {words.name}: {count}, and new ones among them",
        PileNews.STILL: f"{words.sign} {words.name}: still {count}",
        PileNews.NONE_LEFT: f":white_check_mark: {words.name}: none left",
    }
    return said[pile.news]


def _pile_lines(found: Pile, words: _PileWords, now: datetime) -> list[dict[str, Any]]:
    if not found.newest:
        return []
    kinds = [_section(_pile_kind(kind, words)) for kind in found.kinds[:_KINDS]]
    if len(found.kinds) > _KINDS:
        kinds.append(_context(f"and {len(found.kinds) - _KINDS} more kinds"))
    newest = [_section(_pile_item(one, now)) for one in found.newest[:_NEWEST]]
    return [*kinds, *newest, *map(_context, words.commands)]


def _pile_kind(kind: PileKind, words: _PileWords) -> str:
    why = words.whys.get(kind.why, kind.why)
    return f"{kind.count:,} in queue {_code(kind.queue)}: {_escaped(why)}"


def _pile_item(one: PileItem, now: datetime) -> str:
    return f"{_code(one.id)} in queue {_code(one.queue)}, {_age(now - one.at)} ago"


def _overview(notice: Notice) -> str:
    found = notice.summary
    if found is None:
        return f"tenant {_code(notice.tenant)}: its tasks could not be looked at"
    return (
        f"tenant {_code(notice.tenant)}: {found.total_processing} tasks processing, "
        f"{found.healthy} healthy, {found.warning} warning, {found.critical} critical, "
        f"{found.overtime} overtime"
    )


def _age(duration: timedelta) -> str:
    duration = max(duration, timedelta(0))  # of another machine, whose clock is ahead
    minutes = duration // _MINUTE
    return f"{minutes} min" if minutes else f"{duration // _SECOND} s"


def _code(text: str) -> str:
    # A code span ends at the next such mark and at the end of the line; neither can be escaped.
    return f"`{_escaped(text).replace('`', chr(39)) or '-'}`"


def _escaped(text: str) -> str:
    """https://docs.slack.dev/messaging/formatting-message-text#escaping"""
    one_line = " ".join(text.split())
    if len(one_line) > _LONGEST_TEXT:
        one_line = one_line[: _LONGEST_TEXT - 1] + "…"
    return one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _mrkdwn(text)}


def _context(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [_mrkdwn(text)]}


def _mrkdwn(text: str) -> dict[str, Any]:
    # Verbatim: names of people and channels in it are not made into links.
    return {"type": "mrkdwn", "text": text, "verbatim": True}
