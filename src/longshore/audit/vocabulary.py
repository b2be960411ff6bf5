"""The words of a history: states, event types and what each says, bits, ids, ticks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from types import NoneType
from typing import Final

from longshore.audit.store_snapshot import JobRecord

WAITING, PENDING, PROCESSING, IN_REVIEW = "waiting", "pending", "processing", "in_review"
PARKED = "parked"
COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"
RUNNING = "running"  # of a job
TERMINAL: Final = frozenset({COMPLETED, FAILED, CANCELLED})
STATES: Final = TERMINAL | {WAITING, PENDING, PROCESSING, IN_REVIEW, PARKED}

TASK_PENDING, TASK_WAITING = "Task Pending", "Task Waiting"
TASK_STARTED, TASK_HEARTBEAT = "Task Processing Started", "Task Heartbeat"
TASK_RETRIED, TASK_RELEASED = "Task Processing Failed", "Task Released"
TASK_PARKED, TASK_UNPARKED = "Task Parked", "Task Unparked"
TASK_BUDGET, JOB_BUDGET = "Task Budget Added", "Job Budget Added"
TASK_COMPLETED, TASK_FAILED = "Task Completed", "Task Failed"
TASK_TIMEOUT, TASK_CANCELLED = "Task Timeout", "Task Cancelled"
TASK_SUBMITTED, TASK_REVISION = "Task Submitted For Review", "Task Revision Requested"
TASK_APPROVED = "Task Approved"
JOB_CREATED, JOB_ADDED = "Job Created", "Job Tasks Added"
JOB_COMPLETED, JOB_FAILURE = "Job Completed", "Job Failure Detected"
JOB_CANCELLED, JOB_RESUMED = "Job Cancelled", "Job Resumed"

Kinds = frozenset[type]
_TEXT: Kinds = frozenset({str})
_WHOLE: Kinds = frozenset({int})
_TEXT_OR_NOT: Kinds = frozenset({str, NoneType})
_WHOLE_OR_NOT: Kinds = frozenset({int, NoneType})
_NAMES_OR_NOT: Kinds = frozenset({tuple, NoneType})  # None: they are kept elsewhere

_OF_TASK = {"task_id": _TEXT, "job_id": _TEXT}
_OF_JOB = {"job_id": _TEXT}
_OUTCOME = {**_OF_TASK, "attempt_number": _WHOLE, "last_output": _WHOLE_OR_NOT}

# Every event that a row's history may have, and what of it is looked at.
EVENTS: Final[dict[str, dict[str, Kinds]]] = {
    TASK_PENDING: {**_OF_TASK, "round": _WHOLE, "due_at_us": _WHOLE_OR_NOT},
    TASK_WAITING: {**_OF_TASK, "round": _WHOLE},
    TASK_STARTED: {
        **_OF_TASK,
        "attempt_number": _WHOLE,
        "fence": _WHOLE,
        "worker_id": _TEXT,
        "started_at_us": _WHOLE,
        "effective_until_us": _WHOLE,
    },
    TASK_HEARTBEAT: {
        **_OF_TASK,
        "attempt_number": _WHOLE,
        "worker_id": _TEXT,
        "effective_until_us": _WHOLE,
        "elapsed_us": _WHOLE,
        "number": _WHOLE,
    },
    TASK_RETRIED: {
        **_OUTCOME,
        "error_category": _TEXT,
        "retry_after_us": _WHOLE_OR_NOT,
        "due_at_us": _WHOLE,
    },
    TASK_RELEASED: {**_OUTCOME, "due_at_us": _WHOLE_OR_NOT},
    TASK_PARKED: {**_OUTCOME, "due_at_us": _WHOLE_OR_NOT},
    TASK_UNPARKED: _OF_TASK,
    TASK_BUDGET: _OF_TASK,
    TASK_COMPLETED: {**_OUTCOME, "output": _TEXT_OR_NOT},
    TASK_SUBMITTED: {**_OUTCOME, "output": _TEXT_OR_NOT},
    TASK_TIMEOUT: _OUTCOME,
    TASK_FAILED: {
        **_OUTCOME,
        "attempt_number": _WHOLE_OR_NOT,
        "error_category": _TEXT,
        "retry_after_us": _WHOLE_OR_NOT,
        "retry_count": _WHOLE,
        "source": _TEXT,
    },
    TASK_CANCELLED: {**_OUTCOME, "attempt_number": _WHOLE_OR_NOT},
    TASK_REVISION: {**_OF_TASK, "revision": _WHOLE},
    TASK_APPROVED: _OF_TASK,
    JOB_CREATED: {**_OF_JOB, "request_id": _TEXT, "total_tasks": _WHOLE},
    JOB_ADDED: {**_OF_JOB, "previous_total_tasks": _WHOLE, "total_tasks_now": _WHOLE},
    JOB_COMPLETED: {**_OF_JOB, "total_tasks": _WHOLE, "round": _WHOLE},
    JOB_FAILURE: {**_OF_JOB, "failed_key": _TEXT, "round": _WHOLE},
    JOB_CANCELLED: {**_OF_JOB, "round": _WHOLE},
    JOB_BUDGET: _OF_JOB,
    JOB_RESUMED: {**_OF_JOB, "tasks": _NAMES_OR_NOT, "round": _WHOLE},
}
# Of queues and of the system: nothing hangs on what they say.
OTHER_EVENTS: Final = frozenset({"Message Rejected", "Task Health Check", "Operator Acted"})
OTHER_ENTITIES: Final = frozenset({"QUEUE", "SYSTEM"})

LOST = "lost"  # the stream of a marker
INTENTS: Final = frozenset({"create", "cancel", "resume", "add", "unpark"})
RATE_LIMIT = "rate-limit"  # uses up no attempt if it names a wait
SHORTEST_COUNTED_WAIT_US = 1_000_000
TIMED_OUT = "timeout"
FROM_DEAD_LETTER = "dlq"  # a failure that no attempt has reported
USUAL_ATTEMPTS, USUAL_QUEUE = 3, "default"  # where a store does not say it
USUAL_RATE_LIMIT_WAIT_US = 24 * 3600 * 1_000_000
HOLDER = "worker"  # the origin of events that the holder of a lease emits
REVISION_LIMIT = 5
EPOCH_BITS = 32  # a fence above these is the epoch in which it was given out
TICK_US = 1000  # events of one entity are at least this far apart
BLOB = "blob:"

_ID_BYTES = 15
_HASH_BITS = 72  # of a job id whose request id has a time
_DRAWN = re.compile(r"req-([0-9a-v]{24})")
_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def job_id_of(tenant: str, request_id: str) -> str:
    """The only job that this request of this tenant can be."""
    owner = tenant.encode("utf-8", "surrogatepass")
    message = b"%d:%s" % (len(owner), owner) + request_id.encode("utf-8", "surrogatepass")
    number = int.from_bytes(hashlib.blake2b(message, digest_size=_ID_BYTES).digest(), "big")
    if drawn := _DRAWN.fullmatch(request_id):
        time = int(drawn[1], 32) >> _HASH_BITS
        number = time << _HASH_BITS | number & (1 << _HASH_BITS) - 1
    digits = []
    for _ in range(24):
        number, digit = divmod(number, 32)
        digits.append(_DIGITS[digit])
    return "job-" + "".join(reversed(digits))


def job_id_in(task_id: str) -> str:
    """The job of a task, by the task's id."""
    return task_id.partition("_")[0]


def bits(number_set: int) -> Iterator[int]:
    """The numbers in a set, in order."""
    while number_set > 0:
        low = number_set & -number_set
        yield low.bit_length() - 1
        number_set ^= low


def job_state(job: JobRecord) -> str:
    """What a job's sets add up to."""
    ended = job.completed | job.failed | job.cancelled
    over = ended if job.cancel_us is not None else ended | job.blocked
    if over.bit_count() < job.total:
        return RUNNING
    if job.failed and not (job.cancel_us is not None and job.cancelled):
        return FAILED
    return CANCELLED if job.cancelled else COMPLETED


def end_event_missing(job: JobRecord) -> bool:
    """Whether the job has ended without an event for it in its round."""
    return job.end_emitted_round < job.round and job_state(job) in (COMPLETED, CANCELLED)


def matches_event_time(stored_us: int, at_us: int, before_us: int | None) -> bool:
    """Whether what a row has as "now" fits the time of its event.

    They are equal, unless the clock stood behind the entity's last event: then the event is emitted
    one tick after that one.
    """
    if stored_us == at_us:
        return True
    return before_us is not None and at_us == before_us + TICK_US and stored_us <= before_us
