"""Every row comes back from its columns as it was."""

import dataclasses
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.rows import (
    JOB_COLUMNS,
    SELECT_JOB,
    SELECT_TASK,
    TASK_COLUMNS,
    Names,
    StoreReader,
    job_values,
    pack_document,
    pack_job_id,
    task_values,
)
from longshore.adapters.sqlite.transaction import StoreTransaction
from longshore.core.documents import Document
from longshore.core.ids import format_id, task_id_of
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.rows import JobRow, JobSpec, TaskRow, TaskSpec
from longshore.core.tasks.states import JobState, TaskState
from longshore.testing.contracts.samples import claim, new_job, new_task
from longshore.testing.full_samples import full_job_row, full_task_row
from tests.factories import a_task

MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# With whole milliseconds, as columns have them, and without.
MOMENTS = st.one_of(
    st.integers(0, 2**41).map(lambda ms: EPOCH + ms * timedelta(milliseconds=1)),
    st.integers(0, 2**51).map(lambda us: EPOCH + us * MICROSECOND),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
HEX = st.binary(min_size=8, max_size=8).map(bytes.hex)
DOCUMENTS = st.one_of(
    TEXTS.map(lambda text: Document(text=f'"{text}"', size=len(text.encode()) + 2)),
    st.builds(Document, key=TEXTS.filter(bool), size=st.integers(0, 2**40)),
)
JOB_IDS = st.one_of(
    st.integers(0, 2**120 - 1).map(lambda number: format_id("job-", number)),
    st.sampled_from(["job-one", "job-" + "w" * 24, "job-" + "A" * 24, "x"]),
)
BY_HINT: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS | HEX,
    int: st.integers(0, 2**62),
    bool: st.booleans(),
    float: st.floats(0, allow_nan=False, allow_infinity=False),
    datetime: MOMENTS,
    timedelta: st.integers(0, 2**50).map(lambda us: us * MICROSECOND),
    Document: DOCUMENTS,
    RetryPolicy: st.builds(RetryPolicy, max_attempts=st.integers(1, 50)),
    NumberSet: st.sets(st.integers(0, 300), max_size=5).map(NumberSet),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values by type hint, so that a field that is added is covered by itself."""
    if get_origin(hint) is UnionType:
        return st.one_of(st.none(), *(values_of(item) for item in get_args(hint)[:-1]))
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), max_size=2).map(tuple)
    if hint in BY_HINT:
        return BY_HINT[hint]
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    return instances_of(hint)


def instances_of(of: type, **own: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(of)
    names = [field.name for field in dataclasses.fields(of) if field.init]
    fields = {name: values_of(hints[name]) for name in names if name not in own}
    return st.builds(of, **fields, **own)


TASK_SPECS = instances_of(
    TaskSpec,
    id=st.just(""),
    job_id=JOB_IDS,
    key=st.text("abc_-9", min_size=1, max_size=5),
    number=st.integers(0, 2**20 - 1),
).map(lambda spec: dataclasses.replace(spec, id=task_id_of(spec.job_id, spec.key)))
TASK_ROWS = instances_of(TaskRow, spec=TASK_SPECS)
JOB_ROWS = instances_of(JobRow, spec=instances_of(JobSpec, id=JOB_IDS), total=st.integers(1, 300))
ENDED_JOB_ROWS = JOB_ROWS.map(
    lambda row: dataclasses.replace(
        row,
        completed=NumberSet.below(row.total),
        failed=NumberSet(),
        cancelled=NumberSet(),
        blocked=NumberSet(),
    )
)


class Columns:
    """A store in memory, without a writer."""

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:")
        for _, sql in store_file.migrations():
            self.connection.execute(sql)
        self.transaction = StoreTransaction(self.connection, Names())

    def _insert(self, table: str, columns: tuple[str, ...], values: list[Any]) -> None:
        marks = ",".join("?" * len(columns))
        sql = f"INSERT INTO {table} ({','.join(columns)}) VALUES ({marks})"  # noqa: S608
        self.connection.execute(sql, values)

    def task(self, row: TaskRow) -> TaskRow:
        """The row, written and read."""
        self.connection.execute("DELETE FROM tasks; DELETE FROM jobs")
        connection, number_of = self.connection, self.transaction.number_of
        worker = None if row.lease is None else number_of(row.lease.worker_id)
        spec = self.transaction.task_spec_values(row.spec, 1)
        values = task_values(row, worker, unsettled=False, history=b"")
        self._insert("tasks", TASK_COLUMNS, [*spec, *values])
        columns = ("no", "id", "tenant", "app", "request_id", "body_hash", "created_us", "state")
        columns += ("version", "change_id", "updated_ms", "sequence", "total", "intents")
        columns += ("unreported", "history")
        job = [1, pack_job_id(row.spec.job_id), *[0] * (len(columns) - 3), b""]
        self._insert("jobs", columns, job)
        ((*read,),) = connection.execute(SELECT_TASK).fetchall()
        return StoreReader(connection, Names()).task_row(read)

    def job(self, row: JobRow) -> JobRow:
        """The row, written and read."""
        self.connection.execute("DELETE FROM tasks; DELETE FROM jobs")
        spec = self.transaction.job_spec_values(row.spec, 1)
        values = job_values(row, graph=pack_document(row.graph), history=b"")
        self._insert("jobs", JOB_COLUMNS, [*spec, *values])
        ((*read,),) = self.connection.execute(SELECT_JOB).fetchall()
        return StoreReader(self.connection, Names()).job_row(read)

    def rest(self, table: str) -> str | None:
        """What the columns of the only row could not express."""
        ((rest,),) = self.connection.execute(f"SELECT rest FROM {table}").fetchall()  # noqa: S608
        return rest  # type: ignore[no-any-return]


COLUMNS = Columns()


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=15)
@given(TASK_ROWS)
def test_a_task_comes_back_as_it_was(row: TaskRow) -> None:
    assert COLUMNS.task(row) == row


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=15)
@given(JOB_ROWS | ENDED_JOB_ROWS)
def test_a_job_comes_back_as_it_was(row: JobRow) -> None:
    assert COLUMNS.job(row) == row


@pytest.mark.parametrize("state", TaskState)
def test_a_task_with_every_field_comes_back_in_every_state(state: TaskState) -> None:
    row = dataclasses.replace(full_task_row(), state=state)

    assert Columns().task(row) == row


def test_a_job_with_every_field_comes_back() -> None:
    row = full_job_row()

    assert Columns().job(row) == row


@pytest.mark.parametrize("state", JobState)
def test_the_state_of_a_job_is_what_its_sets_say(state: JobState) -> None:
    row = new_job().row
    sets = {
        JobState.RUNNING: {},
        JobState.COMPLETED: {"completed": NumberSet([0]), "end_emitted_round": 1},
        JobState.FAILED: {"failed": NumberSet([0])},
        JobState.CANCELLED: {"cancelled": NumberSet([0])},
    }
    row = dataclasses.replace(row, **sets[state])
    columns = Columns()

    assert columns.job(row) == row
    assert row.state is state
    assert (columns.rest("jobs") is None) == (state in (JobState.RUNNING, JobState.COMPLETED))


def test_the_usual_task_is_in_columns_alone() -> None:
    pending = new_task("a", number=0).row
    locked = claim(pending).row

    for row in (pending, locked):
        columns = Columns()
        assert columns.task(row) == row
        assert columns.rest("tasks") is None


def test_a_column_for_each_of_the_usual_fields_and_no_second_one() -> None:
    columns = Columns()
    row = a_task()

    assert columns.task(row) == row
    for table, names in (("tasks", TASK_COLUMNS), ("jobs", JOB_COLUMNS)):
        described = columns.connection.execute(f"PRAGMA table_info({table})").fetchall()
        assert tuple(name for _, name, *_ in described) == names
