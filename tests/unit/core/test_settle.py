"""What follows from the end of tasks, decided in one step."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from longshore.core.documents import Document
from longshore.core.events import types as e
from longshore.core.events.codec import EVENT_SIZE_LIMIT_BYTES
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NumberSet
from longshore.core.jobs.settle import MAX_DEPENDENTS, needs_graph, settle
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from tests.factories import NOON, a_document, a_job, a_spec, a_task

PARENTS = ((), (0,), (0,), (1, 2))
KEYS = ("t0", "t1", "t2", "t3")


class Rows:
    """The rows of a job, as a transaction reads them."""

    def __init__(self, *rows: TaskRow) -> None:
        self.rows = {row.id: row for row in rows}
        self.listings = self.reads = 0

    def task(self, task_id: str) -> TaskRow | None:
        self.reads += 1
        return self.rows.get(task_id)

    def task_states(self, job_id: str) -> Mapping[str, TaskState]:
        self.listings += 1
        return {row.spec.key: row.state for row in self.rows.values()}


def a_graph(parents: tuple[tuple[int, ...], ...] = PARENTS) -> Document:
    graph = Graph(KEYS[: len(parents)], ("command",) * len(parents), parents)
    return a_document(json.dumps(graph.to_json()))


def member(number: int, state: TaskState, **fields: Any) -> TaskRow:
    """A task of the diamond t0 -> t1, t2 -> t3."""
    children = [KEYS[child] for child, parents in enumerate(PARENTS) if number in parents]
    spec = a_spec(
        KEYS[number],
        number=number,
        dependents=a_document(json.dumps(children)) if children else None,
    )
    if state is TaskState.WAITING:
        fields.setdefault("awaits", NumberSet(PARENTS[number]))
    return a_task(state=state, spec=spec, **fields)


class Settlement(NamedTuple):
    dependents: tuple[Any, ...]
    job: Any = None


def settled(job: JobRow, ended: list[TaskRow], rows: Rows) -> Settlement:
    changes = settle(job, ended, rows, now=NOON, change_id="turn-1")
    assert changes is not None
    if changes and isinstance(changes[-1].row, JobRow):
        return Settlement(changes[:-1], changes[-1])
    return Settlement(changes)


def test_dependents_without_another_parent_become_ready() -> None:
    done = member(0, TaskState.COMPLETED)
    rows = Rows(done, member(1, TaskState.WAITING), member(2, TaskState.WAITING))

    settlement = settled(a_job(4, graph=a_graph()), [done], rows)

    states = {change.row.spec.key: change.row.state for change in settlement.dependents}
    assert states == {"t1": TaskState.PENDING, "t2": TaskState.PENDING}
    assert settlement.job is not None
    assert settlement.job.row.completed == NumberSet([0])
    assert settlement.job.events == ()
    assert rows.listings == 0


def test_very_many_dependents_are_left_to_the_dispatcher() -> None:
    keys = [f"t{number}" for number in range(1, MAX_DEPENDENTS + 2)]
    spec = a_spec("t0", number=0, dependents=a_document(json.dumps(keys)))
    done = a_task(state=TaskState.COMPLETED, spec=spec)
    rows = Rows(done)

    assert settle(a_job(len(keys) + 1), [done], rows, now=NOON, change_id="turn-1") is None
    assert rows.reads == 0


def test_a_dependent_gets_one_change_for_all_parents_that_ended_together() -> None:
    done = [member(1, TaskState.COMPLETED), member(2, TaskState.COMPLETED)]
    rows = Rows(*done, member(3, TaskState.WAITING))

    settlement = settled(a_job(4, completed=[0], graph=a_graph()), done, rows)

    (change,) = settlement.dependents
    assert (change.row.state, change.expected_version) == (TaskState.PENDING, 1)


def test_a_dependent_still_waits_for_its_other_parent() -> None:
    done = member(1, TaskState.COMPLETED)

    settlement = settled(a_job(4), [done], Rows(done, member(3, TaskState.WAITING)))

    (change,) = settlement.dependents
    assert (change.row.state, change.row.awaits) == (TaskState.WAITING, NumberSet([2]))


def test_a_dependent_that_was_notified_or_does_not_exist_yet_is_left_alone() -> None:
    done = member(0, TaskState.COMPLETED)
    rows = Rows(done, member(1, TaskState.PENDING))

    assert settled(a_job(4), [done], rows).dependents == ()


def test_the_last_end_completes_the_job_and_lists_every_task() -> None:
    done = member(3, TaskState.COMPLETED)
    others = [member(number, TaskState.COMPLETED) for number in range(3)]

    settlement = settled(a_job(4, completed=[0, 1, 2]), [done], Rows(*others, done))

    assert settlement.job is not None
    assert settlement.job.row.state is JobState.COMPLETED
    (event,) = settlement.job.events
    assert isinstance(event.body, e.JobCompleted)
    assert event.body.task_statuses == dict.fromkeys(KEYS, "completed")


def test_a_failure_blocks_what_is_behind_it_and_is_reported_with_the_states_after_it() -> None:
    failed, done = member(1, TaskState.FAILED), member(0, TaskState.COMPLETED)
    rows = Rows(done, failed, member(2, TaskState.WAITING), member(3, TaskState.WAITING))

    settlement = settled(a_job(4, graph=a_graph()), [done, failed], rows)

    assert settlement.job is not None
    assert settlement.job.row.blocked == NumberSet([3])
    (event,) = settlement.job.events
    assert isinstance(event.body, e.JobFailureDetected)
    assert event.body.task_statuses == {
        "t0": "completed",
        "t1": "failed",
        "t2": "pending",
        "t3": None,
    }


def test_the_failure_of_a_task_without_dependents_needs_no_graph() -> None:
    failed = member(3, TaskState.FAILED)
    job = a_job(4, graph=Document(key="blobs/graph", size=5_000))

    assert not needs_graph(job, [failed])
    assert settled(job, [failed], Rows(failed)).job is not None


def test_dependents_that_were_added_later_are_named_by_the_graph() -> None:
    done = replace(member(3, TaskState.COMPLETED), round=1)
    added = a_task(state=TaskState.WAITING, spec=a_spec("t4", number=4), awaits=NumberSet([3]))
    graph = Graph((*KEYS, "t4"), ("command",) * 5, (*PARENTS, (3,)))
    job = a_job(
        5,
        completed=[0, 1, 2],
        graph=a_document(json.dumps(graph.to_json())),
        with_added_dependents=NumberSet([3]),
    )

    settlement = settled(job, [done], Rows(done, added))

    assert [change.row.spec.key for change in settlement.dependents] == ["t4"]


def test_what_is_recorded_already_changes_nothing() -> None:
    done = member(3, TaskState.COMPLETED)

    settlement = settled(a_job(4, completed=[3]), [done], Rows(done))

    assert settlement == ((), None)


def test_a_graph_in_the_blob_store_is_left_to_the_dispatcher() -> None:
    failed = member(0, TaskState.FAILED)
    job = a_job(4, graph=Document(key="blobs/graph", size=5_000))

    assert settle(job, [failed], Rows(failed), now=NOON, change_id="turn-1") is None


def test_a_list_of_dependents_in_the_blob_store_is_left_to_the_dispatcher() -> None:
    done = member(0, TaskState.COMPLETED)
    spec = replace(done.spec, dependents=Document(key="blobs/dependents", size=5_000))
    done = replace(done, spec=spec)

    assert settle(a_job(4), [done], Rows(done), now=NOON, change_id="turn-1") is None


def test_an_event_that_is_too_large_for_the_row_is_left_to_the_dispatcher() -> None:
    done = a_task(state=TaskState.COMPLETED, spec=a_spec("a", number=0))
    key = "k" * EVENT_SIZE_LIMIT_BYTES
    long = a_task(state=TaskState.COMPLETED, spec=a_spec(key, number=1))

    settlement = settle(
        a_job(2, completed=[1]), [done], Rows(done, long), now=NOON, change_id="turn-1"
    )

    assert settlement is None
