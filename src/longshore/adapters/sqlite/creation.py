"""The creation of many jobs, as work for the writer.

A job that is not stored has no tasks, no history and no version to compare. What its first rows and
events are follows from its plan, so they are packed from the plan; the insert itself shows whether
the job is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from longshore.adapters.shared.codec import to_us
from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.history import BY_PRODUCER, JOB_CREATED, PENDING, pack_record
from longshore.adapters.sqlite.rows import (
    NUMBER_BITS,
    pack_change_id,
    pack_document,
    pack_numbers,
    pack_rest,
)
from longshore.adapters.sqlite.transaction import StoreTransaction
from longshore.errors import VersionConflict
from longshore.ports.ledger import JobCreation

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

Answer = tuple[()] | VersionConflict


def create_jobs(transaction: StoreTransaction, creations: Sequence[JobCreation]) -> list[Answer]:
    """Write the jobs that are not stored, with all of their tasks; see ``ports.ledger``."""
    connection = transaction.connection
    ((last_no, last_position),) = transaction.select(_LAST_NUMBERS)
    transaction.position = last_position + 1
    packed = [_packed_job(transaction, no, item) for no, item in enumerate(creations, last_no + 1)]
    before = connection.total_changes()
    connection.executemany(_CREATE_JOB, packed)
    all_new = connection.total_changes() - before == len(packed)
    new = list[tuple[JobCreation, Any]]()
    answers: list[Answer] = []
    for creation, job in zip(creations, packed, strict=True):
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
    return answers


def _packed_job(transaction: StoreTransaction, no: int, creation: JobCreation) -> tuple[Any, ...]:
    """The values of ``_CREATE_JOB``: what ``core.jobs.job.create`` decides."""
    spec, total = creation.spec, len(creation.plan.tasks)
    values = transaction.job_spec_values(spec, no)
    return (
        *values,
        *(pack_change_id(creation.change_id), values[-1] // 1000, total),
        pack_document(creation.graph) if total > 1 else None,
        pack_record(JOB_CREATED, 0, transaction.position, BY_PRODUCER, (total,)),
        pack_rest({"budget": spec.budget}) if spec.budget else None,
    )


def _packed_tasks(transaction: StoreTransaction, creation: JobCreation, job: Any) -> Iterator[Any]:
    """The values of ``_CREATE_TASK`` for each task: what ``core.tasks.task.create`` decides."""
    first_no, tenant, (created_us, change_id, now_ms) = job[0] << NUMBER_BITS, job[2], job[7:10]
    common: dict[int, tuple[Any, ...]] = {}  # by identity of the kind: tasks share a few
    pending = _pending_values(transaction, None, now_ms)
    for task in creation.plan.tasks:
        _, number, key, kind, input_, parents, dependents, not_before, awaits = task
        values = common.get(id(kind))
        if values is None:
            numbers = transaction.kind_number_of(kind), tenant, transaction.number_of(kind.queue)
            values = (*numbers, int(kind.priority), created_us, change_id, now_ms)
            common[id(kind)] = values
        state, rest = pending, None
        if not_before is not None:
            rest = pack_rest({"not_before": not_before})
            state = _pending_values(transaction, to_us(not_before), now_ms)
        if awaits.bits:
            state = (0, 0, None, pack_numbers(awaits), b"")
        yield (
            first_no + number,
            key,
            pack_document(input_),
            pack_document(parents),
            pack_document(dependents),
            *values,
            *state,
            rest,
        )


def _pending_values(
    transaction: StoreTransaction, due_us: int | None, now_ms: int
) -> tuple[Any, ...]:
    """State, sequence, due time, awaited parents and history of a new task that awaits none."""
    now_us, due_ms = now_ms * 1000, None
    if due_us is not None and due_us > now_us:
        now_us, due_ms = due_us, due_us // 1000
    record = pack_record(PENDING, 0, transaction.position, BY_PRODUCER, (1, due_ms))
    return (1, 1, now_us, None, record)
