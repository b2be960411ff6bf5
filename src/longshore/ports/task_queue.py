"""The queue: doorbells that say "look at this task"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from longshore.core.queues import QueueDepth
from longshore.core.tasks.states import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message to be sent."""

    queue: str
    body: str
    priority: Priority = Priority.NORMAL
    visible_at: datetime | None = None  # None: at once
    merge_key: str | None = (
        None  # two messages of one queue and key may become one, seen at the earlier
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that was received and is hidden from others for a while."""

    id: str
    queue: str
    body: str
    receipt: str  # for this delivery only
    receive_count: int  # deliveries so far, this one included
    sent_at: datetime  # of one that took in others of its key: when the last of them was sent
    priority: Priority = Priority.NORMAL


class TaskQueue(Protocol):
    """Named queues with three priorities; delivery is at least once.

    Batches answer per item: a failure of one never hides the success of another.
    """

    async def send(self, messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
        """Send; returns those that were not accepted."""
        ...

    async def receive(
        self, queues: Sequence[str], *, limit: int, hidden_for: timedelta, wait: timedelta
    ) -> list[Message]:
        """Up to ``limit`` messages, hidden from everybody else for ``hidden_for``.

        Higher priorities first, older first within one, but a low one is never starved: of many
        receives some take the lower lanes first. With nothing there, waits up to ``wait`` for the
        first to come. A message that was received more often than the queue's limit is moved to
        its dead letters instead.
        """
        ...

    async def extend(self, receipts: Sequence[str], *, hidden_for: timedelta) -> list[str]:
        """Hide messages for ``hidden_for`` from now; returns the receipts that are not current."""
        ...

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        """Remove messages; returns the receipts that are not current (their message stays)."""
        ...

    async def delay(self, receipt: str, *, until: datetime) -> None:
        """Give a message back, to be seen again at ``until``; it does not count as received.

        Raises:
            ReceiptExpired: the message was delivered again or removed since.
        """
        ...

    async def depth(self, queue: str) -> QueueDepth:
        """How many messages there are, as far as is known."""
        ...

    async def dead_letters(self, queue: str | None, *, limit: int) -> list[Message]:
        """Messages that were received too often, oldest first; reading does not remove them.

        Of one queue, or with None of every queue.
        """
        ...

    async def delete_dead_letter(self, message_id: str) -> bool:
        """Remove a dead letter; whether it was there."""
        ...
