"""Alerts as signed JSON to any URL.

The header ``Longshore-Signature: t=<seconds>,v1=<hex>`` holds the HMAC-SHA256 of
``<seconds>.<body>`` under the secret; while a secret is being replaced there is one ``v1`` for
each. A receiver computes its own, compares in constant time, and refuses a ``t`` that is some
minutes old. ``id`` in the body is the same for all tries of one notice, so that a receiver can drop
duplicates.

The body is one object. ``urgent``, ``warnings`` and ``recovered`` are lists of tasks, which may be
empty; ``summary`` counts all running tasks, and is null if they could not be read. ``deadLetters``
and ``parkedTasks`` are null unless they have changed or are due for a reminder. Dead letters are an
object::

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

import httpx

from longshore.adapters.alerts.delivery import (
    ADD_BUDGET_COMMAND,
    DELIVERY_TIMEOUT,
    LIST_DEAD_LETTERS_COMMAND,
    LIST_PARKED_TASKS_COMMAND,
    AlertDelivery,
    failure_from_status,
    post,
)
from longshore.core.alerts import BacklogNotice, HealthNotice, RecoveredTask
from longshore.core.events.types import HealthSummary
from longshore.core.events.wire import to_ms
from longshore.core.health import CheckedTask
from longshore.core.undelivered import UndeliveredEvent, UndeliveredNotice
from longshore.ports.clock import Clock

CHANNEL = "webhook"
SIGNATURE_HEADER = "Longshore-Signature"
SECRET_MIN_BYTES = 32
LISTED_LIMIT = 500
"""Tasks in each list; the rest is counted."""

_MILLISECOND = timedelta(milliseconds=1)
_ID_BYTES = 16


class WebhookAlerts:
    """See ``ports.alerts.Alerts``."""

    channel = CHANNEL

    def __init__(
        self,
        url: str,
        secrets: Sequence[str],
        clock: Clock,
        *,
        timeout: timedelta = DELIVERY_TIMEOUT,
    ) -> None:
        keys = tuple(secret.encode() for secret in secrets)
        if not keys or any(len(key) < SECRET_MIN_BYTES for key in keys):
            message = f"at least one secret is needed, each with at least {SECRET_MIN_BYTES} bytes"
            raise ValueError(message)
        self._url = url
        self._keys = keys
        self._clock = clock
        self._delivery = AlertDelivery(CHANNEL, clock, timeout=timeout)

    async def send(self, notice: HealthNotice | UndeliveredNotice) -> None:
        body = body_of(notice)

        async def once(timeout_s: float) -> None:
            # Signed again for each try: a receiver may refuse an old signature.
            signed_at = int(self._clock.now().timestamp())
            headers = {
                "Content-Type": "application/json",
                "User-Agent": "longshore",
                SIGNATURE_HEADER: signature_of(body, self._keys, signed_at),
            }
            answer = await post(self._url, body, headers, timeout_s)
            if not httpx.codes.is_success(answer.status):
                raise failure_from_status(answer.status, answer.retry_after)

        await self._delivery.deliver(once)


def signature_of(body: bytes, keys: Sequence[bytes], at_s: int) -> str:
    """The header that proves the sender and the time of a body."""
    signed = b"%d.%b" % (at_s, body)
    digests = (hmac.new(key, signed, hashlib.sha256).hexdigest() for key in keys)
    return ",".join([f"t={at_s}", *(f"v1={digest}" for digest in digests)])


def body_of(notice: HealthNotice | UndeliveredNotice) -> bytes:
    """The notice as JSON; timestamps and durations are in milliseconds, as in events."""
    if isinstance(notice, UndeliveredNotice):
        content = _undelivered_content(notice)
    else:
        content = _health_content(notice)
    digest = hashlib.blake2b(_json(content), digest_size=_ID_BYTES).hexdigest()
    return _json({"id": digest, **content})


def _undelivered_content(notice: UndeliveredNotice) -> dict[str, Any]:
    return {
        "type": "event.undelivered",
        "tenantId": notice.tenant,
        "timestamp": to_ms(notice.at),
        "events": [_undelivered_event(event) for event in notice.events[:LISTED_LIMIT]],
        "notListed": max(len(notice.events) - LISTED_LIMIT, 0),
    }


def _undelivered_event(event: UndeliveredEvent) -> dict[str, Any]:
    facts = event.facts()
    return {
        "id": event.id,
        "eventType": facts.event_type,
        "detailType": facts.detail_type,
        "entity": facts.entity,
        "timestamp": to_ms(facts.at),
        "messageId": event.message_id,
        "source": event.source,
        "reason": event.reason,
    }


def _health_content(notice: HealthNotice) -> dict[str, Any]:
    return {
        "type": "task.health",
        "tenantId": notice.tenant,
        "timestamp": to_ms(notice.at),
        "summary": _summary(notice.summary) if notice.summary else None,
        "urgent": [_problem(task) for task in notice.urgent[:LISTED_LIMIT]],
        "warnings": [_problem(task) for task in notice.warnings[:LISTED_LIMIT]],
        "recovered": [_recovery(item) for item in notice.recovered[:LISTED_LIMIT]],
        "notListed": {
            name: max(len(getattr(notice, name)) - LISTED_LIMIT, 0)
            for name in ("urgent", "warnings", "recovered")
        },
        "deadLetters": _dead_letters(notice.dead_letters) if notice.dead_letters else None,
        "parkedTasks": _parked_tasks(notice.parked_tasks) if notice.parked_tasks else None,
    }


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _summary(summary: HealthSummary) -> dict[str, Any]:
    return {
        "totalProcessing": summary.total_processing,
        "healthy": summary.healthy,
        "warning": summary.warning,
        "critical": summary.critical,
        "overtime": summary.overtime,
    }


def _problem(task: CheckedTask) -> dict[str, Any]:
    return {
        "requestId": task.task_id,
        "attemptNumber": task.attempt,
        "health": task.health.value,
        "elapsed": task.elapsed // _MILLISECOND,
        "timeSinceLastEvent": task.time_since_last_event // _MILLISECOND,
        "lastEventType": task.last_event_type,
        "workerId": task.worker_id,
    }


def _recovery(recovery: RecoveredTask) -> dict[str, Any]:
    return {
        "requestId": recovery.task_id,
        "attemptNumber": recovery.attempt,
        "was": recovery.previous.value,
        "stillProcessing": recovery.current is not None,
    }


def _dead_letters(notice: BacklogNotice) -> dict[str, Any]:
    return {**_backlog(notice, reason_key="category"), "command": LIST_DEAD_LETTERS_COMMAND}


def _parked_tasks(notice: BacklogNotice) -> dict[str, Any]:
    return {
        **_backlog(notice, reason_key="budget"),
        "command": LIST_PARKED_TASKS_COMMAND,
        "topUp": ADD_BUDGET_COMMAND,
    }


def _backlog(notice: BacklogNotice, *, reason_key: str) -> dict[str, Any]:
    backlog = notice.backlog
    return {
        "change": notice.change.value,
        "total": backlog.total,
        "moreThanTotal": backlog.truncated,
        "kinds": [
            {"queue": kind.queue, reason_key: kind.reason, "count": kind.count}
            for kind in backlog.groups[:LISTED_LIMIT]
        ],
        "kindsNotListed": max(len(backlog.groups) - LISTED_LIMIT, 0),
        "newest": [
            {"id": item.id, "queue": item.queue, "timestamp": to_ms(item.at)}
            for item in backlog.newest
        ],
    }
