"""The task source of backends with a message queue and commits of one row.

A message says "look at this task"; the claim is a compare-and-swap of the task's row. The source
keeps the messages of the tasks that it has leased: a renewal hides them for longer, and the commit
of an outcome is followed by their deletion. A message of a lost lease stays in the queue, because
the worker that takes over needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from longshore.core.claims import Room
from longshore.core.events.event import EventContext
from longshore.core.events.types import MessageRejected
from longshore.core.queues import (
    MalformedMessage,
    MessageAction,
    QueueDepth,
    parse_message,
    triage,
)
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Refusal, RefusalReason
from longshore.core.tasks.lease import LeasePolicy
from longshore.core.tasks.rows import TaskRow
from longshore.errors import (
    BackendRejected,
    BackendUnavailable,
    LongshoreError,
    ReceiptExpired,
    UsageError,
)
from longshore.ports.backend import Backend
from longshore.ports.task_queue import Message, TaskQueue
from longshore.ports.task_source import (
    Answer,
    Applied,
    ClaimedTask,
    LeaseCommand,
    Turn,
    WorkerInstance,
)
from longshore.services.reads import list_all, was_removed
from longshore.services.resilience import log_and_continue, race
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

_MAX_READS = 3
_RETRY_PAUSE = timedelta(seconds=1)


@dataclass(slots=True)
class _LeasedTask:
    """A task that was leased to a worker of this process."""

    row: TaskRow  # as it was last read or written
    receipt: str  # of its message


@dataclass(slots=True)
class _PausedQueues:
    """Which queues of a worker are paused or leased."""

    names: frozenset[str] | None = None  # None: not read yet
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    watching: asyncio.Task[None] | None = None


@dataclass(kw_only=True)
class MessageTaskSource:
    """See ``ports.task_source.TaskSource``.

    A worker that lost one lease keeps the others, so ``WorkerGone`` is never raised: each command
    is decided by its own fence.
    """

    backend: Backend
    transitions: Transitions
    lease: LeasePolicy
    tenant: str  # whose history gets messages that name no task
    app: str
    _leased: dict[str, _LeasedTask] = field(default_factory=dict, init=False)  # by task
    _paused: dict[str, _PausedQueues] = field(default_factory=dict, init=False)  # by worker
    _last_claims: dict[str, tuple[str, tuple[ClaimedTask, ...]]] = field(
        default_factory=dict, init=False
    )  # by worker: the turn's id, and what it claimed
    _instances: int = field(default=0, init=False)

    claims_with_commands = False

    @property
    def _queue(self) -> TaskQueue:
        return self.backend.require_queue()

    async def join(self, worker: WorkerInstance) -> WorkerInstance:
        await self._stop_watching(worker.worker_id)
        paused = self._paused[worker.worker_id] = _PausedQueues()
        paused.watching = asyncio.ensure_future(self._watch_pauses(worker, paused))
        self._instances += 1
        return replace(worker, number=self._instances)

    async def leave(self, worker: WorkerInstance) -> None:
        await self._stop_watching(worker.worker_id)
        self._last_claims.pop(worker.worker_id, None)

    async def _stop_watching(self, worker_id: str) -> None:
        paused = self._paused.pop(worker_id, None)
        if paused is not None and paused.watching is not None:
            paused.watching.cancel()
            await asyncio.gather(paused.watching, return_exceptions=True)

    async def _watch_pauses(self, worker: WorkerInstance, paused: _PausedQueues) -> None:
        while True:
            # No error may end the loop: a resumed queue would never be served.
            with log_and_continue(logger, "pauses.read_failed", unavailable="pauses.unavailable"):
                paused.names = await self.backend.queue_controls.paused_queues(
                    worker.queues, changed_from=paused.names
                )
                paused.changed.set()
                continue
            await self.backend.clock.sleep(_RETRY_PAUSE)

    # Claims -------------------------------------------------------------------------------------

    async def claim(
        self, worker: WorkerInstance, room: Room, *, turn_id: str, wait: timedelta
    ) -> tuple[ClaimedTask, ...]:
        last_id, claimed = self._last_claims.get(worker.worker_id, ("", ()))
        if last_id == turn_id:
            return claimed
        clock = self.backend.clock
        end = clock.elapsed() + wait
        while True:
            left = max(end - clock.elapsed(), timedelta(0))
            messages = await self._receive(worker, room.slots, left)
            claimed = await self._claim_all(worker, messages)
            if claimed or clock.elapsed() >= end:
                break
        self._last_claims[worker.worker_id] = (turn_id, claimed)
        return claimed

    async def _receive(self, worker: WorkerInstance, limit: int, wait: timedelta) -> list[Message]:
        """Returns messages; none if the time is over, or a queue is paused or resumed meanwhile."""
        paused = self._paused[worker.worker_id]
        paused.changed.clear()
        queues = self._active_queues(worker)
        if not queues:
            async with race(self.backend.clock.sleep(wait), paused.changed.wait()):
                return []
        receiving = asyncio.ensure_future(
            self._queue.receive(queues, limit=limit, hidden_for=self.lease.extend_by, wait=wait)
        )
        uncancelled = False
        try:
            async with race(receiving, paused.changed.wait()):
                uncancelled = True
        finally:
            # A cancelled receive makes messages that it had reserved visible again.
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            if not uncancelled and not receiving.cancelled() and receiving.exception() is None:
                for message in receiving.result():
                    await self._return_message(message)
        return [] if receiving.cancelled() else receiving.result()

    def _active_queues(self, worker: WorkerInstance) -> tuple[str, ...]:
        """Returns the queues to poll: none before the list of paused queues was read."""
        paused = self._paused[worker.worker_id].names
        if paused is None:
            return ()
        return tuple(queue for queue in worker.queues if queue not in paused)

    async def _claim_all(
        self, worker: WorkerInstance, messages: Sequence[Message]
    ) -> tuple[ClaimedTask, ...]:
        """Claim the tasks of messages, all at once. If cancelled, nothing stays claimed."""
        handling = asyncio.gather(*(self._handle(worker, message) for message in messages))
        try:
            claimed = await asyncio.shield(handling)
        except asyncio.CancelledError:
            await self._undo([task for task in await handling if task is not None])
            raise
        return tuple(task for task in claimed if task is not None)

    async def _undo(self, claimed: Sequence[ClaimedTask]) -> None:
        """Release tasks that no worker will run."""
        for task in claimed:
            reason = "the worker stopped before the task had begun"
            release = c.Release(fence=task.row.fence, reason=reason, due_at=task.due_at)
            await self._carry_out([LeaseCommand(task.row.id, release, self.transitions.new_id())])

    async def _handle(self, worker: WorkerInstance, message: Message) -> ClaimedTask | None:
        """Handle one message. Returns the task that it led to, leased; no error is raised."""
        try:
            if message.queue not in self._active_queues(worker):
                await self._return_message(message)
                return None
            return await self._triage(worker, message)
        except ReceiptExpired:
            logger.debug("message.receipt_expired", extra={"message_id": message.id})
        except LongshoreError as error:
            logger.warning(
                "message.not_handled", extra={"message_id": message.id, "error": str(error)}
            )
        except Exception:  # no error may end the worker
            logger.exception("message.failed", extra={"message_id": message.id})
        return None

    async def _triage(self, worker: WorkerInstance, message: Message) -> ClaimedTask | None:
        task_id = parse_message(message.body)
        if isinstance(task_id, MalformedMessage):
            await self._reject(worker, message, task_id.reason, task_id.excerpt)
            return None
        for _ in range(_MAX_READS):
            row = await self.backend.ledger.get_task(task_id)
            margin = self.lease.skew_margin
            decision = triage(row, now=self.backend.clock.now(), margin=margin)
            if row is None or decision.action is MessageAction.REJECT:
                if await was_removed(self.backend, task_id):
                    await self._queue.delete([message.receipt])
                else:
                    await self._reject(worker, message, f"there is no task {task_id!r}", None)
                return None
            match decision.action:
                case MessageAction.DROP:
                    await self._queue.delete([message.receipt])
                    return None
                case MessageAction.DELAY:
                    await self._delay(message, decision.until)
                    return None
                case MessageAction.TAKE_OVER:
                    await self._take_over(row)
                case MessageAction.RUN:
                    if (claimed := await self._try_claim(worker, row, message)) is not None:
                        return claimed
        return None

    async def _delay(self, message: Message, until: datetime | None) -> None:
        await self._queue.delay(message.receipt, until=until or self.backend.clock.now())

    async def _return_message(self, message: Message) -> None:
        # If it cannot be returned, it becomes visible later.
        with contextlib.suppress(ReceiptExpired, BackendUnavailable):
            await self._delay(message, None)

    async def _take_over(self, row: TaskRow) -> None:
        if row.lease is not None:
            command = c.LeaseEnded(fence=row.lease.fence, margin=self.lease.skew_margin)
            await self.transitions.try_command(row.id, command)

    async def _try_claim(
        self, worker: WorkerInstance, row: TaskRow, message: Message
    ) -> ClaimedTask | None:
        """Claim the task. Returns None if another worker was faster."""
        claim = c.Claim(
            worker_id=worker.worker_id,
            process_id=worker.process_id,
            lease_duration=worker.lease_duration,
            epoch=self.backend.ledger.epoch,
            local=worker.local,
        )
        claimed = await self.transitions.try_command(row.id, claim, row=row)
        if isinstance(claimed, Refusal):
            return None
        self._leased[row.id] = _LeasedTask(claimed, message.receipt)
        # If the row has changed since it was read, its place is unknown: a release uses the time.
        is_current = claimed.version == row.version + 1
        due_at = row.due_at if is_current else None
        return ClaimedTask(claimed, due_at or self.backend.clock.now() + worker.lease_duration)

    async def _reject(
        self, worker: WorkerInstance, message: Message, reason: str, excerpt: str | None
    ) -> None:
        logger.error("message.rejected", extra={"message_id": message.id, "reason": reason})
        await self.backend.events.append(
            tenant=self.tenant,
            app=self.app,
            entity_id=message.queue,
            body=MessageRejected(
                queue=message.queue, message_id=message.id, reason=reason, excerpt=excerpt
            ),
            context=EventContext(origin="worker", worker_id=worker.worker_id),
            now=self.backend.clock.now(),
        )
        await self._queue.delete([message.receipt])

    # Commands -----------------------------------------------------------------------------------

    async def turn(
        self,
        worker: WorkerInstance,
        commands: Sequence[LeaseCommand],
        *,
        turn_id: str,
        room: Room | None = None,
    ) -> Turn:
        return Turn(await self._carry_out(commands))

    async def _carry_out(self, commands: Sequence[LeaseCommand]) -> tuple[Answer, ...]:
        """Carry out commands, all at once, and then what follows for their messages."""
        answers = await asyncio.gather(*(self._answer(command) for command in commands))
        ended, renewed = [], []
        for command, answer in zip(commands, answers, strict=True):
            leased = self._leased.get(command.task_id)
            if leased is None or leased.row.fence != command.command.fence:
                continue
            if isinstance(answer, Applied) and isinstance(command.command, c.AttemptCommand):
                ended.append(self._leased.pop(command.task_id).receipt)
            elif isinstance(answer, Refusal) and answer.reason is RefusalReason.LEASE_LOST:
                del self._leased[command.task_id]  # the worker that takes over needs the message
            elif isinstance(command.command, c.Renew):
                renewed.append(leased.receipt)
        # A message that is not hidden or deleted is delivered again, and triaged by its row.
        with log_and_continue(logger, "message.failed", unavailable="message.unavailable"):
            if ended:
                await self._queue.delete(ended)
        with log_and_continue(logger, "message.failed", unavailable="message.unavailable"):
            if renewed:
                await self._queue.extend(renewed, hidden_for=self.lease.extend_by)
        return tuple(answers)

    async def _answer(self, command: LeaseCommand) -> Answer:
        leased = self._leased.get(command.task_id)
        try:
            row = await self.transitions.try_command(
                command.task_id,
                command.command,
                row=leased.row if leased is not None else None,
                change_id=command.change_id,
            )
        except BackendUnavailable as error:
            return error
        except Exception as error:  # one command must not affect the others
            logger.exception("command.failed", extra={"task_id": command.task_id})
            return BackendRejected(f"{type(error).__name__}: {error}")
        if isinstance(row, Refusal):
            return row
        # Answers may arrive out of order: an older row must not replace a newer one.
        if leased is not None and row.version > leased.row.version:
            leased.row = row
        return Applied(row)

    # Other processes ----------------------------------------------------------------------------

    async def end_worker(
        self, worker_id: str, *, unbegun: Collection[tuple[str, int]] = ()
    ) -> list[TaskRow]:
        ended: list[TaskRow] = []
        for task_id, lease in await list_all(self.backend.ledger.leased_tasks):
            if lease.worker_id != worker_id:
                continue
            command = c.LeaseEnded(
                fence=lease.fence,
                margin=self.lease.skew_margin,
                holder_dead=True,
                begun=(task_id, lease.fence) not in unbegun,
            )
            with log_and_continue(logger, "lease.end_failed", task_id=task_id):
                row = await self.transitions.try_command(task_id, command)
                if not isinstance(row, Refusal):  # otherwise the task has moved on
                    ended.append(row)
        return ended

    async def wait_for_ends(self, seen: int, *, timeout: timedelta) -> int:
        raise UsageError("ends are delivered by the bus")

    async def depth(self, queue: str) -> QueueDepth:
        return await self._queue.depth(queue)
