"""What follows from the end of tasks: their dependents may become ready, their job may end.

Pure. A store with transactions decides all of it in the commit of the outcome (``settle``). The
dispatcher uses the same functions with reads and commits in between, where a store cannot do this,
or where a document that is needed is in the blob store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from longshore.core.documents import Document
from longshore.core.events.codec import overflow_of, properties_of
from longshore.core.ids import task_id_of
from longshore.core.jobs import job as jobs
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal, TaskChange
from longshore.core.tasks.commands import ParentsCompleted
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState

MAX_DEPENDENTS = 1_000
"""How many tasks one turn makes ready at most."""


class SettleReader(Protocol):
    """Reads rows as the transaction sees them, with the ended tasks in their new state."""

    def task(self, task_id: str) -> TaskRow | None:
        """Returns a task's row."""
        ...

    def task_states(self, job_id: str) -> Mapping[str, TaskState]:
        """Returns the state of every task of a job, by key."""
        ...


def settle(
    job: JobRow,
    ended: Sequence[TaskRow],
    reader: SettleReader,
    *,
    now: datetime,
    change_id: str,
) -> tuple[TaskChange | jobs.JobChange, ...] | None:
    """Decide what follows from the ends of tasks of one job: changes of dependents, and of the job.

    Returns None if a document that is needed, or one that would have to be written, is in the blob
    store, or if too many tasks become ready: the dispatcher settles the ends.
    """
    graph: Graph | None = None
    if needs_graph(job, ended):
        if job.graph.key is not None:
            return None
        graph = Graph.from_json(_inline(job.graph))
    names = [name_dependents(job, row, graph) for row in ended]
    if any(isinstance(keys, Document) and keys.key is not None for keys in names):
        return None
    keys_by_task = {
        row.id: _inline(keys) if isinstance(keys, Document) else keys
        for row, keys in zip(ended, names, strict=True)
    }
    commands = parents_completed(ended, keys_by_task)
    if len(commands) > MAX_DEPENDENTS:
        return None
    dependents: list[TaskChange] = []
    for task_id, done in commands.items():
        # A task that is being added does not exist yet: its parents are checked at the end.
        if (row := reader.task(task_id)) is not None:
            change = tasks.apply(row, done, now=now, change_id=change_id)
            if not isinstance(change, Refusal):
                dependents.append(change)
    facts = ended_tasks(ended, graph)
    statuses: dict[str, str | None] = {}
    if jobs.needs_statuses(job, facts):
        ready = {change.row.spec.key: change.row.state for change in dependents}
        statuses = job_statuses({**reader.task_states(job.id), **ready})
    command = jobs.TasksEnded(tasks=facts, statuses=statuses)
    decision = jobs.apply(job, command, now=now, change_id=change_id)
    if isinstance(decision, Refusal):
        return tuple(dependents)
    # Large fields of an event must be written to the blob store first.
    if any(overflow_of(properties_of(event)) for event in decision.events):
        return None
    return (*dependents, decision)


def needs_graph(job: JobRow, ended: Iterable[TaskRow]) -> bool:
    """Whether the rows alone do not say what follows from these ends."""
    return any(_needs_graph(job, row) for row in ended)


def _needs_graph(job: JobRow, row: TaskRow) -> bool:
    if row.spec.number in job.with_added_dependents:
        return True
    return row.state is not TaskState.COMPLETED and row.spec.dependents is not None


def name_dependents(job: JobRow, row: TaskRow, graph: Graph | None) -> Sequence[str] | Document:
    """Returns the keys of the tasks that an ended task makes ready, or the document with them.

    Its spec names those that were submitted with it. The graph is used only if dependents were
    added later.
    """
    if row.state is not TaskState.COMPLETED:
        return ()
    if graph is not None and row.spec.number in job.with_added_dependents:
        return [graph.keys[child] for child in graph.dependents.get(row.spec.number, ())]
    return row.spec.dependents or ()


def parents_completed(
    ended: Iterable[TaskRow], keys_by_task: Mapping[str, Sequence[str]]
) -> dict[str, ParentsCompleted]:
    """Returns the command for each dependent of these tasks, by its id."""
    numbers: dict[str, list[int]] = {}
    for row in ended:
        for key in keys_by_task[row.id]:
            dependent = task_id_of(row.spec.job_id, key)
            numbers.setdefault(dependent, []).append(row.spec.number)
    return {
        task_id: ParentsCompleted(numbers=NumberSet(parents))
        for task_id, parents in numbers.items()
    }


def ended_tasks(ended: Iterable[TaskRow], graph: Graph | None) -> tuple[jobs.EndedTask, ...]:
    """Returns the ends as the job's command describes them."""
    return tuple(
        jobs.EndedTask(
            number=row.spec.number,
            key=row.spec.key,
            round=row.round,
            state=row.state,
            blocks=_blocked_by(row, graph),
            usage=row.usage,
        )
        for row in ended
    )


def _blocked_by(row: TaskRow, graph: Graph | None) -> NumberSet:
    """Returns the tasks that cannot run because this task did not complete."""
    if row.state is TaskState.COMPLETED or graph is None:
        return NO_NUMBERS
    return graph.descendants_of([row.spec.number])


def job_statuses(states: Mapping[str, TaskState]) -> dict[str, str | None]:
    """Returns the states of tasks as events of their job list them."""
    return {
        key: None if state is TaskState.WAITING else state.value for key, state in states.items()
    }


def _inline(document: Document) -> Any:
    return json.loads(document.text or "null")
