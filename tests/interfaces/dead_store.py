"""A data folder with dead letters in it, filled without any child process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from longshore.core.ids import job_id_of, task_id_of
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import TaskRow
from longshore.ports.output import OutputChunk, Stream
from longshore.ports.task_queue import OutgoingMessage
from longshore.settings import load_settings
from longshore.wiring.services import Services, open_services

ResultT = TypeVar("AnswerT")
TENANT = "default"
NO_TIME = timedelta(0)
LEASE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
TWO_MILLISECONDS = timedelta(milliseconds=2)
PRINTED = (
    (Stream.STDOUT, b"connecting\n"),
    (Stream.STDERR, b"password=hunter2 was refused\n"),
)


@asynccontextmanager
async def services_in(folder: Path) -> AsyncIterator[Services]:
    async with open_services(load_settings({"data_dir": folder}, environ={})) as services:
        yield services


def query_services(folder: Path, query: Callable[[Services], Awaitable[ResultT]]) -> ResultT:
    """What the store answers, asked here: quicker than another process."""

    async def run() -> ResultT:
        async with services_in(folder) as services:
            return await query(services)

    return asyncio.run(run())


def id_of(key: str, request_id: str) -> str:
    return task_id_of(job_id_of(TENANT, request_id), key)


def rounds_of(folder: Path, *ids: str) -> list[int]:
    async def ask(services: Services) -> list[int]:
        return [row.round for row in await services.backend.ledger.get_tasks(ids)]

    return query_services(folder, ask)


def a_task(key: str, **fields: Any) -> dict[str, Any]:
    return {"taskId": key, "name": "command", "input": {"argv": ["true"]}, **fields}


async def fail(services: Services, task_id: str, category: ErrorCategory, message: str) -> TaskRow:
    """One attempt of a pending task that fails."""
    transitions = services.transitions
    claim = c.Claim(worker_id="harbour-1", process_id=1, lease_duration=LEASE)
    claimed = await transitions.apply_to_task(task_id, claim)
    failed = c.AttemptFailed(
        fence=claimed.fence,
        failure=Failure(category=category, message=message, exit_code=9),
        jitter=0.0,
        duration=SECOND,
        last_output=len(PRINTED),
    )
    now = services.backend.clock.now()
    entries = [
        OutputChunk(attempt=claimed.attempt, sequence=number, at=now, stream=stream, data=data)
        for number, (stream, data) in enumerate(PRINTED, start=1)
    ]
    await services.backend.output.append(task_id, entries)
    row = await transitions.apply_to_task(task_id, failed)
    # Times of rows have milliseconds: what fails next fails later.
    await services.backend.clock.sleep(TWO_MILLISECONDS)
    return row


async def dead_letter_messages(services: Services, queue: str, *bodies: str) -> None:
    """Put messages into the queue's dead-letter store, as receiving them too often does."""
    messages = services.backend.require_queue()
    await messages.send([OutgoingMessage(queue=queue, body=body) for body in bodies])
    for _ in range(RECEIVE_LIMIT + 1):
        await messages.receive([queue], limit=100, hidden_for=NO_TIME, wait=NO_TIME)


async def fill(services: Services) -> None:
    """Three tasks that failed: merge, then read, then send; and one that is pending."""
    submit, auth = services.producer.submit, ErrorCategory.AUTH
    mail = {"queue": "mail", "maxAttempts": 2}
    await submit(
        TENANT, "letters", {"tasks": [a_task("send", **mail), a_task("read"), a_task("x")]}
    )
    await submit(TENANT, "report", {"name": "report", "tasks": [a_task("merge")]})
    await fail(services, id_of("merge", "report"), auth, "no entry")
    await fail(services, id_of("read", "letters"), ErrorCategory.VALIDATION, "no such mailbox")
    for _ in range(2):
        await _wait_until_due(services, id_of("send", "letters"))
        await fail(services, id_of("send", "letters"), ErrorCategory.NETWORK, "connection reset")


async def fill_with_message(services: Services) -> None:
    """The failed tasks and, where there are messages, one without a task, which died last."""
    await fill(services)
    await dead_letter_messages(services, "odd", "password=hunter2 is no json")


async def _wait_until_due(services: Services, task_id: str) -> None:
    """Wait until a task's pause is over; with no roll it is next to nothing."""
    row = await services.backend.ledger.get_task(task_id)
    assert row is not None
    while row.due_at is not None and services.backend.clock.now() < row.due_at:
        await services.backend.clock.sleep(row.due_at - services.backend.clock.now())


def fill_folder(folder: Path) -> Path:
    """A folder in which three tasks failed (merge, then read, then send)."""
    query_services(folder, fill)
    return folder
