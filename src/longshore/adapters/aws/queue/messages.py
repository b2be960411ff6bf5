"""Messages as SQS stores them: the attributes beside a body, and the content of a receipt.

SQS forgets a message's history when it is sent again, counts in whole seconds, and refuses some
characters. So a message carries attributes: when it was first sent, and its first id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from longshore.adapters.shared.codec import from_us, to_us
from longshore.core.tasks.states import Priority
from longshore.ports.task_queue import Message, OutgoingMessage

Lane = tuple[str, Priority]
Entry = dict[str, Any]

HIDE_LIMIT = timedelta(hours=12)
_DELAY_LIMIT_S = 900
_SECOND = timedelta(seconds=1)

_SENT = "longshore.sent"  # microseconds
_AT = "longshore.at"  # microseconds: not before; for delays longer than SQS allows
_ID = "longshore.id"  # of a message that was sent again
_FORM = "longshore.form"  # "json" if the body is JSON text of the body
RECEIVE_ATTRIBUTES: Mapping[str, Any] = {
    "MessageAttributeNames": ["longshore.*"],
    "MessageSystemAttributeNames": ["ApproximateReceiveCount", "SentTimestamp"],
}
"""The parameters of ``ReceiveMessage`` that return what ``parse_message`` reads."""
# SQS refuses characters that XML 1.0 does not have.
_INVALID_CHARACTERS = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def whole_seconds(duration: timedelta) -> int:
    """Rounded up, so that no message is visible too early."""
    return max(0, -(-duration // _SECOND))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """One delivery of a message."""

    lane: Lane
    handle: str
    requested_us: int  # when the receive was requested: SQS delivers then, or a little later
    id: str
    sent_us: int
    body: str
    # Not in the receipt.
    receive_count: int = 0
    visible_at_us: int = 0

    @property
    def max_hidden_until(self) -> datetime:
        """SQS hides no message longer than this after one receive."""
        return from_us(self.requested_us) + HIDE_LIMIT

    @property
    def receipt(self) -> str:
        """What any process needs to delete or resend the message."""
        queue, priority = self.lane
        parts = [queue, int(priority), self.handle, self.requested_us]
        return json.dumps([*parts, self.id, self.sent_us, self.body], separators=(",", ":"))

    @property
    def message(self) -> Message:
        queue, priority = self.lane
        return Message(
            id=self.id,
            queue=queue,
            body=self.body,
            receipt=self.receipt,
            receive_count=self.receive_count,
            sent_at=from_us(self.sent_us),
            priority=priority,
        )


def parse_receipt(receipt: str) -> ReceivedMessage | None:
    """The delivery that a receipt belongs to, or None if the text is not a receipt."""
    try:
        parts = json.loads(receipt)
    except (ValueError, RecursionError):
        return None
    types = [str, int, str, int, str, int, str]
    if not isinstance(parts, list) or [type(part) for part in parts] != types:
        return None
    queue, priority, handle, requested_us, message_id, sent_us, body = parts
    if priority not in tuple(Priority):
        return None
    return ReceivedMessage(
        lane=(queue, Priority(priority)),
        handle=handle,
        requested_us=requested_us,
        id=message_id,
        sent_us=sent_us,
        body=body,
    )


def parse_message(raw: Mapping[str, Any], lane: Lane, requested_at: datetime) -> ReceivedMessage:
    """A message as ``ReceiveMessage`` returns it. Its sender may not be Longshore."""
    attributes: Mapping[str, Any] = raw.get("MessageAttributes", {})
    system: Mapping[str, str] = raw["Attributes"]
    sent_us = _number(attributes, _SENT)
    return ReceivedMessage(
        lane=lane,
        handle=raw["ReceiptHandle"],
        requested_us=to_us(requested_at),
        id=_text(attributes, _ID) or raw["MessageId"],
        sent_us=int(system["SentTimestamp"]) * 1000 if sent_us is None else sent_us,
        body=_decode_body(raw["Body"], _text(attributes, _FORM)),
        receive_count=int(system["ApproximateReceiveCount"]),
        visible_at_us=_number(attributes, _AT) or 0,
    )


def new_entry(outgoing: OutgoingMessage, now: datetime) -> Entry:
    """A new message as an entry of a batch."""
    return _entry(outgoing.body, {_SENT: to_us(now)}, outgoing.visible_at, now)


def resend_entry(message: ReceivedMessage, now: datetime, visible_at: datetime) -> Entry:
    """The same message as an entry of a batch; SQS counts its receives from zero again."""
    attributes: dict[str, int | str] = {_SENT: message.sent_us, _ID: message.id}
    return _entry(message.body, attributes, visible_at, now)


def entry_size(entry: Entry) -> int:
    """The size that SQS counts for an entry, or a little more."""
    body: str = entry.get("MessageBody", "")
    attributes: Mapping[str, Mapping[str, str]] = entry.get("MessageAttributes", {})
    return len(body.encode()) + sum(
        len(name) + sum(len(part.encode()) for part in value.values())
        for name, value in attributes.items()
    )


def _entry(
    body: str, attributes: dict[str, int | str], visible_at: datetime | None, now: datetime
) -> Entry:
    delay = 0 if visible_at is None else whole_seconds(visible_at - now)
    if visible_at is not None and delay > _DELAY_LIMIT_S:
        attributes[_AT] = to_us(visible_at)
    if not body or _INVALID_CHARACTERS.search(body):
        attributes[_FORM] = "json"
        body = json.dumps(body)
    return {
        "MessageBody": body,
        "DelaySeconds": min(delay, _DELAY_LIMIT_S),
        "MessageAttributes": {
            name: {
                "DataType": "Number" if isinstance(value, int) else "String",
                "StringValue": str(value),
            }
            for name, value in attributes.items()
        },
    }


def _decode_body(body: str, form: str | None) -> str:
    if form != "json":
        return body
    try:
        text = json.loads(body)
    except (ValueError, RecursionError):
        return body
    return text if isinstance(text, str) else body


def _text(attributes: Mapping[str, Any], name: str) -> str | None:
    value: str | None = attributes.get(name, {}).get("StringValue")
    return value


def _number(attributes: Mapping[str, Any], name: str) -> int | None:
    text = _text(attributes, name) or ""
    return int(text) if text.isascii() and text.isdecimal() else None
