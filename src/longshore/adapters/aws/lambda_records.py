"""Records that event source mappings deliver to functions: of the ledger's stream, and of queues.

A function gets these in another form than the client library returns, with binary attributes as
base64. The content of a record may have been written by any program.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass

from longshore.adapters.aws.attributes import decode_item
from longshore.adapters.aws.events.event_bus import PARSE_ERRORS, event_in_message
from longshore.adapters.aws.ledger.items import events_of
from longshore.adapters.aws.names import UNDELIVERED, Names
from longshore.adapters.aws.queue.sqs import UNANSWERED, SqsClient
from longshore.core.events.codec import from_ms
from longshore.core.events.event import Event
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.queues import QueueMessage
from longshore.core.undelivered import UndeliveredEvent
from longshore.errors import BackendRejected, BackendUnavailable, UsageError
from longshore.ports.events import Record

_STREAM_RECORD = "stream-record"


def events_in_undelivered(body: str) -> list[Event]:
    """The events in an undelivered message, which holds an event or a stream record.

    Raises:
        UsageError: the message cannot be read.
    """
    try:
        record = json.loads(body).get("record")
    except PARSE_ERRORS:
        record = None  # the error says so
    if record is None:
        return [event_in_message(body)]
    if not isinstance(record, dict) or "NewImage" not in record.get("dynamodb", {}):
        raise UsageError("only the position of the record was stored, because it was too large")
    return _events_in_change(record)


def _events_in_change(record: Record) -> list[Event]:
    image = record["dynamodb"].get("NewImage")
    if not image or "row" not in image:
        return []  # a deleted item, or an item that is not a row
    try:
        # The bytes of a row: text is no row, and must not be taken for one of a newer version.
        return events_of({**decode_item(image), "row": image["row"]["B"]})
    except (*PARSE_ERRORS, zlib.error, UsageError) as error:
        raise UsageError(f"the image of a row cannot be read: {type(error).__name__}") from error


def dead_message_in_record(record: Record, names: Names) -> QueueMessage:
    """A message of a dead-letter queue of this stage.

    Raises:
        UsageError: the message is from another queue.
    """
    name = str(record["eventSourceARN"]).rsplit(":", 1)[-1]
    lane = names.dead_letter_lane(name)
    if lane is None:
        raise UsageError(f"{name!r} is not a dead-letter queue of this stage")
    queue, _ = lane
    return QueueMessage(
        id=record["messageId"],
        queue=queue,
        body=record["body"],
        receive_count=RECEIVE_LIMIT,  # SQS counts from zero again when it moves a message there
        sent_at=from_ms(int(record["attributes"]["SentTimestamp"])),
    )


def undelivered_in_record(record: Record) -> UndeliveredEvent:
    """A message of the queue of undelivered events, with any content."""
    reasons = {
        name: value.get("stringValue") or ""
        for name, value in record.get("messageAttributes", {}).items()
    }
    attributes = record.get("attributes", {})
    if "ERROR_CODE" in reasons:  # a rule could not reach its target
        source, reason = reasons.get("TARGET_ARN", ""), reasons["ERROR_CODE"]
    elif "longshore.reason" in reasons:
        source, reason = reasons.get("longshore.source", ""), reasons["longshore.reason"]
    else:
        source, reason = attributes.get("DeadLetterQueueSourceArn", ""), "received too often"
    return UndeliveredEvent(
        message_id=record["messageId"],
        sent_at=from_ms(int(attributes["SentTimestamp"])),
        body=record["body"],
        source=source.rsplit(":", 1)[-1] or "unknown",
        reason=reason,
    )


@dataclass(frozen=True)
class DynamoChangeStream:
    """See ``ports.events.ChangeStream``."""

    sqs: SqsClient
    names: Names

    def position_of(self, record: Record) -> str:
        return str(record["dynamodb"]["SequenceNumber"])

    def events_in(self, record: Record) -> list[Event]:
        return _events_in_change(record)

    async def dead_letter(self, record: Record, reason: str) -> None:
        try:
            code = await self._send(record, reason)
        except BackendRejected:
            code = "rejected"
        if code not in (None, UNANSWERED):
            # The record is too large for a message. Its row is in the table.
            stripped = {name: record["dynamodb"].get(name) for name in ("Keys", "SequenceNumber")}
            code = await self._send({"dynamodb": stripped}, reason)
        if code is not None:
            message = f"a record could not be stored with the undelivered events: {code}"
            raise BackendUnavailable(message)

    async def _send(self, record: Record, reason: str) -> str | None:
        row_id = str(record["dynamodb"].get("Keys", {}).get("id", {}).get("S", ""))
        detail = {"entityType": "TASK" if "_" in row_id else "JOB", "entityId": row_id}
        body = {"detail-type": _STREAM_RECORD, "detail": detail, "record": dict(record)}
        attributes = {"longshore.reason": reason, "longshore.source": self.names.ledger}
        entry = {
            "MessageBody": json.dumps(body, separators=(",", ":")),
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value}
                for name, value in attributes.items()
            },
        }
        (code,) = await self.sqs.send([(self.names.consumer(UNDELIVERED), entry)])
        return code
