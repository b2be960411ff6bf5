"""One item of work inside a transaction of the writer: rows with their events and the feed.

The *feed* is the order of all events. An item of work that records events adds one row to it, which
groups the entities by type, tenant and sequence: in a batch, most entities have the same ones. The
events of one entity keep their order. A row of the feed has no content of its own; what its events
say is in the histories.

A job that is not stored has no tasks, no history and no version to compare. What its first rows and
events are follows from its plan, so they are packed from the plan; the insert itself shows whether
the job is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import apsw
import msgspec

from longshore.adapters.shared.codec import to_us
from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.history import (
    BY_PRODUCER,
    EVENT_NUMBERS,
    JOB_CREATED,
    PENDING,
    SEGMENT_BYTES,
    pack_event,
    pack_record,
    unpack_records,
)
from longshore.adapters.sqlite.rows import (
    HASH_LENGTH,
    JOB_COLUMNS,
    JOB_STATE_COLUMNS,
    NUMBER_BITS,
    TASK_COLUMNS,
    TASK_STATE_COLUMNS,
    TASK_STATES,
    Names,
    StoreReader,
    ended_numbers,
    job_values,
    pack_change_id,
    pack_document,
    pack_hex,
    pack_id,
    pack_job_id,
    pack_numbers,
    pack_rest,
    task_values,
)
from longshore.core.events.types import JobCompleted
from longshore.core.ids import REQUEST_PREFIX
from longshore.core.jobs.job import JobChange
from longshore.core.tasks.changes import TaskChange
from longshore.core.tasks.rows import JobRow, JobSpec, TaskKind, TaskRow, TaskSpec
from longshore.errors import VersionConflict
from longshore.ports.ledger import AnyChange, JobCreation

_KIND_FIELDS = tuple(TaskKind.__dataclass_fields__)
_kind_values = attrgetter(*_KIND_FIELDS)
_encode_kind = msgspec.json.Encoder().encode

_INSERT_TASK = (
    f"INSERT INTO tasks ({', '.join(TASK_COLUMNS)}) VALUES ({','.join('?' * len(TASK_COLUMNS))})"
)
_UPDATE_TASK = (
    f"UPDATE tasks SET {', '.join(f'{name}=?' for name in TASK_STATE_COLUMNS)} WHERE no=?"
)
_REPLACE_JOB = (  # its number may be reserved
    f"REPLACE INTO jobs ({', '.join(JOB_COLUMNS)}) VALUES ({','.join('?' * len(JOB_COLUMNS))})"
)
_UPDATE_JOB = f"UPDATE jobs SET {', '.join(f'{name}=?' for name in JOB_STATE_COLUMNS)} WHERE no=?"
# A number for a job whose row is not written yet; its version is 0. NULL gives the next number.
RESERVE_JOB = (
    "REPLACE INTO jobs (no, id, tenant, app, request_id, body_hash, created_us, state, version,"
    " change_id, updated_ms, sequence, total, intents, unreported, history)"
    " VALUES (?, ?, 0, 0, '', '', 0, 0, 0, '', 0, 0, 0, 0, 0, x'')"
)
_STORED_JOB = (
    "SELECT no, version, change_id, sequence, history, state, total, completed, rest, graph"
    " FROM jobs WHERE id = ?"
)
_STORED_TASK = (
    "SELECT no, version, change_id, sequence, history, state, unsettled, worker FROM tasks"
    " WHERE no = ?"
)
_TERMINAL = frozenset(number for number, state in enumerate(TASK_STATES) if state.terminal)
_INSERT_SEGMENT = "INSERT INTO history_segments (entity, first_sequence, body) VALUES (?,?,?)"
_INSERT_TYPE = (
    "INSERT INTO feed_types (tenant, type, app, block) VALUES (?,?,?,?) ON CONFLICT DO NOTHING"
)
_CREATE_JOB = (
    "INSERT INTO jobs (no, id, tenant, app, name, request_id, body_hash, created_us, change_id,"
    " updated_ms, total, graph, history, rest, state, version, sequence, intents, unreported)"
    " SELECT ?,?,?,?,?,?,?,?,?,?,?,?,?,?, 0, 1, 1, 0, 0"
    " WHERE NOT EXISTS (SELECT 1 FROM removed_jobs WHERE id = ?2) ON CONFLICT (id) DO NOTHING"
)
_CREATE_TASK = (
    "INSERT INTO tasks (no, key, input, parents, dependents, kind, tenant, queue, lane, created_us,"
    " change_id, updated_ms, state, version, sequence, attempt, fence, due_us, awaits, unsettled,"
    " history, rest) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?, 1, ?, 0, 0, ?,?, 0, ?,?)"
)
REMOVED = "SELECT 1 FROM removed_jobs WHERE id = ?"
_CREATION = "SELECT no, change_id FROM jobs WHERE id = ?"
_LAST_NUMBERS = (
    "SELECT ifnull((SELECT max(no) FROM jobs), 0), ifnull((SELECT max(position) FROM feed), 0)"
)
FEED_BLOCK_BITS = 6
"""The types of events are indexed by blocks of so many bits of positions."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


CreationAnswer = tuple[()] | VersionConflict


class FeedEntry(NamedTuple):
    """An event in the feed.

    ``entity`` is the number of a task, the negated number of a job, or for other entities None;
    then ``sequence`` is the number of the row in ``other_events``.
    """

    type: int
    tenant: int
    entity: int | None
    sequence: int

    @property
    def job(self) -> int | None:
        """The number of the job that the entity is or belongs to; None for other entities."""
        if self.entity is None:
            return None
        return -self.entity if self.entity < 0 else self.entity >> NUMBER_BITS


class StoreTransaction(StoreReader):
    """Reads and writes of one item of work; ``close`` adds its row to the feed."""

    def __init__(self, connection: apsw.Connection, names: Names) -> None:
        super().__init__(connection, names)
        self.execute = connection.execute
        # Type, tenant, app and sequence of events, and their entities.
        self._recorded: list[tuple[int, int, int, int, Sequence[int]]] = []

    @cached_property
    def position(self) -> int:
        """The position of this item's events in the feed."""
        last: int | None = self.value("SELECT max(position) FROM feed")
        return (last or 0) + 1

    def number_of(self, text: str) -> int:
        """The number of a name, given now if it has none."""
        number = self.names.numbers.get(text) or self.find_name(text)
        return number or self._give_number("names (text)", text)

    def kind_number_of(self, spec: TaskSpec | TaskKind) -> int:
        """The number of a task's kind, given now if it has none."""
        values = _kind_values(spec)
        number = self.names.kind_numbers.get(values)
        if number is None:
            kind = TaskKind(**dict(zip(_KIND_FIELDS, values, strict=True)))
            body = _encode_kind(kind).decode()
            number = self.value("SELECT no FROM kinds WHERE body = ?", (body,))
            number = number or self._give_number("kinds (body)", body)
            self.names.remember(self.names.kind_numbers, values, number, number)
        return number

    def _give_number(self, column: str, text: str) -> int:
        self.execute(f"INSERT INTO {column} VALUES (?)", (text,))
        number = self.connection.last_insert_rowid()
        self.names.uncommitted.add(number)
        return number

    def record_events(
        self, type_: int, tenant: int, app: int, sequence: int, entities: Sequence[int]
    ) -> None:
        """Events of one kind and sequence were added to histories.

        Args:
            entities: Each as in ``FeedEntry``, but 0 for other entities.
        """
        self._recorded.append((type_, tenant, app, sequence, entities))

    @contextmanager
    def undoable(self) -> Iterator[None]:
        """What is written inside is undone if it raises."""
        count = len(self._recorded)
        self.execute("SAVEPOINT undoable")
        try:
            yield
        except apsw.Error:
            raise  # the writer undoes everything
        except Exception:
            self.execute("ROLLBACK TO undoable")
            self.execute("RELEASE undoable")
            del self._recorded[count:]
            raise
        self.execute("RELEASE undoable")

    def close(self) -> None:
        """Write the row of the feed, if events were recorded."""
        if not self._recorded:
            return
        position = self.position
        self.execute(
            "INSERT INTO feed (position, entries) VALUES (?,?)",
            (position, _encode(_grouped(self._recorded))),
        )
        apps = dict.fromkeys((tenant, type_, app) for type_, tenant, app, _, _ in self._recorded)
        block = position >> FEED_BLOCK_BITS
        self.connection.executemany(_INSERT_TYPE, [(*app, block) for app in apps])

    def grown_history(
        self, entity: int, history: bytes, sequence: int, records: Sequence[bytes]
    ) -> bytes:
        """The history with these records; a part that is long enough becomes a segment.

        Args:
            sequence: Of the last event in ``history``.
        """
        if len(history) > SEGMENT_BYTES:
            first = sequence - len(unpack_records(history)) + 1
            self.execute(_INSERT_SEGMENT, (entity, first, history))
            history = b""
        return b"".join((history, *records))

    # Rows ---------------------------------------------------------------------------------------

    def write_job(self, change: JobChange) -> bool:
        """Write a job's row and its events. Returns False if the row has this change already.

        Raises:
            VersionConflict: the row is not at the version from which the change was decided.
        """
        row = change.row
        stored = self.select(_STORED_JOB, (pack_job_id(row.id),))
        no, version, change_id, sequence, history = stored[0][:5] if stored else (0, 0, b"", 0, b"")
        if version and change_id == pack_change_id(row.change_id):
            return False
        if version != change.expected_version:
            raise VersionConflict(row.id, change.expected_version)
        if not version:
            self._check_not_removed(row.id, change)
            no = no or (self.value("SELECT max(no) FROM jobs") or 0) + 1
            values = job_values(
                row,
                graph=pack_document(row.graph),
                history=self._grown_by(change, -no, b"", 0),
            )
            self.execute(_REPLACE_JOB, (*self.job_spec_values(row.spec, no), *values))
            return True
        history = self._grown_by(change, -no, history, sequence)
        graph = stored[0][9]
        if graph is not None or row.total > 1:
            graph = pack_document(row.graph)
        self.execute(_UPDATE_JOB, (*job_values(row, graph=graph, history=history), no))
        before = ended_numbers(*stored[0][5:9])
        first = no << NUMBER_BITS
        self.connection.executemany(
            "UPDATE tasks SET unsettled = 0 WHERE no = ? AND unsettled > 0",
            [(first + number,) for number in row.ended - before],
        )
        return True

    def write_task(self, change: TaskChange) -> bool:
        """Write a task's row and its events. Returns False if the row has this change already.

        Raises:
            VersionConflict: the row is not at the version from which the change was decided.
        """
        row = change.row
        stored = self.select(_STORED_TASK, (self.task_no(row.id),))
        if not stored:
            if change.expected_version:
                raise VersionConflict(row.id, change.expected_version)
            self._insert_task(change)
            return True
        no, version, change_id, sequence, history, state, unsettled, holder = stored[0]
        if change_id == pack_change_id(row.change_id):
            return False
        if version != change.expected_version:
            raise VersionConflict(row.id, change.expected_version)
        history = self._grown_by(change, no, history, sequence)
        if not row.state.terminal:
            unsettled = 0
        elif state not in _TERMINAL:
            unsettled = 1
        by_worker = any(event.context.origin == "worker" for event in change.events)
        if holder is not None and row.lease is None and not by_worker:
            self.execute("UPDATE workers SET ended = 1 WHERE name = ?", (holder,))
        values = self._task_values(row, unsettled=bool(unsettled), history=history)
        self.execute(_UPDATE_TASK, (*values, no))
        return True

    def _check_not_removed(self, job_id: str, change: AnyChange) -> None:
        if self.value(REMOVED, (pack_job_id(job_id),)):
            raise VersionConflict(change.row.id, 0)

    def _insert_task(self, change: TaskChange) -> None:
        spec = change.row.spec
        job_no = self.job_no(spec.job_id)
        if not job_no:
            self._check_not_removed(spec.job_id, change)
            self.execute(RESERVE_JOB, (None, pack_job_id(spec.job_id)))
            job_no = self.connection.last_insert_rowid()
        history = self._grown_by(change, job_no << NUMBER_BITS | spec.number, b"", 0)
        values = self._task_values(change.row, unsettled=change.row.state.terminal, history=history)
        self.execute(_INSERT_TASK, (*self.task_spec_values(spec, job_no), *values))

    def _task_values(self, row: TaskRow, *, unsettled: bool, history: bytes) -> list[Any]:
        worker = None if row.lease is None else self.number_of(row.lease.worker_id)
        return task_values(row, worker, unsettled=unsettled, history=history)

    def task_spec_values(self, spec: TaskSpec, job_no: int) -> tuple[Any, ...]:
        """The values of ``TASK_SPEC_COLUMNS``."""
        return (
            job_no << NUMBER_BITS | spec.number,
            spec.key,
            self.kind_number_of(spec),
            self.number_of(spec.tenant),
            self.number_of(spec.queue),
            int(spec.priority),
            to_us(spec.created_at),
            pack_document(spec.input),
            pack_document(spec.parents),
            pack_document(spec.dependents),
        )

    def job_spec_values(self, spec: JobSpec, job_no: int) -> tuple[Any, ...]:
        """The values of ``JOB_SPEC_COLUMNS``."""
        return (
            job_no,
            pack_job_id(spec.id),
            self.number_of(spec.tenant),
            self.number_of(spec.app),
            None if spec.name is None else self.number_of(spec.name),
            pack_id(REQUEST_PREFIX, spec.request_id),
            pack_hex(spec.body_hash, HASH_LENGTH),
            to_us(spec.created_at),
        )

    def _grown_by(self, change: AnyChange, entity: int, history: bytes, sequence: int) -> bytes:
        """The history with the events of the change, which are added to the feed too."""
        events, row = change.events, change.row
        tasks_stored = any(isinstance(event.body, JobCompleted) for event in events)
        if tasks_stored and isinstance(row, JobRow):
            first = -entity << NUMBER_BITS
            sql = "SELECT count(*) FROM tasks WHERE no >= ? AND no < ?"
            tasks_stored = self.value(sql, (first, first + row.total)) == row.total
        records = []
        for event in events:
            record = pack_event(
                event,
                row,
                position=self.position,
                number_of=self.number_of,
                tasks_stored=tasks_stored,
            )
            records.append(record)
            tenant, app = self.number_of(row.spec.tenant), self.number_of(row.spec.app)
            type_ = EVENT_NUMBERS[event.type]
            self.record_events(type_, tenant, app, event.sequence, (entity,))
        # Also without a new event: a long history would be written again with each change.
        return self.grown_history(entity, history, sequence, records)


def feed_entries(data: bytes) -> Iterator[FeedEntry]:
    """The events in a row of the feed, in order."""
    for type_, tenant, sequence, differences in _decode(data):
        entity = 0
        for difference in differences:
            entity += difference
            yield FeedEntry(type_, tenant, entity or None, sequence)


def _grouped(
    recorded: Sequence[tuple[int, int, int, int, Sequence[int]]],
) -> list[tuple[Any, ...]]:
    """The entities by type, tenant and sequence, in the order of recording."""
    groups: list[tuple[tuple[int, int, int], list[int]]] = []
    latest_group: dict[tuple[int, int, int], int] = {}
    group_of_entity: dict[int, int] = {}  # the last one with an event of the entity
    for type_, tenant, _, sequence, entities in recorded:
        key = (type_, tenant, sequence)
        number = latest_group.get(key, -1)
        if number <= max([group_of_entity.get(entity, -1) for entity in entities]):
            # There is no such group yet, or it comes before another event of an entity.
            number = latest_group[key] = len(groups)
            groups.append((key, []))
        groups[number][1].extend(entities)
        group_of_entity.update(dict.fromkeys(entities, number))
    return [(*key, _differences(entities)) for key, entities in groups]


def _differences(entities: list[int]) -> list[int]:
    return [entity - before for before, entity in zip([0, *entities], entities, strict=False)]


def create_jobs(
    transaction: StoreTransaction, creations: Sequence[JobCreation]
) -> list[CreationAnswer]:
    """Write the jobs that are not stored, with all of their tasks; see ``ports.ledger``."""
    connection = transaction.connection
    ((last_no, last_position),) = transaction.select(_LAST_NUMBERS)
    transaction.position = last_position + 1
    packed = [_packed_job(transaction, no, item) for no, item in enumerate(creations, last_no + 1)]
    before = connection.total_changes()
    connection.executemany(_CREATE_JOB, packed)
    all_new = connection.total_changes() - before == len(packed)
    new = list[tuple[JobCreation, Any]]()
    answers: list[CreationAnswer] = []
    for creation, job in zip(creations, packed, strict=True):
        no, job_id, tenant, app = job[:4]
        if not all_new:
            stored = transaction.select(_CREATION, (job_id,))
            if not stored or stored[0][0] != no:
                # The same change: the answer to an earlier commit was lost.
                own = stored and stored[0][1] == pack_change_id(creation.change_id)
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
