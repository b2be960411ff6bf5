"""The sweeper: repairs what crashes left behind, from rows alone.

Every worker group has a sweeper, and one process of the machine has the role and sweeps. Two at
once would do no harm, because each repair is a commit that only one of them can win. Repairs are
counted and logged, because a silent repair would hide a fault.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from longshore.core.events.event import EventContext
from longshore.core.events.types import OperatorActed
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.commands import EnqueueAgain, LeaseEnded
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import TaskRow
from longshore.errors import NotFound, VersionConflict
from longshore.ports.backend import Backend
from longshore.ports.child_slots import runs_in_slot
from longshore.ports.clock import sleep_until_multiple
from longshore.ports.task_source import TaskSource
from longshore.ports.worker_registry import WorkerRegistry
from longshore.services.budgets import BudgetOperations
from longshore.services.dead_letters import DeadLetters
from longshore.services.dispatcher import Dispatcher
from longshore.services.reads import AT_ONCE, iter_pages, list_all, read_rows
from longshore.services.resilience import log_and_continue
from longshore.services.retention import JobRetention
from longshore.services.transitions import IntentFinisher, Transitions
from longshore.services.worker.attempt_specs import definition_of
from longshore.services.worker.attempts import slot_task_number

logger = logging.getLogger(__name__)

ROLE = "sweeper"

# A process without the role sweeps this many times less often, in case the other one hangs.
_STANDBY_FACTOR = 5


Repairs = Counter[str]
"""How many repairs were made, by kind."""


@dataclass(slots=True, kw_only=True)
class Sweeper:
    """Repairs what crashes leave behind.

    Args:
        lease_duration: Of a new lease: the longest time between two looks for ended leases.
        reenqueue_after: When a due task is enqueued again; then after twice that, and so on.
        settle_after: Leaves the dispatcher time to record an end.
        sweeps: False: only the dead workers of this machine are handled.
    """

    backend: Backend
    source: TaskSource
    transitions: Transitions
    dispatcher: Dispatcher
    dead_letters: DeadLetters
    budget_operations: BudgetOperations
    finish_intent: IntentFinisher
    retention: JobRetention
    worker_registry: WorkerRegistry
    tenant: str  # whose history gets the repairs of all tenants
    app: str
    every: timedelta = timedelta(seconds=60)
    dead_worker_check_every: timedelta = timedelta(milliseconds=500)
    skew_margin: timedelta = timedelta(seconds=2)
    lease_duration: timedelta = timedelta(seconds=45)
    reenqueue_after: timedelta = timedelta(seconds=60)
    settle_after: timedelta = timedelta(seconds=30)
    sweeps: bool = True
    repairs: Repairs = field(default_factory=Counter)
    _settle_from: timedelta = timedelta(0)
    _first_repair: int = 0

    async def run(self) -> None:
        """Sweep at a steady pace, and look for dead workers more often; until cancelled.

        The process with the role does this; when it ends, another takes over at once. Processes
        without the role sweep rarely, in case the one with the role hangs. All end leases as soon
        as they are over: the holder may be frozen, and with it the process with the role.
        """
        clock, every = self.backend.clock, self.every
        leads, next_sweep = False, clock.elapsed() + _STANDBY_FACTOR * every
        next_lease_end = clock.elapsed()
        while True:
            # No error may end the loop: without it nothing is repaired.
            with log_and_continue(logger, "sweep.failed", unavailable="sweep.unavailable"):
                if not leads and self.worker_registry.acquire_role(ROLE):
                    leads, next_sweep = True, clock.elapsed()
                    # The dispatcher has probably just started too, and catches up by itself.
                    self._settle_from = clock.elapsed() + self.settle_after
                if self.sweeps and clock.elapsed() >= next_sweep:
                    await self.sweep()
                    next_sweep = clock.elapsed() + (every if leads else _STANDBY_FACTOR * every)
                elif leads:
                    await self.reap_dead_workers()
                if self.sweeps and clock.elapsed() >= next_lease_end:
                    await self._end_silent_leases()
                    next_lease_end = clock.elapsed() + await self._time_to_lease_end()
            await sleep_until_multiple(clock, min(self.dead_worker_check_every, every))

    async def sweep(self) -> Repairs:
        """Make all repairs that are due now, and return what this call repaired."""
        before, self.repairs = self.repairs, Repairs()
        try:
            # In this order; a repair that fails must not prevent those after it.
            for repair in self._repairs_in_order():
                with log_and_continue(logger, "repair.failed", repair=repair.__name__):
                    await repair()
        finally:
            done = +self.repairs  # without zeros
            self.repairs = before + done
            if done:
                logger.warning("sweep.repaired", extra=dict(done))
        if done:
            with log_and_continue(logger, "repair.failed", repair="report"):
                detail = ", ".join(f"{kind} {done[kind]}" for kind in sorted(done))
                await self.backend.events.append(
                    tenant=self.tenant,
                    app=self.app,
                    entity_id=ROLE,
                    body=OperatorActed(
                        by=ROLE, action="sweep.repaired", subject=ROLE, detail=detail
                    ),
                    context=EventContext(origin=ROLE),
                    now=self.backend.clock.now(),
                )
        return done

    def _repairs_in_order(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Yields every kind of repair, starting after the one that interrupted the last sweep.

        Where a sweep has limited time, one kind with much to do would otherwise be the only one
        that is ever made.
        """
        repairs = (
            self.reap_dead_workers,
            self._end_silent_leases,
            self._finish_intents,
            self._settle_and_enqueue,
            self._record_ends,
            self._notify_waiting,
            self._emit_job_ends,
            self._unpark,
            self.retention.remove_expired,
        )
        first = self._first_repair
        for number in (*range(first, len(repairs)), *range(first)):
            self._first_repair = (number + 1) % len(repairs)
            yield repairs[number]
        self._first_repair = 0

    async def reap_dead_workers(self) -> None:
        """End the leases of workers on this machine whose process has ended."""
        for worker_id in self.worker_registry.dead_workers():
            with log_and_continue(logger, "worker.reap_failed", worker_id=worker_id):
                # Kills what is left of its attempts: before, no other worker may start the tasks.
                self.worker_registry.reap(worker_id)
                with log_and_continue(logger, "lease.end_failed", worker_id=worker_id):
                    unbegun = await self._unbegun_tasks(worker_id)
                    for row in await self.source.end_worker(worker_id, unbegun=unbegun):
                        await self._record_ended_lease(row, worker_id, holder_gone=True)
                with log_and_continue(logger, "worker.deregister_failed", worker_id=worker_id):
                    self.worker_registry.deregister(worker_id)

    async def end_all_leases(self) -> int:
        """End the leases of a store that was restored: none of their workers uses it.

        What they held counts as begun. Returns how many leases were ended.
        """
        leases = [lease for _, lease in await list_all(self.backend.ledger.leased_tasks)]
        ended = 0
        for worker_id in sorted({lease.worker_id for lease in leases}):
            for row in await self.source.end_worker(worker_id):
                await self._record_ended_lease(row, worker_id, holder_gone=True)
                ended += 1
        return ended

    async def _unbegun_tasks(self, worker_id: str) -> set[tuple[str, int]]:
        """Returns the tasks, with their fences, that a dead worker had not begun.

        Only child slots record what was begun: a task that runs elsewhere counts as begun.
        """
        begun = self.worker_registry.begun_tasks(worker_id)
        if begun is None:
            return set()
        fences = {
            task_id: lease.fence
            for task_id, lease in await list_all(self.backend.ledger.leased_tasks)
            if lease.worker_id == worker_id
            and (slot_task_number(task_id), lease.fence) not in begun
        }
        rows, _ = await read_rows(self.backend.ledger, list(fences))
        return {(row.id, fences[row.id]) for row in rows if await self._runs_in_slot(row)}

    async def _runs_in_slot(self, row: TaskRow) -> bool:
        try:
            return runs_in_slot(await definition_of(row, self.backend))
        except NotFound:
            return False

    async def _end_silent_leases(self) -> None:
        progress = True
        while progress:
            expired_by = self.backend.clock.now() - self.skew_margin
            expired = await self.backend.ledger.leased_tasks(limit=AT_ONCE, expired_by=expired_by)
            progress = any([await self._end_lease(*task) for task in expired])

    async def _time_to_lease_end(self) -> timedelta:
        """Returns the time until a lease may be over: one of now, or a new one."""
        first = await self.backend.ledger.leased_tasks(limit=1)
        over_at = [lease.expires_at + self.skew_margin for _, lease in first]
        return min([self.lease_duration, *(end - self.backend.clock.now() for end in over_at)])

    async def _end_lease(self, task_id: str, lease: Lease) -> bool:
        command = LeaseEnded(fence=lease.fence, margin=self.skew_margin)
        with log_and_continue(logger, "lease.end_failed", task_id=task_id):
            row = await self.transitions.try_command(task_id, command)
            if isinstance(row, Refusal):
                return False  # the task has moved on
            await self._record_ended_lease(row, lease.worker_id, holder_gone=False)
            return True
        return False

    async def _record_ended_lease(self, row: TaskRow, worker_id: str, *, holder_gone: bool) -> None:
        with log_and_continue(logger, "reservation.release_failed", task_id=row.id):
            await self.budget_operations.reservations.close_lost_attempt(row)
        self.repairs["leases_ended"] += 1
        extra = {"task_id": row.id, "worker_id": worker_id, "gone": holder_gone}
        logger.warning("lease.taken_over", extra=extra)

    async def _finish_intents(self) -> None:
        async for page in iter_pages(self.backend.ledger.open_intents):
            for job_id in page:
                # A job that cannot be repaired must not prevent the others.
                with log_and_continue(logger, "intent.finish_failed", job_id=job_id):
                    job = await self.backend.ledger.get_job(job_id)
                    if job is None:
                        continue
                    # In the order of the row: tasks must exist before they are cancelled.
                    for intent in job.intents:
                        self.repairs["intents_finished"] += await self.finish_intent(job, intent)

    async def _settle_and_enqueue(self) -> None:
        """Settle dead letters, then enqueue: a task with a dead message must not be enqueued.

        Without messages, a task that is due is found by its source, and there is nothing to do.
        """
        if self.backend.queue is None:
            return
        with log_and_continue(logger, "repair.failed", repair="_settle_dead_letters"):
            settled = await self.dead_letters.settle_messages()
            self.repairs["dead_letters"] += settled["failed"] + settled["dropped"]
        await self._enqueue_again()

    async def _record_ends(self) -> None:
        ledger, clock = self.backend.ledger, self.backend.clock
        if clock.elapsed() < self._settle_from:
            return
        ended_by = clock.now() - self.settle_after
        async for page in iter_pages(partial(ledger.unrecorded_ends, ended_by=ended_by)):
            with log_and_continue(logger, "job.settle_failed"):
                self.repairs["ends_recorded"] += await self.dispatcher.settle(page)

    async def _notify_waiting(self) -> None:
        async for page in iter_pages(self.backend.ledger.unnotified_dependents):
            self.repairs["dependents_notified"] += await self.dispatcher.notify_waiting(page)

    async def _emit_job_ends(self) -> None:
        async for page in iter_pages(self.backend.ledger.unreported_ends):
            for job_id in page:
                with log_and_continue(logger, "job.settle_failed", job_id=job_id):
                    self.repairs["jobs_ended"] += await self.dispatcher.emit_job_end(job_id)

    async def _enqueue_again(self) -> None:
        progress = True
        while progress:
            now = self.backend.clock.now()
            enqueued_before = now - self.reenqueue_after
            unqueued = await self.backend.ledger.unqueued_tasks(
                due_by=now, enqueued_before=enqueued_before, limit=AT_ONCE
            )
            progress = any([await self._enqueue(task_id, enqueued_before) for task_id in unqueued])

    async def _enqueue(self, task_id: str, enqueued_before: datetime) -> bool:
        with (
            log_and_continue(logger, "task.enqueue_failed", task_id=task_id),
            contextlib.suppress(VersionConflict),  # it was claimed, or enqueued by another process
        ):
            row = await self.backend.ledger.get_task(task_id)
            if row is None or (row.enqueued_at is not None and row.enqueued_at >= enqueued_before):
                return False
            now, change_id = self.backend.clock.now(), self.transitions.new_id()
            change = tasks.apply(row, EnqueueAgain(), now=now, change_id=change_id)
            # Sent before it is recorded: a failure must not double the pause until the next time.
            if isinstance(change, Refusal) or not await self.transitions.enqueue(change.effects):
                return False
            await self.transitions.commit(replace(change, effects=()))
            self.repairs["reenqueued"] += 1
            return True
        return False

    async def _unpark(self) -> None:
        self.repairs["unparked"] += await self.budget_operations.unpark_ready()
