"""New jobs with all of their tasks, as work for the writer: many jobs in one transaction.

A job that is not stored has no tasks, no history and no version to compare, so nothing is read but
whether it is there. Jobs of one item of work are independent: one that exists already is answered
and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Any

import apsw

from longshore.adapters.shared.codec import to_us
from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.commit import INSERT_JOB, INSERT_TASK, are_summarised
from longshore.adapters.sqlite.configuration import NEWEST_VERSION
from longshore.adapters.sqlite.history import EVENT_NUMBERS, pack_event
from longshore.adapters.sqlite.names import Names
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.rows import (
    NUMBER_BITS,
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
from longshore.core.events.event import Event
from longshore.core.events.types import Usage
from longshore.core.tasks.changes import TaskChange
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import VersionConflict
from longshore.ports.ledger import JobCreation

_CHANGE_ID = "SELECT change_id FROM jobs WHERE id = ?"
_LAST_NUMBERS = (
    "SELECT ifnull((SELECT max(no) FROM jobs), 0), ifnull((SELECT max(position) FROM feed), 0)"
)
_NO_USAGE = Usage()
_TASK_DEFAULTS, _JOB_DEFAULTS = (
    {
        "usage": _NO_USAGE,
        "version": 1,
        **{item.name: item.default for item in fields(kind) if item.default is not MISSING},
    }
    for kind in (TaskRow, JobRow)
)
_graph_of_one_task = lru_cache(maxsize=1024)(graph_of_one_task)


class CreateJobs:
    """Creates jobs; a call with the writer's connection writes them."""

    def __init__(self, creations: Sequence[JobCreation], names: Names) -> None:
        self._creations = creations
        self._names = names
        self._newest: dict[tuple[str, str], int] = {}  # versions, by tenant and definition
        pending = any(task.effects for creation in creations for task in creation.tasks)
        self.topics = (Topic.QUEUE,) if pending else ()

    def __call__(self, connection: apsw.Connection) -> list[tuple[()] | VersionConflict]:
        self._newest.clear()
        ((last_no, last_position),) = connection.execute(_LAST_NUMBERS)
        transaction = StoreTransaction(connection, self._names, position=last_position + 1)
        rows = _NewRows(transaction, last_no)
        answers: list[tuple[()] | VersionConflict] = []
        change_ids: dict[str, str | bytes] = {}
        for creation in self._creations:
            row = creation.job.row
            change_id = pack_change_id(row.change_id)
            stored = change_ids.get(row.id)
            if stored is None:
                matches = transaction.select(_CHANGE_ID, (pack_job_id(row.id),))
                if not matches:
                    outdated = self._outdated_definition(transaction, creation)
                    if outdated is not None:
                        answers.append(VersionConflict(outdated, 0))
                        continue
                    rows.add(creation)
                stored = change_ids[row.id] = matches[0][0] if matches else change_id
            # The same change: the answer to an earlier commit was lost.
            answers.append(() if stored == change_id else VersionConflict(row.id, 0))
        rows.write()
        return answers

    def _outdated_definition(
        self, transaction: StoreTransaction, creation: JobCreation
    ) -> str | None:
        """The name of a definition of which a task has another version than the newest."""
        newest = self._newest
        for task in creation.tasks:
            spec = task.row.spec
            name = (spec.tenant, spec.definition)
            if name not in newest:
                versions = transaction.select(NEWEST_VERSION, name)
                newest[name] = versions[0][0] if versions else 0
            if newest[name] != spec.definition_version:
                return spec.definition
        return None


class _NewRows:
    """The rows of new jobs and tasks, written together."""

    def __init__(self, transaction: StoreTransaction, last_no: int) -> None:
        self._transaction = transaction
        self._number_of = transaction.number_of
        self._last_no = last_no
        self._jobs: list[Sequence[Any]] = []
        self._tasks: list[Sequence[Any]] = []

    def add(self, creation: JobCreation) -> None:
        """Add a job that is not stored."""
        transaction, names = self._transaction, self._transaction.names
        job, tasks = creation
        row = job.row
        self._last_no += 1
        no = self._last_no
        summarised = are_summarised(tasks, job.events)
        history = b"".join(
            [self._record(event, row, -no, tasks_stored=summarised) for event in job.events]
        )
        graph = pack_document(row.graph)
        if row.total == 1:
            spec = tasks[0].row.spec
            if graph == _graph_of_one_task(spec.key, spec.definition):
                graph = None
        values = plain_job_values(row, graph=graph, history=history)
        if values is None:
            values = job_values(row, graph=graph, history=history)
        spec_values = job_spec_values(row.spec, no, names, transaction.connection)
        self._jobs.append((*spec_values, *values))
        for task in tasks:
            self._add_task(task, no)

    def _add_task(self, change: TaskChange, job_no: int) -> None:
        transaction, row = self._transaction, change.row
        spec = row.spec
        no = job_no << NUMBER_BITS | spec.number
        history = b"".join([self._record(event, row, no) for event in change.events])
        values = plain_task_values(row, history)
        if values is None:
            worker = None if row.lease is None else self._number_of(row.lease.worker_id)
            values = task_values(row, worker, unsettled=row.state.terminal, history=history)
        spec_values = task_spec_values(spec, job_no, transaction.names, transaction.connection)
        self._tasks.append((*spec_values, *values))

    def _record(
        self, event: Event, row: TaskRow | JobRow, entity: int, *, tasks_stored: bool = False
    ) -> bytes:
        transaction, number_of, spec = self._transaction, self._number_of, row.spec
        type_ = EVENT_NUMBERS[event.type]
        tenant, app = number_of(spec.tenant), number_of(spec.app)
        transaction.record(type_, tenant, app, entity, event.sequence)
        return pack_event(
            event,
            row,
            position=transaction.position,
            number_of=number_of,
            tasks_stored=tasks_stored,
        )

    def write(self) -> None:
        """Write the rows, the feed and its index."""
        if not self._jobs:
            return
        connection = self._transaction.connection
        connection.executemany(INSERT_JOB, self._jobs)
        connection.executemany(INSERT_TASK, self._tasks)
        reach("write.rows_written")
        self._transaction.close()


def plain_task_values(row: TaskRow, history: bytes) -> Sequence[Any] | None:
    """What ``task_values`` returns for a new task without anything special; None for others."""
    now, spec = row.updated_at, row.spec
    pending = row.state is TaskState.PENDING
    plain = {**_TASK_DEFAULTS, "spec": spec, "change_id": row.change_id, "updated_at": now}
    if pending:
        plain |= {"due_at": now, "enqueued_at": now, "last_sequence": 1, "last_event_at": now}
        plain["state"] = TaskState.PENDING
    else:
        plain |= {"state": TaskState.WAITING, "awaits": row.awaits}
    if row.__dict__ != plain or spec.not_before is not None or now.microsecond % 1000:
        return None
    return (
        *(int(pending), 1, pack_change_id(row.change_id), to_ms(now), None, int(pending), 0, 0),
        *(None, None, to_us(now) if pending else None, pack_numbers(row.awaits)),
        *(None, None, None, None, None, 0, history, None),
    )


def plain_job_values(
    row: JobRow, *, graph: str | bytes | None, history: bytes
) -> Sequence[Any] | None:
    """What ``job_values`` returns for a new job without anything special; None for others."""
    now, spec = row.updated_at, row.spec
    plain = {**_JOB_DEFAULTS, "spec": spec, "change_id": row.change_id, "updated_at": now}
    plain |= {"graph": row.graph, "total": row.total, "last_sequence": 1, "last_event_at": now}
    if row.__dict__ != plain or spec.budget or not row.total or now.microsecond % 1000:
        return None
    return (
        *(0, 1, pack_change_id(row.change_id), to_ms(now), None, 1, row.total),
        *(None, None, 0, 0, graph, history, None),
    )
