"""Records as event source mappings hand them to functions: of the ledger's stream, and of queues.

A function is given what a stream or a queue holds in another spelling than the client library has,
and binary attributes as base64. What is in a record may have been written by anybody.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from longshore.adapters.aws.ledger.items import events_of
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.batcher import UNANSWERED
from longshore.adapters.aws.queue.messages import Lane, parse_message
from longshore.adapters.aws.queue.sqs import SqsClient
from longshore.core.dead_letters import DeadMessage
from longshore.core.events.codec import from_wire
from longshore.core.events.event import Event
from longshore.core.events.wire import from_ms
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks.states import Priority
from longshore.core.undelivered import UndeliveredEvent
from longshore.errors import BackendRejected, BackendUnavailable, UsageError

UNDELIVERED = "undelivered"
"""The consumer whose queue takes what reached no other."""

Record = Mapping[str, Any]

_STREAM_RECORD = "stream-record"
# All that a text or an item of anybody's can make reading stumble over.
_PARSE_ERRORS = (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError)


def sequence_number_of(record: Record) -> str:
    """Where a stream's record stands in it."""
    return str(record["dynamodb"]["SequenceNumber"])


def events_in_stream_record(record: Record) -> list[Event]:
    """The events that a record of the ledger's stream tells of.

    None by an item that was removed, by a person or because its time was over, and by one that is
    no row.

    Raises:
        UsageError: it cannot be read.
    """
    image = record["dynamodb"].get("NewImage")
    if not image or "row" not in image:
        return []
    try:
        return events_of(image)
    except (*_PARSE_ERRORS, zlib.error, UsageError) as error:
        message = f"the image of a row cannot be read: {type(error).__name__}"
        raise UsageError(message) from error


def event_in_queue_record(record: Record) -> Event:
    """The event that a message from the bus holds.

    Raises:
        UsageError: it holds none.
    """
    return _parse_event(record["body"])


def _parse_event(body: str) -> Event:
    try:
        return from_wire(json.loads(body)["detail"])
    except _PARSE_ERRORS as error:
        message = f"the message holds no event: {type(error).__name__}"
        raise UsageError(message) from error


def events_in_undelivered(body: str) -> list[Event]:
    """What was to be told by a message that was not delivered: an event, or a stream's record.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        record = json.loads(body).get("record")
    except _PARSE_ERRORS as error:
        message = f"the message holds no event: {type(error).__name__}"
        raise UsageError(message) from error
    if record is None:
        return [_parse_event(body)]
    if not isinstance(record, dict) or "NewImage" not in record.get("dynamodb", {}):
        message = "of the record only its place was kept, because it was too large for a message"
        raise UsageError(message)
    return events_in_stream_record(record)


def dead_message_in_record(record: Record, names: Names, now: datetime) -> DeadMessage:
    """A message of one of the queues' own dead-letter queues.

    Raises:
        UsageError: it came from another queue.
    """
    queue = str(record["eventSourceARN"]).rsplit(":", 1)[-1]
    lane = _lane_of(queue, names)
    if lane is None:
        message = f"{queue!r} holds no dead letters of this stage"
        raise UsageError(message)
    found = parse_message(_as_received(record), lane, now).message
    return DeadMessage(
        id=found.id,
        queue=found.queue,
        body=found.body,
        # SQS begins to count anew when it moves a message there.
        receive_count=RECEIVE_LIMIT,
        sent_at=found.sent_at,
    )


def _lane_of(name: str, names: Names) -> Lane | None:
    for priority in Priority:
        before, _, after = names.dead_letter_queue("\n", priority).partition("\n")
        queue = name.removeprefix(before).removesuffix(after)
        if names.dead_letter_queue(queue, priority) == name:
            return queue, priority
    return None


def _as_received(record: Record) -> dict[str, Any]:
    """As ``ReceiveMessage`` spells it."""
    return {
        "MessageId": record["messageId"],
        "ReceiptHandle": record["receiptHandle"],
        "Body": record["body"],
        "Attributes": record["attributes"],
        "MessageAttributes": {
            name: {"StringValue": value.get("stringValue")}
            for name, value in record.get("messageAttributes", {}).items()
        },
    }


def undelivered_in_record(record: Record) -> UndeliveredEvent:
    """A message of the queue for what was not delivered; whatever it holds, it is one."""
    said = {
        name: value.get("stringValue") or ""
        for name, value in record.get("messageAttributes", {}).items()
    }
    attributes = record.get("attributes", {})
    if "ERROR_CODE" in said:  # of a rule's target that could not be reached
        source, reason = said.get("TARGET_ARN", ""), said["ERROR_CODE"]
    elif "longshore.reason" in said:
        source, reason = said.get("longshore.source", ""), said["longshore.reason"]
    else:
        source, reason = attributes.get("DeadLetterQueueSourceArn", ""), "received too often"
    return UndeliveredEvent(
        message_id=record["messageId"],
        sent_at=from_ms(int(attributes["SentTimestamp"])),
        body=record["body"],
        source=source.rsplit(":", 1)[-1] or "unknown",
        reason=reason,
    )


class UnreadableRecords:
    """Puts a stream's record that cannot be read where undelivered events are looked after."""

    def __init__(self, sqs: SqsClient, names: Names) -> None:
        self._sqs = sqs
        self._queue = names.consumer(UNDELIVERED)
        self._source = names.ledger

    async def __call__(self, record: Record, reason: str) -> None:
        """When this returns, somebody will look after it.

        Raises:
            BackendUnavailable: the queue has not taken it.
        """
        try:
            code = await self._send(record, reason)
        except BackendRejected:
            code = "rejected"
        if code not in (None, UNANSWERED):
            # Longer than a message may be. Its row is in the table.
            stripped = {name: record["dynamodb"].get(name) for name in ("Keys", "SequenceNumber")}
            code = await self._send({"dynamodb": stripped}, reason)
        if code is not None:
            message = f"a record could not be put aside: {code}"
            raise BackendUnavailable(message)

    async def _send(self, record: Record, reason: str) -> str | None:
        row_id = str(record["dynamodb"].get("Keys", {}).get("id", {}).get("S", ""))
        detail = {"entityType": "TASK" if "_" in row_id else "JOB", "entityId": row_id}
        body = {"detail-type": _STREAM_RECORD, "detail": detail, "record": dict(record)}
        said = {"longshore.reason": reason, "longshore.source": self._source}
        entry = {
            "MessageBody": json.dumps(body, separators=(",", ":")),
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in said.items()
            },
        }
        (code,) = await self._sqs.send(self._queue, [entry])
        return code
