"""Somebody who looks over the shoulder of a process, and knows how things really are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.messages import task_named_in
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import TaskState
from longshore.ports.events import Delivery
from longshore.ports.ledger import AnyChange
from longshore.ports.queue import Message, Outgoing
from longshore.testing.simulation.pauses import Listener
from longshore.testing.simulation.world import World

_REPORTS = frozenset(
    event.TYPE
    for event in (
        *(e.TaskHeartbeat, e.TaskProcessingFailed, e.TaskReleased, e.TaskCompleted, e.TaskFailed),
        *(e.TaskTimeout, e.TaskSubmittedForReview),
    )
)


@dataclass(frozen=True, slots=True)
class _Delivered:
    task_id: str
    round: int
    attempt: int  # the last there was, when the message was received
    at: datetime


class Onlooker:
    """Sees what one process reads and writes."""

    def __init__(self, process: Listener, world: World) -> None:
        self._process = process
        self._world = world
        self._deliveries: dict[str, _Delivered] = {}  # by receipt
        self._latest: dict[str, str] = {}  # receipts by task
        self._made_again: set[str] = set()  # tasks that had been made when this one made them
        self._events: dict[str, tuple[float, tuple[Event, ...]]] = {}  # by receipt

    async def rows_of(self, changes: Sequence[AnyChange]) -> dict[str, TaskRow | JobRow | None]:
        """The rows as they are before a commit."""
        ledger = self._world.backend.ledger
        rows: dict[str, TaskRow | JobRow | None] = {}
        for change in changes:
            row = change.row
            read = ledger.task if isinstance(row, TaskRow) else ledger.job
            rows[row.id] = await read(row.id)
        return rows

    def committed(
        self, changes: Sequence[AnyChange], before: Mapping[str, TaskRow | JobRow | None]
    ) -> None:
        """The process has changed rows."""
        chronicle = self._world.chronicle
        for change in changes:
            new, old = change.row, before[change.row.id]
            if old is not None and old.change_id == new.change_id:
                # Its answer had been lost. Or two create the same task: the second may know that
                # its parents have completed since, and ring for it, and it waits all the same.
                self._made_again.add(new.id)
                continue
            if isinstance(new, JobRow):
                if isinstance(old, JobRow):
                    chronicle.job_committed(old, new)
            elif not isinstance(old, JobRow):
                chronicle.task_committed(old, new)
                if old is not None:
                    self._look_at(old, new, change.events)

    def _look_at(self, old: TaskRow, new: TaskRow, events: Sequence[Event]) -> None:
        """Only the holder reports, whatever the fence says that comes with it."""
        who = self._process.name
        if new.attempt > old.attempt:
            self._world.pauses.claimed(who, new.id)
        holder = old.lease.worker_id if old.lease else None
        if holder == who:
            return
        early = old.lease is not None and self._world.clock.now() < old.lease.expires_at
        if early and new.lease is None and holder in self._world.alive:
            text = f"{who} ends the lease of {holder}, who is alive and may use it"
            self._world.breach(2, new.id, text)
        reports = [event.type for event in events if event.type in _REPORTS]
        by_a_worker = [event.type for event in events if event.context.origin == "worker"]
        said = [name for name in reports if name in by_a_worker]
        if new.checkpoint not in (old.checkpoint, None):
            said.append("a checkpoint")
        for what in said:
            text = f"{who} commits {what}, and {holder or 'nobody'} holds the task"
            self._world.breach(3, new.id, text)

    async def sends(self, messages: Sequence[Outgoing]) -> None:
        """A message is for somebody who can act on it: it comes after the commit."""
        for message in messages:
            task_id = task_named_in(message.body)
            if not isinstance(task_id, str):
                continue
            row = await self._world.backend.ledger.task(task_id)
            early = row is not None and row.state is TaskState.WAITING
            if row is None or (early and task_id not in self._made_again):
                state = row.state.value if row else "not there"
                text = f"{self._process.name} sends a message for it, and it is {state}"
                self._world.breach(6, task_id, text)

    async def received(self, messages: Sequence[Message]) -> None:
        """Messages are on their way to the process."""
        for message in messages:
            task_id = task_named_in(message.body)
            row = isinstance(task_id, str) and await self._world.backend.ledger.task(task_id)
            if row:
                now = self._world.clock.now()
                delivered = _Delivered(row.id, row.round, row.attempt, now)
                self._deliveries[message.receipt] = delivered
                self._latest[row.id] = message.receipt

    def handed(self, messages: Sequence[Message]) -> None:
        """The process has them."""
        for message in messages:
            if (delivered := self._deliveries.get(message.receipt)) is not None:
                self._world.pauses.handed(self._process, delivered.task_id, message.queue)

    async def deletes(self, receipts: Sequence[str]) -> None:
        """The process is done with messages."""
        for receipt in receipts:
            delivered = self._deliveries.get(receipt)
            # It may hold the task by a later message, and be done with this one.
            if delivered and self._latest[delivered.task_id] == receipt:
                await self._may_be_deleted(delivered)

    async def _may_be_deleted(self, delivered: _Delivered) -> None:
        """A message goes when the outcome is committed, or when nothing is left to do."""
        row = await self._world.backend.ledger.task(delivered.task_id)
        # Whoever resumes a task rings for it: a message of the round before is of no use any more.
        if row is None or row.round != delivered.round:
            return
        who, margin = self._process.name, self._world.settings.worker.skew_margin
        unrung = row.rung_at is None or row.rung_at < delivered.at - margin
        ours = row.lease is not None and row.lease.worker_id == who
        at_work = ours and row.attempt == delivered.attempt + 1
        if at_work or (row.state is TaskState.PENDING and unrung):
            text = f"{who} deletes its message while the task is {row.state.value}"
            self._world.breach(1, row.id, text)

    def hears(self, delivery: Delivery) -> None:
        """The bus brings events to the process."""
        self._events[delivery.receipt] = (self._world.time(), delivery.events)

    async def acknowledges(self, receipt: str) -> None:
        """The process says that it has dealt with them."""
        received_at, events = self._events[receipt]
        await self._world.chronicle.acknowledged(self._process.name, events, received_at)
