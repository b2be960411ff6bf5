"""One step of a job: a command, the ends that it hears of, and what came of it."""

from collections.abc import Iterable
from datetime import datetime

from longshore.core import job
from longshore.core.changes import Refusal
from longshore.core.events import types as e
from longshore.core.job import EndedTask, JobChange, TasksEnded
from longshore.core.numbers import NumberSet
from longshore.core.rows import JobRow
from longshore.core.states import TaskState
from tests.factories import NOON, SECOND, changed, refused

LATER = NOON + 10 * SECOND
STATUSES: dict[str, str | None] = {"t0": "completed", "t1": None}
COMPLETED, FAILED, CANCELLED = TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED


def change_of(row: JobRow, command: job.JobCommand, *, now: datetime = LATER) -> JobChange:
    return changed(job.apply(row, command, now=now, change_id="new"))


def refusal_of(row: JobRow, command: job.JobCommand) -> Refusal:
    return refused(job.apply(row, command, now=LATER, change_id="new"))


def an_end(
    number: int, state: TaskState = COMPLETED, *, round: int = 1, blocks: Iterable[int] = ()
) -> EndedTask:
    return EndedTask(
        number=number, key=f"t{number}", round=round, state=state, blocks=NumberSet(blocks)
    )


def ends(*ended: EndedTask) -> TasksEnded:
    return TasksEnded(ended=ended, statuses=STATUSES)


def bodies(change: JobChange) -> list[e.EventBody]:
    return [event.body for event in change.events]
