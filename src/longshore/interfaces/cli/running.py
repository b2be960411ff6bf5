"""The body of ``longshore run``: one command as a job of its own, seen through to its end.

The command's task lies on a queue that nobody else serves, so the worker of this process takes it
and nothing else. The queue's name follows from the request id: whoever runs the same request again
after a crash serves the same queue and takes over what was left. A request that has ended is told
again from the record.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.core.definition import Definition, RunnerKind
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.rows import TaskRow
from longshore.core.sanitise import mask_secrets
from longshore.core.states import TaskState
from longshore.interfaces import views
from longshore.interfaces.cli import words
from longshore.interfaces.cli.desks.embedded import EmbeddedDesk
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.interruption import Interruption
from longshore.interfaces.cli.log_view import lost_text, write_raw
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.queueing import tell_of_pauses
from longshore.interfaces.cli.session import Session, opened, settings_for
from longshore.ports.output import OutputEntry, Stream
from longshore.services import following
from longshore.settings import Settings

TASK_KEY = "run"
# The built-in definition takes an exit code for an answer; whoever asks for several attempts wants
# another try for whatever is not 0.
RETRIED = Definition(
    name="command-retried",
    runner=RunnerKind.COMMAND,
    description="A command that is tried again whatever it exits with.",
    retryable_exit_codes=tuple(range(1, 256)),
    retry_on_timeout=True,
)

_NO_LIMIT = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be run, and how."""

    argv: tuple[str, ...]
    timeout: timedelta | None = None
    name: str | None = None
    attempts: int = 1
    queue: str | None = None
    request_id: str | None = None


async def run(here: Here, wanted: Wanted) -> int:
    """Run a command and return its exit code."""
    base = settings_for(here)
    if problem := _cannot_start(wanted.argv[0]):
        code, text = problem
        say(f"longshore: {text}")
        return code
    request_id = wanted.request_id or _fresh_id()
    job_id = job_id_of(base.tenant, request_id)
    queue = wanted.queue or f"run-{job_id.removeprefix('job-')[:12]}"
    settings = settings_for(here, _flags(base, wanted, queue))
    async with opened(settings) as session:
        if wanted.attempts > 1:
            await session.backend.definitions.put(settings.tenant, RETRIED)
        document = _document(wanted, queue)
        await session.producer.submit(settings.tenant, request_id, document)
        task_id = task_id_of(job_id, TASK_KEY)
        row = await following.row_of(session.backend, task_id)
        if row.state.terminal:
            say(f"longshore: request {request_id!r} was run before; this is its record")
            return await _Show(session, task_id).until_the_end(Interruption.none())
        await tell_of_pauses(EmbeddedDesk(session), [row.spec.queue])
        return await _worked_on(session, task_id)


def _flags(base: Settings, wanted: Wanted, queue: str) -> dict[str, Any]:
    private = wanted.queue is None
    return {
        "worker.queues": (queue,),
        "worker.concurrency": 1 if private else base.worker.concurrency,
        # Somebody is watching: they decide when it has taken too long.
        "worker.task_timeout": wanted.timeout or _NO_LIMIT,
    }


def _document(wanted: Wanted, queue: str) -> dict[str, Any]:
    task = {
        "taskId": TASK_KEY,
        "name": RETRIED.name if wanted.attempts > 1 else RunnerKind.COMMAND.value,
        "input": {"argv": list(wanted.argv), "cwd": str(Path.cwd())},
        "queue": queue,
        "maxAttempts": wanted.attempts,
    }
    return {"name": wanted.name or _short_name(wanted.argv), "tasks": [task]}


def _short_name(argv: Sequence[str]) -> str:
    # A name is shown in listings and stands in events; what is run is not changed by it.
    line = mask_secrets(" ".join(argv))
    shown = "".join(letter if letter.isprintable() else " " for letter in line)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


def _fresh_id() -> str:
    from longshore.wiring import new_id

    return new_id()


def _cannot_start(program: str) -> tuple[ExitCode, str] | None:
    """Why a program cannot be started, as a shell would tell before anything is recorded."""
    if shutil.which(program) is not None:
        return None
    if os.sep in program and Path(program).exists():
        return ExitCode.NOT_EXECUTABLE, f"{program!r} cannot be executed; is it a program?"
    return ExitCode.NO_COMMAND, f"no command is called {program!r}; is it in your PATH?"


async def _worked_on(session: Session, task_id: str) -> int:
    crew = session.crew()
    async with crew:
        with Interruption(session, crew, task_id) as interruption:
            code = await crew.during(_Show(session, task_id).until_the_end(interruption))
        others = [one for one in crew.worker.running if one != task_id]
        if others:
            say(f"longshore: finishing {words.number_of(len(others), 'other task')} of the queue")
    return code


class _Show:
    """Shows a task's output while it comes, and how the task ends."""

    def __init__(self, session: Session, task_id: str) -> None:
        self._session = session
        self._task_id = task_id
        self._told = 0  # the last attempt of whose failure we have told
        self._reader_is_gone = False

    async def until_the_end(self, interruption: Interruption) -> int:
        row = await following.row_of(self._session.backend, self._task_id)
        async for current, batch in following.updates(self._session.backend, self._task_id):
            row = current
            if row.state is TaskState.PENDING and row.failure and not batch:
                self._tell_of_retry(row.attempt, row)
            for attempt, pieces in itertools.groupby(batch, key=lambda entry: entry.attempt):
                self._tell_of_retry(attempt - 1, row)
                await self._write(list(pieces), interruption)
        # Whoever dispatches will come to it too; this way the job has ended when we have.
        await self._session.dispatcher.settle([self._task_id])
        return self._code(row, interruption)

    async def _write(self, batch: list[OutputEntry], interruption: Interruption) -> None:
        if self._reader_is_gone:
            return
        try:
            # In a thread: a reader that takes its time must not keep us from renewing the lease.
            await asyncio.to_thread(_write_all, batch)
        except BrokenPipeError:
            self._reader_is_gone = True
            interruption.cancel("whoever read the output has gone")

    def _tell_of_retry(self, failed: int, row: TaskRow) -> None:
        """Say once that an attempt failed: before the next one, or before its first output."""
        if failed > self._told:
            self._told = failed
            why = f" ({row.failure.message})" if row.failure else ""
            again = "trying again"
            if row.due_at is not None:
                pause = max(row.due_at - self._session.backend.clock.now(), timedelta())
                again = f"again in {words.took(pause)}"
            most = row.spec.retry.max_attempts
            say(f"longshore: attempt {failed} of {most} failed{why}; {again}")

    def _code(self, row: TaskRow, interruption: Interruption) -> int:
        if self._reader_is_gone:
            # Nothing can be flushed there any more.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
            return ExitCode.BROKEN_PIPE
        if row.state is TaskState.CANCELLED:
            if interruption.code is not None:
                return interruption.code
            say(f"longshore: cancelled by {row.cancel.by if row.cancel else 'somebody'}")
            return ExitCode.FAILED
        code = views.exit_code_of(row)
        if code == ExitCode.TIMED_OUT and row.failure and row.failure.exit_code is None:
            say(f"longshore: {row.failure.message}; --timeout gives it longer")
        elif row.state is TaskState.FAILED and row.failure and row.failure.exit_code is None:
            say(f"longshore: {row.failure.message}")
        return ExitCode.FAILED if code is None else code


def _write_all(batch: Sequence[OutputEntry]) -> None:
    for entry in batch:
        if entry.stream is Stream.LOST:
            say(lost_text(entry))
        else:
            write_raw(entry.stream, entry.data)
