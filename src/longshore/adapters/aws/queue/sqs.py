"""Calls to SQS: queues by name, and batch requests that answer for each entry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused
from longshore.adapters.aws.queue.messages import Entry, ReceivedMessage, entry_size
from longshore.errors import BackendRejected, BackendUnavailable, NotDeployed, OutcomeUnknown
from longshore.ports.clock import Clock

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

# SQS accepts larger requests since 2025, but not in every region.
_BATCH_LIMIT_BYTES = 256 * 1024
_CONCURRENT_REQUESTS = 20
_BACKOFF = (timedelta(milliseconds=100), timedelta(milliseconds=300))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """How many messages an SQS queue holds."""

    visible: int
    hidden: int  # delayed or received


class SqsClient:
    """The SQS calls of one process."""

    def __init__(self, aws: AwsClient, clock: Clock) -> None:
        self._aws = aws
        self._clock = clock
        self._urls: dict[str, str] = {}
        self._url_lock = asyncio.Lock()
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
        if url := self._urls.get(name):
            return url
        async with self._url_lock:  # one lookup for concurrent callers
            url = self._urls.get(name) or await self._look_up_url(name)
            self._urls[name] = url
        return url

    async def _look_up_url(self, name: str) -> str:
        # SQS calls a name that no queue can have an invalid value.
        expects = (*_NO_QUEUE_CODES, "InvalidParameterValue")
        try:
            answer = await self._aws.call("sqs", "get_queue_url", expects=expects, QueueName=name)
        except CallRefused as refusal:
            raise NotDeployed(name) from refusal
        return str(answer["QueueUrl"])

    async def counts(self, name: str) -> QueueCounts:
        """How many messages the queue holds, approximately and up to a minute late."""
        answer = await self.call(name, "get_queue_attributes", AttributeNames=[_VISIBLE, *_HIDDEN])
        numbers = {key: int(value) for key, value in answer["Attributes"].items()}
        hidden = sum(numbers.get(key, 0) for key in _HIDDEN)
        return QueueCounts(visible=numbers.get(_VISIBLE, 0), hidden=hidden)

    async def list_names(self, prefix: str) -> list[str]:
        """The names of all queues with this prefix."""
        names: list[str] = []
        page: dict[str, Any] = {}
        while True:
            answer = await self._aws.call(
                "sqs", "list_queues", QueueNamePrefix=prefix, MaxResults=1000, **page
            )
            names += [url.rsplit("/", 1)[-1] for url in answer.get("QueueUrls", ())]
            if not (token := answer.get("NextToken")):
                return names
            page = {"NextToken": token}

    async def send(self, name: str, entries: Sequence[Entry]) -> list[str | None]:
        """Send messages; see ``_run``. A retry after a lost answer may send a message twice."""
        return await self._run(name, "send_message_batch", entries, UNSENDABLE_CODES)

    async def delete(self, name: str, handles: Sequence[str]) -> list[str | None]:
        """Delete messages by their receipt handles; see ``_run``."""
        entries = [{"ReceiptHandle": handle} for handle in handles]
        return await self._run(name, "delete_message_batch", entries, STALE_RECEIPT_CODES)

    async def hide(self, name: str, seconds: Sequence[tuple[str, int]]) -> list[str | None]:
        """Hide messages by their receipt handles, for some seconds from now; see ``_run``."""
        entries = [
            {"ReceiptHandle": handle, "VisibilityTimeout": duration} for handle, duration in seconds
        ]
        operation = "change_message_visibility_batch"
        return await self._run(name, operation, entries, STALE_RECEIPT_CODES)

    async def replace(
        self, name: str, messages: Sequence[tuple[ReceivedMessage, Entry]]
    ) -> list[bool]:
        """Send each entry, then delete the message that it replaces. Returns which were sent.

        In this order a crash in between duplicates a message; the other order would lose it.
        """
        codes = await self.send(name, [entry for _, entry in messages])
        sent = [code is None for code in codes]
        # A message that cannot be deleted is delivered once more.
        old = [message.handle for message, _ in messages]
        await self.delete(name, [handle for handle, ok in zip(old, sent, strict=True) if ok])
        return sent

    async def _run(
        self, name: str, operation: str, entries: Sequence[Entry], final_codes: frozenset[str]
    ) -> list[str | None]:
        """Run a batch operation. Returns None for each entry that succeeded, or its error code.

        Entries that fail with a code outside ``final_codes`` are retried a few times, and end as
        ``UNANSWERED``.

        Raises:
            NotDeployed: there is no such queue.
            BackendRejected: SQS refused every request as a whole.
        """
        batches = list(_split_batches(entries))
        results = await asyncio.gather(
            *(self._run_batch(name, operation, batch, final_codes) for batch in batches)
        )
        refusals = [result for result in results if isinstance(result, BackendRejected)]
        if refusals and len(refusals) == len(results):
            raise refusals[0]
        codes: list[str | None] = []
        for batch, result in zip(batches, results, strict=True):
            if isinstance(result, BackendRejected):
                codes += [str(result)] * len(batch)
            else:
                codes += result
        return codes

    async def _run_batch(
        self, name: str, operation: str, entries: Sequence[Entry], final_codes: frozenset[str]
    ) -> list[str | None] | BackendRejected:
        results: dict[int, str | None] = {}
        answer_lost = False
        for pause in (*_BACKOFF, None):
            left = [number for number in range(len(entries)) if number not in results]
            request = [{**entries[number], "Id": str(number)} for number in left]
            try:
                async with self._requests:
                    answer = await self.call(name, operation, alters=True, Entries=request)
            except BackendUnavailable as error:
                answer_lost = answer_lost or isinstance(error, OutcomeUnknown)
            except BackendRejected as error:
                return error
            else:
                results |= {int(entry["Id"]): None for entry in answer.get("Successful", ())}
                for failed in answer.get("Failed", ()):
                    if failed["Code"] in final_codes:
                        # The request whose answer was lost has deleted the message.
                        deleted = answer_lost and operation == "delete_message_batch"
                        results[int(failed["Id"])] = None if deleted else failed["Code"]
            if len(results) == len(entries) or pause is None:
                break
            await self._clock.sleep(pause)
        return [results.get(number, UNANSWERED) for number in range(len(entries))]


def _split_batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Split entries into batches that SQS accepts."""
    batch: list[Entry] = []
    bytes_left = _BATCH_LIMIT_BYTES
    for entry in entries:
        size = entry_size(entry)
        if batch and (len(batch) == BATCH_SIZE or size > bytes_left):
            yield batch
            batch, bytes_left = [], _BATCH_LIMIT_BYTES
        batch.append(entry)
        bytes_left -= size
    if batch:
        yield batch
