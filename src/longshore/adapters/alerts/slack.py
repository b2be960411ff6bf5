"""Alerts in Slack, by a bot or by an incoming webhook, as one message of at most fifty blocks.

A message that is too long ends with a count; the most urgent problems come first. Ids are code,
because their underscores would become italics. Text from outside is escaped: a task named
``<!channel>`` must not notify everyone.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from longshore.adapters.alerts.delivery import (
    ADD_BUDGET_COMMAND,
    DELIVERY_TIMEOUT,
    LIST_DEAD_LETTERS_COMMAND,
    LIST_PARKED_TASKS_COMMAND,
    HttpAlerts,
    Notice,
)
from longshore.core.alerts import (
    Backlog,
    BacklogChange,
    BacklogKind,
    BacklogNotice,
    HealthNotice,
    ParkedBudget,
    RecoveredTask,
)
from longshore.core.health import CheckedTask, Health
from longshore.core.undelivered import UndeliveredEvent, UndeliveredNotice
from longshore.ports.clock import Clock

_HEADERS = {"Content-Type": "application/json;charset=utf-8"}
_RESPONSE_LIMIT_BYTES = 64 * 1024
# Only an error code of Slack is repeated; other text of its answer may contain secrets.
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")
_RETRYABLE_CODES = frozenset(
    {"fatal_error", "internal_error", "ratelimited", "request_timeout", "service_unavailable"}
)
BLOCKS_LIMIT = 50
"""https://docs.slack.dev/reference/block-kit/blocks"""

# A section may have 3,000 characters: three texts, each character up to five when escaped, fit.
_MAX_TEXT = 128
_MAX_SHORT_TEXT = 64
_MINUTE = timedelta(minutes=1)
_SECOND = timedelta(seconds=1)
_TASK_LISTS = 3
# Each list has a headline and an "and N more" line; the last line is an overview.
_MAX_TASK_LINES = BLOCKS_LIMIT - 2 * _TASK_LISTS - 1
# A backlog has no more lines than this, so that there is room for tasks.
_MAX_KINDS = 5
_MAX_NEWEST = 5


def slack_webhook(*, url: str, clock: Clock, timeout: timedelta = DELIVERY_TIMEOUT) -> HttpAlerts:
    """Alerts by an incoming webhook, which belongs to one channel."""
    return HttpAlerts(
        channel="slack",
        url=url,
        clock=clock,
        encode=_encode,
        headers=lambda _: _HEADERS,
        read_bytes=_RESPONSE_LIMIT_BYTES,
        error_in=_error_of_webhook,
        retryable_errors=_RETRYABLE_CODES,
        timeout=timeout,
    )


def slack_bot(
    *,
    token: str,
    channel: str,
    clock: Clock,
    timeout: timedelta = DELIVERY_TIMEOUT,
    base_url: str = "https://slack.com/api/",
) -> HttpAlerts:
    """Alerts by a bot that has the scope ``chat:write``."""
    headers = {**_HEADERS, "Authorization": f"Bearer {token}"}
    return replace(
        slack_webhook(url=f"{base_url}chat.postMessage", clock=clock, timeout=timeout),
        encode=partial(_encode, channel=channel, unfurl_links=False, unfurl_media=False),
        headers=lambda _: headers,
        error_in=_error_of_api,
    )


def _encode(notice: Notice, **fields: Any) -> bytes:
    message = message_of(notice)
    return json.dumps({**fields, "text": message.text, "blocks": message.blocks}).encode()


def _error_of_api(body: str) -> str | None:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    return None if content.get("ok") is True else _error_code(str(content.get("error")))


def _error_of_webhook(body: str) -> str | None:
    return None if body.strip() == "ok" else _error_code(body)


def _error_code(text: str) -> str:
    return text.strip() if _ERROR_CODE.fullmatch(text.strip()) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BacklogTexts:
    """The words for one kind of backlog."""

    emoji: str
    name: str
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...]
    none_left: str = "none left"


_BACKLOG_TEXTS = {
    BacklogKind.DEAD_LETTERS: _BacklogTexts(
        emoji=":red_circle:",
        name="Dead Letters",
        notes=(f"all of them: `{LIST_DEAD_LETTERS_COMMAND}`",),
    ),
    BacklogKind.PARKED_TASKS: _BacklogTexts(
        emoji=":warning:",
        name="Parked Tasks",
        reasons={
            ParkedBudget.OWN: "their own budget is used up",
            ParkedBudget.JOB: "the budget of their job is used up",
            ParkedBudget.DAY: "the budget of the day is used up; they continue on the next day",
        },
        notes=(
            f"all of them: `{LIST_PARKED_TASKS_COMMAND}`",
            f"to continue them: `{ADD_BUDGET_COMMAND}`, for a task, a job or `today`",
        ),
    ),
    BacklogKind.REJECTED_MESSAGES: _BacklogTexts(
        emoji=":red_circle:",
        name="Rejected Messages",
        notes=("they were deleted; `Message Rejected` events of the queue say how they began",),
        none_left="none in the last 24 hours",
    ),
}


@dataclass(slots=True)
class SlackMessage:
    """A message; ``lines_left`` counts the lines about tasks that still fit."""

    lines_left: int
    headlines: list[str] = field(default_factory=list)
    blocks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What a notification shows."""
        return "\n".join(self.headlines)

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


def message_of(notice: Notice) -> SlackMessage:
    """The notice as one message."""
    if isinstance(notice, UndeliveredNotice):
        return _undelivered_message(notice)
    return _health_message(notice)


def _undelivered_message(notice: UndeliveredNotice) -> SlackMessage:
    message = SlackMessage(lines_left=_MAX_TASK_LINES)
    headline = f":red_circle: Events: {len(notice.events)} not delivered"
    message.add_tasks(headline, [_undelivered_line(event, notice.at) for event in notice.events])
    where = f"tenant {_code(notice.tenant)}; all events are stored and can be published again"
    message.blocks.append(_context(where))
    return message


def _undelivered_line(event: UndeliveredEvent, now: datetime) -> str:
    facts = event.facts()
    texts = (facts.event_type, facts.detail_type, event.reason, event.source, event.message_id)
    # Shorter than the texts of a task, because there are more of them.
    event_type, detail_type, reason, source, message_id = (text[:_MAX_SHORT_TEXT] for text in texts)
    return (
        f"{_escape(event_type)} of {_code(facts.entity)} ({_escape(detail_type)}), "
        f"{_age(now - facts.at)} ago, at {facts.at:%Y-%m-%d %H:%M:%S} UTC: "
        f"{_escape(reason)}, {_code(source)}, message {_code(message_id)}"
    )


def _health_message(notice: HealthNotice) -> SlackMessage:
    """Urgent problems, then warnings, backlogs and recoveries."""
    overtime = sum(task.health is Health.OVERTIME for task in notice.urgent)
    stuck = len(notice.urgent) - overtime
    urgent = f":red_circle: Task Health: {stuck} stuck tasks, {overtime} overtime tasks"
    warnings = f":warning: Task Health: {len(notice.warnings)} tasks with delayed heartbeats"
    recovered = f":white_check_mark: Task Health: {len(notice.recovered)} tasks recovered"
    backlogs = [
        (_backlog_headline(item, texts), _backlog_blocks(item.backlog, texts, notice.at))
        for kind, texts in _BACKLOG_TEXTS.items()
        if (item := notice.backlogs.get(kind))
    ]
    message = SlackMessage(
        lines_left=_MAX_TASK_LINES - sum(1 + len(lines) for _, lines in backlogs)
    )
    message.add_tasks(urgent, [_problem_line(task) for task in notice.urgent])
    message.add_tasks(warnings, [_problem_line(task) for task in notice.warnings])
    for headline, lines in backlogs:
        message.add_headline(headline)
        message.blocks += lines
    message.add_tasks(recovered, [_recovery_line(item) for item in notice.recovered])
    message.blocks.append(_context(_overview(notice)))
    return message


def _problem_line(task: CheckedTask) -> str:
    return (
        f"{_code(task.task_id)} {task.health.value}, running for {task.elapsed // _MINUTE} min, "
        f"last event {_escape(task.last_event_type)} {_age(task.time_since_last_event)} ago, "
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
    backlog = notice.backlog
    count = f"more than {backlog.total:,}" if backlog.truncated else f"{backlog.total:,}"
    headlines = {
        BacklogChange.FIRST: f"{texts.emoji} {texts.name}: {count}",
        BacklogChange.MORE: f"{texts.emoji} {texts.name}: {count}, some of them new",
        BacklogChange.STILL: f"{texts.emoji} {texts.name}: still {count}",
        BacklogChange.NONE_LEFT: f":white_check_mark: {texts.name}: {texts.none_left}",
    }
    return headlines[notice.change]


def _backlog_blocks(backlog: Backlog, texts: _BacklogTexts, now: datetime) -> list[dict[str, Any]]:
    if not backlog.newest:
        return []
    kinds = [
        f"{kind.count:,} in queue {_code(kind.queue)}: "
        f"{_escape(texts.reasons.get(kind.reason, kind.reason))}"
        for kind in backlog.groups[:_MAX_KINDS]
    ]
    newest = [
        f"{_code(item.id)} in queue {_code(item.queue)}, {_age(now - item.at)} ago"
        for item in backlog.newest[:_MAX_NEWEST]
    ]
    left = len(backlog.groups) - _MAX_KINDS
    more = [f"and {left} more kinds"] if left > 0 else []
    return [
        *map(_section, kinds),
        *map(_context, more),
        *map(_section, newest),
        *map(_context, texts.notes),
    ]


def _overview(notice: HealthNotice) -> str:
    summary = notice.summary
    if summary is None:
        return f"tenant {_code(notice.tenant)}: its tasks could not be checked"
    return (
        f"tenant {_code(notice.tenant)}: {summary.total_processing} tasks processing, "
        f"{summary.healthy} healthy, {summary.warning} warning, {summary.critical} critical, "
        f"{summary.overtime} overtime"
    )


def _age(duration: timedelta) -> str:
    duration = max(duration, timedelta(0))  # the clock of another machine may be ahead
    minutes = duration // _MINUTE
    return f"{minutes} min" if minutes else f"{duration // _SECOND} s"


def _code(text: str) -> str:
    # A code span ends at the next backtick and at the end of the line; neither can be escaped.
    return f"`{_escape(text).replace('`', chr(39)) or '-'}`"


def _escape(text: str) -> str:
    """https://docs.slack.dev/messaging/formatting-message-text#escaping"""
    one_line = " ".join(text.split())
    if len(one_line) > _MAX_TEXT:
        one_line = one_line[: _MAX_TEXT - 1] + "…"
    return html.escape(one_line, quote=False)


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _mrkdwn(text)}


def _context(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [_mrkdwn(text)]}


def _mrkdwn(text: str) -> dict[str, Any]:
    # Verbatim: names of people and channels do not become links.
    return {"type": "mrkdwn", "text": text, "verbatim": True}
