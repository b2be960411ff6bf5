"""Why a task or a job stands where it stands, in sentences: from what was asked to the root cause.

Told from rows that were just read, so it is the truth of a moment: what it says may have moved on
when it is read. Each reason has its moments as values too, and the command that would help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from longshore.core.budgets import RESERVED, Scope
from longshore.core.chain import Chain, Link
from longshore.core.lease import Lease
from longshore.core.limits import MAX_REVISIONS
from longshore.core.numbers import NumberSet
from longshore.core.reasons import Code, Paused, Picture, Reason
from longshore.core.rows import CancelRequest, Intent, IntentKind, JobRow, TaskRow
from longshore.core.states import JobState, TaskState

# A renewal that is this much late was missed, and is not only on its way.
_LATE = 1.5
_SOON = "as soon as another worker looks"
_ENDED_BADLY = {TaskState.FAILED: "failed", TaskState.CANCELLED: "was cancelled"}


def why_task(picture: Picture, chain: Chain) -> list[Reason]:
    """Why the first task of the chain stands where it stands."""
    *before, last = chain.links
    reasons = [_behind(picture, link, last) for link in before]
    if chain.left_out:
        text = f"{_count(chain.left_out, 'more task')} in between, each waiting for the next."
        reasons.append(Reason(code=Code.LEFT_OUT, text=text))
    row = picture.rows.get(last.number)
    if before and row is not None and row.state is TaskState.COMPLETED:
        text = f"Task {_name(row)} has completed; what waits for it is told in a moment."
        reasons.append(_about(row, Code.MOVING_ON, text, since=row.finished_at))
    else:
        reasons += _of(picture, last.number)
    asked = picture.rows.get(chain.links[0].number)
    if asked is not None and not asked.state.terminal:
        reasons += _job_cancelling(picture.job)
    return reasons


def why_job(picture: Picture, shown: Sequence[int], *, more: bool = False) -> list[Reason]:
    """Why the job stands where it stands; ``shown`` are tasks of it that tell most about that.

    Args:
        more: There are others that could be shown as well.
    """
    job = picture.job
    reasons = [_of_job(job), *_job_cancelling(job)]
    there = job.ended | NumberSet(picture.rows)
    if any(_creates(intent, there) for intent in job.intents):
        text = "Tasks of the job are still being put in place."
        reasons.append(Reason(code=Code.BEING_CREATED, text=text))
    told = [reason for number in shown for reason in _of(picture, number)]
    reasons += [reason for reason in told if reason.task_id is not None]
    # What several of them wait for alike is said once.
    reasons += dict.fromkeys(reason for reason in told if reason.task_id is None)
    if more:
        text = f"There are more tasks like these; see `longshore tasks --job {job.id}`."
        reasons.append(Reason(code=Code.LEFT_OUT, text=text))
    if not shown and not job.state.terminal:
        text = "Nothing of it runs at this moment: what has just ended is being recorded."
        reasons.append(Reason(code=Code.MOVING_ON, text=text))
    return reasons


def _creates(intent: Intent, there: NumberSet) -> bool:
    """Whether it is being carried out, as far as that can be seen."""
    if intent.kind is IntentKind.CREATE and intent.numbers:
        return bool(intent.numbers - there)
    return intent.kind in (IntentKind.CREATE, IntentKind.ADD)


def _of_job(job: JobRow) -> Reason:
    ended = {
        JobState.COMPLETED: (Code.COMPLETED, "is completed", None),
        JobState.FAILED: (Code.FAILED, "has failed", _resume(job.id)),
        JobState.CANCELLED: (Code.CANCELLED, "is cancelled", _resume(job.id)),
        JobState.RUNNING: (Code.RUNNING, "is under way", None),
    }
    code, words, remedy = ended[job.state]
    counts = [
        (len(job.failed), "failed"),
        (len(job.cancelled), "cancelled"),
        (len(job.blocked), "waiting behind those"),
    ]
    parts = [f"{len(job.completed):,} of {_count(job.total, 'task')} completed"]
    parts += [f"{count:,} {what}" for count, what in counts if count]
    text = f"The job {words}: {', '.join(parts)}."
    if job.state is JobState.CANCELLED and job.cancel is not None:
        text = f"{_asked(job.cancel)} cancelled the job{_because(job.cancel.reason)}: {parts[0]}."
    since = job.finished_at if job.state.terminal else job.spec.created_at
    return Reason(code=code, text=text, since=since, remedy_command=remedy)


def _job_cancelling(job: JobRow) -> list[Reason]:
    if job.cancel is None or job.state.terminal:
        return []
    why = _because(job.cancel.reason)
    text = f"{_asked(job.cancel)} has asked for the end of the whole job{why}."
    return [Reason(code=Code.CANCELLING, text=text, since=job.cancel.at)]


def _behind(picture: Picture, link: Link, last: Link) -> Reason:
    job, key = picture.job, picture.key(link.number)
    named = [f"{picture.key(number)} ({_state(picture, number)})" for number in link.parents]
    if link.awaited > len(named):
        named.append(_count(link.awaited - len(named), "more task"))
    text = f"Task {key} waits for {', '.join(named)}"
    row, root = picture.rows.get(link.number), picture.rows.get(last.number)
    task_id = picture.task_id(link.number)
    if root is not None and (became := _ENDED_BADLY.get(root.state)):
        return Reason(
            code=Code.BEHIND_FAILURE,
            text=f"{text}, and cannot run because {_name(root)} {became}.",
            since=root.finished_at,
            task_id=task_id,
            remedy_command=_resume(job.id),
        )
    since = row.spec.created_at if row else None
    return Reason(code=Code.WAITING, text=f"{text}.", since=since, task_id=task_id)


def _state(picture: Picture, number: int) -> str:
    row = picture.rows.get(number)
    return row.state.value.replace("_", " ") if row else "being put in place"


def _of(picture: Picture, number: int) -> list[Reason]:
    """Why a task that waits for no other one stands where it stands."""
    row = picture.rows.get(number)
    if row is None:
        text = f"Task {picture.key(number)} is still being put in place."
        return [Reason(code=Code.BEING_CREATED, text=text, task_id=picture.task_id(number))]
    if row.lease is not None:
        return _held(picture, row, row.lease)
    return _UNHELD[row.state](picture, row)


def _waiting(_: Picture, row: TaskRow) -> list[Reason]:
    text = f"All that task {_name(row)} waited for has completed; it is told of it in a moment."
    return [_about(row, Code.MOVING_ON, text)]


def _pending(picture: Picture, row: TaskRow) -> list[Reason]:
    spec = row.spec
    if row.due_at is not None and row.due_at > picture.now:
        reasons = [_put_off(row, row.due_at)]
    else:
        text = (
            f"Task {_name(row)} is due and waits in queue {spec.queue!r} for a free worker"
            f"{_serving(picture, spec.queue)}."
        )
        reasons = [_about(row, Code.DUE, text, since=row.due_at)]
    reasons += [_paused(pause) for pause in picture.paused if pause.name == spec.queue]
    return reasons + _no_worker(picture, spec.queue)


def _paused(pause: Paused) -> Reason:
    if pause.until is None:
        code, words = Code.QUEUE_PAUSED, f"is paused by {pause.by}"
    else:
        code, words = Code.QUEUE_HELD, f"is held until {_moment(pause.until)}"
    return Reason(
        code=code,
        text=f"Queue {pause.name!r} {words}{_because(pause.reason)}.",
        since=pause.at,
        until=pause.until,
        remedy_command=f"longshore queues resume {pause.name}",
    )


def _put_off(row: TaskRow, due_at: datetime) -> Reason:
    if row.failure is None:
        text = f"Task {_name(row)} is not to begin before {_moment(due_at)}."
        return _about(row, Code.DELAYED, text, since=row.last_event_at, until=due_at)
    text = (
        f"Task {_name(row)} failed{_failure(row)} and is tried again at {_moment(due_at)}; "
        f"{_used(row)}."
    )
    return _about(row, Code.BACKING_OFF, text, since=row.last_event_at, until=due_at)


def _no_worker(picture: Picture, queue: str) -> list[Reason]:
    if _servers(picture, queue):
        return []
    text = f"No worker of this machine serves queue {queue!r}"
    if picture.present:
        others = {one for served in picture.present.values() for one in served}
        there = f"{_count(len(picture.present), 'worker')} {_is(len(picture.present))}"
        text += f"; {there} here for {', '.join(map(repr, sorted(others)))}"
    remedy = f"longshore worker --queue {queue}"
    return [Reason(code=Code.NO_WORKER, text=f"{text}.", remedy_command=remedy)]


def _held(picture: Picture, row: TaskRow, lease: Lease) -> list[Reason]:
    attempt = f"attempt {row.attempts_used + 1} of {row.spec.retry.max_attempts}"
    heard = f"its last sign of life was {_spoken(_silence(picture, row, lease))} ago"
    text = f"Worker {lease.worker_id!r} runs task {_name(row)}, {attempt}; {heard}."
    running = _about(row, Code.RUNNING, text, since=lease.acquired_at)
    return [running, *_cancelling(row, lease), *_lost(picture, row, lease)]


def _cancelling(row: TaskRow, lease: Lease) -> list[Reason]:
    if (asked := row.cancel) is None:
        return []
    text = (
        f"{asked.by} has asked for the end of task {_name(row)}{_because(asked.reason)}; it is "
        f"over when worker {lease.worker_id!r} has ended it, or is no longer heard of."
    )
    return [_about(row, Code.CANCELLING, text, since=asked.at)]


def _lost(picture: Picture, row: TaskRow, lease: Lease) -> list[Reason]:
    """What is to be said of a holder from whom nothing is heard."""
    worker, since = repr(lease.worker_id), row.last_event_at
    if lease.local and lease.worker_id in picture.gone:
        text = f"The process of worker {worker} is gone; its task is taken over {_SOON}."
        lost = _about(row, Code.WORKER_GONE, text, since=since)
    elif _silence(picture, row, lease) > picture.lease.renew_every * _LATE:
        until = lease.expires_at + picture.lease.skew_margin
        when = f"at {_moment(until)}" if until > picture.now else _SOON
        text = f"Worker {worker} is silent; unless it is heard again, its task is taken over"
        lost = _about(row, Code.WORKER_SILENT, f"{text} {when}.", since=since, until=until)
    else:
        return []
    return [lost, *_no_worker(picture, row.spec.queue)]


def _silence(picture: Picture, row: TaskRow, lease: Lease) -> timedelta:
    # Whoever runs a task tells of nothing but its start and its renewals. Clocks differ.
    return max(picture.now - (row.last_event_at or lease.acquired_at), timedelta())


def _in_review(_: Picture, row: TaskRow) -> list[Reason]:
    text = f"Task {_name(row)} has a result that waits for somebody to review it"
    if row.revision < MAX_REVISIONS:
        text += f"; `longshore revise {row.id}` has it done again."
    else:
        text += f"; it was revised {row.revision} times, so it can be approved or cancelled only."
    remedy = f"longshore approve {row.id}"
    return [_about(row, Code.IN_REVIEW, text, since=row.last_event_at, remedy=remedy)]


def _parked(_: Picture, row: TaskRow) -> list[Reason]:
    scope = row.parked.scope if row.parked else Scope.TASK
    why = row.parked.reason if row.parked else "a budget is used up"
    text = f"Task {_name(row)} is parked: {why}. It goes on where it was as soon as more is allowed"
    if row.due_at is not None:
        text += f", and by itself at {_moment(row.due_at)}"
    more = _MORE.get(tuple(why.removesuffix(RESERVED).split()[-3:]), "--usd 5")
    remedy = f"longshore budget add {_TO_ADD_TO[scope](row)} {more}"
    since = row.parked.at if row.parked else None
    return [_about(row, Code.PARKED, f"{text}.", since=since, until=row.due_at, remedy=remedy)]


# Of what there must be more, by how it is told that it is used up.
_MORE: dict[tuple[str, ...], str] = {
    ("tokens", "are", "used"): "--tokens 100000",
    ("minutes", "are", "used"): "--minutes 30",
}
_TO_ADD_TO: dict[Scope, Callable[[TaskRow], str]] = {
    Scope.STEP: lambda row: row.id,
    Scope.TASK: lambda row: row.id,
    Scope.JOB: lambda row: row.spec.job_id,
    Scope.DAY: lambda _: "today",
}


def _completed(_: Picture, row: TaskRow) -> list[Reason]:
    text = f"Task {_name(row)} has completed; only a new job would run it again."
    return [_about(row, Code.COMPLETED, text, since=row.finished_at)]


def _failed(_: Picture, row: TaskRow) -> list[Reason]:
    text = f"Task {_name(row)} failed{_failure(row)}; {_used(row)}."
    remedy = _resume(row.spec.job_id)
    return [_about(row, Code.FAILED, text, since=row.finished_at, remedy=remedy)]


def _cancelled(_: Picture, row: TaskRow) -> list[Reason]:
    why = _because(row.cancel.reason if row.cancel else None)
    text = f"{_asked(row.cancel)} cancelled task {_name(row)}{why}."
    remedy = _resume(row.spec.job_id)
    return [_about(row, Code.CANCELLED, text, since=row.finished_at, remedy=remedy)]


_UNHELD: dict[TaskState, Callable[[Picture, TaskRow], list[Reason]]] = {
    TaskState.WAITING: _waiting,
    TaskState.PENDING: _pending,
    TaskState.IN_REVIEW: _in_review,
    TaskState.PARKED: _parked,
    TaskState.COMPLETED: _completed,
    TaskState.FAILED: _failed,
    TaskState.CANCELLED: _cancelled,
}


def _about(
    row: TaskRow,
    code: Code,
    text: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    remedy: str | None = None,
) -> Reason:
    return Reason(
        code=code, text=text, since=since, until=until, task_id=row.id, remedy_command=remedy
    )


def _name(row: TaskRow) -> str:
    return repr(row.spec.key)


def _failure(row: TaskRow) -> str:
    return f" ({row.failure.category.value}: {row.failure.message})" if row.failure else ""


def _used(row: TaskRow) -> str:
    return (
        f"it has used {row.attempts_used} of its {_count(row.spec.retry.max_attempts, 'attempt')}"
    )


def _asked(request: CancelRequest | None) -> str:
    return request.by if request else "Somebody"


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def _resume(job_id: str) -> str:
    return f"longshore resume {job_id}"


def _serving(picture: Picture, queue: str) -> str:
    workers = _servers(picture, queue)
    serve = "serves" if workers == 1 else "serve"
    return f"; {_count(workers, 'worker')} of this machine {serve} it" if workers else ""


def _servers(picture: Picture, queue: str) -> int:
    return sum(queue in served for served in picture.present.values())


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _count(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _spoken(duration: timedelta) -> str:
    seconds = int(duration.total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
