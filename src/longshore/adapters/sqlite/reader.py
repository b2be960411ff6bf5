"""Reads rows through one connection, and the names and kinds of tasks that they refer to by number.

Many rows have the same names and kinds. A number is given when one is first stored, and never
changes or goes away. What this process has read is kept in memory. A number that the current
transaction has given is not: the transaction may be undone, and another process may then give the
number to another name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import apsw
import msgspec

from longshore.adapters.shared.codec import from_us
from longshore.adapters.sqlite.rows import (
    NUMBER_BITS,
    NUMBER_MASK,
    SELECT_JOB,
    SELECT_TASK,
    TASK_STATES,
    decode_job_rest,
    decode_task_rest,
    implied_job_fields,
    implied_task_fields,
    pack_job_id,
    unpack_document,
    unpack_hex,
    unpack_id,
    unpack_job_id,
)
from longshore.adapters.sqlite.store_file import Bindings, Row
from longshore.core.budgets import NO_BUDGET, Budget
from longshore.core.documents import Document
from longshore.core.ids import REQUEST_PREFIX, split_task_id, task_id_of
from longshore.core.jobs.graph import graph_of_one_task
from longshore.core.tasks.rows import JobRow, JobSpec, TaskKind, TaskRow, TaskSpec
from longshore.core.tasks.states import TaskState

_decode_kind = msgspec.json.Decoder(TaskKind).decode

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
        implied = implied_task_fields(state_values, "" if worker is None else self.name(worker))
        not_before = None
        if rest is not None:
            implied.update(decode_task_rest(rest))
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
        implied = implied_job_fields(state_values)
        budget = NO_BUDGET
        if state_values[-1] is not None:
            implied.update(decode_job_rest(state_values[-1]))
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
            body_hash=unpack_hex(body_hash),
            created_at=from_us(created_us),
            name=None if name is None else self.name(name),
            budget=budget,
        )

    def _graph_of_only_task(self, job_no: int) -> Document:
        sql = "SELECT key, kind FROM tasks WHERE no = ?"
        ((key, kind),) = self.select(sql, (job_no << NUMBER_BITS,))
        return graph_of_one_task(key, self.kind(kind).definition)
