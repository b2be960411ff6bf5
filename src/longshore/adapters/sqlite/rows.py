"""Rows of tasks and jobs as columns, and back.

A column holds what the usual transitions change, in a short form: numbers for names and states,
milliseconds, bytes for ids. ``rest`` is JSON with every field that differs from what the columns
say, so that every row can be stored and the usual row has none.

Many rows have the same names and kinds, which they refer to by number. A number is given when one
is first stored, and never changes or goes away. What this process has read is kept in memory. A
number that the current transaction has given is not: the transaction may be undone, and another
process may then give the number to another name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, get_type_hints

import apsw
import msgspec

from longshore.adapters.shared.codec import decode_other, encode_other, from_us, to_us
from longshore.adapters.sqlite.store_file import Bindings, Row
from longshore.core.budgets import NO_BUDGET, Budget
from longshore.core.documents import Document
from longshore.core.ids import (
    ID_BYTES,
    JOB_PREFIX,
    REQUEST_PREFIX,
    format_id,
    parse_id,
    split_task_id,
    task_id_of,
)
from longshore.core.jobs.graph import graph_of_one_task
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import JobRow, JobSpec, TaskKind, TaskRow, TaskSpec
from longshore.core.tasks.states import JobState, TaskState

NUMBER_BITS = 20
"""The bits of a task's number within its job; the job's number is above them."""
NUMBER_MASK = (1 << NUMBER_BITS) - 1

# States are stored by their number: add new ones at the end.
TASK_STATES = (
    *(TaskState.WAITING, TaskState.PENDING, TaskState.PROCESSING, TaskState.IN_REVIEW),
    *(TaskState.PARKED, TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED),
)
JOB_STATES = (JobState.RUNNING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
TASK_STATE_NUMBERS = {state: number for number, state in enumerate(TASK_STATES)}
JOB_STATE_NUMBERS = {state: number for number, state in enumerate(JOB_STATES)}

TASK_SPEC_COLUMNS = (
    *("no", "key", "kind", "tenant", "queue", "lane", "created_us", "input", "parents"),
    "dependents",
)
TASK_STATE_COLUMNS = (
    *("state", "version", "change_id", "updated_ms", "event_ms", "sequence", "attempt", "fence"),
    *("worker", "lease_ms", "due_us", "awaits", "started_ms", "finished_ms", "ran_us"),
    *("last_output", "result", "unsettled", "history", "rest"),
)
TASK_COLUMNS = (*TASK_SPEC_COLUMNS, *TASK_STATE_COLUMNS)
JOB_SPEC_COLUMNS = (
    *("no", "id", "tenant", "app", "name", "request_id", "body_hash", "created_us"),
)
JOB_STATE_COLUMNS = (
    *("state", "version", "change_id", "updated_ms", "event_ms", "sequence", "total"),
    *("completed", "finished_ms", "intents", "unreported", "graph", "history", "rest"),
)
JOB_COLUMNS = (*JOB_SPEC_COLUMNS, *JOB_STATE_COLUMNS)

SELECT_TASK = (
    f"SELECT {', '.join(f't.{name}' for name in TASK_COLUMNS)}, j.id"
    " FROM tasks AS t JOIN jobs AS j ON j.no = t.no >> 20"
)
"""Selects what ``StoreReader.task_row`` reads: the columns of a task, and the id of its job."""
SELECT_JOB = f"SELECT {', '.join(JOB_COLUMNS)} FROM jobs"

_TASK_NO = (
    "SELECT t.no FROM jobs AS j JOIN tasks AS t ON t.no = j.no << 20 AND t.key = ?2"
    " WHERE j.id = ?1 UNION ALL"
    " SELECT t.no FROM jobs AS j JOIN tasks AS t INDEXED BY tasks_by_key"
    " ON t.no >> 20 = +j.no AND t.key = ?2 AND (t.no & 1048575) > 0 WHERE j.id = ?1"
)
_TASK_NOS = (
    "SELECT t.no FROM jobs AS j CROSS JOIN tasks AS t ON t.no = j.no << 20"
    " AND t.key IN (SELECT value FROM json_each(?2)) WHERE j.id = ?1 UNION ALL"
    " SELECT t.no FROM jobs AS j CROSS JOIN json_each(?2) AS k"
    " CROSS JOIN tasks AS t INDEXED BY tasks_by_key"
    " ON t.no >> 20 = +j.no AND t.key = k.value AND (t.no & 1048575) > 0 WHERE j.id = ?1"
)
"""The number of a task, and the numbers of several tasks, by the id of their job and their keys.

The index of an expression has no type affinity: it is searched only for a value that has none
either, as ``+j.no``. For ``j.no`` all of it would be scanned.
"""
_TASK_BY_ID = f"{SELECT_TASK} WHERE t.no = ({_TASK_NO} LIMIT 1)"
_TASKS_BY_KEYS = f"{SELECT_TASK} WHERE t.no IN ({_TASK_NOS})"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)
_CHANGE_ID_LENGTH = 16
HASH_LENGTH = 32


def to_ms(moment: datetime) -> int:
    """Whole milliseconds since 1970, rounded down."""
    return (moment - _EPOCH) // _MILLISECOND


def from_ms(ms: int) -> datetime:
    """The inverse of ``to_ms`` for whole milliseconds."""
    return _EPOCH + timedelta(milliseconds=ms)


def pack_document(document: Document | None) -> str | bytes | None:
    """A document as its text, or as bytes that name its blob."""
    if document is None:
        return None
    if document.text is not None:
        return document.text
    return f"{document.size}:{document.key}".encode()


def unpack_document(value: str | bytes | None) -> Document | None:
    """The inverse of ``pack_document``."""
    if value is None:
        return None
    if isinstance(value, str):
        size = len(value) if value.isascii() else len(value.encode())
        return Document(text=value, size=size)
    size_text, _, key = value.decode().partition(":")
    return Document(key=key, size=int(size_text))


def pack_id(prefix: str, text: str) -> str | bytes:
    """An id as its 15 bytes; the text if it has another form."""
    number = parse_id(prefix, text)
    return text if number is None else number.to_bytes(ID_BYTES, "big")


def unpack_id(prefix: str, value: str | bytes) -> str:
    """The inverse of ``pack_id``."""
    return value if isinstance(value, str) else format_id(prefix, int.from_bytes(value, "big"))


def pack_job_id(job_id: str) -> str | bytes:
    """A job id as the column ``jobs.id``."""
    return pack_id(JOB_PREFIX, job_id)


def unpack_job_id(value: str | bytes) -> str:
    """The inverse of ``pack_job_id``."""
    return unpack_id(JOB_PREFIX, value)


def pack_hex(text: str, length: int) -> str | bytes:
    if len(text) == length:
        try:
            packed = bytes.fromhex(text)
        except ValueError:
            return text
        if packed.hex() == text:
            return packed
    return text


def _unpack_hex(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.hex()


def pack_change_id(text: str) -> str | bytes:
    """A change id as its bytes; the text if it has another form."""
    return pack_hex(text, _CHANGE_ID_LENGTH)


def pack_numbers(numbers: NumberSet) -> bytes | None:
    """A set of numbers as bytes, the lowest first; None if it is empty."""
    bits = numbers.bits
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little") if bits else None


def unpack_numbers(value: bytes | None) -> NumberSet:
    """The inverse of ``pack_numbers``."""
    return NumberSet(bits=int.from_bytes(value, "little")) if value else NO_NUMBERS


# Fields that columns cannot express, by name.
_TASK_REST = {**get_type_hints(TaskRow), "not_before": get_type_hints(TaskSpec)["not_before"]}
_JOB_REST = {**get_type_hints(JobRow), "budget": get_type_hints(JobSpec)["budget"]}


def _defaults(of: type[Any]) -> dict[str, Any]:
    return {item.name: item.default for item in fields(of) if item.default is not MISSING}


_TASK_DEFAULTS, _JOB_DEFAULTS = _defaults(TaskRow), _defaults(JobRow)


def _rest_decoder(name: str, types: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    make: Any = TypedDict  # with names that only the classes know
    kind = make(name, types, total=False)
    return msgspec.json.Decoder(kind, dec_hook=decode_other).decode


_decode_task_rest = _rest_decoder("TaskRest", _TASK_REST)
_decode_job_rest = _rest_decoder("JobRest", _JOB_REST)
_decode_kind = msgspec.json.Decoder(TaskKind).decode
_encode_rest = msgspec.json.Encoder(enc_hook=encode_other).encode


def pack_rest(rest: dict[str, Any]) -> str | None:
    """The column ``rest``: fields that differ from what the columns say."""
    return _encode_rest(rest).decode() if rest else None


def _differing(row: TaskRow | JobRow, implied: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row that differ from these."""
    stored = row.__dict__
    return {name: stored[name] for name, value in implied.items() if stored[name] != value}


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else to_ms(moment)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)


def task_values(row: TaskRow, worker: int | None, *, unsettled: bool, history: bytes) -> list[Any]:
    """The values of ``TASK_STATE_COLUMNS``.

    Args:
        worker: The number of the lease holder's name.
    """
    lease, last = row.lease, row.last_event_at
    values: list[Any] = [
        TASK_STATE_NUMBERS[row.state],
        row.version,
        pack_change_id(row.change_id),
        to_ms(row.updated_at),
        None if last == row.updated_at else _ms(last),
        row.last_sequence,
        row.attempt,
        row.fence,
        worker,
        None if lease is None else to_ms(lease.expires_at),
        None if row.due_at is None else to_us(row.due_at),
        pack_numbers(row.awaits),
        _ms(row.started_at),
        _ms(row.finished_at),
        None if row.ran_for is None else row.ran_for // _MICROSECOND,
        row.last_output,
        pack_document(row.result),
        int(unsettled),
        history,
    ]
    implied = _implied_task_fields(values, "" if lease is None else lease.worker_id)
    rest = _differing(row, implied)
    if row.spec.not_before is not None:
        rest["not_before"] = row.spec.not_before
    return [*values, pack_rest(rest)]


def _implied_task_fields(values: Sequence[Any], worker_id: str) -> dict[str, Any]:
    """The fields of a task's row as its columns say."""
    state_number, version, change, updated_ms, event_ms, sequence, attempt, fence = values[:8]
    lease_ms, due_us, awaits, started_ms, finished_ms, ran_us, last_output, result = values[9:17]
    state, change_id = TASK_STATES[state_number], _unpack_hex(change)
    updated_at, started_at = from_ms(updated_ms), _moment(started_ms)
    lease = None
    if lease_ms is not None:
        lease = Lease(
            worker_id=worker_id,
            fence=fence,
            claim_id=change_id,
            acquired_at=started_at or updated_at,
            expires_at=from_ms(lease_ms),
        )
    last_event_at = updated_at if event_ms is None else from_ms(event_ms)
    ended_well = state is TaskState.COMPLETED or state is TaskState.IN_REVIEW
    return {
        **_TASK_DEFAULTS,
        "state": state,
        "version": version,
        "change_id": change_id,
        "updated_at": updated_at,
        "attempt": attempt,
        "fence": fence,
        "lease": lease,
        "awaits": unpack_numbers(awaits),
        "due_at": None if due_us is None else from_us(due_us),
        "enqueued_at": updated_at if state is TaskState.PENDING else None,
        "started_at": started_at,
        "finished_at": _moment(finished_ms),
        "ran_for": None if ran_us is None else timedelta(microseconds=ran_us),
        "result": unpack_document(result),
        "exit_code": 0 if ended_well else None,
        "last_output": last_output,
        "last_sequence": sequence,
        "last_event_at": last_event_at if sequence else None,
    }


def job_values(row: JobRow, *, graph: str | bytes | None, history: bytes) -> list[Any]:
    """The values of ``JOB_STATE_COLUMNS``; ``graph`` None: it follows from the only task."""
    last, state = row.last_event_at, row.state
    all_completed = state is JobState.COMPLETED and row.completed == NumberSet.below(row.total)
    values: list[Any] = [
        JOB_STATE_NUMBERS[state],
        row.version,
        pack_change_id(row.change_id),
        to_ms(row.updated_at),
        None if last == row.updated_at else _ms(last),
        row.last_sequence,
        row.total,
        None if all_completed else pack_numbers(row.completed),
        _ms(row.finished_at),
        len(row.intents),
        int(row.end_unreported),
        graph,
        history,
    ]
    rest = _differing(row, _implied_job_fields(values))
    if row.spec.budget:
        rest["budget"] = row.spec.budget
    return [*values, pack_rest(rest)]


def _implied_job_fields(values: Sequence[Any]) -> dict[str, Any]:
    """The fields of a job's row, except its graph, as its columns say."""
    state_number, version, change, updated_ms, event_ms, sequence, total = values[:7]
    completed, finished_ms = values[7:9]
    state, updated_at = JOB_STATES[state_number], from_ms(updated_ms)
    last_event_at = updated_at if event_ms is None else from_ms(event_ms)
    whole = state is JobState.COMPLETED and completed is None
    return {
        **_JOB_DEFAULTS,
        "version": version,
        "change_id": _unpack_hex(change),
        "updated_at": updated_at,
        "total": total,
        "completed": NumberSet.below(total) if whole else unpack_numbers(completed),
        "end_emitted_round": int(state is JobState.COMPLETED),
        "finished_at": _moment(finished_ms),
        "last_sequence": sequence,
        "last_event_at": last_event_at if sequence else None,
    }


def ended_numbers(state: int, total: int, completed: bytes | None, rest: str | None) -> NumberSet:
    """The numbers of a job's tasks that have ended, from four columns of its row."""
    if completed is None and JOB_STATES[state] is JobState.COMPLETED:
        return NumberSet.below(total)
    ended = unpack_numbers(completed)
    for name, numbers in ({} if rest is None else _decode_job_rest(rest)).items():
        if name in ("failed", "cancelled"):
            ended |= numbers
    return ended


@dataclass(slots=True)
class Names:
    """What this process has read of the names and kinds, for all of its connections."""

    numbers: dict[str, int] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    kind_numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)
    kinds: dict[int, TaskKind] = field(default_factory=dict)
    uncommitted: set[int] = field(default_factory=set)  # given by the current transaction

    def begin(self) -> None:
        """A transaction begins; the one before was committed or undone."""
        self.uncommitted.clear()

    def remember(self, cache: dict[Any, Any], key: Any, value: Any, number: int) -> None:
        """Keep what belongs to a number, unless the number may be undone."""
        if number not in self.uncommitted:
            cache[key] = value


class StoreReader:
    """Reads through one connection."""

    def __init__(self, connection: apsw.Connection, names: Names) -> None:
        self.connection = connection
        self.names = names

    def select(self, sql: str, values: Bindings = ()) -> list[Row]:
        """All rows of a statement."""
        return self.connection.execute(sql, values).fetchall()

    def value(self, sql: str, values: Bindings = ()) -> Any:
        """The first column of the first row; None if there is no row."""
        matches = self.select(sql, values)
        return matches[0][0] if matches else None

    def find_name(self, text: str) -> int | None:
        """The number of a name; None if no committed row has it."""
        number = self.names.numbers.get(text)
        if number is None:
            number = self.value("SELECT no FROM names WHERE text = ?", (text,))
            if number is not None:
                self.names.remember(self.names.numbers, text, number, number)
        return number

    def name(self, number: int) -> str:
        """The name with a number."""
        text = self.names.texts.get(number)
        if text is None:
            text = str(self.value("SELECT text FROM names WHERE no = ?", (number,)))
            self.names.remember(self.names.texts, number, text, number)
        return text

    def kind(self, number: int) -> TaskKind:
        """The kind with a number."""
        kind = self.names.kinds.get(number)
        if kind is None:
            kind = _decode_kind(self.value("SELECT body FROM kinds WHERE no = ?", (number,)))
            self.names.remember(self.names.kinds, number, kind, number)
        return kind

    # Rows ---------------------------------------------------------------------------------------

    def job_no(self, job_id: str) -> int:
        """The number of a job; 0 if there is none."""
        return self.value("SELECT no FROM jobs WHERE id = ?", (pack_job_id(job_id),)) or 0

    def task_no(self, task_id: str) -> int:
        """The number of a task; 0 if it has no row."""
        job_id, key = split_task_id(task_id)
        return self.value(_TASK_NO, (pack_job_id(job_id), key)) or 0

    def task_values(self, task_id: str) -> Row | None:
        """The values of ``SELECT_TASK``; None if the task has no row."""
        job_id, key = split_task_id(task_id)
        matches = self.select(_TASK_BY_ID, (pack_job_id(job_id), key))
        return matches[0] if matches else None

    def task(self, task_id: str) -> TaskRow | None:
        """The row of a task."""
        values = self.task_values(task_id)
        return None if values is None else self.task_row(values)

    def tasks(self, job_id: str, keys: Sequence[str]) -> list[TaskRow]:
        """The rows of tasks of a job."""
        matches = self.select(_TASKS_BY_KEYS, (pack_job_id(job_id), json.dumps(keys)))
        return [self.task_row(values) for values in matches]

    def task_states(self, job_id: str) -> dict[str, TaskState]:
        """The state of every task of a job, by key."""
        first = self.job_no(job_id) << NUMBER_BITS
        matches = self.select(
            "SELECT key, state FROM tasks WHERE no >= ? AND no <= ? ORDER BY no",
            (first, first | NUMBER_MASK),
        )
        return {key: TASK_STATES[state] for key, state in matches}

    def job(self, job_id: str) -> JobRow | None:
        """The row of a job."""
        sql = f"{SELECT_JOB} WHERE id = ? AND version > 0"
        matches = self.select(sql, (pack_job_id(job_id),))
        return self.job_row(matches[0]) if matches else None

    def task_row(self, values: Sequence[Any]) -> TaskRow:
        """The row from the values of ``SELECT_TASK``."""
        state_values = values[10:-1]
        worker, rest = state_values[8], state_values[-1]
        implied = _implied_task_fields(state_values, "" if worker is None else self.name(worker))
        not_before = None
        if rest is not None:
            implied.update(_decode_task_rest(rest))
            not_before = implied.pop("not_before", None)
        return TaskRow(spec=self.task_spec(values, not_before), **implied)

    def task_spec(self, values: Sequence[Any], not_before: datetime | None = None) -> TaskSpec:
        """What was submitted, from the values of ``SELECT_TASK``; the rest has ``not_before``."""
        no, key, kind, tenant, _, _, created_us, input_, parents, dependents = values[:10]
        job_id = unpack_job_id(values[-1])
        return TaskSpec(
            id=task_id_of(job_id, key),
            tenant=self.name(tenant),
            job_id=job_id,
            key=key,
            number=no & NUMBER_MASK,
            created_at=from_us(created_us),
            not_before=not_before,
            input=unpack_document(input_),
            parents=unpack_document(parents),
            dependents=unpack_document(dependents),
            **self.kind(kind).fields,
        )

    def job_row(self, values: Sequence[Any]) -> JobRow:
        """The row from the values of ``SELECT_JOB``."""
        state_values = values[8:]
        implied = _implied_job_fields(state_values)
        budget = NO_BUDGET
        if state_values[-1] is not None:
            implied.update(_decode_job_rest(state_values[-1]))
            budget = implied.pop("budget", NO_BUDGET)
        graph = unpack_document(state_values[-3]) or self._graph_of_only_task(values[0])
        return JobRow(spec=self.job_spec(values, budget), graph=graph, **implied)

    def job_spec(self, values: Sequence[Any], budget: Budget = NO_BUDGET) -> JobSpec:
        """What was submitted, from the values of ``SELECT_JOB``; the rest has the budget."""
        _, job, tenant, app, name, request, body_hash, created_us = values[:8]
        return JobSpec(
            id=unpack_job_id(job),
            tenant=self.name(tenant),
            app=self.name(app),
            request_id=unpack_id(REQUEST_PREFIX, request),
            body_hash=_unpack_hex(body_hash),
            created_at=from_us(created_us),
            name=None if name is None else self.name(name),
            budget=budget,
        )

    def _graph_of_only_task(self, job_no: int) -> Document:
        sql = "SELECT key, kind FROM tasks WHERE no = ?"
        ((key, kind),) = self.select(sql, (job_no << NUMBER_BITS,))
        return graph_of_one_task(key, self.kind(kind).definition)
