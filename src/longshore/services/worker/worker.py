"""The worker: claims tasks from its source, renews their leases and runs their attempts.

It never claims more tasks than it has free slots, and refills a slot as soon as it is free. One
loop renews all leases together. Stopping has two steps: no new work and a grace period for running
attempts, then the rest is released at once, so that another worker can claim it within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from longshore.core.tasks import commands as c
from longshore.errors import BackendUnavailable, NotFound
from longshore.ports.child_slots import runs_in_slot
from longshore.ports.task_source import (
    Applied,
    ClaimedTask,
    DefinitionVersion,
    LeaseCommand,
)
from longshore.services.resilience import log_and_continue, race
from longshore.services.worker.attempt import Attempt
from longshore.services.worker.attempt_specs import read_definition
from longshore.services.worker.context import AttemptStopReason, WorkerContext
from longshore.services.worker.outcomes import failed_before_start
from longshore.services.worker.slot_tasks import NOT_BEGUN, SlotTasks
from longshore.services.worker.turns import TurnLoop

logger = logging.getLogger(__name__)

_RETRY_PAUSE = timedelta(seconds=1)
_COUNTS_EVERY = timedelta(minutes=1)
_SHORT_CALL = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPolicy:
    """The settings of a worker."""

    queues: tuple[str, ...] = ("default",)
    concurrency: int = 3
    poll_wait: timedelta = timedelta(seconds=20)
    drain_grace: timedelta = timedelta(seconds=30)


class Worker:
    """Runs tasks until ``stop``."""

    def __init__(self, context: WorkerContext, policy: WorkerPolicy) -> None:
        self._context = context
        self._policy = policy
        self._backend = context.backend
        self._turns = TurnLoop(
            context,
            self,
            queues=policy.queues,
            slots=policy.concurrency,
            poll_wait=policy.poll_wait,
        )
        self._slot_tasks: SlotTasks | None = None
        if context.make_slots is not None:
            self._slot_tasks = SlotTasks(
                context,
                context.make_slots,
                units=policy.concurrency,
                taken=lambda: self._taken,
                post=self._turns.post,
                on_change=self._turns.schedule,
            )
        self._running: dict[Attempt, None] = {}
        self._taken = 0  # units of tasks that are not in slots
        # A dict for its order: a simulation must cancel them in the same order each time.
        self._handling: dict[asyncio.Task[None], None] = {}
        self._woken_at: timedelta | None = None  # the last time
        self._stopping = asyncio.Event()
        self._counts: Counter[str] = Counter()  # ended attempts by the task's state

    @property
    def id(self) -> str:
        """The worker's id, as in its leases."""
        return self._context.worker_id

    @property
    def running(self) -> list[str]:
        """Ids of the tasks that run now."""
        in_slots = [] if self._slot_tasks is None else self._slot_tasks.task_ids
        return [attempt.task_id for attempt in self._running] + in_slots

    def stop(self) -> None:
        """Accept no more work, finish or release what runs, then let ``run`` return."""
        self._stopping.set()
        self._turns.stop_claims()
        if self._slot_tasks is not None:
            self._slot_tasks.release_unbegun()

    def cancel(self, task_id: str) -> None:
        """Stop the attempt of a task that was cancelled, if it runs here."""
        for attempt in self._running:
            if attempt.task_id == task_id:
                attempt.stop(AttemptStopReason.CANCELLED)
        if self._slot_tasks is not None:
            self._slot_tasks.stop(task_id, AttemptStopReason.CANCELLED)

    async def run(self) -> None:
        """Work until ``stop``; then drain."""
        self._context.worker_registry.register(self.id, self._policy.queues)
        logger.info("worker.serving", extra={"worker_id": self.id, "queues": self._policy.queues})
        keeping: list[asyncio.Future[None]] = []
        try:
            await self._open_runner()
            async with race(self._turns.join(), self._stopping.wait()):
                pass
            keeping += [
                asyncio.ensure_future(self._renew_leases()),
                asyncio.ensure_future(self._watch_wakeups()),
                asyncio.ensure_future(self._log_counts()),
            ]
            await self._stopping.wait()
            await self._turns.wait_for_claim()
            await self._drain()
        finally:
            # After a drain nothing is left; if ``run`` is cancelled, no child may be left either.
            ending = [*keeping, *self._handling]
            for future in ending:
                future.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            if self._slot_tasks is not None:
                await self._slot_tasks.close()
            await self._turns.close()
            await self._context.runner.close()
        self._context.worker_registry.deregister(self.id)
        logger.info("worker.stopped", extra={"worker_id": self.id})

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

    # Claimed tasks ------------------------------------------------------------------------------

    def on_claimed(self, claimed: Sequence[ClaimedTask], sent_at: timedelta) -> int:
        """See ``TurnObserver``."""
        start = self._lease_start(claimed, sent_at)
        return sum([self._begin(task, start) for task in claimed])

    def _begin(self, task: ClaimedTask, start: timedelta) -> bool:
        """Begin a claimed task. Returns whether it uses a slot until it is handled."""
        slot_tasks = self._slot_tasks
        if slot_tasks is not None and not self._stopping.is_set():
            definition = self._context.definition_cache.get(task.definition)
            if definition is not None and runs_in_slot(definition):
                slot_tasks.add(task, definition, start)
                if self._woken_since(start):
                    self._handle(self._check_claimed_in_slot(task.task_id))
                    return True
                return False
            if definition is None:
                self._taken += 1
                self._handle(self._route(task, start))
                return True
        self._taken += 1
        self._handle(self._run_attempt(task, start, has_unit=self._has_unit()))
        return True

    @property
    def busy_elsewhere(self) -> int:
        """See ``TurnObserver``."""
        return 0 if self._slot_tasks is None else self._slot_tasks.busy

    def ahead(self, free: int) -> Mapping[DefinitionVersion, int]:
        """See ``TurnObserver``."""
        return {} if self._slot_tasks is None else self._slot_tasks.ahead(free)

    def may_gather(self) -> bool:
        """See ``TurnObserver``."""
        return self._slot_tasks is not None and self._slot_tasks.may_gather()

    async def _route(self, task: ClaimedTask, start: timedelta) -> None:
        """Run the first task of a version of a definition, which is read and kept."""
        try:
            definition = await self._context.transitions.retry_unavailable(
                lambda: read_definition(self._context, task.row)
            )
        except Exception as error:  # noqa: BLE001 - no error may end the worker
            self._taken -= 1
            await self._fail_unread(task, error)
            return
        if not runs_in_slot(definition) or self._slot_tasks is None:
            await self._run_attempt(task, start, has_unit=self._has_unit())
            return
        self._taken -= 1
        self._slot_tasks.add(task, definition, start)
        if self._stopping.is_set():
            self._slot_tasks.stop(task.task_id, AttemptStopReason.DRAINED)
        elif self._woken_since(start):
            await self._check_claimed_in_slot(task.task_id)

    async def _fail_unread(self, task: ClaimedTask, error: Exception) -> None:
        """End an attempt whose definition cannot be read.

        The runner must not start it: what can run in a slot and is not in the record of the slots
        counts as not begun.
        """
        if not isinstance(error, NotFound | BackendUnavailable):
            logger.error("attempt.failed", extra={"task_id": task.task_id}, exc_info=error)
        command = c.AttemptFailed(
            fence=task.fence,
            failure=failed_before_start(error),
            jitter=self._context.jitter(),
            duration=timedelta(0),
        )
        await self._end_unbegun(task, command)

    async def _end_unbegun(self, task: ClaimedTask, command: c.FencedCommand) -> None:
        change_id = self._context.transitions.new_id()
        answer = await self._turns.send(LeaseCommand(task.task_id, command, change_id))
        if not isinstance(answer, Applied):
            extra = {"task_id": task.task_id, "why": str(answer)}
            logger.warning("outcome.refused", extra=extra)

    async def _check_claimed_in_slot(self, task_id: str) -> None:
        """A wake-up may have been for this task, before it was listed as running."""
        with log_and_continue(logger, "wakeup.failed", unavailable="wakeup.unavailable"):
            await self._check_cancel(task_id)

    def _handle(self, work: Coroutine[Any, Any, None]) -> None:
        handling = asyncio.ensure_future(work)
        self._handling[handling] = None
        handling.add_done_callback(self._on_handled)

    def _woken_since(self, start: timedelta) -> bool:
        return self._woken_at is not None and self._woken_at >= start

    def _lease_start(self, claimed: Sequence[ClaimedTask], sent_at: timedelta) -> timedelta:
        """Returns a moment that is not later than the start of a lease, by the worker's clock.

        The call may have waited long before it claimed. How long ago the lease began is measured
        by clocks that differ by the skew margin at most, which the trust in a lease leaves out.
        """
        clock = self._backend.clock
        now = clock.elapsed()
        if now - sent_at < _SHORT_CALL or not claimed:
            return sent_at
        age = clock.now() - min(task.leased_at for task in claimed)
        return max(sent_at, now - max(age, timedelta(0)))

    def _on_handled(self, handling: asyncio.Task[None]) -> None:
        self._handling.pop(handling, None)
        self._turns.slot_freed()
        if self._slot_tasks is not None:
            self._slot_tasks.unit_freed()

    def _has_unit(self) -> bool:
        """Whether the attempt that was added last has a unit.

        Tasks claimed ahead for a busy slot may have begun in an idle one, whose unit the source
        gave away again meanwhile. An attempt whose outcome is being reported has freed its unit:
        the turn that commits the outcome claims the next task.
        """
        in_slots = 0 if self._slot_tasks is None else self._slot_tasks.busy_slots
        ended = sum(attempt.has_ended for attempt in self._running)
        return self._taken - ended + in_slots <= self._policy.concurrency

    async def _run_attempt(self, task: ClaimedTask, start: timedelta, *, has_unit: bool) -> None:
        """Run an attempt; no error may end the worker."""
        if not has_unit:
            self._taken -= 1
            await self._end_unbegun(
                task, c.Release(fence=task.fence, reason=NOT_BEGUN, due_at=task.due_at)
            )
            return
        attempt = Attempt(
            self._context,
            task.row,
            start,
            self._turns.send,
            due_at=task.due_at,
        )
        self._running[attempt] = None
        if self._stopping.is_set():
            # It has not begun: another worker can begin it now.
            attempt.stop(AttemptStopReason.DRAINED)
        try:
            if self._woken_since(start):
                # A wake-up may have been for this task, before it was listed as running.
                with contextlib.suppress(BackendUnavailable):
                    await self._check_cancel(attempt.task_id)
            await attempt.run()
        except BackendUnavailable as error:
            extra = {"task_id": attempt.task_id, "error": str(error)}
            logger.warning("attempt.not_reported", extra=extra)
        except Exception:
            logger.exception("attempt.crashed", extra={"task_id": attempt.task_id})
        finally:
            del self._running[attempt]
            self._taken -= 1
            self._counts[attempt.row.state.value] += 1

    async def on_gone(self) -> None:
        """Stop all attempts: others may run their tasks. Returns when all of them have ended."""
        for attempt in self._running:
            attempt.stop(AttemptStopReason.FENCED)
        if self._slot_tasks is not None:
            self._slot_tasks.stop_all(AttemptStopReason.FENCED)
        await self._wait_for_attempts()

    # Leases -------------------------------------------------------------------------------------

    async def _renew_leases(self) -> None:
        """Renew all leases together, at a steady pace."""
        pause = self._context.lease.renew_every
        while True:
            await self._backend.clock.sleep(pause)
            try:
                if self._slot_tasks is not None:
                    self._slot_tasks.renew()
                renewed = all(await asyncio.gather(*(attempt.renew() for attempt in self._running)))
            except Exception:  # no error may end the loop: every child would have to be killed
                logger.exception("renewal.crashed")
                renewed = False
            # A failed renewal is repeated soon: the child may run only while the lease is trusted.
            every = self._context.lease.renew_every
            pause = every if renewed else every / 8

    async def _watch_wakeups(self) -> None:
        while True:
            # No error may end the loop: cancellations would be late. After an outage, the next
            # renewal reads the same.
            with log_and_continue(logger, "wakeup.failed", unavailable="wakeup.unavailable"):
                await self._backend.ledger.wait_for_wake(self.id)
                self._woken_at = self._backend.clock.elapsed()
                for task_id in self.running:
                    await self._check_cancel(task_id)
                continue
            await self._backend.clock.sleep(_RETRY_PAUSE)

    async def _check_cancel(self, task_id: str) -> None:
        row = await self._backend.ledger.get_task(task_id)
        if row is not None and row.cancel is not None:
            self.cancel(task_id)

    async def _log_counts(self) -> None:
        while True:
            await self._backend.clock.sleep(_COUNTS_EVERY)
            if self._slot_tasks is not None and self._slot_tasks.reported:
                self._counts["in_slots"] += self._slot_tasks.reported
                self._slot_tasks.reported = 0
            if self._counts:
                extra = {"worker_id": self.id, "running": len(self._running), **self._counts}
                logger.info("worker.attempts_ended", extra=extra)
                self._counts.clear()

    # The end ------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        async with race(
            self._backend.clock.sleep(self._policy.drain_grace), self._wait_for_attempts()
        ):
            self.release_all()
        await self._wait_for_attempts()

    async def _wait_for_attempts(self) -> None:
        # A turn that was under way may have claimed tasks with the outcomes that it carried.
        while self._handling:
            await asyncio.wait(self._handling)
        if self._slot_tasks is not None:
            await self._slot_tasks.wait_until_empty()

    def release_all(self) -> None:
        """Release running attempts at once, and those that are just being claimed."""
        for attempt in self._running:
            attempt.stop(AttemptStopReason.DRAINED)
        if self._slot_tasks is not None:
            self._slot_tasks.stop_all(AttemptStopReason.DRAINED)

    def kill_children(self) -> None:
        """Kill running attempts without a grace period."""
        self._context.worker_registry.reap(self.id)
        if self._slot_tasks is not None:
            self._slot_tasks.kill_children()
