"""The ledger in memory: the reference for what a commit means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from longshore.adapters.memory.listings import MemoryListings
from longshore.adapters.memory.store import MemoryStore
from longshore.adapters.memory.waiting import Waiters
from longshore.core.changes import Effect, Nudge
from longshore.core.ids import split_task_id, task_id_of
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import JobState, TaskState
from longshore.errors import UsageError, VersionConflict
from longshore.ports.ledger import AnyChange, FailedTask, HeldTask, ParkedTask


class MemoryLedger(MemoryListings):
    """See ``ports.ledger.Ledger``. Rings are left to the caller, nudges are its own."""

    epoch = 0

    def __init__(self, store: MemoryStore, *, atomic: bool) -> None:
        super().__init__(store)
        self._atomic = atomic
        self._nudges: dict[str, None] = {}
        self._nudge_waiters = Waiters(store.clock)

    @property
    def atomic(self) -> bool:
        return self._atomic

    async def task(self, task_id: str) -> TaskRow | None:
        return self._store.tasks.get(task_id)

    async def tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        found = (self._store.tasks.get(task_id) for task_id in task_ids)
        return [row for row in found if row is not None]

    async def job(self, job_id: str) -> JobRow | None:
        return self._store.jobs.get(job_id)

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        self._check_usage(changes)
        fresh = [change for change in changes if not self._is_committed(change)]
        events = self._store.unrecorded(event for change in fresh for event in change.events)
        for change in fresh:
            self._write(change.row)
        self._store.record(events)
        effects = [effect for change in changes for effect in change.effects]
        self._nudge([effect for effect in effects if isinstance(effect, Nudge)])
        return tuple(effect for effect in effects if not isinstance(effect, Nudge))

    def _check_usage(self, changes: Sequence[AnyChange]) -> None:
        if len({change.row.id for change in changes}) < len(changes):
            message = "two changes of one row in one commit: decide the second from the first"
            raise UsageError(message)
        if len(changes) > 1 and not self._atomic:
            message = "this ledger takes one change a commit: ask `atomic` first"
            raise UsageError(message)

    def _is_committed(self, change: AnyChange) -> bool:
        """Whether its answer was lost.

        Raises:
            VersionConflict: it was decided from another version than the current one.
        """
        row = self._store.tasks.get(change.row.id) or self._store.jobs.get(change.row.id)
        if row is not None and row.change_id == change.row.change_id:
            return True
        if change.expected_version != (row.version if row else 0):
            raise VersionConflict(change.row.id, change.expected_version)
        return False

    def _write(self, row: TaskRow | JobRow) -> None:
        if isinstance(row, TaskRow):
            self._store.tasks[row.id] = row
        else:
            self._store.jobs[row.id] = row

    async def unrung(self, *, due_by: datetime, rung_before: datetime, limit: int) -> list[str]:
        found = [
            (row.due_at, row.id)
            for row in self._store.tasks.values()
            if row.state is TaskState.PENDING
            and row.due_at is not None
            and row.due_at <= due_by
            and (row.rung_at is None or row.rung_at < rung_before)
            and (row.rung_at is None or row.rung_at - row.due_at <= due_by - row.rung_at)
        ]
        return [task_id for _, task_id in sorted(found)[:limit]]

    async def held(self, *, limit: int, expired_by: datetime | None = None) -> list[HeldTask]:
        found = [
            HeldTask(
                task_id=row.id,
                worker_id=row.lease.worker_id,
                fence=row.lease.fence,
                expires_at=row.lease.expires_at,
            )
            for row in self._store.tasks.values()
            if row.lease is not None and (expired_by is None or row.lease.expires_at <= expired_by)
        ]
        return sorted(found, key=lambda task: (task.expires_at, task.task_id))[:limit]

    async def parked(self, *, limit: int, due_by: datetime | None = None) -> list[ParkedTask]:
        found = [
            ParkedTask(task_id=row.id, due_at=row.due_at)
            for row in self._store.tasks.values()
            if row.state is TaskState.PARKED
            and (due_by is None or (row.due_at is not None and row.due_at <= due_by))
        ]
        found.sort(key=lambda task: (task.due_at is None, task.due_at or due_by, task.task_id))
        return found[:limit]

    async def failed(self, tenant: str, *, limit: int) -> list[FailedTask]:
        found = [
            FailedTask(
                task_id=row.id,
                queue=row.spec.queue,
                category=row.failure.category if row.failure else None,
                failed_at=row.finished_at or row.updated_at,
            )
            for row in self._store.tasks.values()
            if row.state is TaskState.FAILED and row.spec.tenant == tenant
        ]
        return sorted(found, key=lambda task: (task.failed_at, task.task_id), reverse=True)[:limit]

    async def failed_tenants(self, *, limit: int, after: str = "") -> list[str]:
        rows = self._store.tasks.values()
        found = {row.spec.tenant for row in rows if row.state is TaskState.FAILED}
        return sorted(tenant for tenant in found if tenant > after)[:limit]

    async def open_intents(self, *, limit: int, after: str = "") -> list[str]:
        found = [row.id for row in self._store.jobs.values() if row.intents and row.id > after]
        return sorted(found)[:limit]

    async def unrecorded_ends(
        self, *, ended_by: datetime, limit: int, after: str = ""
    ) -> list[str]:
        return self._by_job(
            after,
            limit,
            lambda task, job: (
                task.finished_at is not None
                and task.finished_at <= ended_by
                and task.spec.number not in job.ended
            ),
        )

    async def untold_parents(self, *, limit: int, after: str = "") -> list[str]:
        return self._by_job(
            after,
            limit,
            lambda task, job: task.state is TaskState.WAITING and bool(task.awaits & job.completed),
        )

    def _by_job(
        self, after: str, limit: int, wanted: Callable[[TaskRow, JobRow], bool]
    ) -> list[str]:
        """Ids of tasks of running jobs, by job and then by id."""
        found = []
        for task in self._store.tasks.values():
            job = self._store.jobs.get(task.spec.job_id)
            if job is not None and job.state is JobState.RUNNING and wanted(task, job):
                found.append(split_task_id(task.id))
        later = sorted(place for place in found if place > split_task_id(after))
        return [task_id_of(*place) for place in later[:limit]]

    async def untold_ends(self, *, limit: int, after: str = "") -> list[str]:
        found = [row.id for row in self._store.jobs.values() if row.untold and row.id > after]
        return sorted(found)[:limit]

    async def nudged(self, worker_id: str) -> None:
        await self._nudge_waiters.until(lambda: True if worker_id in self._nudges else None)
        self._nudges.pop(worker_id, None)

    def _nudge(self, nudges: Sequence[Nudge]) -> None:
        for nudge in nudges:
            self._nudges[nudge.worker_id] = None
        if nudges:
            self._nudge_waiters.wake()
