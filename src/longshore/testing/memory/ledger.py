"""The ledger in memory: the reference for what a commit means.

Nothing in the store awaits, so on the one event loop each call is atomic.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, Unpack

from longshore.adapters.shared.waiters import Waiters
from longshore.core.events.event import Event
from longshore.core.events.types import EntityType
from longshore.core.ids import split_task_id, task_id_of
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.core.tasks.changes import Effect, Wake
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, Priority, TaskState
from longshore.errors import AlreadyExists, UsageError, VersionConflict
from longshore.ports.clock import Clock
from longshore.ports.ledger import AnyChange, FailedTask, JobConditions, JobCreation

RowT = TypeVar("RowT", TaskRow, JobRow)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC)


class ReadyTasks:
    """Pending tasks by queue, lane and line; within a line by due time, then as created."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, Priority, str], list[tuple[datetime, datetime, int, str]]] = {}

    def update(self, old: TaskRow | None, new: TaskRow) -> None:
        """A task's row has changed."""
        if old is not None and old.state is TaskState.PENDING:
            line = self._lines[_line_of(old)]
            del line[bisect_left(line, _position_of(old))]
        if new.state is TaskState.PENDING:
            insort(self._lines.setdefault(_line_of(new), []), _position_of(new))

    def due(self, queues: Collection[str], now: datetime, *, limit: int) -> Iterator[str]:
        """Yields the first due tasks of each line of these queues, up to ``limit`` each."""
        for (queue, _, _), line in self._lines.items():
            if queue in queues:
                for due_at, *_, task_id in line[:limit]:
                    if due_at <= now:
                        yield task_id

    def next_due(self, queues: Collection[str], now: datetime) -> timedelta | None:
        """Returns the time until another task of these queues is due; None: there is none."""
        moments = (
            due_at
            for (queue, _, _), line in self._lines.items()
            if queue in queues
            for due_at, *_ in line[bisect_right(line, (now, _LAST, 0, "")) :][:1]
        )
        first = min(moments, default=None)
        return None if first is None else first - now

    def count(self, queue: str, now: datetime) -> tuple[int, int]:
        """Returns how many tasks of a queue are due, and how many are not yet."""
        lines = [line for (name, _, _), line in self._lines.items() if name == queue]
        due = sum(bisect_right(line, (now, _LAST, 0, "")) for line in lines)
        return due, sum(map(len, lines)) - due


def _line_of(row: TaskRow) -> tuple[str, Priority, str]:
    return row.spec.queue, row.spec.priority, row.spec.tenant


def _position_of(row: TaskRow) -> tuple[datetime, datetime, int, str]:
    spec = row.spec
    return row.due_at or _EPOCH, spec.created_at, spec.number, spec.id


class MemoryStore:
    """Rows by id; events by entity, and in the order in which they were recorded."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.epoch = 0  # grows with each restore
        self.tasks: dict[str, TaskRow] = {}
        self.jobs: dict[str, JobRow] = {}
        self.events: list[Event | None] = []  # None: its job was removed
        self.removed: dict[str, datetime] = {}  # jobs, and until when they are remembered
        self.event_waiters = Waiters(clock)
        self.row_waiters = Waiters(clock)
        self.ready = ReadyTasks()
        self.ends = 0  # of tasks that their jobs may not have recorded, so far
        self.ended_workers: dict[str, None] = {}  # whose lease another process has ended
        self._by_entity: dict[tuple[str, str], dict[int, Event]] = {}
        self._wakeups: dict[str, None] = {}

    def commit(self, changes: Sequence[AnyChange], *, settles: bool = False) -> list[Effect]:
        """Write rows and events, or nothing. Returns the effects.

        Args:
            settles: The caller commits what follows from the ends of tasks at once.
        """
        fresh = [change for change in changes if not self._is_committed(change)]
        events = self.unrecorded(event for change in fresh for event in change.events)
        for change in fresh:
            if isinstance(change.row, TaskRow):
                self._put_task(change.row, change.events)
                self.ends += change.row.state.terminal and not settles
            else:
                self.jobs[change.row.id] = change.row
        self.record(events)
        effects = [effect for change in changes for effect in change.effects]
        self._wakeups |= dict.fromkeys(
            effect.worker_id for effect in effects if isinstance(effect, Wake)
        )
        self.row_waiters.wake()
        return effects

    def _is_committed(self, change: AnyChange) -> bool:
        """Whether the row has this change already, because an earlier answer was lost.

        Raises:
            VersionConflict: the change was decided from another version than the current one.
        """
        row = self.tasks.get(change.row.id) or self.jobs.get(change.row.id)
        if row is not None and row.change_id == change.row.change_id:
            return True
        removed = split_task_id(change.row.id)[0] in self.removed
        if removed or change.expected_version != (row.version if row else 0):
            raise VersionConflict(change.row.id, change.expected_version)
        return False

    def _put_task(self, row: TaskRow, events: Sequence[Event]) -> None:
        old = self.tasks.get(row.id)
        self.tasks[row.id] = row
        self.ready.update(old, row)
        holder = old.lease.worker_id if old is not None and old.lease is not None else None
        by_holder = any(event.context.origin == "worker" for event in events)
        if holder is not None and row.lease is None and not by_holder:
            self.ended_workers[holder] = None

    def remove(self, job: JobRow, rows: Sequence[TaskRow]) -> None:
        """Remove an ended job with its tasks and their events."""
        del self.jobs[job.id]
        self.remove_tasks(rows)
        self._remove_events(job.spec.tenant, {f"JOB#{job.id}"})

    def remove_tasks(self, rows: Sequence[TaskRow]) -> None:
        """Remove tasks of one job with their events."""
        for row in rows:
            del self.tasks[row.id]
        if rows:
            self._remove_events(rows[0].spec.tenant, {f"TASK#{row.id}" for row in rows})

    def _remove_events(self, tenant: str, entities: Collection[str]) -> None:
        for entity in entities:
            self._by_entity.pop((tenant, entity), None)
        self.events = [
            None if event is not None and event.entity in entities else event
            for event in self.events
        ]

    def remove_other_events(self, before: datetime, limit: int) -> int:
        """Remove old events of entities without a row, but not the last of an entity."""
        old = [
            (position, event)
            for position, event in enumerate(self.events)
            if event is not None
            and event.entity_type not in (EntityType.TASK, EntityType.JOB)
            and event.at <= before
            and event.sequence < max(self._by_entity[event.tenant, event.entity])
        ]
        for position, event in old[:limit]:
            self.events[position] = None
            del self._by_entity[event.tenant, event.entity][event.sequence]
        return len(old[:limit])

    async def wait_for_wake(self, worker_id: str) -> None:
        await self.row_waiters.wait_until(lambda: True if worker_id in self._wakeups else None)
        self._wakeups.pop(worker_id, None)

    def history(self, tenant: str, entity: str) -> list[Event]:
        """All events of an entity, by sequence."""
        events = self._by_entity.get((tenant, entity), {})
        return [events[sequence] for sequence in sorted(events)]

    def unrecorded(self, events: Iterable[Event]) -> list[Event]:
        """The events that are not recorded yet.

        Raises:
            AlreadyExists: a different event has the same entity and sequence.
        """
        fresh: dict[tuple[str, str, int], Event] = {}
        for event in events:
            key = (event.tenant, event.entity, event.sequence)
            existing = self._by_entity.get(key[:2], {}).get(event.sequence) or fresh.get(key)
            if existing is None:
                fresh[key] = event
            elif existing != event:
                raise AlreadyExists("event", f"{event.entity} {event.sequence}")
        return list(fresh.values())

    def record(self, events: Iterable[Event]) -> None:
        """Append events that ``unrecorded`` has returned."""
        for event in events:
            self._by_entity.setdefault((event.tenant, event.entity), {})[event.sequence] = event
            self.events.append(event)
        self.event_waiters.wake()


class MemoryLedger:
    """See ``ports.ledger.Ledger``. It wakes workers; the caller enqueues messages.

    Listings sort all rows for each page, which is simple and correct.
    """

    atomic = False

    def __init__(self, store: MemoryStore, *, atomic: bool, direct: bool = False) -> None:
        self._store = store
        self.atomic = atomic
        self._direct = direct  # a task is found by its place among the ready tasks

    @property
    def epoch(self) -> int:
        return self._store.epoch

    async def get_task(self, task_id: str) -> TaskRow | None:
        return self._store.tasks.get(task_id)

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        tasks = self._store.tasks
        return [tasks[task_id] for task_id in task_ids if task_id in tasks]

    async def get_job(self, job_id: str) -> JobRow | None:
        return self._store.jobs.get(job_id)

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        self._check_usage(changes)
        effects = self._store.commit(changes)
        if self._direct:
            return ()
        return tuple(effect for effect in effects if not isinstance(effect, Wake))

    async def create_jobs(
        self, creations: Sequence[JobCreation]
    ) -> list[tuple[Effect, ...] | VersionConflict]:
        answers: list[tuple[Effect, ...] | VersionConflict] = []
        for creation in creations:
            job, tasks = creation.changes()
            try:
                answers.append(await self.commit(job, *tasks))
            except VersionConflict as conflict:
                answers.append(conflict)
        return answers

    def _check_usage(self, changes: Sequence[AnyChange]) -> None:
        if len({change.row.id for change in changes}) < len(changes):
            message = "two changes of one row in one commit: decide the second from the first"
            raise UsageError(message)
        if len(changes) > 1 and not self.atomic:
            message = "this ledger takes one change a commit: ask `atomic` first"
            raise UsageError(message)

    async def list_tasks(
        self,
        tenant: str,
        *,
        job_id: str | None = None,
        state: TaskState | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TaskRow]:
        rows = [
            row
            for row in self._store.tasks.values()
            if row.spec.tenant == tenant
            and (job_id is None or row.spec.job_id == job_id)
            and (state is None or row.state is state)
        ]
        if job_id is None:
            return _page("tasks", rows, _age, (int, str), limit, cursor)
        return _page("job-tasks", rows, lambda row: (-row.spec.number,), (int,), limit, cursor)

    async def list_jobs(
        self,
        tenant: str,
        *,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: Unpack[JobConditions],
    ) -> Page[JobRow]:
        state, name = conditions.get("state"), conditions.get("name")
        created_from = conditions.get("created_from")
        created_before = conditions.get("created_before")
        rows = [
            row
            for row in self._store.jobs.values()
            if row.spec.tenant == tenant
            and (state is None or row.state is state)
            and (name is None or row.spec.name == name)
            and (created_from is None or row.spec.created_at >= created_from)
            and (created_before is None or row.spec.created_at < created_before)
        ]
        return _page("jobs", rows, _age, (int, str), limit, cursor)

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        rows = self._store.tasks.values()
        return {row.spec.key: row.state for row in rows if row.spec.job_id == job_id}

    async def find_ids(self, tenant: str, prefix: str, *, limit: int = 10) -> list[str]:
        rows: list[TaskRow | JobRow] = [*self._store.tasks.values(), *self._store.jobs.values()]
        ids = (row.id for row in rows if row.spec.tenant == tenant)
        return sorted(row_id for row_id in ids if row_id.startswith(prefix))[:limit]

    async def unqueued_tasks(
        self, *, due_by: datetime, enqueued_before: datetime, limit: int
    ) -> list[str]:
        due = [
            (row.due_at, row.id)
            for row in self._store.tasks.values()
            if row.state is TaskState.PENDING
            and row.due_at is not None
            and row.due_at <= due_by
            and (
                row.enqueued_at is None
                or (
                    row.enqueued_at < enqueued_before
                    and row.enqueued_at - row.due_at <= due_by - row.enqueued_at
                )
            )
        ]
        return [task_id for _, task_id in sorted(due)[:limit]]

    async def leased_tasks(
        self, *, limit: int, expired_by: datetime | None = None
    ) -> list[tuple[str, Lease]]:
        leased = [
            (row.id, row.lease)
            for row in self._store.tasks.values()
            if row.lease is not None and (expired_by is None or row.lease.expires_at <= expired_by)
        ]
        return sorted(leased, key=lambda task: (task[1].expires_at, task[0]))[:limit]

    async def parked_tasks(self, *, limit: int) -> list[str]:
        parked = [
            (row.due_at is None, row.due_at, row.id)
            for row in self._store.tasks.values()
            if row.state is TaskState.PARKED
        ]
        return [task_id for *_, task_id in sorted(parked)[:limit]]

    async def failed_tasks(self, tenant: str, *, limit: int) -> list[FailedTask]:
        failed = [
            FailedTask(
                task_id=row.id,
                queue=row.spec.queue,
                category=row.failure.category if row.failure else None,
                failed_at=row.finished_at or row.updated_at,
            )
            for row in self._store.tasks.values()
            if row.state is TaskState.FAILED and row.spec.tenant == tenant
        ]
        return sorted(failed, key=lambda task: (task.failed_at, task.task_id), reverse=True)[:limit]

    async def failed_tenants(self, *, limit: int, after: str = "") -> list[str]:
        rows = self._store.tasks.values()
        tenants = {row.spec.tenant for row in rows if row.state is TaskState.FAILED}
        return sorted(tenant for tenant in tenants if tenant > after)[:limit]

    async def open_intents(self, *, limit: int, after: str = "") -> list[str]:
        ids = (row.id for row in self._store.jobs.values() if row.intents)
        return sorted(job_id for job_id in ids if job_id > after)[:limit]

    async def unrecorded_ends(
        self, *, ended_by: datetime, limit: int, after: str = ""
    ) -> list[str]:
        return self._tasks_where(
            after,
            limit,
            lambda task, job: (
                (self._direct or job.state is JobState.RUNNING)
                and task.finished_at is not None
                and task.finished_at <= ended_by
                and task.spec.number not in job.ended
            ),
        )

    async def unnotified_dependents(self, *, limit: int, after: str = "") -> list[str]:
        return self._tasks_where(
            after,
            limit,
            lambda task, job: (
                job.state is JobState.RUNNING
                and task.state is TaskState.WAITING
                and bool(task.awaits & job.completed)
            ),
        )

    def _tasks_where(
        self, after: str, limit: int, matches: Callable[[TaskRow, JobRow], bool]
    ) -> list[str]:
        """Ids of tasks of jobs that exist, by job and then by id."""
        positions = []
        for task in self._store.tasks.values():
            job = self._store.jobs.get(task.spec.job_id)
            if job is not None and matches(task, job):
                positions.append(split_task_id(task.id))
        later = sorted(position for position in positions if position > split_task_id(after))
        return [task_id_of(*position) for position in later[:limit]]

    async def unreported_ends(self, *, limit: int, after: str = "") -> list[str]:
        ids = (row.id for row in self._store.jobs.values() if row.end_unreported)
        return sorted(job_id for job_id in ids if job_id > after)[:limit]

    async def wait_for_wake(self, worker_id: str) -> None:
        await self._store.wait_for_wake(worker_id)


def _page(
    listing: str,
    rows: Iterable[RowT],
    position: Callable[[RowT], tuple[Any, ...]],
    types: tuple[type, ...],
    limit: int,
    cursor: str | None,
) -> Page[RowT]:
    """The rows by their positions, the highest first; ``types`` are those of a position."""
    ordered = sorted(rows, key=position, reverse=True)
    if cursor is not None:
        last = tuple(decode_cursor(listing, cursor, types))
        ordered = [row for row in ordered if position(row) < last]
    items = tuple(ordered[:limit])
    more = len(ordered) > limit
    return Page(items, encode_cursor(listing, *position(items[-1])) if more else None)


def _age(row: TaskRow | JobRow) -> tuple[int, str]:
    return (row.spec.created_at - _EPOCH) // _MICROSECOND, row.id
