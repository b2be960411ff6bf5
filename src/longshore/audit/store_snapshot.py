"""What the auditor looks at: plain values, from any backend.

Times are whole microseconds since 1970, sets of task numbers are the bits of an integer, documents
are their JSON text or ``blob:`` and a key. A field that a backend has in no readable form is handed
over as it was found: that is for the audit to judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

FieldValue = str | int | tuple[str, ...] | None


class LeaseRecord(NamedTuple):
    """Who holds a task."""

    worker_id: str
    fence: int
    since_us: int
    until_us: int
    heartbeats: int


class TaskRecord(NamedTuple):
    """A task's row."""

    id: str
    tenant: str
    job_id: str
    key: str
    number: int
    queue: str
    state: str
    version: int
    round: int
    attempt: int
    attempts_used: int
    max_attempts: int
    rate_limit_wait_us: int
    fence: int
    revision: int
    last_sequence: int
    awaits: int = 0
    lease: LeaseRecord | None = None
    not_before_us: int | None = None  # as it was asked for
    due_us: int | None = None
    started_us: int | None = None
    finished_us: int | None = None
    cancel_us: int | None = None
    last_event_us: int | None = None
    last_output: int | None = None
    result: str | None = None
    failure: str | None = None  # its category
    parents: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()  # keys that the row refers to


class IntentRecord(NamedTuple):
    """Something that is being done to many tasks of a job."""

    kind: str
    numbers: int
    round: int


class JobRecord(NamedTuple):
    """A job's row, and its graph."""

    id: str
    tenant: str
    request_id: str
    version: int
    total: int
    round: int
    completed: int
    failed: int
    cancelled: int
    blocked: int
    failure_emitted_round: int
    end_emitted_round: int
    last_sequence: int
    last_event_us: int | None = None
    cancel_us: int | None = None
    finished_us: int | None = None
    intents: tuple[IntentRecord, ...] = ()
    keys: tuple[str, ...] | None = None  # by number; None: the graph could not be read
    parents: tuple[tuple[int, ...], ...] = ()  # by number
    blobs: tuple[str, ...] = ()


class EventRecord(NamedTuple):
    """A recorded event; ``vocabulary`` knows what each type says."""

    position: int  # its place in the order in which things were committed, or its time
    entity: str  # such as "TASK#job-a_b"
    tenant: str
    sequence: int
    type: str
    at_us: int
    origin: str
    properties: dict[str, FieldValue]
    blobs: tuple[str, ...] = ()


class OutputRecord(NamedTuple):
    """One stored piece of output, or a marker for pieces that were lost."""

    task_id: str
    attempt: int
    sequence: int
    stream: str
    last: int | None = None


class MessageRecord(NamedTuple):
    """A message on a queue, seen or hidden, or in its dead-letter store."""

    queue: str
    key: str | None
    task_id: str | None  # that its body names
    dead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshot:
    """All that was stored, at one moment.

    ``settled`` says that the run has come to rest with healthy workers: then nothing may be left
    over. Otherwise it is enough that nothing is forgotten.
    """

    taken_at_us: int
    jobs: tuple[JobRecord, ...] = ()
    tasks: tuple[TaskRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()
    output: tuple[OutputRecord, ...] = ()
    messages: tuple[MessageRecord, ...] = ()
    blobs: frozenset[str] = frozenset()  # keys of those whose bytes are there
    settled: bool = False
    mismatches: tuple[tuple[str, str], ...] = ()  # what is kept twice and differs: subject and text
    epoch: int | None = None  # of the store; None: it has none
    task_limit: int | None = None  # of a job; None: not known
    removed: frozenset[str] = frozenset()  # ids of jobs that were removed, as far as remembered
    # Where a store keeps no order of all commits, positions are times by several clocks: those of
    # different rows that are no further apart than this have no known order.
    time_slack: int = 0
