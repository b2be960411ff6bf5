"""The worker: claims tasks from its source, renews their leases and runs their attempts.

It never claims more tasks than it has free slots, and refills a slot as soon as it is free. What to
send to the source and when is decided by ``core.turns.TurnPlanner``; here it is carried out. A turn
whose answer is lost is repeated with its id, so that it is carried out once. Where that does not
succeed for as long as a lease lasts, its commands are answered with the error: what the turn may
have claimed has expired by then.

One loop renews all leases together. Stopping has two steps: no new work and a grace period for
running attempts, then the rest is released at once, so that another worker can claim it within
seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

from longshore.core.claims import Room
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Refusal, RefusalReason
from longshore.core.turns import TurnPlanner
from longshore.errors import BackendUnavailable, OutcomeUnknown, WorkerGone
from longshore.ports.runner import RunnerBroken
from longshore.ports.task_source import (
    Answer,
    ClaimedTask,
    LeaseCommand,
    Turn,
    WorkerInstance,
)
from longshore.services.resilience import log_and_continue, race
from longshore.services.worker.attempts import Attempts
from longshore.services.worker.context import AttemptStopReason, WorkerContext

logger = logging.getLogger(__name__)

_RETRY_PAUSE = timedelta(seconds=1)
_FIRST_PAUSE = timedelta(milliseconds=50)
_COUNTS_EVERY = timedelta(minutes=1)
_SHORT_CALL = timedelta(seconds=1)
_GATHER = timedelta(milliseconds=2)
"""How long a command may wait for others while the children have enough to do."""

ResultT = TypeVar("ResultT")

OnAnswer = Callable[[Answer], None]
Waiting = tuple[LeaseCommand, OnAnswer]
"""A command, and who waits for its answer."""


class Worker:
    """Runs tasks until ``stop``."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._backend = context.backend
        self._clock = context.backend.clock
        self._source = context.source
        self._attempts = Attempts(
            context,
            units=context.concurrency,
            post=self._post,
            on_change=self._schedule,
            on_broken=self._end_broken,
        )
        self._planner = TurnPlanner(
            slots=context.concurrency, claims_with_commands=self._source.claims_with_commands
        )
        self._instance = WorkerInstance(
            worker_id=context.worker_id,
            queues=context.queues,
            process_id=context.process_id,
            lease_duration=context.lease.duration,
        )
        self._gone: WorkerInstance | None = None  # whose leases were ended
        self._turn_numbers = count(1)
        self._waiting: list[Waiting] = []
        self._first_waits_since = timedelta(0)
        # A dict for its order: a simulation must cancel them in the same order each time.
        self._calls: dict[asyncio.Task[None], None] = {}
        self._claim: asyncio.Task[None] | None = None
        self._scheduled: asyncio.Handle | None = None
        self._woken_at: timedelta | None = None  # the last time
        self._stopping = asyncio.Event()
        self._broken: RunnerBroken | None = None
        self._closed = False

    @property
    def id(self) -> str:
        """The worker's id, as in its leases."""
        return self._context.worker_id

    @property
    def running(self) -> list[str]:
        """Ids of the tasks that run now."""
        return self._attempts.task_ids

    def stop(self) -> None:
        """Accept no more work, finish or release what runs, then let ``run`` return."""
        self._stopping.set()
        self._planner.forbid_claims()
        self._act()
        self._attempts.release_unbegun()

    def cancel(self, task_id: str) -> None:
        """Stop the attempt of a task that was cancelled, if it runs here."""
        self._attempts.stop(task_id, AttemptStopReason.CANCELLED)

    def release_all(self) -> None:
        """Release running attempts at once, and those that are just being claimed."""
        self._attempts.stop_all(AttemptStopReason.DRAINED)

    def kill_children(self) -> None:
        """Kill running attempts without a grace period."""
        self._attempts.kill_children()

    def _end_broken(self, error: RunnerBroken) -> None:
        self._broken = error
        self.stop()

    async def run(self) -> None:
        """Work until ``stop``; then drain.

        Raises:
            RunnerBroken: no attempt can be started any more.
        """
        self._context.worker_registry.register(self.id, self._context.queues)
        logger.info("worker.serving", extra={"worker_id": self.id, "queues": self._context.queues})
        keeping: list[asyncio.Future[None]] = []
        try:
            await self._open_runner()
            async with race(self._join(), self._stopping.wait()):
                pass
            keeping += [
                asyncio.ensure_future(self._renew_leases()),
                asyncio.ensure_future(self._watch_wakeups()),
                asyncio.ensure_future(self._log_counts()),
            ]
            await self._stopping.wait()
            if self._claim is not None:
                # What is being claimed is handed over or released.
                await asyncio.gather(self._claim, return_exceptions=True)
            await self._drain()
        finally:
            # After a drain nothing is left; if ``run`` is cancelled, no child may be left either.
            await _cancel(keeping)
            await self._attempts.close()
            await self._leave()
            await self._context.runner.close()
        self._context.worker_registry.deregister(self.id)
        logger.info("worker.stopped", extra={"worker_id": self.id})
        if self._broken is not None:
            raise self._broken

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

    async def _drain(self) -> None:
        async with race(
            self._clock.sleep(self._context.drain_grace), self._attempts.wait_until_empty()
        ):
            self.release_all()
        await self._attempts.wait_until_empty()

    # The instance -------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Join the source as a new instance, as soon as that is possible; then claims begin."""
        while not self._stopping.is_set():
            with log_and_continue(logger, "join.failed", unavailable="join.unavailable"):
                self._instance = await self._source.join(self._instance)
                self._turn_numbers = count(1)
                if not self._stopping.is_set():
                    self._planner.allow_claims()
                    self._schedule()
                return
            await self._clock.sleep(_RETRY_PAUSE)

    def _on_gone(self, worker: WorkerInstance) -> None:
        if self._gone is not worker:
            self._gone = worker
            logger.warning("worker.gone", extra={"worker_id": worker.worker_id})
            self._planner.forbid_claims()
            self._start(self._join_again())

    async def _join_again(self) -> None:
        # Others may run the tasks, and no attempt of the old instance may be alive when the new one
        # claims its task.
        self._attempts.stop_all(AttemptStopReason.FENCED)
        await self._attempts.wait_until_empty()
        await self._join()

    async def _leave(self) -> None:
        """Cancel all calls and leave the source."""
        self._closed = True
        if self._scheduled is not None:
            self._scheduled.cancel()
        await _cancel(self._calls)
        if self._instance.number:
            with log_and_continue(logger, "leave.failed", unavailable="leave.unavailable"):
                await self._source.leave(self._instance)

    # What to send ---------------------------------------------------------------------------------
    def _post(self, command: LeaseCommand, on_answer: OnAnswer) -> None:
        """Send a command and call back with the source's answer."""
        if not self._waiting:
            self._first_waits_since = self._clock.elapsed()
        self._waiting.append((command, on_answer))
        self._schedule()

    def _schedule(self) -> None:
        """Act after the callbacks that are ready: commands that come together are sent together.

        To be called also when slots or room may have become free elsewhere.
        """
        if self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._act)

    def _gathers(self) -> bool:
        """Whether the commands that wait are held back for a moment, so that others join them."""
        if not self._waiting or self._stopping.is_set() or not self._attempts.may_gather():
            return False
        left = self._first_waits_since + _GATHER - self._clock.elapsed()
        if left <= timedelta(0):
            return False
        loop = asyncio.get_running_loop()
        self._scheduled = loop.call_later(left.total_seconds(), self._act)
        return True

    def _act(self) -> None:
        self._scheduled = None
        if self._closed or self._gathers():
            return
        busy, commands = self._attempts.busy, bool(self._waiting)
        decision = self._planner.decide(busy=busy, commands=commands)
        if decision.stop_claim and self._claim is not None:
            self._claim.cancel()
        if decision.turn_slots is not None:
            batch, self._waiting = deque(self._waiting), []
            self._start(self._run_turn(batch, decision.turn_slots))
        if decision.claim_slots:
            self._claim = self._start(self._run_claim(decision.claim_slots))

    def _start(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(call)
        self._calls[task] = None
        task.add_done_callback(lambda done: self._calls.pop(done, None))
        return task

    # Turns --------------------------------------------------------------------------------------

    async def _run_turn(self, batch: deque[Waiting], slots: int) -> None:
        try:
            await self._exchange(batch, slots)
        except BaseException as error:
            # No attempt may wait for ever. What was answered is no longer in the batch.
            for _, on_answer in batch:
                on_answer(BackendUnavailable(f"{type(error).__name__}: {error}"))
            if not isinstance(error, Exception):
                raise
            logger.exception("turn.failed")  # no error may end the worker
        self._planner.turn_ended()
        self._schedule()

    async def _exchange(self, batch: deque[Waiting], slots: int) -> None:
        """Carry out a turn and answer its batch, which is empty then."""
        worker = self._instance
        room = self._room(slots) if self._source.claims_with_commands else None
        commands = [command for command, _ in batch]
        turn_id = self._next_turn_id()
        try:
            turn, sent_at = await self._repeat(
                lambda: self._source.turn(worker, commands, turn_id=turn_id, room=room)
            )
        except WorkerGone as error:
            self._on_gone(worker)
            lost = Refusal(RefusalReason.LEASE_LOST, str(error))
            # Commands that end attempts are decided by their fence alone.
            for _ in commands:
                command, on_answer = batch.popleft()
                if isinstance(command.command, c.AttemptCommand):
                    batch.append((command, on_answer))
                else:
                    on_answer(lost)
            if batch:
                await self._exchange(batch, 0)
            return
        except BackendUnavailable as error:
            turn, sent_at = Turn((error,) * len(commands)), timedelta(0)
        for answer in turn.answers:
            batch.popleft()[1](answer)
        self._on_claimed(turn.claimed, sent_at)

    def _room(self, slots: int) -> Room | None:
        no_more = self._stopping.is_set() or self._gone is self._instance
        ahead = {} if no_more else self._attempts.ahead(slots)
        return Room(slots=slots, ahead=ahead) if slots or ahead else None

    # Claims -------------------------------------------------------------------------------------

    async def _run_claim(self, slots: int) -> None:
        try:
            await self._claim_tasks(slots)
        except asyncio.CancelledError:
            if self._closed:
                raise
        self._claim = None
        self._planner.claim_ended()
        self._schedule()

    async def _claim_tasks(self, slots: int) -> None:
        worker, turn_id = self._instance, self._next_turn_id()
        room, wait = self._room(slots) or Room(slots=slots), self._context.poll_wait
        try:
            claimed, sent_at = await self._repeat(
                lambda: self._source.claim(worker, room, turn_id=turn_id, wait=wait)
            )
        except WorkerGone:
            self._on_gone(worker)
        except BackendUnavailable:
            pass
        except Exception:  # no error may end the worker
            logger.exception("claim.failed")
            await self._clock.sleep(_RETRY_PAUSE)
        else:
            self._on_claimed(claimed, sent_at)

    # Both ---------------------------------------------------------------------------------------

    def _next_turn_id(self) -> str:
        """Returns an id that is greater, as text, than those of this instance before."""
        return f"{self._instance.number}.{next(self._turn_numbers):012d}"

    async def _repeat(self, call: Callable[[], Awaitable[ResultT]]) -> tuple[ResultT, timedelta]:
        """Repeat a call through an outage, for as long as a lease lasts.

        Returns the answer, and a moment that is not later than that of its first effect.
        """
        started = sent_at = self._clock.elapsed()
        pause, unknown = _FIRST_PAUSE, False
        while True:
            if not unknown:
                sent_at = self._clock.elapsed()
            try:
                return await call(), sent_at
            except BackendUnavailable as error:
                unknown = unknown or isinstance(error, OutcomeUnknown)
                logger.warning("source.unavailable", extra={"error": str(error)})
                if self._clock.elapsed() - started >= self._context.lease.duration:
                    raise
            await self._clock.sleep(pause)
            pause = min(2 * pause, _RETRY_PAUSE)

    # Claimed tasks ------------------------------------------------------------------------------

    def _on_claimed(self, claimed: Sequence[ClaimedTask], sent_at: timedelta) -> None:
        """Tasks were claimed by a call that was sent at this moment of the clock."""
        start = self._lease_start(claimed, sent_at)
        for task in claimed:
            self._attempts.add(task, start)
        if self._woken_at is not None and self._woken_at >= start:
            # A wake-up may have been for these tasks, before they were listed as running.
            self._start(self._check_cancels([task.task_id for task in claimed]))

    def _lease_start(self, claimed: Sequence[ClaimedTask], sent_at: timedelta) -> timedelta:
        """Returns a moment that is not later than the start of a lease, by the worker's clock.

        The call may have waited long before it claimed. How long ago the lease began is measured
        by clocks that differ by the skew margin at most, which the trust in a lease leaves out.
        """
        clock = self._clock
        now = clock.elapsed()
        if now - sent_at < _SHORT_CALL or not claimed:
            return sent_at
        age = clock.now() - min(task.leased_at for task in claimed)
        return max(sent_at, now - max(age, timedelta(0)))

    # Leases -------------------------------------------------------------------------------------

    async def _renew_leases(self) -> None:
        """Renew all leases together, at a steady pace."""
        pause = self._context.lease.renew_every
        while True:
            await self._clock.sleep(pause)
            renewed = await self._attempts.renew()
            # A failed renewal is repeated soon: the child may run only while the lease is trusted.
            every = self._context.lease.renew_every
            pause = every if renewed else every / 8

    async def _watch_wakeups(self) -> None:
        while True:
            # No error may end the loop: cancellations would be late. After an outage, the next
            # renewal reads the same.
            with log_and_continue(logger, "wakeup.failed", unavailable="wakeup.unavailable"):
                await self._backend.ledger.wait_for_wake(self.id)
                self._woken_at = self._clock.elapsed()
                await self._check_cancels(self.running)
                continue
            await self._clock.sleep(_RETRY_PAUSE)

    async def _check_cancels(self, task_ids: Sequence[str]) -> None:
        with log_and_continue(logger, "wakeup.failed", unavailable="wakeup.unavailable"):
            for task_id in task_ids:
                row = await self._backend.ledger.get_task(task_id)
                if row is not None and row.cancel is not None:
                    self.cancel(task_id)

    async def _log_counts(self) -> None:
        while True:
            await self._clock.sleep(_COUNTS_EVERY)
            ended = self._attempts.ended
            if ended:
                counts = {command.__name__: count for command, count in ended.items()}
                extra = {"worker_id": self.id, "running": len(self.running), **counts}
                logger.info("worker.attempts_ended", extra=extra)
                ended.clear()


async def _cancel(calls: Iterable[asyncio.Future[None]]) -> None:
    ending = list(calls)
    for call in ending:
        call.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
