"""The worker: claims tasks from its source, renews their leases and runs their attempts.

It never claims more tasks than it has free slots, and refills a slot as soon as it is free. One
loop renews all leases together. Stopping has two steps: no new work and a grace period for running
attempts, then the rest is released at once, so that another worker can claim it within seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from longshore.core.claims import DefinitionVersion
from longshore.errors import BackendUnavailable
from longshore.ports.task_source import ClaimedTask
from longshore.services.resilience import log_and_continue, race
from longshore.services.worker.attempts import Attempts
from longshore.services.worker.context import AttemptStopReason, WorkerContext
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
        self._attempts = Attempts(
            context,
            units=policy.concurrency,
            post=self._turns.post,
            on_change=self._turns.schedule,
        )
        # A dict for its order: a simulation must cancel them in the same order each time.
        self._checking: dict[asyncio.Task[None], None] = {}
        self._woken_at: timedelta | None = None  # the last time
        self._stopping = asyncio.Event()

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
        self._turns.stop_claims()
        self._attempts.release_unbegun()

    def cancel(self, task_id: str) -> None:
        """Stop the attempt of a task that was cancelled, if it runs here."""
        self._attempts.stop(task_id, AttemptStopReason.CANCELLED)

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
            ending = [*keeping, *self._checking]
            for future in ending:
                future.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            await self._attempts.close()
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

    def on_claimed(self, claimed: Sequence[ClaimedTask], sent_at: timedelta) -> None:
        """See ``TurnObserver``."""
        start = self._lease_start(claimed, sent_at)
        for task in claimed:
            self._attempts.add(task, start)
        if self._woken_at is not None and self._woken_at >= start:
            # A wake-up may have been for these tasks, before they were listed as running.
            checking = asyncio.ensure_future(self._check_claimed(claimed))
            self._checking[checking] = None
            checking.add_done_callback(lambda done: self._checking.pop(done, None))

    @property
    def busy(self) -> int:
        """See ``TurnObserver``."""
        return self._attempts.busy

    def ahead(self, free: int) -> Mapping[DefinitionVersion, int]:
        """See ``TurnObserver``."""
        return self._attempts.ahead(free)

    def may_gather(self) -> bool:
        """See ``TurnObserver``."""
        return self._attempts.may_gather()

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

    async def on_gone(self) -> None:
        """Stop all attempts: others may run their tasks. Returns when all of them have ended."""
        self._attempts.stop_all(AttemptStopReason.FENCED)
        await self._attempts.wait_until_empty()

    # Leases -------------------------------------------------------------------------------------

    async def _renew_leases(self) -> None:
        """Renew all leases together, at a steady pace."""
        pause = self._context.lease.renew_every
        while True:
            await self._backend.clock.sleep(pause)
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
                self._woken_at = self._backend.clock.elapsed()
                await self._check_cancels(self.running)
                continue
            await self._backend.clock.sleep(_RETRY_PAUSE)

    async def _check_claimed(self, claimed: Sequence[ClaimedTask]) -> None:
        with log_and_continue(logger, "wakeup.failed", unavailable="wakeup.unavailable"):
            await self._check_cancels([task.task_id for task in claimed])

    async def _check_cancels(self, task_ids: Sequence[str]) -> None:
        for task_id in task_ids:
            row = await self._backend.ledger.get_task(task_id)
            if row is not None and row.cancel is not None:
                self.cancel(task_id)

    async def _log_counts(self) -> None:
        while True:
            await self._backend.clock.sleep(_COUNTS_EVERY)
            ended = self._attempts.ended
            if ended:
                counts = {command.__name__: count for command, count in ended.items()}
                extra = {"worker_id": self.id, "running": len(self.running), **counts}
                logger.info("worker.attempts_ended", extra=extra)
                ended.clear()

    # The end ------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        async with race(
            self._backend.clock.sleep(self._policy.drain_grace), self._attempts.wait_until_empty()
        ):
            self.release_all()
        await self._attempts.wait_until_empty()

    def release_all(self) -> None:
        """Release running attempts at once, and those that are just being claimed."""
        self._attempts.stop_all(AttemptStopReason.DRAINED)

    def kill_children(self) -> None:
        """Kill running attempts without a grace period."""
        self._attempts.kill_children()
