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
from typing import TYPE_CHECKING, Any

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.core.text.sanitise import mask_secrets
from longshore.interfaces.cli.client import local_client, new_request_id
from longshore.interfaces.cli.commands.logs import lost_text, write_raw
from longshore.interfaces.cli.commands.queues import warn_if_paused
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.interruption import Interruption
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.services import open_command_services, settings_for
from longshore.services import documents, output_follow
from longshore.services.documents import OutputChunk, Stream
from longshore.settings import Settings

if TYPE_CHECKING:
    from longshore.wiring.services import Services

TASK_KEY = "run"
# The built-in definition takes an exit code for an answer; whoever asks for several attempts wants
# another try for whatever is not 0.
RETRIED_COMMAND = Definition(
    name="command-retried",
    runner=RunnerKind.COMMAND,
    description="A command that is tried again whatever it exits with.",
    retryable_exit_codes=tuple(range(1, 256)),
    retry_on_timeout=True,
)

_NO_LIMIT = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What is to be run, and how."""

    argv: tuple[str, ...]
    timeout: timedelta | None = None
    name: str | None = None
    attempts: int = 1
    queue: str | None = None
    request_id: str | None = None


async def run(options: GlobalOptions, request: RunRequest) -> int:
    """Run a command and return its exit code."""
    base = settings_for(options)
    if problem := _start_problem(request.argv[0]):
        code, text = problem
        print_stderr(f"longshore: {text}")
        return code
    request_id = request.request_id or new_request_id()
    job_id = job_id_of(base.tenant, request_id)
    queue = request.queue or f"run-{job_id.removeprefix('job-')[:12]}"
    settings = settings_for(options, _flags(base, request, queue))
    async with open_command_services(settings) as session:
        if request.attempts > 1:
            await session.backend.definitions.put(settings.tenant, RETRIED_COMMAND)
        document = _document(request, queue)
        await session.producer.submit(settings.tenant, request_id, document)
        task_id = task_id_of(job_id, TASK_KEY)
        row = await output_follow.require_task(session.backend, task_id)
        if row.state.terminal:
            print_stderr(f"longshore: request {request_id!r} was run before; this is its record")
            return await _OutputPrinter(session, task_id).follow(Interruption.for_ended_task())
        await warn_if_paused(local_client(session), [row.spec.queue])
        return await _run_with_worker(session, task_id)


def _flags(base: Settings, request: RunRequest, queue: str) -> dict[str, Any]:
    private = request.queue is None
    return {
        "worker.queues": (queue,),
        "worker.concurrency": 1 if private else base.worker.concurrency,
        # Somebody is watching: they decide when it has taken too long.
        "worker.task_timeout": request.timeout or _NO_LIMIT,
    }


def _document(request: RunRequest, queue: str) -> dict[str, Any]:
    task = {
        "taskId": TASK_KEY,
        "name": RETRIED_COMMAND.name if request.attempts > 1 else RunnerKind.COMMAND.value,
        "input": {"argv": list(request.argv), "cwd": str(Path.cwd())},
        "queue": queue,
        "maxAttempts": request.attempts,
    }
    return {"name": request.name or _short_name(request.argv), "tasks": [task]}


def _short_name(argv: Sequence[str]) -> str:
    # A name is shown in listings and stands in events; what is run is not changed by it.
    line = mask_secrets(" ".join(argv))
    shown = "".join(letter if letter.isprintable() else " " for letter in line)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


def _start_problem(program: str) -> tuple[ExitCode, str] | None:
    """Why a program cannot be started, as a shell would tell before anything is recorded."""
    if shutil.which(program) is not None:
        return None
    if os.sep in program and Path(program).exists():
        return ExitCode.NOT_EXECUTABLE, f"{program!r} cannot be executed; is it a program?"
    return ExitCode.COMMAND_NOT_FOUND, f"no command is called {program!r}; is it in your PATH?"


async def _run_with_worker(session: Services, task_id: str) -> int:
    crew = session.worker_group()
    async with crew:
        with Interruption(session, crew, task_id) as interruption:
            code = await crew.run_alongside(_OutputPrinter(session, task_id).follow(interruption))
        others = [one for one in crew.worker.running if one != task_id]
        if others:
            print_stderr(
                f"longshore: finishing {formats.plural(len(others), 'other task')} of the queue"
            )
    return code


class _OutputPrinter:
    """Shows a task's output while it comes, and how the task ends."""

    def __init__(self, session: Services, task_id: str) -> None:
        self._session = session
        self._task_id = task_id
        self._reported_attempt = 0  # the last attempt of whose failure we have told
        self._output_closed = False

    async def follow(self, interruption: Interruption) -> int:
        row = await output_follow.require_task(self._session.backend, self._task_id)
        async for current, batch in output_follow.follow_task(self._session.backend, self._task_id):
            row = current
            if row.state is TaskState.PENDING and row.failure and not batch:
                self._report_retry(row.attempt, row)
            for attempt, pieces in itertools.groupby(batch, key=lambda entry: entry.attempt):
                self._report_retry(attempt - 1, row)
                await self._write(list(pieces), interruption)
        # Whoever dispatches will come to it too; this way the job has ended when we have.
        await self._session.dispatcher.settle([self._task_id])
        return self._exit_code(row, interruption)

    async def _write(self, batch: list[OutputChunk], interruption: Interruption) -> None:
        if self._output_closed:
            return
        try:
            # In a thread: a reader that takes its time must not keep us from renewing the lease.
            await asyncio.to_thread(_write_all, batch)
        except BrokenPipeError:
            self._output_closed = True
            interruption.cancel("whoever read the output has gone")

    def _report_retry(self, failed: int, row: TaskRow) -> None:
        """Say once that an attempt failed: before the next one, or before its first output."""
        if failed > self._reported_attempt:
            self._reported_attempt = failed
            why = f" ({row.failure.message})" if row.failure else ""
            again = "trying again"
            if row.due_at is not None:
                pause = max(row.due_at - self._session.backend.clock.now(), timedelta())
                again = f"again in {formats.duration_text(pause)}"
            most = row.spec.retry.max_attempts
            print_stderr(f"longshore: attempt {failed} of {most} failed{why}; {again}")

    def _exit_code(self, row: TaskRow, interruption: Interruption) -> int:
        if self._output_closed:
            # Nothing can be flushed there any more.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
            return ExitCode.BROKEN_PIPE
        if row.state is TaskState.CANCELLED:
            if interruption.exit_code is not None:
                return interruption.exit_code
            print_stderr(f"longshore: cancelled by {row.cancel.by if row.cancel else 'somebody'}")
            return ExitCode.FAILED
        code = documents.task_exit_code(row)
        if code == ExitCode.TIMED_OUT and row.failure and row.failure.exit_code is None:
            print_stderr(f"longshore: {row.failure.message}; --timeout gives it longer")
        elif row.state is TaskState.FAILED and row.failure and row.failure.exit_code is None:
            print_stderr(f"longshore: {row.failure.message}")
        return ExitCode.FAILED if code is None else code


def _write_all(batch: Sequence[OutputChunk]) -> None:
    for entry in batch:
        if entry.stream is Stream.LOST:
            print_stderr(lost_text(entry))
        else:
            write_raw(entry.stream, entry.data)
