"""Messages as SQS stores them, and receipts.

A message carries nothing but its body: whether its task is due is in the task's row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import Any

from longshore.core.events.codec import from_ms
from longshore.core.tasks.states import Priority
from longshore.ports.task_queue import Message

Lane = tuple[str, Priority]
Entry = dict[str, Any]

HIDE_LIMIT = timedelta(hours=12)
_DELAY_LIMIT_S = 900
_SECOND = timedelta(seconds=1)


def whole_seconds(duration: timedelta) -> int:
    """Rounded up, so that no message is visible too early."""
    return max(0, -(-duration // _SECOND))


@dataclass(frozen=True, slots=True)
class Receipt:
    """What any process needs to hide, delete or resend a message after one delivery."""

    queue: str
    priority: Priority
    handle: str
    body: str

    @property
    def lane(self) -> Lane:
        return self.queue, self.priority


def parse_receipt(receipt: str) -> Receipt | None:
    """The inverse of ``Message.receipt``, or None if the text is not a receipt."""
    try:
        parts = json.loads(receipt)
    except (ValueError, RecursionError):
        return None
    match parts:
        case [str(queue), int(priority), str(handle), str(body)] if priority in tuple(Priority):
            return Receipt(queue, Priority(priority), handle, body)
    return None


def parse_message(raw: Mapping[str, Any], lane: Lane) -> Message:
    """A message as ``ReceiveMessage`` returns it. Its sender may not be Longshore."""
    queue, priority = lane
    receipt = Receipt(queue, priority, raw["ReceiptHandle"], raw["Body"])
    return Message(
        id=raw["MessageId"],
        queue=queue,
        body=receipt.body,
        receipt=json.dumps(astuple(receipt), separators=(",", ":")),
        receive_count=int(raw["Attributes"]["ApproximateReceiveCount"]),
        sent_at=from_ms(int(raw["Attributes"]["SentTimestamp"])),
        priority=priority,
    )


def entry_of(body: str, visible_at: datetime | None, now: datetime) -> Entry:
    """A message as an entry of a batch; after the longest delay of SQS it comes early."""
    delay_s = 0 if visible_at is None else whole_seconds(visible_at - now)
    return {"MessageBody": body, "DelaySeconds": min(delay_s, _DELAY_LIMIT_S)}
