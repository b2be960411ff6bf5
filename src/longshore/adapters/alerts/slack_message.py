"""A notice as Slack shows it: one message of at most fifty blocks.

What does not fit is summed up, the worst being first. Ids stand as code, because the underscores in
them would make italics, and whatever comes from outside is escaped: a task called ``<!channel>``
must not wake everybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from longshore.core.alerting import Notice, Recovered
from longshore.core.health import CheckedTask, Health

BLOCKS_LIMIT = 50
"""https://docs.slack.dev/reference/block-kit/blocks"""

# Three texts of it, each character five when escaped, stay below the 3,000 of a section.
_LONGEST_TEXT = 128
_MINUTE = timedelta(minutes=1)
_SECOND = timedelta(seconds=1)
_PARTS = 3
# A headline and a line that sums up for each part, and the line at the end.
_ROOM = BLOCKS_LIMIT - 2 * _PARTS - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackMessage:
    """What is posted; ``text`` is what a notification shows."""

    text: str
    blocks: tuple[dict[str, Any], ...]


def message_of(notice: Notice) -> SlackMessage:
    """The notice as one message: what is urgent, what is not yet, what is over."""
    parts = [
        (_urgent_headline(notice.urgent), [_problem(task) for task in notice.urgent]),
        (
            f":warning: Task Health: {len(notice.warnings)} tasks with delayed heartbeats",
            [_problem(task) for task in notice.warnings],
        ),
        (
            f":white_check_mark: Task Health: {len(notice.recovered)} tasks recovered",
            [_recovery(one) for one in notice.recovered],
        ),
    ]
    headlines, blocks, room = [], [], _ROOM
    for headline, lines in parts:
        if lines:
            shown = lines[:room]
            room -= len(shown)
            headlines.append(headline)
            blocks += [_section(f"*{headline}*"), *(_section(line) for line in shown)]
            if len(shown) < len(lines):
                blocks.append(_context(f"and {len(lines) - len(shown)} more"))
    blocks.append(_context(_overview(notice)))
    return SlackMessage(text="\n".join(headlines), blocks=tuple(blocks))


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


def _overview(notice: Notice) -> str:
    found = notice.summary
    return (
        f"tenant {_code(notice.tenant)}: {found.total_processing} tasks processing, "
        f"{found.healthy} healthy, {found.warning} warning, {found.critical} critical, "
        f"{found.overtime} overtime"
    )


def _age(duration: timedelta) -> str:
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
