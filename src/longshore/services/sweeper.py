"""The sweeper: finds what crashes left behind, from rows alone, and mends it.

Every worker runs one. Two sweepers at once do no harm: each repair is a commit that only one can
win. Whatever is found is counted and told, because a repair that nobody sees hides a fault.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.core import task as tasks
from longshore.core.changes import Refusal
from longshore.core.commands import LeaseEnded, RingAgain
from longshore.core.rows import Intent, IntentKind, JobRow
from longshore.errors import (
    BackendUnavailable,
    CommandRefused,
    NotFound,
    UsageError,
    VersionConflict,
)
from longshore.ports.backend import Backend
from longshore.ports.ledger import HeldTask
from longshore.ports.presence import Presence
from longshore.services.producer import Producer
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SweeperPolicy:
    """How patient the sweeper is."""

    every: timedelta = timedelta(seconds=60)
    look_for_dead_every: timedelta = timedelta(milliseconds=500)
    skew_margin: timedelta = timedelta(seconds=2)
    ring_again_after: timedelta = timedelta(seconds=60)


@dataclass(slots=True)
class Repairs:
    """How much was mended."""

    leases_ended: int = 0
    rung_again: int = 0
    intents_finished: int = 0

    def __bool__(self) -> bool:
        return bool(self.leases_ended or self.rung_again or self.intents_finished)


class Sweeper:
    """Mends what crashes leave behind."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        producer: Producer,
        presence: Presence,
        policy: SweeperPolicy,
    ) -> None:
        self._backend = backend
        self._transitions = transitions
        self._producer = producer
        self._presence = presence
        self._policy = policy
        self.repairs = Repairs()

    async def run(self) -> None:
        """Sweep at a steady pace, and at a quicker one for workers that died; until cancelled."""
        clock = self._backend.clock
        next_sweep = clock.elapsed()
        while True:
            try:
                if clock.elapsed() >= next_sweep:
                    await self.sweep()
                    next_sweep = clock.elapsed() + self._policy.every
                else:
                    await self.bury_the_dead()
            except BackendUnavailable as error:
                logger.warning("sweep.unavailable", extra={"error": str(error)})
            await clock.sleep(min(self._policy.look_for_dead_every, self._policy.every))

    async def sweep(self) -> Repairs:
        """Mend everything that can be found now; returns what this call mended."""
        before, self.repairs = self.repairs, Repairs()
        await self.bury_the_dead()
        await self._end_silent_leases()
        await self._ring_again()
        await self._finish_intents()
        done, self.repairs = self.repairs, before
        before.leases_ended += done.leases_ended
        before.rung_again += done.rung_again
        before.intents_finished += done.intents_finished
        if done:
            logger.warning("sweep.repaired", extra={"repairs": str(done)})
        return done

    async def bury_the_dead(self) -> None:
        """End the leases of workers on this machine whose process is known to be gone."""
        absent = self._presence.absent()
        if not absent:
            return
        held = await self._backend.ledger.held(limit=_AT_ONCE)
        for worker_id in absent:
            # What is left of its attempts must be dead before anybody else may start them.
            self._presence.clear(worker_id)
            for task in held:
                if task.worker_id == worker_id:
                    await self._end(task, holder_gone=True)
            if len(held) < _AT_ONCE:
                self._presence.leave(worker_id)

    async def _end_silent_leases(self) -> None:
        mended = _AT_ONCE
        while mended == _AT_ONCE:
            over_by = self._backend.clock.now() - self._policy.skew_margin
            found = await self._backend.ledger.held(limit=_AT_ONCE, expired_by=over_by)
            mended = sum([await self._end(task, holder_gone=False) for task in found])

    async def _end(self, task: HeldTask, *, holder_gone: bool) -> bool:
        command = LeaseEnded(
            fence=task.fence, margin=self._policy.skew_margin, holder_gone=holder_gone
        )
        try:
            await self._transitions.task(task.task_id, command)
        except (CommandRefused, NotFound):
            return False  # it moved on by itself
        self.repairs.leases_ended += 1
        extra = {"task_id": task.task_id, "worker_id": task.worker_id, "gone": holder_gone}
        logger.warning("lease.ended_for_silent_worker", extra=extra)
        return True

    async def _ring_again(self) -> None:
        mended = _AT_ONCE
        while mended == _AT_ONCE:
            now = self._backend.clock.now()
            rung_before = now - self._policy.ring_again_after
            unrung = await self._backend.ledger.unrung(
                due_by=now, rung_before=rung_before, limit=_AT_ONCE
            )
            mended = sum([await self._ring(task_id, rung_before) for task_id in unrung])

    async def _ring(self, task_id: str, rung_before: datetime) -> bool:
        row = await self._backend.ledger.task(task_id)
        if row is None or (row.rung_at is not None and row.rung_at >= rung_before):
            return False
        now, change_id = self._backend.clock.now(), self._transitions.new_id()
        change = tasks.apply(row, RingAgain(), now=now, change_id=change_id)
        if isinstance(change, Refusal):
            return False
        try:
            await self._transitions.commit(change)
        except VersionConflict:
            return False  # it was taken, or somebody else has rung
        self.repairs.rung_again += 1
        return True

    async def _finish_intents(self) -> None:
        for job_id in await self._backend.ledger.open_intents(limit=_AT_ONCE):
            job = await self._backend.ledger.job(job_id)
            for intent in job.intents if job is not None else ():
                if job is not None and intent.kind is IntentKind.CREATE:
                    await self._finish_creating(job, intent)

    async def _finish_creating(self, job: JobRow, intent: Intent) -> None:
        try:
            if await self._producer.finish_creating(job, intent):
                self.repairs.intents_finished += 1
        except (UsageError, NotFound):
            # One job that cannot be mended must not keep all others from it.
            extra = {"job_id": job.id, "intent": intent.kind.value}
            logger.exception("intent.stuck", extra=extra)
