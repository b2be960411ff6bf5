"""Messages as SQS keeps them: what travels beside a body, and what a receipt says.

SQS counts in whole seconds and milliseconds, forgets a message's past when it is sent again, and
refuses some characters. So a message carries in its attributes what a ``Message`` must tell: when
it was first sent, what it is called, how often it was received before it was sent again.
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

DELAY_LIMIT_S = 900
HIDE_LIMIT = timedelta(hours=12)
_SECOND = timedelta(seconds=1)

_SENT = "longshore.sent"  # microseconds
_AT = "longshore.at"  # microseconds: not to be delivered before, for those beyond SQS's delay
_ID = "longshore.id"  # of a message that was sent again
_RECEIVES = "longshore.receives"  # before it was sent again
_FORM = "longshore.form"  # "json" if the body is a JSON text of the body
ATTRIBUTES = "longshore.*"
SYSTEM_ATTRIBUTES = (
    "ApproximateFirstReceiveTimestamp",
    "ApproximateReceiveCount",
    "SentTimestamp",
)
# What XML 1.0 knows; of a message with anything else SQS says that it is invalid.
_INVALID_CHARACTERS = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def whole_seconds(duration: timedelta) -> int:
    """As SQS counts: rounded up, so that nothing is seen before its time."""
    return max(0, -(-duration // _SECOND))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """One delivery of a message."""

    lane: Lane
    handle: str
    requested_us: int  # when the receive was asked for: SQS gave it then, or a little later
    id: str
    sent_us: int
    receive_count: int  # as the port counts: this one included, those before its moment not
    body: str
    # Known only where it was received.
    earlier_receives: int = 0  # what it brought with it when it was last sent
    sqs_receives: int = 0  # SQS's own, since it was last sent
    visible_at_us: int | None = None

    def remaining_delay(self, now: datetime) -> timedelta | None:
        """How long it must be hidden again; None if its time has come."""
        if self.visible_at_us is None or (at := from_us(self.visible_at_us)) <= now:
            return None
        return at - now

    @property
    def requested_at(self) -> datetime:
        """When the receive was asked for."""
        return from_us(self.requested_us)

    @property
    def max_hidden_until(self) -> datetime:
        """SQS hides no message longer than this after one receive, however often it is asked."""
        return self.requested_at + HIDE_LIMIT

    @property
    def receipt(self) -> str:
        """All that another process needs to give the message back; the body of a doorbell is small.

        It stays the same when the message is hidden for longer.
        """
        queue, priority = self.lane
        parts = [queue, int(priority), self.handle, self.requested_us]
        return json.dumps(
            [*parts, self.id, self.sent_us, self.receive_count, self.body], separators=(",", ":")
        )

    @property
    def message(self) -> Message:
        """As the port hands it out."""
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
    """What a receipt says; None of text that is none."""
    try:
        parts = json.loads(receipt)
    except (ValueError, RecursionError):
        return None
    kinds = [str, int, str, int, str, int, int, str]
    if not isinstance(parts, list) or [type(part) for part in parts] != kinds:
        return None
    queue, priority, handle, asked_us, message_id, sent_us, receives, body = parts
    if priority not in tuple(Priority):
        return None
    return ReceivedMessage(
        lane=(queue, Priority(priority)),
        handle=handle,
        requested_us=asked_us,
        id=message_id,
        sent_us=sent_us,
        receive_count=receives,
        body=body,
    )


def parse_message(raw: Mapping[str, Any], lane: Lane, requested_at: datetime) -> ReceivedMessage:
    """A message as SQS hands it out; it may have been sent by anybody."""
    attributes: Mapping[str, Any] = raw.get("MessageAttributes", {})
    system: Mapping[str, str] = raw["Attributes"]
    count = int(system["ApproximateReceiveCount"])
    first_ms = int(system.get("ApproximateFirstReceiveTimestamp", 0))
    at_us = _number(attributes, _AT)
    before = _number(attributes, _RECEIVES) or 0
    # Before its moment it is received once, to be hidden, and sent again the second time.
    early = at_us is not None and count > 1 and first_ms < at_us // 1000
    sent_us = _number(attributes, _SENT)
    return ReceivedMessage(
        lane=lane,
        handle=raw["ReceiptHandle"],
        requested_us=to_us(requested_at),
        id=_text(attributes, _ID) or raw["MessageId"],
        sent_us=int(system["SentTimestamp"]) * 1000 if sent_us is None else sent_us,
        receive_count=before + count - early,
        body=_decode_body(raw["Body"], _text(attributes, _FORM)),
        earlier_receives=before,
        sqs_receives=count,
        visible_at_us=at_us,
    )


def new_entry(outgoing: OutgoingMessage, now: datetime) -> Entry:
    """A new message, as an entry of a batch."""
    return _entry(outgoing.body, {_SENT: to_us(now)}, outgoing.visible_at, now)


def resend_entry(
    message: ReceivedMessage,
    now: datetime,
    *,
    receive_count: int,
    visible_at: datetime | None = None,
) -> Entry:
    """The same message once more, received ``receives`` times so far."""
    attributes: dict[str, int | str] = {_SENT: message.sent_us, _ID: message.id}
    if receive_count:
        attributes[_RECEIVES] = receive_count
    return _entry(message.body, attributes, visible_at, now)


def entry_size(entry: Entry) -> int:
    """What SQS counts of an entry, or a little more."""
    body: str = entry.get("MessageBody", "")
    attributes: Mapping[str, Mapping[str, str]] = entry.get("MessageAttributes", {})
    beside = sum(
        len(name) + sum(len(part.encode()) for part in value.values())
        for name, value in attributes.items()
    )
    return len(body.encode()) + beside


def _entry(
    body: str, attributes: dict[str, int | str], visible_at: datetime | None, now: datetime
) -> Entry:
    delay = 0 if visible_at is None else whole_seconds(visible_at - now)
    if visible_at is not None and delay > DELAY_LIMIT_S:
        attributes[_AT] = to_us(visible_at)
    if not body or _INVALID_CHARACTERS.search(body):
        attributes[_FORM] = "json"
        body = json.dumps(body)
    # A tenant's share of a fair queue would be said here, as the entry's MessageGroupId; then a
    # receipt must carry it too, for the message to keep it when it is sent again.
    return {
        "MessageBody": body,
        "DelaySeconds": min(delay, DELAY_LIMIT_S),
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
