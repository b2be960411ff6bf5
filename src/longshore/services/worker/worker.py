"""The worker: takes messages, claims tasks, keeps their leases, sees their attempts to the end.

It never takes more messages than it has free slots, and refills a slot as soon as it is free. One
loop renews all leases together. A paused queue is not asked for work, and what runs goes on.
Stopping is in two steps: no new work and a grace period for what runs, then whatever is left is
released at once, so that another worker has it in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from datetime import timedelta

from longshore.core import commands as c
from longshore.core.events.event import Context
from longshore.core.events.types import MessageRejected
from longshore.core.judgement import Verdict, judge
from longshore.core.messages import Malformed, task_named_in
from longshore.core.rows import TaskRow
from longshore.errors import (
    BackendUnavailable,
    CommandRefused,
    LongshoreError,
    NotFound,
    ReceiptExpired,
)
from longshore.ports.queue import Message
from longshore.services.edges import stepped_over
from longshore.services.worker.attempt import Attempt
from longshore.services.worker.tools import Stop, Tools

logger = logging.getLogger(__name__)

_LOOKS = 3
_AFTER_TROUBLE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPolicy:
    """What a worker may be told."""

    queues: tuple[str, ...] = ("default",)
    concurrency: int = 3
    poll_wait: timedelta = timedelta(seconds=20)
    drain_grace: timedelta = timedelta(seconds=30)
    tenant: str = "default"
    app: str = "longshore"


class Worker:
    """Runs tasks until it is told to stop."""

    def __init__(self, tools: Tools, policy: WorkerPolicy) -> None:
        self._tools = tools
        self._policy = policy
        self._backend = tools.backend
        self._running: dict[Attempt, str] = {}  # with the receipt of its message
        self._handling: set[asyncio.Task[None]] = set()
        self._nudges = 0  # how often this worker was nudged
        self._giving_back = False
        self._paused: frozenset[str] | None = None  # of its queues; None: that is not known yet
        self._stopping = asyncio.Event()
        self._slot_freed = asyncio.Event()
        self._called_off = asyncio.Event()  # what is asked of the queues is no longer wanted

    @property
    def id(self) -> str:
        """The name by which leases know this worker."""
        return self._tools.worker_id

    @property
    def running(self) -> list[str]:
        """Ids of the tasks at work now."""
        return [attempt.task_id for attempt in self._running]

    def stop(self) -> None:
        """Take no more work, finish or give back what runs, then let ``run`` return."""
        self._stopping.set()
        self._slot_freed.set()
        self._called_off.set()

    def cancel(self, task_id: str) -> None:
        """A task that runs here is cancelled: end its attempt now."""
        for attempt in self._running:
            if attempt.task_id == task_id:
                attempt.end(Stop.CANCELLED)

    async def run(self) -> None:
        """Work until ``stop``; then drain."""
        self._tools.presence.appear(self.id, self._policy.queues)
        keeping = [
            asyncio.ensure_future(self._keep_leases()),
            asyncio.ensure_future(self._listen_for_nudges()),
            asyncio.ensure_future(self._listen_for_pauses()),
        ]
        try:
            await self._get_ready()
            await self._take_work()
            await self._drain()
        finally:
            # Nothing is left after a drain; when this is cancelled, no child may be.
            ending = [*keeping, *self._handling]
            for one in ending:
                one.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            await self._tools.runner.close()
        self._tools.presence.leave(self.id)

    async def _get_ready(self) -> None:
        try:
            await self._tools.runner.open()
        except BackendUnavailable as error:
            # The first child to be started tries again.
            logger.warning("runner.unavailable", extra={"error": str(error)})
        except Exception:
            # It never took anything: nobody has to bury it.
            self._tools.presence.leave(self.id)
            raise

    async def _take_work(self) -> None:
        while not self._stopping.is_set():
            free = self._policy.concurrency - len(self._handling)
            if free <= 0 or not self._served:
                self._slot_freed.clear()
                await self._slot_freed.wait()
                continue
            try:
                messages = await self._receive(free)
            except BackendUnavailable as error:
                logger.warning("queue.unavailable", extra={"error": str(error)})
                await self._backend.clock.sleep(_AFTER_TROUBLE)
                continue
            except Exception:  # the edge: what runs here must not end for it
                logger.exception("queue.broken")
                await self._backend.clock.sleep(_AFTER_TROUBLE)
                continue
            for message in messages:
                if self._stopping.is_set() or message.queue not in self._served:
                    await self._give_back(message)
                else:
                    self._begin(message)

    @property
    def _served(self) -> tuple[str, ...]:
        """The queues to ask for work: none before it is known which of them are paused."""
        paused = self._policy.queues if self._paused is None else self._paused
        return tuple(queue for queue in self._policy.queues if queue not in paused)

    async def _receive(self, limit: int) -> list[Message]:
        """Messages, or none as soon as the worker is told to stop, or a queue paused or resumed."""
        self._called_off.clear()
        receiving = asyncio.ensure_future(
            self._backend.queue.receive(
                self._served,
                limit=limit,
                hidden_for=self._tools.lease.extend_by,
                wait=self._policy.poll_wait,
            )
        )
        called_off = asyncio.ensure_future(self._called_off.wait())
        try:
            await asyncio.wait((receiving, called_off), return_when=asyncio.FIRST_COMPLETED)
        finally:
            called_off.cancel()
            if not receiving.done():
                # The queue gives back what it had taken for us.
                receiving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await receiving
        return []

    async def _give_back(self, message: Message) -> None:
        # If it cannot be given back, it is seen again all the same, only later.
        with (
            stepped_over(logger, "message.kept", message_id=message.id),
            contextlib.suppress(ReceiptExpired, BackendUnavailable),
        ):
            await self._backend.queue.put_off(message.receipt, until=self._backend.clock.now())

    def _begin(self, message: Message) -> None:
        handling = asyncio.ensure_future(self._handle(message))
        self._handling.add(handling)
        handling.add_done_callback(self._done)

    def _done(self, handling: asyncio.Task[None]) -> None:
        self._handling.discard(handling)
        self._slot_freed.set()

    async def _handle(self, message: Message) -> None:
        """The edge of one message: whatever goes wrong here must not end the worker."""
        try:
            await self._look(message)
        except ReceiptExpired:
            logger.debug("message.taken_again", extra={"message_id": message.id})
        except LongshoreError as error:
            logger.warning("message.left", extra={"message_id": message.id, "error": str(error)})
        except Exception:  # the worker's loop is the edge of the process
            logger.exception("message.failed", extra={"message_id": message.id})

    async def _look(self, message: Message) -> None:
        task_id = task_named_in(message.body)
        if isinstance(task_id, Malformed):
            await self._reject(message, task_id.reason, task_id.excerpt)
            return
        for _ in range(_LOOKS):
            row = await self._backend.ledger.task(task_id)
            if not await self._act(message, task_id, row):
                return

    async def _act(self, message: Message, task_id: str, row: TaskRow | None) -> bool:
        """Do what the row says; whether to look again."""
        margin = self._tools.lease.skew_margin
        judgement = judge(row, now=self._backend.clock.now(), margin=margin)
        match judgement.verdict:
            case Verdict.UNKNOWN:
                await self._reject(message, f"there is no task {task_id!r}", None)
            case Verdict.DROP:
                await self._backend.queue.delete([message.receipt])
            case Verdict.LATER:
                until = judgement.until or self._backend.clock.now()
                await self._backend.queue.put_off(message.receipt, until=until)
            case Verdict.TAKE_OVER:
                return await self._take_over(row)
            case Verdict.RUN:
                return await self._claim_and_run(message, row)
        return False

    async def _take_over(self, row: TaskRow | None) -> bool:
        if row is not None and row.lease is not None:
            margin = self._tools.lease.skew_margin
            command = c.LeaseEnded(fence=row.lease.fence, margin=margin)
            with contextlib.suppress(CommandRefused):
                await self._tools.transitions.task(row.id, command)
        return True

    async def _claim_and_run(self, message: Message, row: TaskRow | None) -> bool:
        if row is None or self._stopping.is_set():
            await self._give_back(message)
            return False
        sent_at, nudges = self._backend.clock.elapsed(), self._nudges
        claim = c.Claim(
            worker_id=self.id,
            process_id=self._tools.process_id,
            lasts=self._tools.lease.lasts,
            epoch=self._backend.ledger.epoch,
        )
        try:
            claimed = await self._tools.transitions.task(row.id, claim, row=row)
        except (CommandRefused, NotFound):
            return True  # somebody was faster
        attempt = Attempt(self._tools, claimed, sent_at)
        await self._run(attempt, message, nudged=self._nudges != nudges)
        if not attempt.row.state.terminal and attempt.row.lease is not None:
            return False  # fenced off: the message belongs to whoever takes over
        await self._backend.queue.delete([message.receipt])
        return False

    async def _run(self, attempt: Attempt, message: Message, *, nudged: bool) -> None:
        self._running[attempt] = message.receipt
        if self._giving_back:
            attempt.end(Stop.DRAINED)
        try:
            if nudged:
                # The nudge may have been for this task, which was not yet known to run here.
                with contextlib.suppress(BackendUnavailable):
                    await self._look_for_cancel(attempt)
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
            context=Context(origin="worker", worker_id=self.id),
            now=self._backend.clock.now(),
        )
        await self._backend.queue.delete([message.receipt])

    async def _keep_leases(self) -> None:
        """Renew everything that runs, together, at a steady pace."""
        pause = self._tools.lease.renew_every
        while True:
            await self._backend.clock.sleep(pause)
            try:
                kept = await self._renew_all()
            except Exception:  # the edge: without this loop every child would have to be killed
                logger.exception("renewal.broken")
                kept = False
            # A renewal that failed is tried again soon: the child's time runs out.
            pause = self._tools.lease.renew_every if kept else self._tools.lease.renew_every / 8

    async def _renew_all(self) -> bool:
        running = dict(self._running)
        if not running:
            return True
        kept = await asyncio.gather(*(attempt.renew() for attempt in running))
        with contextlib.suppress(BackendUnavailable):
            receipts = list(running.values())
            await self._backend.queue.extend(receipts, hidden_for=self._tools.lease.extend_by)
        return all(kept)

    async def _listen_for_nudges(self) -> None:
        while True:
            try:
                await self._backend.ledger.nudged(self.id)
                self._nudges += 1
                for attempt in list(self._running):
                    await self._look_for_cancel(attempt)
            except BackendUnavailable as error:
                # The next renewal brings the same news.
                logger.warning("nudge.unavailable", extra={"error": str(error)})
                await self._backend.clock.sleep(_AFTER_TROUBLE)
            except Exception:  # the edge: without this loop nobody hears of a cancel at once
                logger.exception("nudge.broken")
                await self._backend.clock.sleep(_AFTER_TROUBLE)

    async def _listen_for_pauses(self) -> None:
        while True:
            try:
                self._paused = await self._backend.queues.paused_of(
                    self._policy.queues, other_than=self._paused
                )
                self._called_off.set()
                self._slot_freed.set()
            except BackendUnavailable as error:
                logger.warning("pauses.unavailable", extra={"error": str(error)})
                await self._backend.clock.sleep(_AFTER_TROUBLE)
            except Exception:  # the edge: without this loop a resumed queue is never served again
                logger.exception("pauses.broken")
                await self._backend.clock.sleep(_AFTER_TROUBLE)

    async def _look_for_cancel(self, attempt: Attempt) -> None:
        row = await self._backend.ledger.task(attempt.task_id)
        if row is not None and row.cancel is not None:
            attempt.end(Stop.CANCELLED)

    async def _drain(self) -> None:
        if self._handling:
            grace = self._policy.drain_grace
            waiting = asyncio.ensure_future(self._backend.clock.sleep(grace))
            everything = asyncio.gather(*self._handling, return_exceptions=True)
            await asyncio.wait((waiting, everything), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            self.end_all()
            await everything

    def end_all(self) -> None:
        """Give back at once whatever still runs, and what is just being claimed."""
        self._giving_back = True
        for attempt in self._running:
            attempt.end(Stop.DRAINED)
