"""The queue: messages that say "look at this task"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from longshore.core.queues import QueueDepth, QueueMessage
from longshore.core.tasks.states import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message to be sent."""

    queue: str
    body: str  # text without control characters
    priority: Priority = Priority.NORMAL
    # None: immediately. A queue may deliver a message a quarter of an hour after it was sent, also
    # if that is earlier: the receiver looks at the task, and delays the message again.
    visible_at: datetime | None = None
    # Two messages of one queue and key may become one, visible at the earlier time.
    merge_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(QueueMessage):
    """A received message, which is hidden from other receivers for a while."""

    receipt: str  # for this delivery only
    priority: Priority = Priority.NORMAL


class TaskQueue(Protocol):
    """Named queues with three priorities; delivery is at least once.

    The items of a batch are independent: the failure of an item does not affect the others.
    """

    async def send(self, messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
        """Send messages. Returns those that were not accepted."""
        ...

    async def receive(
        self, queues: Sequence[str], *, limit: int, hidden_for: timedelta, wait: timedelta
    ) -> list[Message]:
        """Receive up to ``limit`` messages and hide them from other receivers for ``hidden_for``.

        Higher priorities come first, and older messages first within a priority; some receives
        begin with the lower lanes, so that none is starved. An empty queue waits up to ``wait`` for
        a message. A message that was received more often than the queue's limit becomes a dead
        letter instead.
        """
        ...

    async def extend(self, receipts: Sequence[str], *, hidden_for: timedelta) -> list[str]:
        """Hide messages for ``hidden_for`` from now. Returns the receipts that are not current."""
        ...

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        """Delete messages. Returns the receipts that are not current; their messages stay.

        SQS accepts some stale receipts, and may then delete the message: messages are hints, and
        the sweeper enqueues a task again whose message is lost.
        """
        ...

    async def delay(self, receipt: str, *, until: datetime) -> None:
        """Hide a message until ``until``; this delivery does not count as received.

        A queue may send it again as another message, with another id, and early like any message.

        Raises:
            ReceiptExpired: the message was delivered again or deleted.
        """
        ...

    async def depth(self, queue: str) -> QueueDepth:
        """Returns the approximate number of messages."""
        ...

    async def dead_letters(self, queue: str | None, *, limit: int) -> list[Message]:
        """Returns messages that were received too often, oldest first, without removing them.

        Of one queue, or of all queues with None.
        """
        ...

    async def delete_dead_letter(self, message_id: str) -> bool:
        """Delete a dead letter. Returns True if it existed."""
        ...
