"""Rows, changes and messages for the suites: few arguments, the rest filled in consistently.

All of it comes from ``core``, so a suite sees what a running system would commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, fields
from datetime import datetime, timedelta
from itertools import count, cycle
from typing import Any

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.documents import Document, make_document
from longshore.core.events.codec import to_wire
from longshore.core.events.event import Event, EventContext, next_moment
from longshore.core.events.types import EntityType, MessageRejected, TaskReleased, TaskSummary
from longshore.core.ids import task_id_of
from longshore.core.jobs import job
from longshore.core.jobs.numbers import NumberSet
from longshore.core.jobs.planning import initial_target, plan_tasks
from longshore.core.jobs.submission import TaskRequest
from longshore.core.queues import message_body
from longshore.core.tasks import commands as c
from longshore.core.tasks import task
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.changes import Change, Effect, Enqueue
from longshore.core.tasks.rows import Intent, IntentKind, JobRow, JobSpec, TaskRow, TaskSpec
from longshore.ports.backend import Backend
from longshore.ports.ledger import JobCreation
from longshore.ports.task_queue import Message, OutgoingMessage
from longshore.testing.contracts.suite import NO_WAIT, START

TENANT = "acme"
JOB = "job-one"
LEASE = timedelta(seconds=45)

_change_numbers = count(1)
# Above all that clauses choose themselves: a number is used once in a job.
_task_numbers = cycle(range(20_000, 1_000_000))


def fresh_change_id() -> str:
    """An id that no other change has."""
    return f"change-{next(_change_numbers)}"


def new_task(
    key: str = "a", *, now: datetime = START, awaits: Iterable[int] = (), **fields: Any
) -> task.TaskChange:
    """The creation of a task of ``JOB`` and ``TENANT``, or of what ``fields`` say."""
    job_id = fields.pop("job_id", JOB)
    defaults: dict[str, Any] = {
        "id": task_id_of(job_id, key),
        "job_id": job_id,
        "key": key,
        "tenant": TENANT,
        "app": "shop",
        "number": next(_task_numbers),
        "definition": "resize",
        "definition_version": 1,
        "created_at": now,
    }
    spec = TaskSpec(**(defaults | fields))
    return task.create(spec, NumberSet(awaits), now=now, change_id=fresh_change_id())


def new_job(
    job_id: str = JOB,
    *,
    now: datetime = START,
    tenant: str = TENANT,
    name: str | None = None,
    intent: Intent | None = None,
) -> job.JobChange:
    """The creation of a job of one task."""
    spec = JobSpec(
        id=job_id,
        tenant=tenant,
        app="shop",
        request_id=f"request of {job_id}",
        body_hash="c0ffee",
        created_at=now,
        name=name,
    )
    graph = Document(text='{"keys":["a"],"names":["resize"],"parents":[[]]}', size=48)
    summary = TaskSummary(key="a", name="resize")
    return job.create(spec, (summary,), graph, now=now, change_id=fresh_change_id(), intent=intent)


def new_creations(*job_ids: str, tasks: int = 1) -> list[JobCreation]:
    """The creations of jobs with all of their tasks."""
    definitions = {"resize": Definition(name="resize", runner=RunnerKind.COMMAND)}
    requests = [
        TaskRequest(key=f"t{number}", definition="resize", parents=("t0",) if number else ())
        for number in range(tasks)
    ]
    creations = []
    for job_id in job_ids:
        spec = new_job(job_id).row.spec
        plan = plan_tasks(initial_target(spec), requests, definitions, retry=RetryPolicy())
        graph, _ = make_document(plan.graph.to_json(), "graph")
        change_id = fresh_change_id()
        creations.append(JobCreation(spec=spec, plan=plan, graph=graph, change_id=change_id))
    return creations


def an_intent(kind: IntentKind = IntentKind.CANCEL) -> Intent:
    """Something that is to be done to the first task of a job."""
    return Intent(id=f"{kind}-1", kind=kind, numbers=NumberSet([0]), round=1, by="ann")


def apply_command(row: TaskRow, command: c.Command, *, now: datetime = START) -> task.TaskChange:
    """The change that comes of a command which the row allows."""
    decision = task.apply(row, command, now=now, change_id=fresh_change_id())
    assert isinstance(decision, Change), decision
    return decision


def apply_job_command(
    row: JobRow, command: job.JobCommand, *, now: datetime = START
) -> job.JobChange:
    """The change of a job that comes of a command which the row allows."""
    decision = job.apply(row, command, now=now, change_id=fresh_change_id())
    assert isinstance(decision, Change), decision
    return decision


def claim(
    row: TaskRow, *, worker: str = "w1", now: datetime = START, lasts: timedelta = LEASE
) -> task.TaskChange:
    """The change by which a worker takes a pending task."""
    return apply_command(
        row, c.Claim(worker_id=worker, process_id=7, lease_duration=lasts), now=now
    )


async def commit(backend: Backend, change: task.TaskChange) -> TaskRow:
    """Commit a task's change and carry out its effects; the row as it is now."""
    await carry_out(backend, await backend.ledger.commit(change))
    return change.row


async def commit_job(backend: Backend, change: job.JobChange) -> JobRow:
    """Commit a job's change; the row as it is now."""
    await carry_out(backend, await backend.ledger.commit(change))
    return change.row


async def leased_task(
    backend: Backend, key: str = "a", *, worker: str = "w1", lasts: timedelta = LEASE
) -> TaskRow:
    """A task that a worker holds."""
    pending = await commit(backend, new_task(key))
    return await commit(backend, claim(pending, worker=worker, lasts=lasts))


async def carry_out(backend: Backend, effects: Sequence[Effect]) -> None:
    """Send the messages that the ledger did not send itself, as a service does."""
    enqueues = [effect for effect in effects if isinstance(effect, Enqueue)]
    if not enqueues:
        return
    refused = await backend.require_queue().send([outgoing(enqueue) for enqueue in enqueues])
    assert refused == []


def outgoing(enqueue: Enqueue) -> OutgoingMessage:
    """The message of an enqueue effect."""
    return OutgoingMessage(
        queue=enqueue.queue,
        body=message_body(enqueue.task_id),
        priority=enqueue.priority,
        visible_at=enqueue.at,
        merge_key=enqueue.task_id,
    )


async def send(backend: Backend, *bodies: str, queue: str = "default", **fields: Any) -> None:
    """Put messages on a queue."""
    messages = [OutgoingMessage(queue=queue, body=body, **fields) for body in bodies]
    assert await backend.require_queue().send(messages) == []


async def receive_now(
    backend: Backend,
    *queues: str,
    limit: int = 10,
    hidden_for: timedelta = timedelta(seconds=30),
) -> list[Message]:
    """What is on the queues now (``default`` if none is named), without waiting."""
    return await backend.require_queue().receive(
        queues or ("default",), limit=limit, hidden_for=hidden_for, wait=NO_WAIT
    )


def was_sent_at(message: Message, moment: datetime) -> bool:
    """Whether a message was sent at this moment, to the millisecond."""
    return timedelta(0) <= moment - message.sent_at < timedelta(milliseconds=1)


async def drain(backend: Backend, queue: str = "default") -> list[str]:
    """Remove every message that can be seen now; their bodies. None where there is no queue."""
    bodies: list[str] = []
    if backend.queue is None:
        return bodies
    while messages := await receive_now(backend, queue):
        assert await backend.require_queue().delete([message.receipt for message in messages]) == []
        bodies += [message.body for message in messages]
    return bodies


async def check_messages(backend: Backend, *task_ids: str) -> None:
    """Check that these tasks, and no others, have a message, where there is a queue."""
    if backend.queue is not None:
        assert sorted(await drain(backend)) == sorted(map(message_body, task_ids))


def an_event(
    sequence: int, *, task_id: str = "job-one_a", reason: str = "the worker stops", **fields: Any
) -> Event:
    """The n-th event of a task; the same arguments give the same event."""
    defaults: dict[str, Any] = {"tenant": TENANT, "app": "shop"}
    return Event(
        entity_type=EntityType.TASK,
        entity_id=task_id,
        sequence=sequence,
        at=next_moment(START + timedelta(seconds=sequence), None),
        body=TaskReleased(task_id=task_id, job_id=JOB, reason=reason, attempt_number=1),
        context=EventContext(origin="worker", worker_id="w1"),
        **(defaults | fields),
    )


async def append_event(
    backend: Backend,
    *,
    tenant: str = TENANT,
    app: str = "shop",
    queue: str = "default",
    reason: str = "not JSON",
    now: datetime = START,
) -> Event:
    """Append an event of a queue."""
    return await backend.events.append(
        tenant=tenant,
        app=app,
        entity_id=queue,
        body=MessageRejected(queue=queue, message_id="m1", reason=reason),
        context=EventContext(origin="worker"),
        now=now,
    )


async def events_of(backend: Backend, row: TaskRow) -> int:
    """How many events a task's history has."""
    return len(await backend.events.history(row.spec.tenant, f"TASK#{row.id}"))


def events_to_wire(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Events as every reader sees them: the wire counts whole milliseconds."""
    return [to_wire(event, environment="test") for event in events]


def left_at_default(instance: Any) -> list[str]:
    """Names of the fields that would not show whether a store keeps them."""
    return [f.name for f in fields(instance) if getattr(instance, f.name) == _default_of(f)]


def _default_of(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
