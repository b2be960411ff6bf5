"""The life of a job: what its row learns when tasks are added, end, are cancelled or resumed.

The row keeps one bit a task and outcome, so an update is idempotent and one small row serves ten
thousand tasks. Each round of a job tells at most one ``Job Failure Detected`` and at most one end.

Operations on many tasks are an ``Intent`` first: once it is committed the answer can be given, and
whoever finds it open carries it out. While a resume is open, an outcome from before it is stale.
Tasks that have ended are there, so their creation need not be closed by a commit of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from longshore.core.budgets import Budget, allowed_more
from longshore.core.changes import Change, Reason, Refusal
from longshore.core.events import types as e
from longshore.core.events.event import Context, to_tick
from longshore.core.numbers import NO_NUMBERS, NumberSet
from longshore.core.rows import CancelRequest, Intent, IntentKind, JobRow, JobSpec
from longshore.core.states import JobState, TaskState
from longshore.core.stepping import Step
from longshore.core.values import Document

JobChange = Change[JobRow]
JobDecision = JobChange | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTasks:
    """A user adds tasks; ``graph`` is the whole graph with them.

    ``blocked`` are those of the new tasks that stand behind one that failed or was cancelled,
    ``grown`` the old ones that a new one stands behind.
    """

    tasks: tuple[e.TaskSummary, ...]
    graph: Document
    blocked: NumberSet = NO_NUMBERS
    grown: NumberSet = NO_NUMBERS
    intent: Intent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """A task that was read in a terminal state."""

    number: int
    key: str
    round: int
    state: TaskState
    blocks: NumberSet = NO_NUMBERS  # everything behind it, if it did not complete
    usage: e.Usage = field(default_factory=e.Usage)  # in all its rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksEnded:
    """The dispatcher read these tasks in a terminal state, after it read the job's row.

    In that order, because a resume changes the job's row first: tasks that were read before it
    would bring back the end that it took away.

    ``statuses`` (by key) are needed only when ``tells`` says so, because gathering them reads the
    whole job. With no tasks at all it is a look whether the job is over and has not told so.
    """

    ended: tuple[EndedTask, ...]
    statuses: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """A user wants the job ended."""

    by: str
    reason: str | None = None
    intent: Intent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob:
    """An operator gives tasks another round that failed or were cancelled.

    None of them is behind a task that stays failed or cancelled; ``blocked`` is what is.
    """

    numbers: NumberSet
    keys: Sequence[str]
    blocked: NumberSet
    by: str
    usage: e.Usage = field(default_factory=e.Usage)  # of these tasks: it counts again at their end
    intent: Intent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddJobBudget:
    """An operator allows more to be spent on the job; its tasks that rest for want of it go on."""

    more: Budget
    by: str
    request_id: str  # of those with the same id the first counts
    intent: Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentDone:
    """An intent has been carried out on every row it names."""

    intent_id: str


JobCommand = AddTasks | TasksEnded | CancelJob | ResumeJob | AddJobBudget | IntentDone


def create(
    spec: JobSpec,
    tasks: tuple[e.TaskSummary, ...],
    graph: Document,
    *,
    now: datetime,
    change_id: str,
    intent: Intent | None = None,
) -> JobChange:
    """A new job; its tasks' rows are created with it or by its intent."""
    now = to_tick(now)
    unborn = JobRow(
        spec=spec, version=0, change_id="", updated_at=now, graph=graph, total=len(tasks)
    )
    created = e.JobCreated(
        job_id=spec.id, request_id=spec.request_id, tasks=tasks, total_tasks=len(tasks)
    )
    step = _Step(unborn, now, change_id, Context(origin="producer", source="user"))
    return step.change(created, intents=(intent,) if intent else ())


def apply(row: JobRow, command: JobCommand, *, now: datetime, change_id: str) -> JobDecision:
    """What comes of a command, decided from the row alone."""
    decide, context = _RULES[type(command)]
    return decide(_Step(row, to_tick(now), change_id, context), command)


def tells(row: JobRow, ended: Sequence[EndedTask]) -> bool:
    """Whether recording these ends would tell an event that lists every task."""
    after = _recorded(row, ended)
    if after.failed - row.failed and row.failure_told_in < row.round:
        return True
    return after.state is JobState.COMPLETED and after.untold


_Step = Step[JobRow]


def _add_tasks(step: _Step, command: AddTasks) -> JobDecision:
    row = step.row
    if row.state in (JobState.COMPLETED, JobState.CANCELLED) or row.cancel is not None:
        return Refusal(reason=Reason.ENDED, detail=f"the job is {_described(row)}")
    added = e.JobTasksAdded(
        job_id=row.id,
        new_tasks=command.tasks,
        previous_total_tasks=row.total,
        total_tasks_now=row.total + len(command.tasks),
    )
    total = row.total + len(command.tasks)
    blocked = row.blocked | command.blocked
    still_over = replace(row, total=total, blocked=blocked).state.terminal
    return step.change(
        added,
        total=total,
        graph=command.graph,
        blocked=blocked,
        grown=row.grown | command.grown,
        intents=_with(row, command.intent),
        finished_at=row.finished_at if still_over else None,
    )


def _with(row: JobRow, intent: Intent | None) -> tuple[Intent, ...]:
    return (*row.intents, intent) if intent else row.intents


def _described(row: JobRow) -> str:
    return "being cancelled" if row.cancel and not row.state.terminal else row.state.value


def _tasks_ended(step: _Step, command: TasksEnded) -> JobDecision:
    row = step.row
    after = _recorded(row, command.ended)
    if after == row and not row.untold:
        return Refusal(reason=Reason.NOTHING_TO_DO, detail="all of this is recorded already")
    told: list[e.EventBody] = []
    fields: dict[str, Any] = {
        name: getattr(after, name)
        for name in ("completed", "failed", "cancelled", "blocked", "intents", "usage")
    }
    fresh = after.failed - row.failed
    if fresh and row.failure_told_in < row.round:
        key = next(task.key for task in command.ended if task.number in fresh)
        statuses = dict(command.statuses)
        told.append(
            e.JobFailureDetected(
                job_id=row.id, failed_key=key, task_statuses=statuses, round=row.round
            )
        )
        fields["failure_told_in"] = row.round
    if after.state.terminal:
        fields["finished_at"] = row.finished_at or step.now
        if after.untold:
            told.append(_end_of(after, command.statuses))
            fields["end_told_in"] = row.round
    return step.change(*told, **fields)


def _end_of(row: JobRow, statuses: Mapping[str, str | None]) -> e.EventBody:
    if row.state is JobState.CANCELLED:
        by, reason = (row.cancel.by, row.cancel.reason) if row.cancel else ("user", None)
        return e.JobCancelled(job_id=row.id, by=by, reason=reason, round=row.round)
    return e.JobCompleted(
        job_id=row.id, total_tasks=row.total, task_statuses=dict(statuses), round=row.round
    )


def _recorded(row: JobRow, ended: Sequence[EndedTask]) -> JobRow:
    """The row with these ends in its sets; stale ones are passed over."""
    numbers: dict[TaskState, list[int]] = {
        TaskState.COMPLETED: [],
        TaskState.FAILED: [],
        TaskState.CANCELLED: [],
    }
    known = row.ended
    blocked, usage = row.blocked, row.usage
    for task in ended:
        if task.number not in known and not _stale(row, task):
            numbers[task.state].append(task.number)
            blocked = blocked | task.blocks
            usage += task.usage
    completed = row.completed | NumberSet(numbers[TaskState.COMPLETED])
    failed = row.failed | NumberSet(numbers[TaskState.FAILED])
    cancelled = row.cancelled | NumberSet(numbers[TaskState.CANCELLED])
    blocked = blocked - (completed | failed | cancelled)
    after = replace(
        row,
        completed=completed,
        failed=failed,
        cancelled=cancelled,
        blocked=blocked,
        usage=usage,
    )
    return replace(after, intents=tuple(one for one in row.intents if not _created(one, after)))


def _created(intent: Intent, row: JobRow) -> bool:
    """Whether everything that it is to create must be there."""
    to_create = intent.kind is IntentKind.CREATE and bool(intent.numbers)
    return to_create and not intent.numbers - row.ended


def _stale(row: JobRow, task: EndedTask) -> bool:
    return any(
        intent.kind is IntentKind.RESUME
        and task.number in intent.numbers
        and task.round < intent.round
        for intent in row.intents
    )


def _cancel(step: _Step, command: CancelJob) -> JobDecision:
    row = step.row
    if row.state is JobState.CANCELLED or len(row.ended) == row.total:
        return Refusal(reason=Reason.ENDED, detail=f"the job is {row.state}")
    if row.cancel is not None:
        return Refusal(reason=Reason.NOTHING_TO_DO, detail="its cancellation is under way")
    request = CancelRequest(by=command.by, reason=command.reason, at=step.now)
    return step.change(cancel=request, intents=_with(row, command.intent), finished_at=None)


def _resume(step: _Step, command: ResumeJob) -> JobDecision:
    row = step.row
    if row.cancel is not None and not row.state.terminal:
        return Refusal(reason=Reason.WRONG_STATE, detail="the job is being cancelled")
    again = command.numbers & (row.failed | row.cancelled)
    if not again or again != command.numbers:
        return Refusal(
            reason=Reason.WRONG_STATE, detail="only failed or cancelled tasks can be resumed"
        )
    if again & command.blocked:
        return Refusal(
            reason=Reason.WRONG_STATE, detail="a task cannot be resumed behind one that is not"
        )
    resumed = e.JobResumed(
        job_id=row.id, round=row.round + 1, tasks=tuple(command.keys), by=command.by
    )
    return step.change(
        resumed,
        round=row.round + 1,
        failed=row.failed - again,
        cancelled=row.cancelled - again,
        blocked=command.blocked - row.ended,
        usage=row.usage - command.usage,
        cancel=None,
        finished_at=None,
        intents=_with(row, command.intent),
    )


def _add_budget(step: _Step, command: AddJobBudget) -> JobDecision:
    row, more = step.row, command.more
    if row.state in (JobState.COMPLETED, JobState.CANCELLED):
        return Refusal(reason=Reason.ENDED, detail=f"the job is {row.state}")
    allowance = allowed_more(row.allowance, more, command.request_id)
    if allowance is None:
        return Refusal(reason=Reason.NOTHING_TO_DO, detail="this was added already")
    added = e.JobBudgetAdded(
        job_id=row.id, by=command.by, usd=more.usd, tokens=more.tokens, minutes=more.minutes
    )
    return step.change(added, allowance=allowance, intents=_with(row, command.intent))


def _intent_done(step: _Step, command: IntentDone) -> JobDecision:
    left = tuple(intent for intent in step.row.intents if intent.id != command.intent_id)
    if left == step.row.intents:
        return Refusal(reason=Reason.NOTHING_TO_DO, detail="the intent is closed")
    return step.change(intents=left)


_OPERATOR = Context(origin="operator", source="user")
_DISPATCHER = Context(origin="dispatcher")

_RULES: dict[type, tuple[Callable[[_Step, Any], JobDecision], Context]] = {
    AddTasks: (_add_tasks, Context(origin="producer", source="user")),
    TasksEnded: (_tasks_ended, _DISPATCHER),
    CancelJob: (_cancel, _OPERATOR),
    ResumeJob: (_resume, _OPERATOR),
    AddJobBudget: (_add_budget, _OPERATOR),
    IntentDone: (_intent_done, _DISPATCHER),
}
