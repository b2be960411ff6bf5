"""Calls to SQS: queues by name, messages and receipts, and batches that answer for each entry.

A message carries nothing but its body: whether its task is due is in the task's row.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import Any

from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused, attempts
from longshore.core.events.codec import from_ms
from longshore.core.tasks.states import Priority
from longshore.errors import BackendRejected, BackendUnavailable, NotDeployed, OutcomeUnknown
from longshore.ports.clock import Clock
from longshore.ports.task_queue import Message

logger = logging.getLogger(__name__)

Lane = tuple[str, Priority]
Entry = dict[str, Any]

HIDE_LIMIT = timedelta(hours=12)
QueueEntry = tuple[str, Entry]
"""The name of a queue, and an entry of a batch."""

BATCH_SIZE = 10
UNANSWERED = "unanswered"
"""The result of an entry whose outcome is still unknown after all retries."""

# SQS has two protocols, and some codes have a name in each.
STALE_RECEIPT_CODES = frozenset(
    {
        "AWS.SimpleQueueService.MessageNotInflight",
        "InvalidIdFormat",
        "InvalidParameterValue",  # also: hidden for twelve hours already
        "MessageNotInflight",
        "ReceiptHandleIsInvalid",
    }
)
"""The receipt handle is not current. Retrying does not help."""
UNSENDABLE_CODES = frozenset(
    {"InvalidAttributeValue", "InvalidMessageContents", "InvalidParameterValue"}
)
"""SQS does not accept the message. Retrying does not help."""

_NO_QUEUE_CODES = (
    "AWS.SimpleQueueService.NonExistentQueue",
    "InvalidAddress",
    "QueueDoesNotExist",
)
_IN_FLIGHT_LIMIT_CODE = "OverLimit"
_VISIBLE = "ApproximateNumberOfMessages"
_HIDDEN = ("ApproximateNumberOfMessagesDelayed", "ApproximateNumberOfMessagesNotVisible")

_DELAY_LIMIT_S = 900
_SECOND = timedelta(seconds=1)
_CONCURRENT_REQUESTS = 20
_ATTEMPTS = 3
_FIRST_BACKOFF = timedelta(milliseconds=100)


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


class SqsClient:
    """The SQS calls of one process."""

    def __init__(self, aws: AwsClient, clock: Clock) -> None:
        self._aws = aws
        self._clock = clock
        self._urls: dict[str, str] = {}
        self._requests = asyncio.Semaphore(_CONCURRENT_REQUESTS)

    async def call(
        self, name: str, operation: str, *, alters: bool = False, **parameters: Any
    ) -> AwsResponse:
        """Call an operation on the queue with this name.

        Raises:
            NotDeployed: there is no such queue.
        """
        url = await self._url(name)
        expects = (*_NO_QUEUE_CODES, _IN_FLIGHT_LIMIT_CODE)
        try:
            return await self._aws.call(
                "sqs", operation, alters=alters, expects=expects, QueueUrl=url, **parameters
            )
        except CallRefused as refusal:
            if refusal.code == _IN_FLIGHT_LIMIT_CODE:
                text = f"{name}: SQS cannot hide more messages in this queue"
                raise BackendUnavailable(text) from refusal
            self._urls.pop(name, None)
            raise NotDeployed(name) from refusal

    async def _url(self, name: str) -> str:
        if name not in self._urls:
            # SQS calls a name that no queue can have an invalid value.
            expects = (*_NO_QUEUE_CODES, "InvalidParameterValue")
            try:
                answer = await self._aws.call(
                    "sqs", "get_queue_url", expects=expects, QueueName=name
                )
            except CallRefused as refusal:
                raise NotDeployed(name) from refusal
            self._urls[name] = str(answer["QueueUrl"])
        return self._urls[name]

    async def counts(self, name: str) -> tuple[int, int]:
        """How many messages the queue holds, visible and hidden; approximate, a minute late."""
        answer = await self.call(name, "get_queue_attributes", AttributeNames=[_VISIBLE, *_HIDDEN])
        numbers = {key: int(value) for key, value in answer["Attributes"].items()}
        return numbers.get(_VISIBLE, 0), sum(numbers.get(key, 0) for key in _HIDDEN)

    async def list_names(self, prefix: str) -> list[str]:
        """The names of all queues with this prefix."""
        pages = self._aws.pages("sqs", "list_queues", QueueNamePrefix=prefix, MaxResults=1000)
        return [url.rsplit("/", 1)[-1] async for page in pages for url in page.get("QueueUrls", ())]

    async def receive(
        self, name: str, *, limit: int, hidden_s: int, wait_s: int = 0
    ) -> list[AwsResponse]:
        """Poll the queue once."""
        answer = await self.call(
            name,
            "receive_message",
            MaxNumberOfMessages=min(limit, BATCH_SIZE),
            VisibilityTimeout=hidden_s,
            WaitTimeSeconds=wait_s,
            MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
        )
        messages: list[AwsResponse] = answer.get("Messages", [])
        return messages

    async def send(self, entries: Sequence[QueueEntry]) -> list[str | None]:
        """Send messages; see ``_run``. A retry after a lost answer may send a message twice."""
        return await self._run("send_message_batch", entries, UNSENDABLE_CODES)

    async def delete(self, handles: Sequence[tuple[str, str]]) -> list[str | None]:
        """Delete messages by queue and receipt handle; see ``_run``."""
        entries = [(name, {"ReceiptHandle": handle}) for name, handle in handles]
        return await self._run("delete_message_batch", entries, STALE_RECEIPT_CODES)

    async def hide(self, messages: Sequence[tuple[str, str, int]]) -> list[str | None]:
        """Hide messages by queue and receipt handle, for some seconds from now; see ``_run``."""
        entries = [
            (name, {"ReceiptHandle": handle, "VisibilityTimeout": seconds})
            for name, handle, seconds in messages
        ]
        return await self._run("change_message_visibility_batch", entries, STALE_RECEIPT_CODES)

    async def replace(self, messages: Sequence[tuple[str, str, Entry]]) -> list[bool]:
        """Send an entry in place of each message, then delete that. Returns which were sent.

        In this order a crash in between duplicates a message; the other order would lose it.

        Args:
            messages: By queue, receipt handle and new entry.
        """
        codes = await self.send([(name, entry) for name, _, entry in messages])
        sent = [code is None for code in codes]
        # A message that cannot be deleted is delivered once more.
        await self.delete([message[:2] for message, ok in zip(messages, sent, strict=True) if ok])
        return sent

    async def _run(
        self, operation: str, entries: Sequence[QueueEntry], final_codes: frozenset[str]
    ) -> list[str | None]:
        """Run a batch operation. Returns None for each entry that succeeded, or its error code.

        Entries that fail with a code outside ``final_codes`` are retried a few times, and end as
        ``UNANSWERED``.

        Raises:
            NotDeployed: there is no such queue.
            BackendRejected: SQS refused every request as a whole.
        """
        codes: dict[int, str | None] = dict.fromkeys(range(len(entries)), UNANSWERED)
        refusals = await asyncio.gather(
            *(
                self._run_batch(operation, batch, final_codes, codes)
                for batch in _split_batches(entries)
            )
        )
        if (first := next(iter(refusals), None)) and all(refusals):
            raise first
        return list(codes.values())

    async def _run_batch(
        self,
        operation: str,
        batch: Mapping[int, QueueEntry],
        final_codes: frozenset[str],
        codes: dict[int, str | None],
    ) -> BackendRejected | None:
        """Fill in the codes of a batch. Returns the error if SQS refused the request as a whole."""
        answer_lost = False
        left = set(batch)
        async for _ in attempts(self._clock, _ATTEMPTS, _FIRST_BACKOFF):
            request = [{**batch[number][1], "Id": str(number)} for number in sorted(left)]
            name, _ = next(iter(batch.values()))
            try:
                async with self._requests:
                    answer = await self.call(name, operation, alters=True, Entries=request)
            except BackendUnavailable as error:
                answer_lost = answer_lost or isinstance(error, OutcomeUnknown)
            except BackendRejected as error:
                # Raising would hide that other requests succeeded.
                logger.error("queue.request_rejected", extra={"error": str(error)})  # noqa: TRY400
                codes.update(dict.fromkeys(left, str(error)))
                return error
            else:
                final = {int(entry["Id"]): None for entry in answer.get("Successful", ())}
                for failed in answer.get("Failed", ()):
                    if failed["Code"] in final_codes:
                        # The request whose answer was lost has deleted the message.
                        deleted = answer_lost and operation == "delete_message_batch"
                        final[int(failed["Id"])] = None if deleted else failed["Code"]
                codes.update(final)
                left -= final.keys()
            if not left:
                break
        return None


def _split_batches(entries: Sequence[QueueEntry]) -> list[dict[int, QueueEntry]]:
    """Split numbered entries into batches that SQS accepts, each of one queue."""
    batches: list[dict[int, QueueEntry]] = []
    open_batches: dict[str, dict[int, QueueEntry]] = {}  # by queue
    for number, (name, entry) in enumerate(entries):
        batch = open_batches.get(name)
        if batch is None or len(batch) == BATCH_SIZE:
            batch = open_batches[name] = {}
            batches.append(batch)
        batch[number] = name, entry
    return batches
