"""One commit of the ledger, and the creation of many jobs, as work for the writer.

A row is written only if its version is the one that the change was decided from. All changes of a
commit are in one transaction, so a job of ten thousand tasks is one call.

A job that is not stored has no tasks, no history and no version to compare. What its first rows and
events are follows from its plan, so they are packed from the plan; the insert itself shows whether
the job is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from longshore.adapters.shared.codec import to_us
from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.history import (
    BY_PRODUCER,
    EVENT_NUMBERS,
    JOB_CREATED,
    PENDING,
    pack_event,
    pack_record,
)
from longshore.adapters.sqlite.names import Names
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.rows import (
    JOB_COLUMNS,
    JOB_STATE_COLUMNS,
    NUMBER_BITS,
    TASK_COLUMNS,
    TASK_NO,
    TASK_STATE_COLUMNS,
    TASK_STATES,
    encode_rest,
    ended_numbers,
    job_spec_values,
    job_values,
    pack_change_id,
    pack_document,
    pack_job_id,
    pack_numbers,
    task_spec_values,
    task_values,
)
from longshore.adapters.sqlite.transaction import StoreTransaction
from longshore.core.events.types import JobCompleted
from longshore.core.ids import split_task_id
from longshore.core.jobs.job import JobChange
from longshore.core.tasks.changes import Enqueue, TaskChange, Wake
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.errors import VersionConflict
from longshore.ports.ledger import AnyChange, JobCreation

_INSERT_TASK = (
    f"INSERT INTO tasks ({', '.join(TASK_COLUMNS)}) VALUES ({','.join('?' * len(TASK_COLUMNS))})"
)
_UPDATE_TASK = (
    f"UPDATE tasks SET {', '.join(f'{name}=?' for name in TASK_STATE_COLUMNS)} WHERE no=?"
)
_INSERT_JOB = (
    f"INSERT INTO jobs ({', '.join(JOB_COLUMNS)}) VALUES ({','.join('?' * len(JOB_COLUMNS))})"
)
_REPLACE_JOB = _INSERT_JOB.replace("INSERT", "REPLACE", 1)
_UPDATE_JOB = f"UPDATE jobs SET {', '.join(f'{name}=?' for name in JOB_STATE_COLUMNS)} WHERE no=?"
# A number for a job whose row is not written yet; its version is 0.
_RESERVE_JOB = (
    "INSERT INTO jobs (id, tenant, app, request_id, body_hash, created_us, state, version,"
    " change_id, updated_ms, sequence, total, intents, unreported, history)"
    " VALUES (?, 0, 0, '', '', 0, 0, 0, '', 0, 0, 0, 0, 0, x'')"
)
_UPSERT_WAKEUP = (
    "INSERT INTO wakeups (worker_id, count) VALUES (?, 1)"
    " ON CONFLICT (worker_id) DO UPDATE SET count = count + 1"
)
_STORED_TASK = (
    "SELECT no, version, change_id, sequence, history, state, unsettled, worker FROM tasks"
    " WHERE no = ?"
)
_CREATE_JOB = (
    "INSERT INTO jobs (no, id, tenant, app, name, request_id, body_hash, created_us, change_id,"
    " updated_ms, total, graph, history, rest, state, version, sequence, intents, unreported)"
    " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?, 0, 1, 1, 0, 0) ON CONFLICT (id) DO NOTHING"
)
_CREATE_TASK = (
    "INSERT INTO tasks (no, key, input, parents, dependents, kind, tenant, queue, lane, created_us,"
    " change_id, updated_ms, state, version, sequence, attempt, fence, due_us, awaits, unsettled,"
    " history, rest) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?, 1, ?, 0, 0, ?,?, 0, ?,?)"
)
_CREATION = "SELECT no, change_id FROM jobs WHERE id = ?"
_LAST_NUMBERS = (
    "SELECT ifnull((SELECT max(no) FROM jobs), 0), ifnull((SELECT max(position) FROM feed), 0)"
)
_TERMINAL = frozenset(number for number, state in enumerate(TASK_STATES) if state.terminal)


class Commit:
    """Changes; a call with the writer's connection writes them."""

    def __init__(self, changes: Sequence[AnyChange], names: Names) -> None:
        self._changes = changes
        self._names = names
        self.durable = any(change.durable for change in changes)
        effects = [effect for change in changes for effect in change.effects]
        enqueued = any(isinstance(effect, Enqueue) for effect in effects)
        self._woken = [effect for effect in effects if isinstance(effect, Wake)]
        present = (
            (Topic.ENDS, any(_has_ended(change) for change in changes)),
            (Topic.QUEUE, enqueued),
            (Topic.WAKEUP, self._woken),
        )
        self.topics = [topic for topic, values in present if values]

    def __call__(self, connection: apsw.Connection) -> None:
        transaction = StoreTransaction(connection, self._names)
        tasks = [change for change in self._changes if isinstance(change.row, TaskRow)]
        written = 0
        for change in self._changes:  # jobs first, because tasks refer to them
            if isinstance(change.row, JobRow):
                written += write_job(transaction, change)
        for change in tasks:
            written += write_task(transaction, change)
        if not written:
            return  # the answer to an earlier commit of these changes was lost
        if written < len(self._changes):
            # Some rows had their change already: these changes never were one commit.
            raise VersionConflict(self._changes[0].row.id, self._changes[0].expected_version)
        reach("write.rows_written")
        transaction.close()
        connection.executemany(_UPSERT_WAKEUP, [(effect.worker_id,) for effect in self._woken])


class CreateJobs:
    """Creates jobs; a call with the writer's connection writes them."""

    topics = (Topic.QUEUE,)  # some task of a new job has no parents

    def __init__(self, creations: Sequence[JobCreation], names: Names) -> None:
        self._creations = creations
        self._names = names

    def __call__(self, connection: apsw.Connection) -> list[tuple[()] | VersionConflict]:
        ((last_no, last_position),) = connection.execute(_LAST_NUMBERS)
        transaction = StoreTransaction(connection, self._names, position=last_position + 1)
        numbered = enumerate(self._creations, last_no + 1)
        packed = [_packed_job(transaction, no, creation) for no, creation in numbered]
        before = connection.total_changes()
        connection.executemany(_CREATE_JOB, packed)
        all_new = connection.total_changes() - before == len(packed)
        new = list[tuple[JobCreation, Any]]()
        answers: list[tuple[()] | VersionConflict] = []
        for creation, job in zip(self._creations, packed, strict=True):
            no, job_id, tenant, app = job[:4]
            if not all_new:
                stored = transaction.select(_CREATION, (job_id,))
                if stored[0][0] != no:
                    # The same change: the answer to an earlier commit was lost.
                    own = stored[0][1] == pack_change_id(creation.change_id)
                    answers.append(() if own else VersionConflict(creation.spec.id, 0))
                    continue
            answers.append(())
            new.append((creation, job))
            tasks, first = creation.plan.tasks, no << NUMBER_BITS
            ready = [first + task.number for task in tasks if not task.awaits.bits]
            transaction.record_events(JOB_CREATED, tenant, app, 1, [-no])
            transaction.record_events(PENDING, tenant, app, 1, ready)
        packed_tasks = (row for item in new for row in _packed_tasks(transaction, *item))
        connection.executemany(_CREATE_TASK, packed_tasks)
        reach("create.rows_written")
        transaction.close()
        return answers


def _packed_job(transaction: StoreTransaction, no: int, creation: JobCreation) -> Any:
    """The values of ``_CREATE_JOB``: what ``core.jobs.job.create`` decides."""
    spec, total = creation.spec, len(creation.plan.tasks)
    values = job_spec_values(spec, no, transaction.names, transaction.connection)
    return (
        *values,
        *(pack_change_id(creation.change_id), values[-1] // 1000, total),
        pack_document(creation.graph) if total > 1 else None,
        pack_record(JOB_CREATED, 0, transaction.position, BY_PRODUCER, (total,)),
        encode_rest({"budget": spec.budget}).decode() if spec.budget else None,
    )


def _packed_tasks(transaction: StoreTransaction, creation: JobCreation, job: Any) -> Iterator[Any]:
    """The values of ``_CREATE_TASK`` for each task: what ``core.tasks.task.create`` decides."""
    names, connection = transaction.names, transaction.connection
    first_no, tenant, (created_us, change_id, now_ms) = job[0] << NUMBER_BITS, job[2], job[7:10]
    common: dict[int, tuple[Any, ...]] = {}  # by identity of the kind: tasks share a few
    pending = _pending_values(transaction, None, now_ms)
    for task in creation.plan.tasks:
        _, number, key, kind, input_, parents, dependents, not_before, awaits = task
        values = common.get(id(kind))
        if values is None:
            kind_no = names.kind_number_of(connection, kind)
            queue = names.number_of(connection, kind.queue)
            values = (kind_no, tenant, queue, int(kind.priority), created_us, change_id, now_ms)
            common[id(kind)] = values
        state, rest = pending, None
        if not_before is not None:
            rest = encode_rest({"not_before": not_before}).decode()
            state = _pending_values(transaction, to_us(not_before), now_ms)
        if awaits.bits:
            state = (0, 0, None, pack_numbers(awaits), b"")
        yield (
            first_no + number,
            key,
            pack_document(input_),
            None if parents is None else pack_document(parents),
            None if dependents is None else pack_document(dependents),
            *values,
            *state,
            rest,
        )


def _pending_values(transaction: StoreTransaction, due_us: int | None, now_ms: int) -> Any:
    """State, sequence, due time, awaited parents and history of a new task that awaits none."""
    now_us, due_ms = now_ms * 1000, None
    if due_us is not None and due_us > now_us:
        now_us, due_ms = due_us, due_us // 1000
    record = pack_record(PENDING, 0, transaction.position, BY_PRODUCER, (1, due_ms))
    return (1, 1, now_us, None, record)


def write_job(transaction: StoreTransaction, change: JobChange) -> bool:
    """Write a job's row and its events. Returns False if the row has this change already.

    Raises:
        VersionConflict: the row is not at the version from which the change was decided.
    """
    row, execute = change.row, transaction.execute
    stored = transaction.select(
        "SELECT no, version, change_id, sequence, history, state, total, completed, rest, graph"
        " FROM jobs WHERE id = ?",
        (pack_job_id(row.id),),
    )
    no, version, change_id, sequence, history = stored[0][:5] if stored else (0, 0, b"", 0, b"")
    if version and change_id == pack_change_id(row.change_id):
        return False
    if version != change.expected_version:
        raise VersionConflict(row.id, change.expected_version)
    if not no:
        ((last,),) = transaction.select("SELECT max(no) FROM jobs")
        no = (last or 0) + 1
    if version:
        history = _add_events(transaction, change, -no, history, sequence)
        graph = stored[0][9]
        if graph is not None or row.total > 1:
            graph = pack_document(row.graph)
        execute(_UPDATE_JOB, (*job_values(row, graph=graph, history=history), no))
        before = ended_numbers(*stored[0][5:9])
        first = no << NUMBER_BITS
        transaction.connection.executemany(
            "UPDATE tasks SET unsettled = 0 WHERE no = ? AND unsettled > 0",
            [(first + number,) for number in row.ended - before],
        )
        return True
    history = _add_events(transaction, change, -no, b"", 0)
    values = job_values(row, graph=pack_document(row.graph), history=history)
    spec_values = job_spec_values(row.spec, no, transaction.names, transaction.connection)
    execute(_REPLACE_JOB if stored else _INSERT_JOB, (*spec_values, *values))
    return True


def write_task(transaction: StoreTransaction, change: TaskChange) -> bool:
    """Write a task's row and its events. Returns False if the row has this change already.

    Raises:
        VersionConflict: the row is not at the version from which the change was decided.
    """
    row, execute = change.row, transaction.execute
    job_id, key = split_task_id(row.id)
    packed_job_id = pack_job_id(job_id)
    numbers = transaction.select(TASK_NO, (packed_job_id, key))
    if not numbers:
        if change.expected_version:
            raise VersionConflict(row.id, change.expected_version)
        jobs = transaction.select("SELECT no FROM jobs WHERE id = ?", (packed_job_id,))
        if not jobs:
            execute(_RESERVE_JOB, (packed_job_id,))
            jobs = [(transaction.connection.last_insert_rowid(),)]
        names, connection = transaction.names, transaction.connection
        no = jobs[0][0] << NUMBER_BITS | row.spec.number
        history = _add_events(transaction, change, no, b"", 0)
        worker = None if row.lease is None else transaction.number_of(row.lease.worker_id)
        values = task_values(row, worker, unsettled=row.state.terminal, history=history)
        spec_values = task_spec_values(row.spec, jobs[0][0], names, connection)
        execute(_INSERT_TASK, (*spec_values, *values))
        return True
    stored = transaction.select(_STORED_TASK, numbers[0])
    no, version, change_id, sequence, history, state, unsettled, holder = stored[0]
    if change_id == pack_change_id(row.change_id):
        return False
    if version != change.expected_version:
        raise VersionConflict(row.id, change.expected_version)
    history = _add_events(transaction, change, no, history, sequence)
    if not row.state.terminal:
        unsettled = 0
    elif state not in _TERMINAL:
        unsettled = 1
    worker = None if row.lease is None else transaction.number_of(row.lease.worker_id)
    by_worker = any(event.context.origin == "worker" for event in change.events)
    if holder is not None and worker is None and not by_worker:
        execute("UPDATE workers SET ended = 1 WHERE name = ?", (holder,))
    values = task_values(row, worker, unsettled=bool(unsettled), history=history)
    execute(_UPDATE_TASK, (*values, no))
    return True


def _has_ended(change: AnyChange) -> bool:
    """Whether a task has ended, which its job has to record."""
    return isinstance(change.row, TaskRow) and change.row.state.terminal


def _add_events(
    transaction: StoreTransaction, change: AnyChange, entity: int, history: bytes, sequence: int
) -> bytes:
    """The history with the events of the change, which are added to the feed too."""
    events, row = change.events, change.row
    if not events:
        # Also without a new event: a long history would be written again with each change.
        return transaction.grown_history(entity, history, sequence, ())
    tasks_stored = any(isinstance(event.body, JobCompleted) for event in events) and _all_stored(
        transaction, row, entity
    )
    position = transaction.position
    records = [
        pack_event(
            event,
            row,
            position=position,
            number_of=transaction.number_of,
            tasks_stored=tasks_stored,
        )
        for event in events
    ]
    tenant, app = transaction.number_of(row.spec.tenant), transaction.number_of(row.spec.app)
    for event in events:
        type_: Any = EVENT_NUMBERS[event.type]
        transaction.record(type_, tenant, app, entity, event.sequence)
    return transaction.grown_history(entity, history, sequence, records)


def _all_stored(transaction: StoreTransaction, row: TaskRow | JobRow, entity: int) -> bool:
    """Whether the store has a row for each task of a job."""
    if not isinstance(row, JobRow):
        return False
    first = -entity << NUMBER_BITS
    ((count,),) = transaction.select(
        "SELECT count(*) FROM tasks WHERE no >= ? AND no < ?", (first, first + row.total)
    )
    return bool(count == row.total)
