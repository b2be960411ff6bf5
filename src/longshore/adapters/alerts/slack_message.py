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

from longshore.adapters.alerts.delivery import (
    ADD_BUDGET_COMMAND,
    LIST_DEAD_LETTERS_COMMAND,
    LIST_PARKED_TASKS_COMMAND,
)
from longshore.core.alerts import (
    Backlog,
    BacklogChange,
    BacklogGroup,
    BacklogItem,
    BacklogNotice,
    HealthNotice,
    ParkedBudget,
    RecoveredTask,
)
from longshore.core.health import CheckedTask, Health
from longshore.core.undelivered import UndeliveredEvent, UndeliveredNotice

BLOCKS_LIMIT = 50
"""https://docs.slack.dev/reference/block-kit/blocks"""

# Three texts of it, each character five when escaped, stay below the 3,000 of a section.
_MAX_TEXT = 128
_MAX_SHORT_TEXT = 64
_MINUTE = timedelta(minutes=1)
_SECOND = timedelta(seconds=1)
_PARTS = 3  # of tasks
# A headline and a line that sums up for each part, and the line at the end.
_MAX_TASK_LINES = BLOCKS_LIMIT - 2 * _PARTS - 1
# Of a pile there are never more lines than this, so that both leave room for tasks.
_MAX_KINDS = 5
_MAX_NEWEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _BacklogTexts:
    """How is spoken of one sort of pile."""

    emoji: str
    name: str
    reasons: Mapping[str, str] = field(default_factory=dict)  # in other words
    commands: tuple[str, ...]


_DEAD_LETTERS = _BacklogTexts(
    emoji=":red_circle:",
    name="Dead Letters",
    commands=(f"all of them: `{LIST_DEAD_LETTERS_COMMAND}`",),
)
_PARKED_TASKS = _BacklogTexts(
    emoji=":warning:",
    name="Parked Tasks",
    reasons={
        ParkedBudget.OWN: "for want of their own budget",
        ParkedBudget.JOB: "for want of their job's budget",
        ParkedBudget.DAY: "for want of the day's budget, until the next day begins",
    },
    commands=(
        f"all of them: `{LIST_PARKED_TASKS_COMMAND}`",
        f"to let them go on: `{ADD_BUDGET_COMMAND}`, for a task, a job or `today`",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackMessage:
    """What is posted; ``text`` is what a notification shows."""

    text: str
    blocks: tuple[dict[str, Any], ...]


@dataclass(slots=True)
class _MessageBuilder:
    """A message as far as it is written; ``room`` is for lines of tasks."""

    lines_left: int
    headlines: list[str] = field(default_factory=list)
    blocks: list[dict[str, Any]] = field(default_factory=list)

    def add_headline(self, headline: str) -> None:
        self.headlines.append(headline)
        self.blocks.append(_section(f"*{headline}*"))

    def add_tasks(self, headline: str, lines: Sequence[str]) -> None:
        if lines:
            shown = lines[: self.lines_left]
            self.lines_left -= len(shown)
            self.add_headline(headline)
            self.blocks += [_section(line) for line in shown]
            if len(shown) < len(lines):
                self.blocks.append(_context(f"and {len(lines) - len(shown)} more"))


def message_of(notice: HealthNotice | UndeliveredNotice) -> SlackMessage:
    """The notice as one message."""
    if isinstance(notice, UndeliveredNotice):
        return _undelivered_message(notice)
    return _health_message(notice)


def _undelivered_message(notice: UndeliveredNotice) -> SlackMessage:
    message = _MessageBuilder(lines_left=_MAX_TASK_LINES)
    headline = f":red_circle: Events: {len(notice.events)} not delivered"
    message.add_tasks(headline, [_undelivered_line(one, notice.at) for one in notice.events])
    where = f"tenant {_code(notice.tenant)}; each is kept, and can be told again"
    message.blocks.append(_context(where))
    return SlackMessage(text=headline, blocks=tuple(message.blocks))


def _undelivered_line(event: UndeliveredEvent, now: datetime) -> str:
    found = event.facts()
    told = (found.event_type, found.detail_type, event.reason, event.source, event.message_id)
    # More texts than of a task, so that each may be shorter.
    event_type, detail_type, reason, source, message_id = (text[:_MAX_SHORT_TEXT] for text in told)
    return (
        f"{_escape(event_type)} of {_code(found.entity)} ({_escape(detail_type)}), "
        f"{_age(now - found.at)} ago, at {found.at:%Y-%m-%d %H:%M:%S} UTC: "
        f"{_escape(reason)}, {_code(source)}, message {_code(message_id)}"
    )


def _health_message(notice: HealthNotice) -> SlackMessage:
    """What is urgent, what is not yet, what lies, what is over."""
    warnings = f":warning: Task Health: {len(notice.warnings)} tasks with delayed heartbeats"
    recovered = f":white_check_mark: Task Health: {len(notice.recovered)} tasks recovered"
    piles = [
        (_backlog_headline(pile, words), _backlog_blocks(pile.backlog, words, notice.at))
        for pile, words in (
            (notice.dead_letters, _DEAD_LETTERS),
            (notice.parked_tasks, _PARKED_TASKS),
        )
        if pile
    ]
    message = _MessageBuilder(
        lines_left=_MAX_TASK_LINES - sum(1 + len(lines) for _, lines in piles)
    )
    message.add_tasks(
        _urgent_headline(notice.urgent), [_problem_line(task) for task in notice.urgent]
    )
    message.add_tasks(warnings, [_problem_line(task) for task in notice.warnings])
    for headline, lines in piles:
        message.add_headline(headline)
        message.blocks += lines
    message.add_tasks(recovered, [_recovery_line(one) for one in notice.recovered])
    message.blocks.append(_context(_overview(notice)))
    return SlackMessage(text="\n".join(message.headlines), blocks=tuple(message.blocks))


def _urgent_headline(tasks: Sequence[CheckedTask]) -> str:
    overtime = sum(task.health is Health.OVERTIME for task in tasks)
    stuck = len(tasks) - overtime
    return f":red_circle: Task Health: {stuck} stuck tasks, {overtime} overtime tasks"


def _problem_line(task: CheckedTask) -> str:
    return (
        f"{_code(task.task_id)} {task.health.value}, running for {task.elapsed // _MINUTE} min, "
        f"last event {_escape(task.last_event_type)} {_age(task.silence)} ago, "
        f"worker {_code(task.worker_id)}"
    )


def _recovery_line(recovery: RecoveredTask) -> str:
    if recovery.current is None:
        becomes = "no longer running"
    elif recovery.current.attempt == recovery.attempt:
        becomes = "healthy again"
    else:
        becomes = f"healthy in attempt {recovery.current.attempt}"
    return f"{_code(recovery.task_id)} was {recovery.previous.value}, is {becomes}"


def _backlog_headline(notice: BacklogNotice, texts: _BacklogTexts) -> str:
    found = notice.backlog
    count = f"more than {found.total:,}" if found.truncated else f"{found.total:,}"
    said = {
        BacklogChange.FIRST: f"{texts.emoji} {texts.name}: {count}",
        BacklogChange.MORE: f"{texts.emoji} {texts.name}: {count}, and new ones among them",
        BacklogChange.STILL: f"{texts.emoji} {texts.name}: still {count}",
        BacklogChange.NONE_LEFT: f":white_check_mark: {texts.name}: none left",
    }
    return said[notice.change]


def _backlog_blocks(backlog: Backlog, texts: _BacklogTexts, now: datetime) -> list[dict[str, Any]]:
    if not backlog.newest:
        return []
    kinds = [_section(_backlog_kind_line(kind, texts)) for kind in backlog.groups[:_MAX_KINDS]]
    if len(backlog.groups) > _MAX_KINDS:
        kinds.append(_context(f"and {len(backlog.groups) - _MAX_KINDS} more kinds"))
    newest = [_section(_backlog_item_line(one, now)) for one in backlog.newest[:_MAX_NEWEST]]
    return [*kinds, *newest, *map(_context, texts.commands)]


def _backlog_kind_line(kind: BacklogGroup, texts: _BacklogTexts) -> str:
    why = texts.reasons.get(kind.reason, kind.reason)
    return f"{kind.count:,} in queue {_code(kind.queue)}: {_escape(why)}"


def _backlog_item_line(item: BacklogItem, now: datetime) -> str:
    return f"{_code(item.id)} in queue {_code(item.queue)}, {_age(now - item.at)} ago"


def _overview(notice: HealthNotice) -> str:
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
    return f"`{_escape(text).replace('`', chr(39)) or '-'}`"


def _escape(text: str) -> str:
    """https://docs.slack.dev/messaging/formatting-message-text#escaping"""
    one_line = " ".join(text.split())
    if len(one_line) > _MAX_TEXT:
        one_line = one_line[: _MAX_TEXT - 1] + "…"
    return one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _mrkdwn(text)}


def _context(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [_mrkdwn(text)]}


def _mrkdwn(text: str) -> dict[str, Any]:
    # Verbatim: names of people and channels in it are not made into links.
    return {"type": "mrkdwn", "text": text, "verbatim": True}
