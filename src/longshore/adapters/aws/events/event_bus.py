"""The event bus on EventBridge: events are put on it, and each consumer has a queue behind a rule.

Events come at least once and in any order. A consumer's queue is there from the first deployment
on and keeps what nobody has acknowledged for four days; deliveries know nothing of each other, so
to acknowledge one is to delete its messages and no others.

Telling is one PutEvents request for ten events, and each 64 kB that an event begins is paid for as
one; hearing is a receive and a delete, ten events to each.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from longshore.adapters.aws.client import AwsClient, CallRefused
from longshore.adapters.aws.names import Names
from longshore.core.events.codec import from_wire, to_wire
from longshore.core.events.event import Event
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.clock import Clock
from longshore.ports.events import Delivery

logger = logging.getLogger(__name__)

DETAIL_TYPE = "log-event"
_BATCH_SIZE = 10
_REQUEST_LIMIT_BYTES = 240_000  # of 256 KB in one request
_ATTEMPTS = 5
_FIRST_BACKOFF = timedelta(milliseconds=100)
_POLL_LIMIT = timedelta(seconds=20)
_STALE_RECEIPT_CODES = ("ReceiptHandleIsInvalid", "InvalidParameterValue")


@dataclass(slots=True)
class _ReceivedEvents:
    """What a receive has taken so far."""

    events: list[Event] = field(default_factory=list)
    handles: list[str] = field(default_factory=list)  # of what is wanted
    other_handles: list[str] = field(default_factory=list)  # handles of what is not


class EventBridgeBus:
    """See ``ports.events.EventBus``."""

    def __init__(
        self,
        aws: AwsClient,
        names: Names,
        clock: Clock,
        *,
        hidden_for: timedelta = timedelta(minutes=2),
    ) -> None:
        """See the class.

        Args:
            hidden_for: How long a delivery is kept from others that hear for the same consumer.
        """
        self._aws = aws
        self._names = names
        self._clock = clock
        self._hidden_for = hidden_for
        self._urls: dict[str, str] = {}
        self._unacknowledged: dict[
            str, dict[str, None]
        ] = {}  # by consumer, what is not acknowledged
        self._polls: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> EventBridgeBus:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back what was delivered and not acknowledged, so that others need not wait."""
        await asyncio.gather(*self._polls, return_exceptions=True)
        for consumer, handles in self._unacknowledged.items():
            await self._return_messages(consumer, list(handles))

    # Telling ------------------------------------------------------------------------------------

    async def publish(self, events: Sequence[Event]) -> list[Event]:
        left = list(events)
        pause = _FIRST_BACKOFF
        for turn in range(_ATTEMPTS):
            if turn:
                await self._clock.sleep(pause)
                pause *= 2
            refused: list[Event] = []
            for some in _request_batches(left, self._names.stage):
                refused += await self._put_events(some)
            left = refused
            if not left:
                break
        return left

    async def _put_events(self, batch: Sequence[tuple[Event, str]]) -> list[Event]:
        entries = [
            {
                "Source": f"longshore.{event.app}",
                "DetailType": DETAIL_TYPE,
                "Detail": detail,
                "EventBusName": self._names.bus,
            }
            for event, detail in batch
        ]
        try:
            answer = await self._aws.call("events", "put_events", alters=True, Entries=entries)
        except BackendUnavailable as error:
            # Perhaps they are told: then they are told twice, and that harms nobody.
            logger.warning("bus.unavailable", extra={"error": str(error), "events": len(batch)})
            return [event for event, _ in batch]
        told = zip(batch, answer["Entries"], strict=True)
        return [event for (event, _), entry in told if entry.get("ErrorCode")]

    # Hearing ------------------------------------------------------------------------------------

    async def receive(
        self,
        consumer: str,
        *,
        types: Collection[str],
        limit: int,
        wait: timedelta,
    ) -> Delivery | None:
        ends = self._clock.elapsed() + wait
        found = _ReceivedEvents()
        try:
            while not found.events:
                left = max(ends - self._clock.elapsed(), timedelta(0))
                poll = asyncio.ensure_future(self._poll(consumer, types, limit, left, found))
                self._polls.add(poll)
                poll.add_done_callback(self._polls.discard)
                # Never cancelled: a poll that is cut off may take messages with it.
                came = await asyncio.shield(poll)
                if not came and self._clock.elapsed() >= ends:
                    break
        finally:
            if found.other_handles:
                await self._return_messages(consumer, found.other_handles)
        if not found.events:
            return None
        return Delivery(events=tuple(found.events), receipt=json.dumps(found.handles))

    async def _poll(
        self,
        consumer: str,
        types: Collection[str],
        limit: int,
        wait: timedelta,
        received: _ReceivedEvents,
    ) -> bool:
        """Whether anything came, wanted or not."""
        answer = await self._aws.call(
            "sqs",
            "receive_message",
            QueueUrl=await self._url(consumer),
            MaxNumberOfMessages=min(limit, _BATCH_SIZE),
            WaitTimeSeconds=math.ceil(min(wait, _POLL_LIMIT).total_seconds()),
            VisibilityTimeout=math.ceil(self._hidden_for.total_seconds()),
        )
        messages = answer.get("Messages", [])
        held = self._unacknowledged.setdefault(consumer, {})
        for message in messages:
            event = _parse_event(message)
            handle = message["ReceiptHandle"]
            held[handle] = None
            if event is not None and event.type in types:
                received.events.append(event)
                received.handles.append(handle)
            else:
                received.other_handles.append(handle)
        return bool(messages)

    async def acknowledge(self, consumer: str, receipt: str) -> None:
        handles: list[str] = json.loads(receipt)
        await self._change_messages(
            consumer, "delete_message_batch", [{"ReceiptHandle": handle} for handle in handles]
        )
        for handle in handles:
            self._unacknowledged.get(consumer, {}).pop(handle, None)

    async def _return_messages(self, consumer: str, handles: Sequence[str]) -> None:
        entries = [{"ReceiptHandle": handle, "VisibilityTimeout": 0} for handle in handles]
        try:
            await self._change_messages(consumer, "change_message_visibility_batch", entries)
        except BackendUnavailable as error:
            logger.warning("bus.return_failed", extra={"error": str(error), "events": len(handles)})
        for handle in handles:
            self._unacknowledged.get(consumer, {}).pop(handle, None)

    async def _change_messages(
        self, consumer: str, operation: str, entries: Sequence[dict[str, Any]]
    ) -> None:
        """Do something with each message; those that have moved on are left alone.

        Raises:
            BackendUnavailable: it could not be done with all of them.
        """
        url = await self._url(consumer)
        for at in range(0, len(entries), _BATCH_SIZE):
            some = [
                {"Id": str(n), **entry} for n, entry in enumerate(entries[at : at + _BATCH_SIZE])
            ]
            answer = await self._aws.call("sqs", operation, alters=True, QueueUrl=url, Entries=some)
            broken = [
                one
                for one in answer.get("Failed", [])
                if one.get("Code") not in _STALE_RECEIPT_CODES
            ]
            if broken:
                message = f"sqs.{operation}: {broken[0].get('Code')}"
                raise BackendUnavailable(message)

    async def _url(self, consumer: str) -> str:
        if consumer not in self._urls:
            name = self._names.consumer(consumer)
            try:
                found = await self._aws.call(
                    "sqs",
                    "get_queue_url",
                    expects=("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"),
                    QueueName=name,
                )
            except CallRefused as refused:
                message = f"no queue {name!r}: nothing is deployed for the consumer {consumer!r}"
                raise UsageError(message) from refused
            self._urls[consumer] = found["QueueUrl"]
        return self._urls[consumer]


def _request_batches(events: Sequence[Event], stage: str) -> list[list[tuple[Event, str]]]:
    """The events with their text, as many to a request as it takes."""
    requests: list[list[tuple[Event, str]]] = []
    size = 0
    for event in events:
        detail = json.dumps(to_wire(event, environment=stage), separators=(",", ":"))
        bytes_ = len(detail.encode())
        if not requests or len(requests[-1]) == _BATCH_SIZE or size + bytes_ > _REQUEST_LIMIT_BYTES:
            requests.append([])
            size = 0
        requests[-1].append((event, detail))
        size += bytes_
    return requests


def _parse_event(message: dict[str, Any]) -> Event | None:
    try:
        return from_wire(json.loads(message["Body"])["detail"])
    except (ValueError, KeyError, TypeError, UsageError) as error:
        # Left on the queue: after some receives it is among the dead, where somebody looks.
        logger.warning("bus.unreadable", extra={"error": str(error)})
        return None
