"""The event bus on EventBridge: each consumer has a queue behind a rule.

Events are delivered at least once and in any order. A consumer's queue exists from the first
deployment on and keeps unacknowledged events for four days. Deliveries are independent: to
acknowledge one is to delete its messages and no others.

Publishing costs one PutEvents request for ten events, and one event unit for each started 64 kB of
an event; receiving costs one receive and one delete for ten events.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from longshore.adapters.aws.client import AwsClient, AwsResponse, attempts
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.sqs import BATCH_SIZE, UNANSWERED, SqsClient, whole_seconds
from longshore.core.events.codec import from_wire, to_wire
from longshore.core.events.event import Event
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.clock import Clock
from longshore.ports.events import Delivery

logger = logging.getLogger(__name__)

DETAIL_TYPE = "log-event"
PARSE_ERRORS = (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError)
"""What a malformed text or item can raise."""

_REQUEST_LIMIT_BYTES = 240_000  # of 256 KB in one request
_ATTEMPTS = 5
_FIRST_BACKOFF = timedelta(milliseconds=100)
_POLL_LIMIT = timedelta(seconds=20)
_HIDDEN_S = 120  # how long a delivery is hidden from other processes of the same consumer


class EventBridgeBus:
    """See ``ports.events.EventBus``."""

    def __init__(self, aws: AwsClient, names: Names, clock: Clock) -> None:
        self._aws = aws
        self._sqs = SqsClient(aws, clock)
        self._names = names
        self._clock = clock
        self._unacknowledged: dict[str, set[str]] = {}  # receipt handles by consumer
        self._polls: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Return unacknowledged messages, so that other processes get them at once."""
        await asyncio.gather(*self._polls, return_exceptions=True)
        for consumer, handles in self._unacknowledged.items():
            await self._return_messages(consumer, list(handles))

    async def publish(self, events: Sequence[Event]) -> list[Event]:
        left = list(events)
        async for _ in attempts(self._clock, _ATTEMPTS, _FIRST_BACKOFF):
            refused: list[Event] = []
            for batch in _request_batches(left, self._names.stage):
                refused += await self._put_events(batch)
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
            # If the events were published, they are published twice, which is safe.
            logger.warning("bus.unavailable", extra={"error": str(error), "events": len(batch)})
            return [event for event, _ in batch]
        results = zip(batch, answer["Entries"], strict=True)
        return [event for (event, _), entry in results if entry.get("ErrorCode")]

    async def receive(
        self,
        consumer: str,
        *,
        types: Collection[str],
        limit: int,
        wait: timedelta,
    ) -> Delivery | None:
        end = self._clock.elapsed() + wait
        events: list[Event] = []
        handles: list[str] = []
        others: list[str] = []  # handles of other types, or unreadable
        try:
            while not events:
                left = max(end - self._clock.elapsed(), timedelta(0))
                poll = asyncio.ensure_future(self._poll(consumer, limit, left))
                self._polls.add(poll)
                poll.add_done_callback(self._polls.discard)
                # A cancelled poll may take messages with it, so a poll is never cancelled.
                messages = await asyncio.shield(poll)
                for message in messages:
                    event = _parse_event(message)
                    if event is not None and event.type in types:
                        events.append(event)
                        handles.append(message["ReceiptHandle"])
                    else:
                        others.append(message["ReceiptHandle"])
                if not messages and self._clock.elapsed() >= end:
                    return None
        finally:
            # Not before: the next poll would receive them again.
            if others:
                await self._return_messages(consumer, others)
        return Delivery(events=tuple(events), receipt=json.dumps(handles))

    async def _poll(self, consumer: str, limit: int, wait: timedelta) -> list[AwsResponse]:
        """Poll once, for messages of any type."""
        messages = await self._sqs.receive(
            self._names.consumer(consumer),
            limit=limit,
            hidden_s=_HIDDEN_S,
            wait_s=whole_seconds(min(wait, _POLL_LIMIT)),
        )
        handles = {message["ReceiptHandle"] for message in messages}
        self._unacknowledged.setdefault(consumer, set()).update(handles)
        return messages

    async def acknowledge(self, consumer: str, receipt: str) -> None:
        handles: list[str] = json.loads(receipt)
        name = self._names.consumer(consumer)
        codes = await self._sqs.delete([(name, handle) for handle in handles])
        if UNANSWERED in codes:
            raise BackendUnavailable("sqs: no answer to the deletion of some messages")
        self._unacknowledged.get(consumer, set()).difference_update(handles)

    async def _return_messages(self, consumer: str, handles: Sequence[str]) -> None:
        name = self._names.consumer(consumer)
        codes = await self._sqs.hide([(name, handle, 0) for handle in handles])
        if UNANSWERED in codes:
            logger.warning(
                "bus.return_failed",
                extra={"error": UNANSWERED, "events": codes.count(UNANSWERED)},
            )
        self._unacknowledged.get(consumer, set()).difference_update(handles)


def _request_batches(events: Sequence[Event], stage: str) -> list[list[tuple[Event, str]]]:
    """The events with their JSON text, in batches that fit into a request."""
    requests: list[list[tuple[Event, str]]] = []
    size = 0
    for event in events:
        detail = json.dumps(to_wire(event, environment=stage), separators=(",", ":"))
        bytes_ = len(detail.encode())
        if not requests or len(requests[-1]) == BATCH_SIZE or size + bytes_ > _REQUEST_LIMIT_BYTES:
            requests.append([])
            size = 0
        requests[-1].append((event, detail))
        size += bytes_
    return requests


def _parse_event(message: AwsResponse) -> Event | None:
    try:
        return event_in_message(message["Body"])
    except UsageError as error:
        # It stays on the queue, and becomes an undelivered event after some receives.
        logger.warning("bus.unreadable", extra={"error": str(error)})
        return None


def event_in_message(body: str) -> Event:
    """The event in a message from the bus.

    Raises:
        UsageError: the message holds no event.
    """
    try:
        return from_wire(json.loads(body)["detail"])
    except PARSE_ERRORS as error:
        raise UsageError(f"the message holds no event: {type(error).__name__}") from error
