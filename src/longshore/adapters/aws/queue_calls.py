"""Calls to SQS: queues by their names, and batches that answer for each entry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from longshore.adapters.aws.calls import Answer, Aws, Refused
from longshore.adapters.aws.queue_messages import Entry, Received, size_of
from longshore.errors import BackendRejected, BackendUnavailable, OutcomeUnknown
from longshore.ports.clock import Clock

BATCH = 10
UNANSWERED = "unanswered"
"""Of an entry of which nothing is known, however often it was tried."""

# SQS speaks two protocols, and some codes have a name in each.
NOT_CURRENT = frozenset(
    {
        "AWS.SimpleQueueService.MessageNotInflight",
        "InvalidIdFormat",
        "InvalidParameterValue",  # also: hidden for twelve hours already
        "MessageNotInflight",
        "ReceiptHandleIsInvalid",
    }
)
"""Why a receipt handle is good for nothing."""
UNSENDABLE = frozenset({"InvalidAttributeValue", "InvalidMessageContents", "InvalidParameterValue"})
"""Why a message is not accepted, however often it is sent."""

_ABSENT = (
    "AWS.SimpleQueueService.NonExistentQueue",
    "InvalidAddress",
    "QueueDoesNotExist",
)
_VISIBLE = "ApproximateNumberOfMessages"
_HIDDEN = ("ApproximateNumberOfMessagesDelayed", "ApproximateNumberOfMessagesNotVisible")
_TOO_MANY_HIDDEN = "OverLimit"
# A request may be four times as large since 2025; so it is accepted everywhere.
_BATCH_BYTES = 256 * 1024
_BATCHES_AT_ONCE = 20
_PAUSES = (timedelta(milliseconds=100), timedelta(milliseconds=300))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many messages an SQS queue holds."""

    visible: int
    hidden: int  # delayed or received


class NotDeployed(BackendRejected):
    """There is no such queue on AWS."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)

    def __str__(self) -> str:
        return (
            f"there is no SQS queue {self.name!r}: this queue is not deployed in this stage."
            f" Add it to the stacks and deploy them, or correct its name."
        )


class Sqs:
    """The way to SQS of one process."""

    def __init__(self, aws: Aws, clock: Clock) -> None:
        self._aws = aws
        self._clock = clock
        self._urls: dict[str, str] = {}
        self._looking_up = asyncio.Lock()
        self._batches = asyncio.Semaphore(_BATCHES_AT_ONCE)

    async def call(
        self, name: str, operation: str, *, alters: bool = False, **parameters: Any
    ) -> Answer:
        """The answer of an operation on the queue of this name.

        Raises:
            NotDeployed: there is no such queue.
        """
        url = await self._url(name)
        expects = (*_ABSENT, _TOO_MANY_HIDDEN)
        try:
            return await self._aws.call(
                "sqs", operation, alters=alters, expects=expects, QueueUrl=url, **parameters
            )
        except Refused as refusal:
            if refusal.code == _TOO_MANY_HIDDEN:
                text = f"{name}: as many messages are hidden as SQS can hide in one queue"
                raise BackendUnavailable(text) from refusal
            self._urls.pop(name, None)
            raise NotDeployed(name) from refusal

    async def _url(self, name: str) -> str:
        if url := self._urls.get(name):
            return url
        async with self._looking_up:  # many may ask at first, and one looks it up
            url = self._urls.get(name) or await self._looked_up(name)
            self._urls[name] = url
        return url

    async def _looked_up(self, name: str) -> str:
        # A name that SQS could not have is an invalid value to it.
        expects = (*_ABSENT, "InvalidParameterValue")
        try:
            found = await self._aws.call("sqs", "get_queue_url", expects=expects, QueueName=name)
        except Refused as refusal:
            raise NotDeployed(name) from refusal
        return str(found["QueueUrl"])

    async def counts(self, name: str) -> Counts:
        """How many messages the queue holds, approximately and up to a minute late."""
        answer = await self.call(name, "get_queue_attributes", AttributeNames=[_VISIBLE, *_HIDDEN])
        numbers = {key: int(value) for key, value in answer["Attributes"].items()}
        hidden = sum(numbers.get(key, 0) for key in _HIDDEN)
        return Counts(visible=numbers.get(_VISIBLE, 0), hidden=hidden)

    async def names(self, prefix: str) -> list[str]:
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
        """Send messages; see ``_each``. A lost answer doubles one at most, tries aside."""
        return await self._each(name, "send_message_batch", entries, final=UNSENDABLE)

    async def delete(self, name: str, messages: Sequence[Received]) -> list[str | None]:
        """Remove messages; see ``_each``."""
        entries = [{"ReceiptHandle": message.handle} for message in messages]
        return await self._each(name, "delete_message_batch", entries, final=NOT_CURRENT)

    async def hide(self, name: str, messages: Sequence[tuple[Received, int]]) -> list[str | None]:
        """Hide messages for so many seconds from now; see ``_each``."""
        entries = [
            {"ReceiptHandle": message.handle, "VisibilityTimeout": seconds}
            for message, seconds in messages
        ]
        operation = "change_message_visibility_batch"
        return await self._each(name, operation, entries, final=NOT_CURRENT)

    async def replace(
        self, name: str, messages: Sequence[tuple[Received, Entry]], *, to: str | None = None
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

    async def _each(
        self, name: str, operation: str, entries: Sequence[Entry], *, final: frozenset[str]
    ) -> list[str | None]:
        """What became of each entry: None of one that was done, else why not.

        Args:
            final: Codes that will not change by trying again; entries with others are tried again a
                few times, and are ``UNANSWERED`` at last.

        Raises:
            NotDeployed: there is no such queue.
            BackendRejected: not one of them was even looked at.
        """
        answers = await asyncio.gather(
            *(self._batch(name, operation, part, final) for part in _batches(entries))
        )
        refused = [answer for answer in answers if isinstance(answer, BackendRejected)]
        if refused and len(refused) == len(answers):
            raise refused[0]
        codes: list[str | None] = []
        for part, answer in zip(_batches(entries), answers, strict=True):
            codes += [str(answer)] * len(part) if isinstance(answer, BackendRejected) else answer
        return codes

    async def _batch(
        self, name: str, operation: str, entries: Sequence[Entry], final: frozenset[str]
    ) -> list[str | None] | BackendRejected:
        fates: dict[int, str | None] = {}
        unheard = False
        for pause in (*_PAUSES, None):
            left = [number for number in range(len(entries)) if number not in fates]
            asked = [{**entries[number], "Id": str(number)} for number in left]
            try:
                async with self._batches:
                    answer = await self.call(name, operation, alters=True, Entries=asked)
            except BackendUnavailable as error:
                unheard = unheard or isinstance(error, OutcomeUnknown)
            except BackendRejected as error:
                return error
            else:
                fates |= {int(done["Id"]): None for done in answer.get("Successful", ())}
                for failed in answer.get("Failed", ()):
                    if failed["Code"] in final:
                        # Who asked to remove it and did not hear the answer has removed it.
                        gone = unheard and operation == "delete_message_batch"
                        fates[int(failed["Id"])] = None if gone else failed["Code"]
            if len(fates) == len(entries) or pause is None:
                break
            await self._clock.sleep(pause)
        return [fates.get(number, UNANSWERED) for number in range(len(entries))]


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """As many at a time as SQS takes."""
    part: list[Entry] = []
    bytes_left = _BATCH_BYTES
    for entry in entries:
        size = size_of(entry)
        if part and (len(part) == BATCH or size > bytes_left):
            yield part
            part, bytes_left = [], _BATCH_BYTES
        part.append(entry)
        bytes_left -= size
    if part:
        yield part
