"""Why a task or a job is in its state: reasons as values, from what was asked to the root cause.

The reasons are derived from rows that were just read, so they describe one moment. Each reason has
its times as values too, and a ``Remedy``: the operator's action that would help. Interfaces spell
a remedy in their own way; nothing here knows a command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from longshore.core.budgets import BudgetScope, BudgetUnit
from longshore.core.ids import task_id_of
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NumberSet
from longshore.core.maximums import MAX_REVISIONS
from longshore.core.queues import QueuePause
from longshore.core.records import value
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.lease import Lease, LeasePolicy
from longshore.core.tasks.rows import CancelRequest, IntentKind, JobRow, ParkRecord, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.core.text.numbers import duration_text, plural

# A renewal that is this many intervals late counts as missed.
_LATE = 1.5
_SOON = "as soon as another worker polls"
_FAILED_STATES = {TaskState.FAILED: "failed", TaskState.CANCELLED: "was cancelled"}


class ReasonCode(StrEnum):
    """The kind of a reason, for programs."""

    WAITING = "waiting"
    BEHIND_FAILURE = "behind_failure"
    LEFT_OUT = "left_out"
    MOVING_ON = "moving_on"
    BEING_CREATED = "being_created"
    DELAYED = "delayed"
    BACKING_OFF = "backing_off"
    DUE = "due"
    QUEUE_PAUSED = "queue_paused"
    QUEUE_HELD = "queue_held"
    NO_WORKER = "no_worker"
    RUNNING = "running"
    WORKER_SILENT = "worker_silent"
    WORKER_GONE = "worker_gone"
    CANCELLING = "cancelling"
    IN_REVIEW = "in_review"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RemedyAction(StrEnum):
    """What an operator can do."""

    RESUME_JOB = "resume_job"
    RESUME_QUEUE = "resume_queue"
    START_WORKER = "start_worker"
    APPROVE_TASK = "approve_task"
    ADD_BUDGET = "add_budget"
    LIST_JOB_TASKS = "list_job_tasks"


@dataclass(frozen=True, slots=True)
class Remedy:
    """An action of an operator, with its arguments."""

    action: RemedyAction
    target: str | None  # id of a job or task, name of a queue; of a budget, None: the day's
    unit: BudgetUnit | None = None  # of the budget to raise


@dataclass(frozen=True, slots=True)
class WhyReason:
    """One reason, as a sentence and as values."""

    code: ReasonCode
    text: str
    task_id: str | None = None  # None: the reason is about the job, or about its workers
    since: datetime | None = None
    until: datetime | None = None  # when this changes by itself
    remedy: Remedy | None = None


@value
class WhySnapshot:
    """The rows and facts that reasons are derived from."""

    now: datetime
    job: JobRow
    lease_policy: LeasePolicy
    rows: Mapping[int, TaskRow]  # by number; rows that do not exist yet are missing
    keys: Mapping[int, str]
    live_workers: Mapping[str, Sequence[str]]  # of this machine, with their queues
    dead_workers: Sequence[str] = ()  # of this machine, whose process has ended
    pauses: Sequence[QueuePause]

    def key(self, number: int) -> str:
        """Returns a task's key, quoted."""
        return repr(self.keys[number])

    def task_id(self, number: int) -> str:
        """Returns a task's id, whether or not its row exists."""
        return task_id_of(self.job.id, self.keys[number])


def explain_task(snapshot: WhySnapshot, chain: DependencyChain) -> list[WhyReason]:
    """Returns why the first task of the chain is in its state."""
    *before, last = chain.links
    reasons = [_waiting_reason(snapshot, link, last) for link in before]
    if chain.omitted:
        text = f"{plural(chain.omitted, 'more task')} in between, each waiting for the next."
        reasons.append(WhyReason(ReasonCode.LEFT_OUT, text))
    row = snapshot.rows.get(last.number)
    if before and row is not None and row.state is TaskState.COMPLETED:
        text = f"Task {_quoted_key(row)} has completed; its dependents are being notified."
        reasons.append(WhyReason(ReasonCode.MOVING_ON, text, row.id, since=row.finished_at))
    else:
        reasons += _task_reasons(snapshot, last.number)
    subject = snapshot.rows.get(chain.links[0].number)
    if subject is not None and not subject.state.terminal:
        reasons += _job_cancelling(snapshot.job)
    return reasons


def explain_job(
    snapshot: WhySnapshot, shown: Sequence[int], *, truncated: bool = False
) -> list[WhyReason]:
    """Returns why the job is in its state.

    Args:
        shown: The tasks that explain most.
        truncated: There are more tasks like these.
    """
    job = snapshot.job
    reasons = [_job_reason(job), *_job_cancelling(job)]
    created = job.ended | NumberSet(snapshot.rows)
    # Whether an intent still has tasks to create, as far as the rows show.
    if any(
        intent.kind is IntentKind.ADD
        or (intent.kind is IntentKind.CREATE and (not intent.numbers or intent.numbers - created))
        for intent in job.intents
    ):
        reasons.append(
            WhyReason(ReasonCode.BEING_CREATED, "Tasks of the job are still being created.")
        )
    details = [reason for number in shown for reason in _task_reasons(snapshot, number)]
    reasons += [reason for reason in details if reason.task_id is not None]
    # A reason that several tasks share is given once.
    reasons += dict.fromkeys(reason for reason in details if reason.task_id is None)
    if truncated:
        remedy = Remedy(RemedyAction.LIST_JOB_TASKS, job.id)
        text = "There are more tasks like these."
        reasons.append(WhyReason(ReasonCode.LEFT_OUT, text, remedy=remedy))
    if not shown and not job.state.terminal:
        text = "No task of the job runs at this moment; a task that just ended is being recorded."
        reasons.append(WhyReason(ReasonCode.MOVING_ON, text))
    return reasons


def _job_reason(job: JobRow) -> WhyReason:
    states = {
        JobState.COMPLETED: (ReasonCode.COMPLETED, "is completed", None),
        JobState.FAILED: (ReasonCode.FAILED, "has failed", _resume(job.id)),
        JobState.CANCELLED: (ReasonCode.CANCELLED, "is cancelled", _resume(job.id)),
        JobState.RUNNING: (ReasonCode.RUNNING, "is under way", None),
    }
    code, words, remedy = states[job.state]
    counts = [
        (len(job.failed), "failed"),
        (len(job.cancelled), "cancelled"),
        (len(job.blocked), "waiting behind those"),
    ]
    parts = [f"{len(job.completed):,} of {plural(job.total, 'task')} completed"]
    parts += [f"{count:,} {what}" for count, what in counts if count]
    text = f"The job {words}: {', '.join(parts)}."
    if job.state is JobState.CANCELLED and job.cancel is not None:
        reason = _parenthesised(job.cancel.reason)
        text = f"{_requester(job.cancel)} cancelled the job{reason}: {parts[0]}."
    since = job.finished_at if job.state.terminal else job.spec.created_at
    return WhyReason(code, text, since=since, remedy=remedy)


def _job_cancelling(job: JobRow) -> list[WhyReason]:
    if job.cancel is None or job.state.terminal:
        return []
    why = _parenthesised(job.cancel.reason)
    text = f"{_requester(job.cancel)} has requested cancellation of the whole job{why}."
    return [WhyReason(ReasonCode.CANCELLING, text, since=job.cancel.at)]


def _waiting_reason(snapshot: WhySnapshot, link: ChainLink, last: ChainLink) -> WhyReason:
    job, key = snapshot.job, snapshot.key(link.number)
    named = [f"{snapshot.key(number)} ({_state(snapshot, number)})" for number in link.parents]
    if link.awaited_count > len(named):
        named.append(plural(link.awaited_count - len(named), "more task"))
    text = f"Task {key} waits for {', '.join(named)}"
    row, root = snapshot.rows.get(link.number), snapshot.rows.get(last.number)
    task_id = snapshot.task_id(link.number)
    if root is not None and (became := _FAILED_STATES.get(root.state)):
        text += f", and cannot run because {_quoted_key(root)} {became}."
        code, remedy = ReasonCode.BEHIND_FAILURE, _resume(job.id)
        return WhyReason(code, text, task_id, since=root.finished_at, remedy=remedy)
    since = row.spec.created_at if row else None
    return WhyReason(ReasonCode.WAITING, f"{text}.", task_id, since=since)


def _state(snapshot: WhySnapshot, number: int) -> str:
    row = snapshot.rows.get(number)
    return row.state.value.replace("_", " ") if row else "being created"


def _task_reasons(snapshot: WhySnapshot, number: int) -> list[WhyReason]:
    """Returns why a task that waits for no other task is in its state."""
    row = snapshot.rows.get(number)
    if row is None:
        text = f"Task {snapshot.key(number)} is still being created."
        return [WhyReason(ReasonCode.BEING_CREATED, text, snapshot.task_id(number))]
    if row.lease is not None:
        return _leased(snapshot, row, row.lease)
    if row.parked is not None:
        return [_parked(row, row.parked)]
    if row.state is TaskState.PENDING:
        return _pending(snapshot, row)
    return [_idle_reason(row)]


def _idle_reason(row: TaskRow) -> WhyReason:
    """Returns why a task that no worker may run now is in its state."""
    key, since, remedy = _quoted_key(row), row.finished_at, None
    if row.state in _FAILED_STATES:
        remedy = _resume(row.spec.job_id)
    match row.state:
        case TaskState.IN_REVIEW:
            text = f"Task {key} has a result that waits for review; it "
            if row.revision < MAX_REVISIONS:
                text += "can be approved, revised or cancelled."
            else:
                text += f"was revised {row.revision} times and can only be approved or cancelled."
            code, since = ReasonCode.IN_REVIEW, row.last_event_at
            remedy = Remedy(RemedyAction.APPROVE_TASK, row.id)
        case TaskState.COMPLETED:
            code = ReasonCode.COMPLETED
            text = f"Task {key} has completed; only a new job can run it again."
        case TaskState.FAILED:
            code = ReasonCode.FAILED
            text = f"Task {key} failed{_failure(row)}; {_used(row)}{_not_retried(row)}."
        case TaskState.CANCELLED:
            code = ReasonCode.CANCELLED
            why = _parenthesised(row.cancel.reason if row.cancel else None)
            text = f"{_requester(row.cancel)} cancelled task {key}{why}."
        case _:
            code = ReasonCode.MOVING_ON
            text = f"All dependencies of task {key} have completed; it becomes pending soon."
    return WhyReason(code, text, row.id, since=since, remedy=remedy)


def _pending(snapshot: WhySnapshot, row: TaskRow) -> list[WhyReason]:
    spec = row.spec
    if row.due_at is not None and row.due_at > snapshot.now:
        reasons = [_delayed(row, row.due_at)]
    else:
        text = (
            f"Task {_quoted_key(row)} is due and waits in queue {spec.queue!r} for a free worker"
            f"{_serving(snapshot, spec.queue)}."
        )
        reasons = [WhyReason(ReasonCode.DUE, text, row.id, since=row.due_at)]
    reasons += [_paused(pause) for pause in snapshot.pauses if pause.name == spec.queue]
    return reasons + _no_worker(snapshot, spec.queue)


def _paused(pause: QueuePause) -> WhyReason:
    if pause.until is None:
        code, words = ReasonCode.QUEUE_PAUSED, f"is paused by {pause.by}"
    else:
        code, words = ReasonCode.QUEUE_HELD, f"is held until {_format_time(pause.until)}"
    text = f"Queue {pause.name!r} {words}{_parenthesised(pause.reason)}."
    remedy = Remedy(RemedyAction.RESUME_QUEUE, pause.name)
    return WhyReason(code, text, since=pause.at, until=pause.until, remedy=remedy)


def _delayed(row: TaskRow, due_at: datetime) -> WhyReason:
    key, at = _quoted_key(row), _format_time(due_at)
    if row.failure is None:
        code, text = ReasonCode.DELAYED, f"Task {key} is scheduled for {at}."
    else:
        code = ReasonCode.BACKING_OFF
        text = f"Task {key} failed{_failure(row)} and is retried at {at}; {_used(row)}."
    return WhyReason(code, text, row.id, since=row.last_event_at, until=due_at)


def _no_worker(snapshot: WhySnapshot, queue: str) -> list[WhyReason]:
    if _serving_workers(snapshot, queue):
        return []
    text = f"No worker on this machine serves queue {queue!r}"
    if snapshot.live_workers:
        others = {name for served in snapshot.live_workers.values() for name in served}
        count = len(snapshot.live_workers)
        serve = "serves" if count == 1 else "serve"
        text += f"; {plural(count, 'worker')} {serve} {', '.join(map(repr, sorted(others)))}"
    remedy = Remedy(RemedyAction.START_WORKER, queue)
    return [WhyReason(ReasonCode.NO_WORKER, f"{text}.", remedy=remedy)]


def _leased(snapshot: WhySnapshot, row: TaskRow, lease: Lease) -> list[WhyReason]:
    attempt = f"attempt {row.attempts_used + 1} of {row.spec.retry.max_attempts}"
    age = duration_text(_silence(snapshot, row, lease))
    text = (
        f"Worker {lease.worker_id!r} runs task {_quoted_key(row)}, {attempt}; "
        f"its last heartbeat was {age} ago."
    )
    reasons = [WhyReason(ReasonCode.RUNNING, text, row.id, since=lease.acquired_at)]
    if (request := row.cancel) is not None:
        text = (
            f"{request.by} has requested cancellation of task"
            f" {_quoted_key(row)}{_parenthesised(request.reason)}; it ends when worker"
            f" {lease.worker_id!r} has stopped it, or when the worker's lease expires."
        )
        reasons.append(WhyReason(ReasonCode.CANCELLING, text, row.id, since=request.at))
    return reasons + _silent_worker(snapshot, row, lease)


def _silent_worker(snapshot: WhySnapshot, row: TaskRow, lease: Lease) -> list[WhyReason]:
    """Returns the reasons that apply if the lease holder is dead or silent."""
    worker, since = repr(lease.worker_id), row.last_event_at
    if lease.local and lease.worker_id in snapshot.dead_workers:
        text = f"The process of worker {worker} has ended; its task is taken over {_SOON}."
        lost = WhyReason(ReasonCode.WORKER_GONE, text, row.id, since=since)
    elif _silence(snapshot, row, lease) > snapshot.lease_policy.renew_every * _LATE:
        until = lease.expires_at + snapshot.lease_policy.skew_margin
        when = f"at {_format_time(until)}" if until > snapshot.now else _SOON
        text = f"Worker {worker} is silent; unless it sends a heartbeat, its task is taken over"
        lost = WhyReason(ReasonCode.WORKER_SILENT, f"{text} {when}.", row.id, since, until)
    else:
        return []
    return [lost, *_no_worker(snapshot, row.spec.queue)]


def _silence(snapshot: WhySnapshot, row: TaskRow, lease: Lease) -> timedelta:
    # A running attempt emits only its start and its heartbeats. Clocks differ.
    return max(snapshot.now - (row.last_event_at or lease.acquired_at), timedelta())


def _parked(row: TaskRow, parked: ParkRecord) -> WhyReason:
    text = (
        f"Task {_quoted_key(row)} is parked: {parked.reason}. It resumes when the budget is raised"
    )
    if row.due_at is not None:
        text += f", or by itself at {_format_time(row.due_at)}"
    targets = {BudgetScope.JOB: row.spec.job_id, BudgetScope.DAY: None}
    remedy = Remedy(RemedyAction.ADD_BUDGET, targets.get(parked.scope, row.id), parked.unit)
    return WhyReason(ReasonCode.PARKED, f"{text}.", row.id, parked.at, row.due_at, remedy)


def _quoted_key(row: TaskRow) -> str:
    return repr(row.spec.key)


def _failure(row: TaskRow) -> str:
    return f" ({row.failure.category.value}: {row.failure.message})" if row.failure else ""


def _used(row: TaskRow) -> str:
    return (
        f"it has used {row.attempts_used} of its {plural(row.spec.retry.max_attempts, 'attempt')}"
    )


def _not_retried(row: TaskRow) -> str:
    """Returns why a failed task with attempts left is not retried."""
    if row.failure is None or row.attempts_used >= row.spec.retry.max_attempts:
        return ""
    match row.failure.category:
        case ErrorCategory.EXIT_CODE:
            return " and is not retried; to retry it, list the exit code in `retryableExitCodes`"
        case ErrorCategory.TIMEOUT:
            return (
                " and is not retried after a timeout; `timeout` in its definition or the setting"
                " worker.task_timeout allows more time, and `retryOnTimeout` retries it"
            )
        case ErrorCategory.UNKNOWN:
            return (
                " and is not retried, because it is not known whether such an error passes; a task"
                " that raises `longshore.errors.Retry` is"
            )
    return " and is not retried after such an error"


def _requester(request: CancelRequest | None) -> str:
    return request.by if request else "An operator"


def _parenthesised(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def _resume(job_id: str) -> Remedy:
    return Remedy(RemedyAction.RESUME_JOB, job_id)


def _serving(snapshot: WhySnapshot, queue: str) -> str:
    workers = _serving_workers(snapshot, queue)
    serve = "serves" if workers == 1 else "serve"
    return f"; {plural(workers, 'worker')} on this machine {serve} it" if workers else ""


def _serving_workers(snapshot: WhySnapshot, queue: str) -> int:
    return sum(queue in served for served in snapshot.live_workers.values())


def _format_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


LINKS_SHOWN = 6
"""The first links of a longer chain that are shown, beside its last link."""
PARENTS_SHOWN = 5


@value
class ChainLink:
    """A task of the chain, and the parents that it waits for."""

    number: int
    parents: tuple[int, ...] = ()  # the first is the next link; not all, if there are many
    awaited_count: int = 0  # of all parents


@value
class DependencyChain:
    """From a waiting task to the task on which it all depends.

    The chain is derived from the job's row and its graph alone, so that of ten thousand tasks only
    the few rows that are shown must be read.
    """

    links: tuple[ChainLink, ...]
    omitted: int = 0  # links before the last one

    @property
    def numbers(self) -> NumberSet:
        """All tasks that the chain names."""
        return NumberSet(number for link in self.links for number in (link.number, *link.parents))


def dependency_chain(job: JobRow, graph: Graph, number: int, awaits: NumberSet) -> DependencyChain:
    """Returns the chain of a task that awaits these parents; one link if it awaits none."""
    links: list[ChainLink] = []
    awaited: Iterable[int] = awaits
    while ranked := sorted(awaited, key=lambda parent: _rank(job, parent)):
        parents = tuple(ranked[:PARENTS_SHOWN])
        links.append(ChainLink(number=number, parents=parents, awaited_count=len(ranked)))
        number = ranked[0]
        awaited = _awaited(job, graph, number)
    links.append(ChainLink(number=number))
    omitted = max(len(links) - 1 - LINKS_SHOWN, 0)
    return DependencyChain(links=(*links[: -1 - omitted], links[-1]), omitted=omitted)


def _awaited(job: JobRow, graph: Graph, number: int) -> list[int]:
    if number in job.ended:
        return []
    return [parent for parent in graph.parents[number] if parent not in job.completed]


def _rank(job: JobRow, number: int) -> tuple[int, int]:
    """Sorts ended and blocked tasks first, because they prevent a start; completed ones last."""
    if number in job.failed or number in job.cancelled:
        return 0, number
    if number in job.blocked:
        return 1, number
    return (3 if number in job.completed else 2), number
