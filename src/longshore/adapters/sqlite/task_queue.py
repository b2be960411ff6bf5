"""The task queue in SQLite: one row per message, hidden until a time, owned by a receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.store_file import Row, rows
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.queues import QueueDepth, lane_order
from longshore.core.tasks.states import Priority
from longshore.errors import ReceiptExpired
from longshore.ports.task_queue import Message, OutgoingMessage

# A new message for a task whose message is being processed replaces that message. The old receipt
# becomes invalid, so that deleting it cannot delete the new message.
UPSERT_MESSAGE = (
    "INSERT INTO messages (queue, priority, key, body, sent_us, visible_us) VALUES (?,?,?,?,?,?)"
    " ON CONFLICT (queue, key) WHERE key IS NOT NULL DO UPDATE SET"
    " priority = excluded.priority, body = excluded.body, sent_us = excluded.sent_us,"
    " receives = 0, receipt = receipt + 1,"
    " visible_us = CASE WHEN taken AND visible_us > excluded.sent_us THEN excluded.visible_us"
    " ELSE min(visible_us, excluded.visible_us) END, taken = 0"
)
_VISIBLE = (
    "SELECT id, receives FROM messages WHERE queue = ? AND priority = ? AND visible_us <= ?"
    " ORDER BY visible_us, id LIMIT ?"
)
_TAKE = (
    "UPDATE messages SET visible_us = ?, receives = receives + 1, taken = 1,"
    " receipt = receipt + 1"
    " WHERE id = ? RETURNING id, queue, priority, body, sent_us, receives, receipt"
)
_CURRENT = "WHERE id = ? AND receipt = ?"
_DELAY = (
    "UPDATE messages SET visible_us = ?, receives = max(receives - 1, 0),"
    f" receipt = receipt + 1, taken = 0 {_CURRENT}"
)


def message_values(message: OutgoingMessage, now: datetime) -> tuple[Any, ...]:
    """The values for ``UPSERT_MESSAGE``."""
    sent = codec.to_us(now)
    visible = sent if message.visible_at is None else codec.to_us(message.visible_at)
    return (message.queue, int(message.priority), message.merge_key, message.body, sent, visible)


@dataclass(eq=False)
class SqliteTaskQueue:
    """See ``ports.task_queue.TaskQueue``."""

    _database: Database
    _receives: int = 0

    async def send(self, messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
        now = self._database.clock.now()
        values = [message_values(message, now) for message in messages]

        def work(connection: apsw.Connection) -> None:
            connection.executemany(UPSERT_MESSAGE, values)

        await self._database.write(work, topics=(Topic.QUEUE,))
        return []

    async def receive(
        self, queues: Sequence[str], *, limit: int, hidden_for: timedelta, wait: timedelta
    ) -> list[Message]:
        deadline = self._database.clock.elapsed() + wait
        while True:
            left = max(deadline - self._database.clock.elapsed(), timedelta(0))
            visible = await self._database.waiters[Topic.QUEUE].wait_until(
                lambda: self._anything_visible(queues),
                wait=left,
                next_change=lambda: self._time_to_next(queues),
            )
            if visible is None:
                return []
            if taken := await self._take(queues, limit, hidden_for):
                return taken

    def _anything_visible(self, queues: Sequence[str]) -> bool | None:
        now = codec.to_us(self._database.clock.now())
        lanes = ((queue, int(priority)) for queue in queues for priority in Priority)
        return any(self._database.point(_VISIBLE, (*lane, now, 1)) for lane in lanes) or None

    def _time_to_next(self, queues: Sequence[str]) -> timedelta | None:
        earliest = [
            visible
            for queue in queues
            for priority in Priority
            for (visible,) in self._database.point(
                "SELECT visible_us FROM messages WHERE queue = ? AND priority = ?"
                " ORDER BY visible_us LIMIT 1",
                (queue, int(priority)),
            )
        ]
        if not earliest:
            return None
        pause = codec.from_us(min(earliest)) - self._database.clock.now()
        return max(pause, timedelta(milliseconds=1))

    async def _take(
        self, queues: Sequence[str], limit: int, hidden_for: timedelta
    ) -> list[Message]:
        now = self._database.clock.now()
        moment, until = codec.to_us(now), codec.to_us(now + hidden_for)
        lanes = lane_order(self._receives)
        # Rotate, so that no queue is always before another.
        first = self._receives % len(queues)
        rotated = [*queues[first:], *queues[:first]]
        self._receives += 1

        def work(connection: apsw.Connection) -> list[Row]:
            taken: list[Row] = []
            for lane in lanes:
                for queue in rotated:
                    values = (queue, int(lane), moment, limit - len(taken))
                    for message_id, receives in rows(connection, _VISIBLE, values):
                        if receives >= RECEIVE_LIMIT:
                            _move_to_dead_letters(connection, message_id)
                        else:
                            taken += rows(connection, _TAKE, (until, message_id))
            return taken

        # Not durable: after a power loss the message is delivered again.
        taking = self._database.write(work, durable=False)
        try:
            matches = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._return_messages)
            raise
        return [_message(row) for row in matches]

    def _return_messages(self, taking: asyncio.Future[list[Row]]) -> None:
        """Make the messages of a cancelled receive visible again."""
        if not taking.cancelled() and not taking.exception():
            now = codec.to_us(self._database.clock.now())
            receipts = [_message(row).receipt for row in taking.result()]
            self._write_each(receipts, _DELAY, (now,), topics=(Topic.QUEUE,))

    async def extend(self, receipts: Sequence[str], *, hidden_for: timedelta) -> list[str]:
        until = codec.to_us(self._database.clock.now() + hidden_for)
        return await self._write_each(
            receipts, f"UPDATE messages SET visible_us = ? {_CURRENT}", (until,)
        )

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        return await self._write_each(receipts, f"DELETE FROM messages {_CURRENT}", ())

    async def delay(self, receipt: str, *, until: datetime) -> None:
        values = (codec.to_us(until),)
        stale = await self._write_each([receipt], _DELAY, values, topics=(Topic.QUEUE,))
        if stale:
            raise ReceiptExpired(receipt)

    def _write_each(
        self,
        receipts: Sequence[str],
        sql: str,
        values: tuple[Any, ...],
        *,
        topics: tuple[Topic, ...] = (),
    ) -> asyncio.Future[list[str]]:
        """Run a statement for each receipt. Returns the receipts that are not current.

        Not durable: after a power loss the message comes back, and its task has ended or is leased.
        """
        owned = [(receipt, _parse_receipt(receipt)) for receipt in receipts]

        def work(connection: apsw.Connection) -> list[str]:
            stale = []
            for receipt, current in owned:
                if current is None:
                    stale.append(receipt)
                    continue
                connection.execute(sql, (*values, *current))
                if not connection.changes():
                    stale.append(receipt)
            return stale

        return self._database.write(work, durable=False, topics=topics)

    async def depth(self, queue: str) -> QueueDepth:
        now = codec.to_us(self._database.clock.now())
        matches = await self._database.scan(
            "SELECT count(*) FILTER (WHERE visible_us <= ?1), count(*) FILTER (WHERE"
            " visible_us > ?1), (SELECT count(*) FROM dead_messages WHERE queue = ?2)"
            " FROM messages WHERE queue = ?2",
            (now, queue),
        )
        ready, hidden, dead = matches[0]
        return QueueDepth(ready=ready, hidden=hidden, dead_letters=dead)

    async def dead_letters(self, queue: str | None, *, limit: int) -> list[Message]:
        condition = "" if queue is None else "WHERE queue = ?2"
        values = (limit,) if queue is None else (limit, queue)
        matches = await self._database.scan(
            "SELECT id, queue, priority, body, sent_us, receives, 0 FROM dead_messages"
            f" {condition} ORDER BY id LIMIT ?1",
            values,
        )
        return [_message(row) for row in matches]

    async def delete_dead_letter(self, message_id: str) -> bool:
        def work(connection: apsw.Connection) -> bool:
            connection.execute("DELETE FROM dead_messages WHERE id = ?", (message_id,))
            return connection.changes() > 0

        return await self._database.write(work)


def _move_to_dead_letters(connection: apsw.Connection, message_id: int) -> None:
    connection.execute(
        "INSERT INTO dead_messages (id, queue, priority, body, sent_us, receives)"
        " SELECT id, queue, priority, body, sent_us, receives FROM messages WHERE id = ?",
        (message_id,),
    )
    connection.execute("DELETE FROM messages WHERE id = ?", (message_id,))


def _message(row: Row) -> Message:
    message_id, queue, priority, body, sent_us, receives, receipt = row
    return Message(
        id=str(message_id),
        queue=queue,
        body=body,
        receipt=f"{message_id}.{receipt}",
        receive_count=receives,
        sent_at=codec.from_us(sent_us),
        priority=Priority(priority),
    )


def _parse_receipt(receipt: str) -> tuple[int, int] | None:
    message_id, _, count = receipt.partition(".")
    return (int(message_id), int(count)) if message_id.isdigit() and count.isdigit() else None
