"""One commit of the ledger, and the creation of many jobs, as work for the writer.

A row is written only if its version is the one that the change was decided from. All changes of a
commit are in one transaction, so a job of ten thousand tasks is one call.

A job that is not stored has no tasks, no history and no version to compare, so its creation reads
nothing but whether it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Any

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.history import EVENT_NUMBERS, pack_event
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
    ended_numbers,
    graph_of_one_task,
    job_spec_values,
    job_values,
    pack_change_id,
    pack_document,
    pack_job_id,
    pack_numbers,
    task_spec_values,
    task_values,
    to_ms,
)
from longshore.adapters.sqlite.transaction import StoreTransaction
from longshore.core.budgets import NO_BUDGET
from longshore.core.documents import Document
from longshore.core.events.event import Event
from longshore.core.events.types import JobCompleted, JobCreated, Usage
from longshore.core.ids import split_task_id
from longshore.core.jobs.job import JobChange
from longshore.core.tasks.changes import Enqueue, TaskChange, Wake
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
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
_CHANGE_ID = "SELECT change_id FROM jobs WHERE id = ?"
_LAST_NUMBERS = (
    "SELECT ifnull((SELECT max(no) FROM jobs), 0), ifnull((SELECT max(position) FROM feed), 0)"
)
_DEFAULTS = {
    kind: {
        **{item.name: item.default for item in fields(kind) if item.default is not MISSING},
        "usage": Usage(),
        "version": 1,
    }
    for kind in (TaskRow, JobRow)
}
_graph_of_one_task = lru_cache(maxsize=1024)(graph_of_one_task)
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
                written += write_job(transaction, change, tasks)
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

    def __init__(self, creations: Sequence[JobCreation], names: Names) -> None:
        self._creations = creations
        self._names = names
        pending = any(task.effects for creation in creations for task in creation.tasks)
        self.topics = (Topic.QUEUE,) if pending else ()

    def __call__(self, connection: apsw.Connection) -> list[tuple[()] | VersionConflict]:
        ((last_no, last_position),) = connection.execute(_LAST_NUMBERS)
        transaction = StoreTransaction(connection, self._names, position=last_position + 1)
        new_jobs, new_tasks = list[Any](), list[Any]()
        answers: list[tuple[()] | VersionConflict] = []
        change_ids: dict[str, str | bytes] = {}
        for creation in self._creations:
            row = creation.job.row
            change_id = pack_change_id(row.change_id)
            stored = change_ids.get(row.id)
            if stored is None:
                matches = transaction.select(_CHANGE_ID, (pack_job_id(row.id),))
                if not matches:
                    last_no += 1
                    tasks = creation.tasks
                    new_jobs.append(_new_job_values(transaction, creation.job, tasks, last_no))
                    new_tasks += [_new_task_values(transaction, task, last_no) for task in tasks]
                stored = change_ids[row.id] = matches[0][0] if matches else change_id
            # The same change: the answer to an earlier commit was lost.
            answers.append(() if stored == change_id else VersionConflict(row.id, 0))
        connection.executemany(_INSERT_JOB, new_jobs)
        connection.executemany(_INSERT_TASK, new_tasks)
        reach("create.rows_written")
        transaction.close()
        return answers


def write_job(
    transaction: StoreTransaction, change: JobChange, tasks: Sequence[TaskChange]
) -> bool:
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
        history = _add_events(transaction, change, -no, history, sequence, ())
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
    own = [task for task in tasks if task.row.spec.job_id == row.id]
    values = _new_job_values(transaction, change, own, no)
    execute(_REPLACE_JOB if stored else _INSERT_JOB, values)
    return True


def _new_job_values(
    transaction: StoreTransaction, change: JobChange, tasks: Sequence[TaskChange], no: int
) -> tuple[Any, ...]:
    """The values of all columns of a new job that is created with these tasks."""
    row, created = change.row, tasks if _are_summarised(tasks, change.events) else ()
    history = _add_events(transaction, change, -no, b"", 0, created)
    graph = pack_document(row.graph)
    if len(tasks) == row.total == 1:
        spec = tasks[0].row.spec
        if graph == _graph_of_one_task(spec.key, spec.definition):
            graph = None
    values = plain_job_values(row, graph=graph, history=history)
    if values is None:
        values = job_values(row, graph=graph, history=history)
    names, connection = transaction.names, transaction.connection
    return (*job_spec_values(row.spec, no, names, connection), *values)


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
        execute(_INSERT_TASK, _new_task_values(transaction, change, jobs[0][0]))
        return True
    stored = transaction.select(_STORED_TASK, numbers[0])
    no, version, change_id, sequence, history, state, unsettled, holder = stored[0]
    if change_id == pack_change_id(row.change_id):
        return False
    if version != change.expected_version:
        raise VersionConflict(row.id, change.expected_version)
    history = _add_events(transaction, change, no, history, sequence, ())
    if not row.state.terminal:
        unsettled = 0
    elif state not in _TERMINAL:
        unsettled = 1
    worker = None if row.lease is None else transaction.number_of(row.lease.worker_id)
    if holder is not None and worker is None and not _by_holder(change):
        execute("UPDATE workers SET ended = 1 WHERE name = ?", (holder,))
    values = task_values(row, worker, unsettled=bool(unsettled), history=history)
    execute(_UPDATE_TASK, (*values, no))
    return True


def _has_ended(change: AnyChange) -> bool:
    """Whether a task has ended, which its job has to record."""
    return isinstance(change.row, TaskRow) and change.row.state.terminal


def _new_task_values(
    transaction: StoreTransaction, change: TaskChange, job_no: int
) -> tuple[Any, ...]:
    """The values of all columns of a new task."""
    row, names, connection = change.row, transaction.names, transaction.connection
    no = job_no << NUMBER_BITS | row.spec.number
    history = _add_events(transaction, change, no, b"", 0, ())
    values = plain_task_values(row, history)
    if values is None:
        worker = None if row.lease is None else transaction.number_of(row.lease.worker_id)
        values = task_values(row, worker, unsettled=row.state.terminal, history=history)
    return (*task_spec_values(row.spec, job_no, names, connection), *values)


def _by_holder(change: TaskChange) -> bool:
    """Whether the worker that held the task has ended its lease itself."""
    return any(event.context.origin == "worker" for event in change.events)


def _add_events(
    transaction: StoreTransaction,
    change: AnyChange,
    entity: int,
    history: bytes,
    sequence: int,
    created: Sequence[TaskChange],
) -> bytes:
    """The history with the events of the change, which are added to the feed too.

    Args:
        created: The tasks of the job that are created in the same commit.
    """
    events, row = change.events, change.row
    if not events:
        # Also without a new event: a long history would be written again with each change.
        return transaction.grown_history(entity, history, sequence, ())
    lists_tasks = any(isinstance(event.body, JobCreated | JobCompleted) for event in events)
    tasks_stored = (
        lists_tasks and isinstance(row, JobRow) and _all_stored(transaction, row, entity, created)
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


def _all_stored(
    transaction: StoreTransaction, row: JobRow, entity: int, created: Sequence[TaskChange]
) -> bool:
    """Whether the store has, or gets in this commit, a row for each task of a job."""
    if created and row.version == 1:
        return sorted(task.row.spec.number for task in created) == list(range(row.total))
    first = -entity << NUMBER_BITS
    ((count,),) = transaction.select(
        "SELECT count(*) FROM tasks WHERE no >= ? AND no < ?", (first, first + row.total)
    )
    return bool(count == row.total)


def _are_summarised(tasks: Sequence[TaskChange], events: Sequence[Event]) -> bool:
    """Whether ``Job Created`` says of the tasks what their rows say, and need not repeat it."""
    specs = sorted((task.row.spec for task in tasks), key=lambda spec: spec.number)
    rows = [(spec.key, spec.definition, spec.input) for spec in specs]
    for event in events:
        if isinstance(event.body, JobCreated):
            summaries = event.body.tasks
            if rows != [(summary.key, summary.name, summary.input) for summary in summaries]:
                return False
            for summary, spec in zip(summaries, specs, strict=True):
                if not _lists(spec.parents, summary.depends_on):
                    return False
    return True


def _lists(document: Document | None, keys: tuple[str, ...]) -> bool:
    """Whether a list of parents has these keys."""
    if document is None:
        return not keys
    # A list in a blob was made of the same keys, and is not read inside a transaction.
    return document.text is None or tuple(codec.value_from_json(document.text)) == keys


def _is_plain(row: TaskRow | JobRow, **special: Any) -> bool:
    """Whether a new row has no other values than the defaults, the usual ones and these."""
    now = row.updated_at
    usual = {"spec": row.spec, "change_id": row.change_id, "updated_at": now}
    plain = {**_DEFAULTS[type(row)], **usual, **special}
    return row.__dict__ == plain and not now.microsecond % 1000


def plain_task_values(row: TaskRow, history: bytes) -> Sequence[Any] | None:
    """What ``task_values`` returns for a new task without anything special; None for others."""
    now, pending = row.updated_at, row.state is TaskState.PENDING
    special: dict[str, Any] = {"state": TaskState.WAITING, "awaits": row.awaits}
    if pending:
        special = {"state": TaskState.PENDING, "due_at": now, "enqueued_at": now}
        special |= {"last_sequence": 1, "last_event_at": now}
    if row.spec.not_before is not None or not _is_plain(row, **special):
        return None
    return (
        *(int(pending), 1, pack_change_id(row.change_id), to_ms(now), None, int(pending), 0, 0),
        *(None, None, codec.to_us(now) if pending else None),
        *(None if pending else pack_numbers(row.awaits), None, None, None, None, None, 0, history),
        None,
    )


def plain_job_values(
    row: JobRow, *, graph: str | bytes | None, history: bytes
) -> Sequence[Any] | None:
    """What ``job_values`` returns for a new job without anything special; None for others."""
    now, total = row.updated_at, row.total
    special = {"graph": row.graph, "total": total, "last_sequence": 1, "last_event_at": now}
    if row.spec.budget != NO_BUDGET or not total or not _is_plain(row, **special):
        return None
    return (
        *(0, 1, pack_change_id(row.change_id), to_ms(now), None, 1, total),
        *(None, None, 0, 0, graph, history, None),
    )
