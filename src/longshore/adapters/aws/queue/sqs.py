"""Calls to SQS: queues by their names, and batches that answer for each entry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused
from longshore.adapters.aws.queue.batcher import Batcher
from longshore.adapters.aws.queue.messages import Entry, ReceivedMessage
from longshore.errors import BackendUnavailable, NotDeployed
from longshore.ports.clock import Clock

# SQS speaks two protocols, and some codes have a name in each.
STALE_RECEIPT_CODES = frozenset(
    {
        "AWS.SimpleQueueService.MessageNotInflight",
        "InvalidIdFormat",
        "InvalidParameterValue",  # also: hidden for twelve hours already
        "MessageNotInflight",
        "ReceiptHandleIsInvalid",
    }
)
"""Why a receipt handle is good for nothing."""
UNSENDABLE_CODES = frozenset(
    {"InvalidAttributeValue", "InvalidMessageContents", "InvalidParameterValue"}
)
"""Why a message is not accepted, however often it is sent."""

_NO_QUEUE_CODES = (
    "AWS.SimpleQueueService.NonExistentQueue",
    "InvalidAddress",
    "QueueDoesNotExist",
)
_VISIBLE = "ApproximateNumberOfMessages"
_HIDDEN = ("ApproximateNumberOfMessagesDelayed", "ApproximateNumberOfMessagesNotVisible")
_IN_FLIGHT_LIMIT_CODE = "OverLimit"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """How many messages an SQS queue holds."""

    visible: int
    hidden: int  # delayed or received


class SqsClient:
    """The way to SQS of one process."""

    def __init__(self, aws: AwsClient, clock: Clock) -> None:
        self._aws = aws
        self._urls: dict[str, str] = {}
        self._url_lock = asyncio.Lock()
        self._batcher = Batcher(self.call, clock)

    async def call(
        self, name: str, operation: str, *, alters: bool = False, **parameters: Any
    ) -> AwsResponse:
        """The answer of an operation on the queue of this name.

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
                text = f"{name}: as many messages are hidden as SQS can hide in one queue"
                raise BackendUnavailable(text) from refusal
            self._urls.pop(name, None)
            raise NotDeployed(name) from refusal

    async def _url(self, name: str) -> str:
        if url := self._urls.get(name):
            return url
        async with self._url_lock:  # many may ask at first, and one looks it up
            url = self._urls.get(name) or await self._look_up_url(name)
            self._urls[name] = url
        return url

    async def _look_up_url(self, name: str) -> str:
        # A name that SQS could not have is an invalid value to it.
        expects = (*_NO_QUEUE_CODES, "InvalidParameterValue")
        try:
            found = await self._aws.call("sqs", "get_queue_url", expects=expects, QueueName=name)
        except CallRefused as refusal:
            raise NotDeployed(name) from refusal
        return str(found["QueueUrl"])

    async def counts(self, name: str) -> QueueCounts:
        """How many messages the queue holds, approximately and up to a minute late."""
        answer = await self.call(name, "get_queue_attributes", AttributeNames=[_VISIBLE, *_HIDDEN])
        numbers = {key: int(value) for key, value in answer["Attributes"].items()}
        hidden = sum(numbers.get(key, 0) for key in _HIDDEN)
        return QueueCounts(visible=numbers.get(_VISIBLE, 0), hidden=hidden)

    async def list_names(self, prefix: str) -> list[str]:
        """The names of all queues that begin so."""
        names: list[str] = []
        more: dict[str, Any] = {}
        while True:
            found = await self._aws.call(
                "sqs", "list_queues", QueueNamePrefix=prefix, MaxResults=1000, **more
            )
            names += [url.rsplit("/", 1)[-1] for url in found.get("QueueUrls", ())]
            if not (token := found.get("NextToken")):
                return names
            more = {"NextToken": token}

    async def send(self, name: str, entries: Sequence[Entry]) -> list[str | None]:
        """Send messages; see ``Batcher.each``. A lost answer doubles one at most, tries aside."""
        return await self._batcher.run(
            name, "send_message_batch", entries, final_codes=UNSENDABLE_CODES
        )

    async def delete(self, name: str, messages: Sequence[ReceivedMessage]) -> list[str | None]:
        """Remove messages; see ``Batcher.each``."""
        entries = [{"ReceiptHandle": message.handle} for message in messages]
        return await self._batcher.run(
            name, "delete_message_batch", entries, final_codes=STALE_RECEIPT_CODES
        )

    async def hide(
        self, name: str, messages: Sequence[tuple[ReceivedMessage, int]]
    ) -> list[str | None]:
        """Hide messages for so many seconds from now; see ``Batcher.each``."""
        entries = [
            {"ReceiptHandle": message.handle, "VisibilityTimeout": seconds}
            for message, seconds in messages
        ]
        operation = "change_message_visibility_batch"
        return await self._batcher.run(name, operation, entries, final_codes=STALE_RECEIPT_CODES)

    async def replace(
        self, name: str, messages: Sequence[tuple[ReceivedMessage, Entry]], *, to: str | None = None
    ) -> list[bool]:
        """Send each message as this entry, and remove the old one; whether it was sent.

        In this order: who dies in between has doubled a doorbell, the other way round lost one.
        """
        sent = await self.send(to or name, [entry for _, entry in messages])
        done = [code is None for code in sent]
        old = [message for (message, _), went in zip(messages, done, strict=True) if went]
        # One that cannot be removed is seen once more, when its time is over.
        await self.delete(name, old)
        return done
