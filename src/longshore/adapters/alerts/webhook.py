"""Alerts as signed JSON to any URL.

The header ``Longshore-Signature: t=<seconds>,v1=<hex>`` holds the HMAC-SHA256 of
``<seconds>.<body>`` under the secret; while a secret is being replaced there is one ``v1`` for
each. A receiver computes its own, compares in constant time, and refuses a ``t`` that is some
minutes old. ``id`` in the body is the same for all tries of one notice, so that a receiver can drop
duplicates.

The body is one object. ``urgent``, ``warnings`` and ``recovered`` are lists of tasks, which may be
empty; ``summary`` counts all running tasks, and is null if they could not be read. ``deadLetters``,
``parkedTasks`` and ``rejectedMessages`` are null unless they have changed or are due for a
reminder. Dead letters are an object::

    {
      "change": "first",    // or "more": there are new ones; "still": after the cool-down;
                            // "none_left"
      "total": 3,           // at most 1,000
      "moreThanTotal": false,
      "kinds": [{"queue": "default", "category": "validation", "count": 3}],
      "kindsNotListed": 0,
      "newest": [{"id": "job-1_a", "queue": "default", "timestamp": 1700000000000}],
      "command": "longshore dead list"
    }

``category`` is that of a task's failure, or ``message`` for a message without a task; such messages
are reported to the operator tenant. ``newest`` are the few newest, the last one first.

Parked tasks have the same form. Instead of a ``category`` their kinds have the ``budget`` that is
used up: ``own`` (the task's or a step's), ``job``, or ``day``, which starts again by itself.
``command`` is ``longshore tasks --state parked``, and ``topUp`` is the command that continues them,
``longshore budget add ID --usd N``, where the ID is that of the task or its job, or ``today``.

Rejected messages are those of the last 24 hours that a worker deleted because they could not be
read or named no task. Their kinds have a ``reason``, the ids of the newest are those of the
messages, and there is neither a ``command`` nor a reminder.

``type`` is ``task.health`` for all of these. It is ``event.undelivered`` if the bus on AWS could
not deliver events to a consumer: ``events`` lists ``eventType``, ``detailType``, ``entity``,
``timestamp``, ``messageId``, ``source``, ``reason`` and the ``id`` under which each is stored, and
``notListed`` counts the rest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from longshore.adapters.alerts.delivery import (
    ADD_BUDGET_COMMAND,
    DELIVERY_TIMEOUT,
    LIST_DEAD_LETTERS_COMMAND,
    LIST_PARKED_TASKS_COMMAND,
    HttpAlerts,
    Notice,
)
from longshore.core.alerts import BacklogKind, BacklogNotice, HealthNotice
from longshore.core.events.codec import WireObject, to_ms
from longshore.core.events.types import HealthSummary, TaskHealth
from longshore.core.health import CheckedTask
from longshore.core.undelivered import UndeliveredNotice
from longshore.ports.clock import Clock

SIGNATURE_HEADER = "Longshore-Signature"
SECRET_MIN_BYTES = 32
LISTED_LIMIT = 500
"""Tasks in each list; the rest is counted."""

_ID_BYTES = 16
# Their form in the event of a health check.
_TASK = WireObject(TaskHealth)
_SUMMARY = WireObject(HealthSummary)


def webhook_alerts(
    url: str, secrets: Sequence[str], clock: Clock, *, timeout: timedelta = DELIVERY_TIMEOUT
) -> HttpAlerts:
    """Alerts to a URL, signed with every secret."""
    keys = tuple(secret.encode() for secret in secrets)
    if not keys or any(len(key) < SECRET_MIN_BYTES for key in keys):
        message = f"at least one secret is needed, each with at least {SECRET_MIN_BYTES} bytes"
        raise ValueError(message)

    def headers(body: bytes) -> dict[str, str]:
        # Signed again for each try: a receiver may refuse an old signature.
        signature = signature_of(body, keys, int(clock.now().timestamp()))
        return {
            "Content-Type": "application/json",
            "User-Agent": "longshore",
            SIGNATURE_HEADER: signature,
        }

    return HttpAlerts(
        channel="webhook", url=url, clock=clock, encode=body_of, headers=headers, timeout=timeout
    )


def signature_of(body: bytes, keys: Sequence[bytes], at_s: int) -> str:
    """The header that proves the sender and the time of a body."""
    signed = b"%d.%b" % (at_s, body)
    digests = (hmac.new(key, signed, hashlib.sha256).hexdigest() for key in keys)
    return ",".join([f"t={at_s}", *(f"v1={digest}" for digest in digests)])


def body_of(notice: Notice) -> bytes:
    """The notice as JSON; timestamps and durations are in milliseconds, as in events."""
    content = {"tenantId": notice.tenant, "timestamp": to_ms(notice.at)}
    if isinstance(notice, UndeliveredNotice):
        content |= _undelivered_content(notice)
    else:
        content |= _health_content(notice)
    digest = hashlib.blake2b(_json(content), digest_size=_ID_BYTES).hexdigest()
    return _json({"id": digest, **content})


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _undelivered_content(notice: UndeliveredNotice) -> dict[str, Any]:
    listed = [(event, event.facts()) for event in notice.events[:LISTED_LIMIT]]
    return {
        "type": "event.undelivered",
        "events": [
            {
                "id": event.id,
                "eventType": facts.event_type,
                "detailType": facts.detail_type,
                "entity": facts.entity,
                "timestamp": to_ms(facts.at),
                "messageId": event.message_id,
                "source": event.source,
                "reason": event.reason,
            }
            for event, facts in listed
        ],
        "notListed": _not_listed(notice.events),
    }


def _not_listed(items: Sequence[object]) -> int:
    return max(len(items) - LISTED_LIMIT, 0)


def _health_content(notice: HealthNotice) -> dict[str, Any]:
    return {
        "type": "task.health",
        "summary": notice.summary and _SUMMARY.write(notice.summary),
        "urgent": [_problem(task) for task in notice.urgent[:LISTED_LIMIT]],
        "warnings": [_problem(task) for task in notice.warnings[:LISTED_LIMIT]],
        "recovered": [
            {
                "requestId": task.task_id,
                "attemptNumber": task.attempt,
                "was": task.previous.value,
                "stillProcessing": task.current is not None,
            }
            for task in notice.recovered[:LISTED_LIMIT]
        ],
        "notListed": {
            "urgent": _not_listed(notice.urgent),
            "warnings": _not_listed(notice.warnings),
            "recovered": _not_listed(notice.recovered),
        },
        "deadLetters": _backlog(
            notice.backlogs.get(BacklogKind.DEAD_LETTERS),
            "category",
            command=LIST_DEAD_LETTERS_COMMAND,
        ),
        "parkedTasks": _backlog(
            notice.backlogs.get(BacklogKind.PARKED_TASKS),
            "budget",
            command=LIST_PARKED_TASKS_COMMAND,
            topUp=ADD_BUDGET_COMMAND,
        ),
        "rejectedMessages": _backlog(notice.backlogs.get(BacklogKind.REJECTED_MESSAGES), "reason"),
    }


def _problem(task: CheckedTask) -> dict[str, Any]:
    return {**_TASK.write(task), "attemptNumber": task.attempt}


def _backlog(
    notice: BacklogNotice | None, reason_key: str, **commands: str
) -> dict[str, Any] | None:
    if notice is None:
        return None
    backlog = notice.backlog
    return {
        "change": notice.change.value,
        "total": backlog.total,
        "moreThanTotal": backlog.truncated,
        "kinds": [
            {"queue": kind.queue, reason_key: kind.reason, "count": kind.count}
            for kind in backlog.groups[:LISTED_LIMIT]
        ],
        "kindsNotListed": _not_listed(backlog.groups),
        "newest": [
            {"id": item.id, "queue": item.queue, "timestamp": to_ms(item.at)}
            for item in backlog.newest
        ],
        **commands,
    }
