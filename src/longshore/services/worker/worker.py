"""The worker: receives messages, claims tasks, renews their leases and runs their attempts.

It never receives more messages than it has free slots, and refills a slot as soon as it is free.
One loop renews all leases together. A paused queue is not polled; its running tasks continue.
Stopping has two steps: no new work and a grace period for running attempts, then the rest is
released at once, so that another worker can claim it within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from datetime import timedelta

from longshore.core.events.event import EventContext
from longshore.core.events.types import MessageRejected
from longshore.core.queues import MalformedMessage, MessageAction, parse_message, triage
from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import TaskRow
from longshore.errors import (
    BackendUnavailable,
    CommandRefused,
    LongshoreError,
    NotFound,
    ReceiptExpired,
)
from longshore.ports.task_queue import Message
from longshore.services.resilience import log_and_continue, race
from longshore.services.worker.attempt import Attempt
from longshore.services.worker.context import AttemptStopReason, WorkerContext

logger = logging.getLogger(__name__)

_MAX_READS = 3
_RETRY_PAUSE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPolicy:
    """The settings of a worker."""

    queues: tuple[str, ...] = ("default",)
    concurrency: int = 3
    poll_wait: timedelta = timedelta(seconds=20)
    drain_grace: timedelta = timedelta(seconds=30)
    tenant: str = "default"
    app: str = "longshore"


class Worker:
    """Runs tasks until ``stop``."""

    def __init__(self, context: WorkerContext, policy: WorkerPolicy) -> None:
        self._context = context
        self._policy = policy
        self._backend = context.backend
        self._running: dict[Attempt, str] = {}  # with the receipt of its message
        self._handling: set[asyncio.Task[None]] = set()
        self._wakeups = 0  # how often this worker was woken
        self._releasing = False
        self._paused: frozenset[str] | None = None  # of its queues; None: not read yet
        self._stopping = asyncio.Event()
        self._slot_freed = asyncio.Event()
        self._receive_cancelled = asyncio.Event()  # the current receive must end

    @property
    def id(self) -> str:
        """The worker's id, as in its leases."""
        return self._context.worker_id

    @property
    def running(self) -> list[str]:
        """Ids of the tasks that run now."""
        return [attempt.task_id for attempt in self._running]

    def stop(self) -> None:
        """Accept no more work, finish or release what runs, then let ``run`` return."""
        self._stopping.set()
        self._slot_freed.set()
        self._receive_cancelled.set()

    def cancel(self, task_id: str) -> None:
        """Stop the attempt of a task that was cancelled, if it runs here."""
        for attempt in self._running:
            if attempt.task_id == task_id:
                attempt.stop(AttemptStopReason.CANCELLED)

    async def run(self) -> None:
        """Work until ``stop``; then drain."""
        self._context.worker_registry.register(self.id, self._policy.queues)
        keeping = [
            asyncio.ensure_future(self._renew_leases()),
            asyncio.ensure_future(self._watch_wakeups()),
            asyncio.ensure_future(self._watch_pauses()),
        ]
        try:
            await self._open_runner()
            await self._take_work()
            await self._drain()
        finally:
            # After a drain nothing is left; if ``run`` is cancelled, no child may be left either.
            ending = [*keeping, *self._handling]
            for future in ending:
                future.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            await self._context.runner.close()
        self._context.worker_registry.deregister(self.id)

    async def _open_runner(self) -> None:
        try:
            await self._context.runner.open()
        except BackendUnavailable as error:
            # Starting the first child tries again.
            logger.warning("runner.unavailable", extra={"error": str(error)})
        except Exception:
            # The worker has no leases that another process would have to end.
            self._context.worker_registry.deregister(self.id)
            raise

    async def _take_work(self) -> None:
        while not self._stopping.is_set():
            free = self._policy.concurrency - len(self._handling)
            if free <= 0 or not self._active_queues:
                self._slot_freed.clear()
                await self._slot_freed.wait()
                continue
            messages = None
            # Running attempts must not end because of an error.
            with log_and_continue(logger, "queue.receive_failed", unavailable="queue.unavailable"):
                messages = await self._receive(free)
            if messages is None:
                await self._backend.clock.sleep(_RETRY_PAUSE)
                continue
            for message in messages:
                if self._stopping.is_set() or message.queue not in self._active_queues:
                    await self._return_message(message)
                else:
                    self._start_handling(message)

    @property
    def _active_queues(self) -> tuple[str, ...]:
        """The queues to poll: none before the list of paused queues was read."""
        paused = self._policy.queues if self._paused is None else self._paused
        return tuple(queue for queue in self._policy.queues if queue not in paused)

    async def _receive(self, limit: int) -> list[Message]:
        """Returns messages; none if the worker stops or a queue is paused or resumed meanwhile."""
        self._receive_cancelled.clear()
        receive = self._backend.queue.receive(
            self._active_queues,
            limit=limit,
            hidden_for=self._context.lease.extend_by,
            wait=self._policy.poll_wait,
        )
        # A cancelled receive makes messages that it had reserved visible again.
        async with race(receive, self._receive_cancelled.wait()) as (received, _):
            pass
        return [] if received.cancelled() else received.result()

    async def _return_message(self, message: Message) -> None:
        # If it cannot be returned, it becomes visible later.
        with (
            log_and_continue(logger, "message.return_failed", message_id=message.id),
            contextlib.suppress(ReceiptExpired, BackendUnavailable),
        ):
            await self._backend.queue.delay(message.receipt, until=self._backend.clock.now())

    def _start_handling(self, message: Message) -> None:
        handling = asyncio.ensure_future(self._handle(message))
        self._handling.add(handling)
        handling.add_done_callback(self._on_handled)

    def _on_handled(self, handling: asyncio.Task[None]) -> None:
        self._handling.discard(handling)
        self._slot_freed.set()

    async def _handle(self, message: Message) -> None:
        """Handle one message; no error may end the worker."""
        try:
            await self._triage(message)
        except ReceiptExpired:
            logger.debug("message.receipt_expired", extra={"message_id": message.id})
        except LongshoreError as error:
            logger.warning(
                "message.not_handled", extra={"message_id": message.id, "error": str(error)}
            )
        except Exception:  # no error may end the worker
            logger.exception("message.failed", extra={"message_id": message.id})

    async def _triage(self, message: Message) -> None:
        task_id = parse_message(message.body)
        if isinstance(task_id, MalformedMessage):
            await self._reject(message, task_id.reason, task_id.excerpt)
            return
        for _ in range(_MAX_READS):
            row = await self._backend.ledger.get_task(task_id)
            if not await self._act_on_row(message, task_id, row):
                return

    async def _act_on_row(self, message: Message, task_id: str, row: TaskRow | None) -> bool:
        """Act on the task's row. Returns whether to read the row again."""
        margin = self._context.lease.skew_margin
        judgement = triage(row, now=self._backend.clock.now(), margin=margin)
        match judgement.action:
            case MessageAction.REJECT:
                await self._reject(message, f"there is no task {task_id!r}", None)
            case MessageAction.DROP:
                await self._backend.queue.delete([message.receipt])
            case MessageAction.DELAY:
                until = judgement.until or self._backend.clock.now()
                await self._backend.queue.delay(message.receipt, until=until)
            case MessageAction.TAKE_OVER:
                return await self._take_over(row)
            case MessageAction.RUN:
                return await self._claim_and_run(message, row)
        return False

    async def _take_over(self, row: TaskRow | None) -> bool:
        if row is not None and row.lease is not None:
            margin = self._context.lease.skew_margin
            command = c.LeaseEnded(fence=row.lease.fence, margin=margin)
            with contextlib.suppress(CommandRefused):
                await self._context.transitions.apply_to_task(row.id, command)
        return True

    async def _claim_and_run(self, message: Message, row: TaskRow | None) -> bool:
        if row is None or self._stopping.is_set():
            await self._return_message(message)
            return False
        sent_at, wakeups = self._backend.clock.elapsed(), self._wakeups
        claim = c.Claim(
            worker_id=self.id,
            process_id=self._context.process_id,
            lease_duration=self._context.lease.duration,
            epoch=self._backend.ledger.epoch,
        )
        try:
            claimed = await self._context.transitions.apply_to_task(row.id, claim, row=row)
        except (CommandRefused, NotFound):
            return True  # another worker was faster
        attempt = Attempt(self._context, claimed, sent_at)
        await self._run(attempt, message, woken=self._wakeups != wakeups)
        if not attempt.row.state.terminal and attempt.row.lease is not None:
            return False  # fenced: the worker that takes over needs the message
        await self._backend.queue.delete([message.receipt])
        return False

    async def _run(self, attempt: Attempt, message: Message, *, woken: bool) -> None:
        self._running[attempt] = message.receipt
        if self._releasing:
            attempt.stop(AttemptStopReason.DRAINED)
        try:
            if woken:
                # A wake-up may have been for this task, before it was listed as running.
                with contextlib.suppress(BackendUnavailable):
                    await self._check_cancel(attempt)
            await attempt.run()
        finally:
            del self._running[attempt]

    async def _reject(self, message: Message, reason: str, excerpt: str | None) -> None:
        logger.error("message.rejected", extra={"message_id": message.id, "reason": reason})
        await self._backend.events.append(
            tenant=self._policy.tenant,
            app=self._policy.app,
            entity_id=message.queue,
            body=MessageRejected(
                queue=message.queue, message_id=message.id, reason=reason, excerpt=excerpt
            ),
            context=EventContext(origin="worker", worker_id=self.id),
            now=self._backend.clock.now(),
        )
        await self._backend.queue.delete([message.receipt])

    async def _renew_leases(self) -> None:
        """Renew all leases together, at a steady pace."""
        pause = self._context.lease.renew_every
        while True:
            await self._backend.clock.sleep(pause)
            try:
                renewed = await self._renew_all()
            except Exception:  # no error may end the loop: every child would have to be killed
                logger.exception("renewal.crashed")
                renewed = False
            # A failed renewal is repeated soon: the child may run only while the lease is trusted.
            every = self._context.lease.renew_every
            pause = every if renewed else every / 8

    async def _renew_all(self) -> bool:
        running = dict(self._running)
        if not running:
            return True
        results = await asyncio.gather(*(attempt.renew() for attempt in running))
        with contextlib.suppress(BackendUnavailable):
            receipts = list(running.values())
            await self._backend.queue.extend(receipts, hidden_for=self._context.lease.extend_by)
        return all(results)

    async def _watch_wakeups(self) -> None:
        while True:
            # No error may end the loop: cancellations would be late. After an outage, the next
            # renewal reads the same.
            with log_and_continue(logger, "wakeup.failed", unavailable="wakeup.unavailable"):
                await self._backend.ledger.wait_for_wake(self.id)
                self._wakeups += 1
                for attempt in list(self._running):
                    await self._check_cancel(attempt)
                continue
            await self._backend.clock.sleep(_RETRY_PAUSE)

    async def _watch_pauses(self) -> None:
        while True:
            # No error may end the loop: a resumed queue would never be served.
            with log_and_continue(logger, "pauses.read_failed", unavailable="pauses.unavailable"):
                self._paused = await self._backend.queue_controls.paused_queues(
                    self._policy.queues, changed_from=self._paused
                )
                self._receive_cancelled.set()
                self._slot_freed.set()
                continue
            await self._backend.clock.sleep(_RETRY_PAUSE)

    async def _check_cancel(self, attempt: Attempt) -> None:
        row = await self._backend.ledger.get_task(attempt.task_id)
        if row is not None and row.cancel is not None:
            attempt.stop(AttemptStopReason.CANCELLED)

    async def _drain(self) -> None:
        if self._handling:
            grace = self._policy.drain_grace
            everything = asyncio.gather(*self._handling, return_exceptions=True)
            async with race(self._backend.clock.sleep(grace), everything):
                self.release_all()
            await everything

    def release_all(self) -> None:
        """Release running attempts at once, and those that are just being claimed."""
        self._releasing = True
        for attempt in self._running:
            attempt.stop(AttemptStopReason.DRAINED)
