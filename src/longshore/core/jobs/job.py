"""The job aggregate: how a job's row changes when tasks are added, end, are cancelled or resumed.

The row has one bit per task and outcome, so an update is idempotent and one small row serves ten
thousand tasks. Each round of a job emits at most one ``Job Failure Detected`` and at most one end.

An operation on many tasks is an ``Intent`` first: once it is committed the caller is answered, and
any process that finds it open carries it out. While a resume is open, outcomes from before it are
stale. A task that has ended exists, so its creation needs no separate commit to close the intent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from longshore.core.budgets import add_allowance
from longshore.core.documents import Document
from longshore.core.events import types as e
from longshore.core.events.event import EventContext, to_tick
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.tasks.changes import Change, Refusal, RefusalReason, Transition
from longshore.core.tasks.commands import AddBudget
from longshore.core.tasks.rows import CancelRequest, Intent, IntentKind, JobRow, JobSpec
from longshore.core.tasks.states import JobState, TaskState

JobChange = Change[JobRow]
JobDecision = JobChange | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTasks:
    """A user adds tasks; ``graph`` is the whole graph with them.

    ``blocked`` are the new tasks that depend on a failed or cancelled task. Old tasks that a new
    task depends on are recorded too.
    """

    tasks: tuple[e.TaskSummary, ...]
    graph: Document
    blocked: NumberSet = NO_NUMBERS
    with_added_dependents: NumberSet = NO_NUMBERS
    intent: Intent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """A task that was read in a terminal state."""

    number: int
    key: str
    round: int
    state: TaskState
    blocks: NumberSet = NO_NUMBERS  # all its dependents, if it did not complete
    usage: e.Usage = e.NO_USAGE  # in all its rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksEnded:
    """The dispatcher read these tasks in a terminal state, after it read the job's row.

    In that order, because a resume changes the job's row first: tasks that were read before would
    restore the end that the resume removed.

    ``statuses`` (by key) are needed only if ``needs_statuses``, because collecting them reads the
    whole job. Without tasks, the command emits the job's final event if it is missing.
    """

    tasks: tuple[EndedTask, ...]
    statuses: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """A user cancels the job."""

    by: str
    reason: str | None = None
    later: bool = False  # its tasks are cancelled in other commits, as an intent


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob:
    """An operator resumes failed or cancelled tasks in another round.

    None of them depends on a task that stays failed or cancelled; ``blocked`` are those that do.
    """

    numbers: NumberSet
    keys: Sequence[str]
    blocked: NumberSet
    by: str
    usage: e.Usage = e.NO_USAGE  # of these tasks; counted again at their end
    later: bool = False  # its tasks are resumed in other commits, as an intent


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentDone:
    """An intent has been carried out on every row it names."""

    intent_id: str


JobCommand = AddTasks | TasksEnded | CancelJob | ResumeJob | AddBudget | IntentDone


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
    row = JobRow(spec=spec, version=0, change_id="", updated_at=now, graph=graph, total=len(tasks))
    created = e.JobCreated(
        job_id=spec.id, request_id=spec.request_id, tasks=tasks, total_tasks=len(tasks)
    )
    step = _JobTransition(row, now, change_id, EventContext(origin="producer", source="user"))
    return step.change(created, intents=(intent,) if intent else ())


def apply(row: JobRow, command: JobCommand, *, now: datetime, change_id: str) -> JobDecision:
    """Decide a command from the row alone."""
    decide, context = _RULES[type(command)]
    return decide(_JobTransition(row, to_tick(now), change_id, context), command)


def needs_statuses(row: JobRow, ended: Sequence[EndedTask]) -> bool:
    """Whether recording these ends emits an event that lists every task."""
    after = _with_recorded_ends(row, ended)
    if after.failed - row.failed and row.failure_emitted_round < row.round:
        return True
    return after.state is JobState.COMPLETED and after.end_unreported


_JobTransition = Transition[JobRow]


def _add_tasks(step: _JobTransition, command: AddTasks) -> JobDecision:
    row = step.row
    if row.state in (JobState.COMPLETED, JobState.CANCELLED) or row.cancel is not None:
        return Refusal(RefusalReason.ENDED, f"the job is {_describe_state(row)}")
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
        with_added_dependents=row.with_added_dependents | command.with_added_dependents,
        intents=(*row.intents, command.intent) if command.intent else row.intents,
        finished_at=row.finished_at if still_over else None,
    )


def _with_intent(
    step: _JobTransition, kind: IntentKind, numbers: NumberSet, *, round: int, by: str
) -> tuple[Intent, ...]:
    """Returns the row's intents and one that this change opens."""
    intent = Intent(id=step.change_id, kind=kind, numbers=numbers, round=round, by=by)
    return (*step.row.intents, intent)


def _describe_state(row: JobRow) -> str:
    return "being cancelled" if row.cancel and not row.state.terminal else row.state.value


def _tasks_ended(step: _JobTransition, command: TasksEnded) -> JobDecision:
    row = step.row
    after = _with_recorded_ends(row, command.tasks)
    if after == row and not row.end_unreported:
        return Refusal(RefusalReason.NOTHING_TO_DO, "all of this is recorded already")
    bodies: list[e.EventBody] = []
    fields: dict[str, Any] = {
        name: getattr(after, name)
        for name in ("completed", "failed", "cancelled", "blocked", "intents", "usage")
    }
    fresh = after.failed - row.failed
    if fresh and row.failure_emitted_round < row.round:
        key = next(task.key for task in command.tasks if task.number in fresh)
        statuses = dict(command.statuses)
        bodies.append(
            e.JobFailureDetected(
                job_id=row.id, failed_key=key, task_statuses=statuses, round=row.round
            )
        )
        fields["failure_emitted_round"] = row.round
    if after.state.terminal:
        fields["finished_at"] = row.finished_at or step.now
        if after.end_unreported:
            bodies.append(_end_event(after, command.statuses))
            fields["end_emitted_round"] = row.round
    return step.change(*bodies, **fields)


def _end_event(row: JobRow, statuses: Mapping[str, str | None]) -> e.EventBody:
    if row.state is JobState.CANCELLED:
        by, reason = (row.cancel.by, row.cancel.reason) if row.cancel else ("user", None)
        return e.JobCancelled(job_id=row.id, by=by, reason=reason, round=row.round)
    return e.JobCompleted(
        job_id=row.id, total_tasks=row.total, task_statuses=dict(statuses), round=row.round
    )


def _with_recorded_ends(row: JobRow, ended: Sequence[EndedTask]) -> JobRow:
    """Returns the row with these ends; stale ends are ignored."""
    recorded = row.ended
    fresh = [task for task in ended if task.number not in recorded and not _is_stale(row, task)]
    blocked, usage = row.blocked, row.usage
    for task in fresh:
        blocked, usage = blocked | task.blocks, usage + task.usage
    completed, failed, cancelled = (
        NumberSet(task.number for task in fresh if task.state is state)
        for state in (TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED)
    )
    after = replace(
        row,
        completed=row.completed | completed,
        failed=row.failed | failed,
        cancelled=row.cancelled | cancelled,
        usage=usage,
    )
    blocked = blocked - after.ended
    intents = tuple(item for item in row.intents if not _is_created(item, after))
    return replace(after, blocked=blocked, intents=intents)


def _is_created(intent: Intent, row: JobRow) -> bool:
    """Whether all tasks that the intent creates must exist."""
    to_create = intent.kind is IntentKind.CREATE and bool(intent.numbers)
    return to_create and not intent.numbers - row.ended


def _is_stale(row: JobRow, task: EndedTask) -> bool:
    return any(
        intent.kind is IntentKind.RESUME
        and task.number in intent.numbers
        and task.round < intent.round
        for intent in row.intents
    )


def _cancel(step: _JobTransition, command: CancelJob) -> JobDecision:
    row = step.row
    if row.state is JobState.CANCELLED or len(row.ended) == row.total:
        return Refusal(RefusalReason.ENDED, f"the job is {row.state}")
    if row.cancel is not None:
        return Refusal(RefusalReason.NOTHING_TO_DO, "its cancellation is under way")
    request = CancelRequest(by=command.by, reason=command.reason, at=step.now)
    intents, left = row.intents, NumberSet.below(row.total) - row.ended
    if command.later:
        intents = _with_intent(step, IntentKind.CANCEL, left, round=row.round, by=command.by)
    return step.change(cancel=request, intents=intents, finished_at=None)


def _resume(step: _JobTransition, command: ResumeJob) -> JobDecision:
    row = step.row
    if row.cancel is not None and not row.state.terminal:
        return Refusal(RefusalReason.WRONG_STATE, "the job is being cancelled")
    again = command.numbers & (row.failed | row.cancelled)
    if not again or again != command.numbers:
        return Refusal(RefusalReason.WRONG_STATE, "only failed or cancelled tasks can be resumed")
    if again & command.blocked:
        return Refusal(
            RefusalReason.WRONG_STATE,
            "a task cannot be resumed while one that it depends on is not",
        )
    round_, by, intents = row.round + 1, command.by, row.intents
    if command.later:
        intents = _with_intent(step, IntentKind.RESUME, again, round=round_, by=by)
    resumed = e.JobResumed(job_id=row.id, round=round_, tasks=tuple(command.keys), by=by)
    return step.change(
        resumed,
        round=round_,
        failed=row.failed - again,
        cancelled=row.cancelled - again,
        blocked=command.blocked - row.ended,
        usage=row.usage - command.usage,
        cancel=None,
        finished_at=None,
        intents=intents,
    )


def _add_budget(step: _JobTransition, command: AddBudget) -> JobDecision:
    """Raise the budget; an intent resumes tasks that wait for it."""
    row = step.row
    if row.state in (JobState.COMPLETED, JobState.CANCELLED):
        return Refusal(RefusalReason.ENDED, f"the job is {row.state}")
    allowance = add_allowance(row.allowance, command.amount, command.request_id)
    if allowance is None:
        return Refusal(RefusalReason.NOTHING_TO_DO, "this was added already")
    added = e.JobBudgetAdded(job_id=row.id, by=command.by, **asdict(command.amount))
    intents = _with_intent(step, IntentKind.UNPARK, NO_NUMBERS, round=row.round, by=command.by)
    return step.change(added, allowance=allowance, intents=intents)


def _intent_done(step: _JobTransition, command: IntentDone) -> JobDecision:
    left = tuple(intent for intent in step.row.intents if intent.id != command.intent_id)
    if left == step.row.intents:
        return Refusal(RefusalReason.NOTHING_TO_DO, "the intent is closed")
    return step.change(intents=left)


_OPERATOR = EventContext(origin="operator", source="user")
_DISPATCHER = EventContext(origin="dispatcher")

_RULES: dict[type, tuple[Callable[[_JobTransition, Any], JobDecision], EventContext]] = {
    AddTasks: (_add_tasks, EventContext(origin="producer", source="user")),
    TasksEnded: (_tasks_ended, _DISPATCHER),
    CancelJob: (_cancel, _OPERATOR),
    ResumeJob: (_resume, _OPERATOR),
    AddBudget: (_add_budget, _OPERATOR),
    IntentDone: (_intent_done, _DISPATCHER),
}
