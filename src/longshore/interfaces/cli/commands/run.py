"""``longshore run``: runs one command as a job of its own, and follows it to its end.

The command's task is on a queue that no other worker serves, so the worker of this process takes
this task and no other. The name of the queue follows from the request id: when the same request is
run again after a crash, it serves the same queue and takes over the task. The output of a request
that has ended is printed again from the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.core.text.durations import parse_duration
from longshore.core.text.sanitise import mask_secrets
from longshore.errors import BackendUnavailable, CommandRefused, NotFound
from longshore.interfaces.cli.client import load_command_settings, open_command_services
from longshore.interfaces.cli.commands.inspect import write_chunks
from longshore.interfaces.cli.commands.manage import warn_if_paused
from longshore.interfaces.cli.commands.shared import RequestId
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.options import GlobalOptions, argument, command, option
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.signals import SIGNAL_BASE, end_process_after, handle_signals
from longshore.interfaces.request_ids import draw_request_id
from longshore.services import documents as d
from longshore.services.resilience import race
from longshore.services.worker.group import WorkerGroup

if TYPE_CHECKING:
    from longshore.services.app import Application
    from longshore.wiring.services import Services

_TASK_KEY = "run"
# The built-in definition reports a nonzero exit code as the result; a user who wants several
# attempts wants it retried.
_RETRIED_COMMAND = Definition(
    name="command-retried",
    runner=RunnerKind.COMMAND,
    description="A command that is retried after any nonzero exit code.",
    retryable_exit_codes=tuple(range(1, 256)),
    retry_on_timeout=True,
    overridable=("argv", "cwd"),
)
_NO_LIMIT = timedelta(days=30)
_MAX_NAME_CHARACTERS = 60


def _parse_timeout(text: str) -> timedelta:
    """A duration on the command line: ``90s``, ``5m``, ``1h30m`` or plain seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@command(
    ("longshore run -- sh -c 'echo out; echo err >&2; exit 3'", "prints both lines, exits with 3"),
    ("longshore run --timeout 10m --attempts 3 -- ./import.sh", "up to three attempts"),
    ("longshore run --request-id nightly-0131 -- ./report.sh", "once, also after a crash"),
    interspersed=False,
    output=False,
)
async def run(
    options: GlobalOptions,
    argv: Annotated[list[str], argument("COMMAND", "The command to run.")],
    *,
    timeout: Annotated[
        timedelta | None,
        option(
            "TIME",
            "Time limit of an attempt, such as 90s or 1h. [default: 30d, not worker.task_timeout]",
            parser=_parse_timeout,
        ),
    ] = None,
    name: Annotated[str | None, option("TEXT", "Name of the job. [default: the command]")] = None,
    attempts: Annotated[int, option("N", "Maximum number of attempts.", min=1, max=100)] = 1,
    queue: Annotated[
        str | None,
        option(
            "NAME",
            "A queue whose other workers may run the command too, in this directory."
            " [default: a queue that only this command serves]",
        ),
    ] = None,
    request_id: RequestId = None,
) -> int:
    """Run a command, record it, and return its exit code.

    The command runs in the current directory. Its output is printed while it runs and is stored:
    see `longshore jobs` and `longshore logs`. It has no stdin, and gets the environment variables
    that the setting worker.pass_environment names. Ctrl-C cancels the command; a second Ctrl-C
    kills it. With --attempts, a timeout and any nonzero exit code are retried; the task then has
    the definition `command-retried`.

    Exits with the command's exit code; with 128 + n if signal n ended it, with 124 if it timed
    out, with 127 if there is no such command. Errors of Longshore itself have the codes 1 to 6,
    which a command may use too; they are printed to stderr and begin with "longshore:".
    """
    base = load_command_settings(options).settings
    if shutil.which(argv[0]) is None:  # nothing is recorded
        if os.sep in argv[0] and os.access(argv[0], os.F_OK):
            print_stderr(f"longshore: {argv[0]!r} is not executable")
            return ExitCode.NOT_EXECUTABLE
        print_stderr(f"longshore: command {argv[0]!r} not found; is it in your PATH?")
        return ExitCode.COMMAND_NOT_FOUND
    request_id = request_id or draw_request_id()
    job_id = job_id_of(base.tenant, request_id)
    flags: dict[str, Any] = {"worker.task_timeout": timeout or _NO_LIMIT}
    if queue is None:
        queue = f"run-{job_id.removeprefix('job-')[:12]}"
        flags["worker.concurrency"] = 1
    settings = load_command_settings(options, {**flags, "worker.queues": (queue,)}).settings
    task = {
        "taskId": _TASK_KEY,
        "name": _RETRIED_COMMAND.name if attempts > 1 else RunnerKind.COMMAND.value,
        "input": {"argv": argv, "cwd": str(Path.cwd())},
        "queue": queue,
        "maxAttempts": attempts,
    }
    document = {"name": name or _short_name(argv), "tasks": [task]}
    async with open_command_services(settings) as services:
        app = services.application()
        accepted = await app.submit_file(
            document,
            request_id=request_id,
            definitions=[_RETRIED_COMMAND] if attempts > 1 else [],
        )
        follower = _Follower(services, app, task_id_of(job_id, _TASK_KEY))
        if accepted.status.terminal:
            print_stderr(f"longshore: request {request_id!r} was run before; this is its record")
            return await follower.follow()
        await warn_if_paused(app, [queue])
        return await follower.run()


def _short_name(argv: Sequence[str]) -> str:
    """The command as a name for listings and events."""
    line = mask_secrets(" ".join(argv))
    shown = "".join(letter if letter.isprintable() else " " for letter in line)
    return shown if len(shown) <= _MAX_NAME_CHARACTERS else f"{shown[: _MAX_NAME_CHARACTERS - 1]}…"


@dataclass(slots=True)
class _Follower:
    """Prints a task's output while it arrives, and turns the task's end into an exit code.

    The first signal cancels the task, the second kills it, the third exits. The command has its
    own session, so a signal of the terminal reaches this process alone.
    """

    services: Services
    app: Application
    task_id: str
    group: WorkerGroup | None = None
    signals: int = 0
    signal_code: int | None = None  # exit code; None: there was no signal
    cancelling: asyncio.Future[None] | None = None
    reported_attempt: int = 0  # the last attempt whose failure was printed
    output_closed: bool = False

    async def run(self) -> int:
        """Run the task with a worker of this process; returns the exit code."""
        self.group = self.services.worker_group()
        async with self.group as group:
            remove_handlers = handle_signals(self._on_signal)
            try:
                code = await group.run_alongside(self._follow_while_stored())
            finally:
                remove_handlers()
            if others := [task for task in group.worker.running if task != self.task_id]:
                count = formats.plural(len(others), "other task")
                print_stderr(f"longshore: waiting for {count} of the queue")
        return code

    async def _follow_while_stored(self) -> int:
        async with race(self.follow(), self._watch_store()) as (followed, watched):
            code: int = await (followed if followed.done() else watched)
            return code

    async def _watch_store(self) -> int:
        """Raise the error of the store if nothing could be stored for as long as a lease lasts."""
        backend, key = self.services.backend, f"probe/{self.task_id}"
        while True:
            await backend.clock.sleep(self.services.settings.worker.renew_every)
            row = None
            with contextlib.suppress(BackendUnavailable):
                row = await backend.ledger.get_task(self.task_id)
            if row and row.lease and row.lease.expires_at < self.services.now():
                # The worker could not renew it. If this can be written, it can now.
                await backend.blobs.put(key, b"")
                await backend.blobs.delete(key)

    async def follow(self) -> int:
        """Print the output until the task has ended; returns the exit code."""
        async for row, chunks in self.services.follow_task(self.task_id):
            if row.state is TaskState.PENDING and row.failure and not chunks:
                self._report_retry(row.attempt, row)
            for attempt, batch in itertools.groupby(chunks, key=lambda chunk: chunk.attempt):
                self._report_retry(attempt - 1, row)
                await self._write(list(batch))
        # The dispatcher would do this later; now the job has ended when the command exits.
        await self.services.dispatcher.settle([self.task_id])
        return self._exit_code(row)

    def _on_signal(self, number: signal.Signals) -> None:
        self.signals += 1
        self.signal_code = SIGNAL_BASE + number
        if self.signals == 1:
            end_process_after(self.services.settings.stop_deadline)
            self._cancel(f"interrupted by {number.name}")
            if sys.stderr.isatty():
                print_stderr("longshore: cancelling the command; press Ctrl-C again to kill it")
        elif self.signals == 2 and self.group is not None:
            self.group.kill_children()
        else:
            os._exit(self.signal_code)

    def _cancel(self, reason: str) -> None:
        async def request() -> None:
            # The task may have ended already; then its result counts.
            with contextlib.suppress(CommandRefused, NotFound, BackendUnavailable):
                await self.app.cancel_task(self.task_id, reason=reason)

        if self.group is not None and self.cancelling is None:
            self.cancelling = asyncio.ensure_future(request())

    async def _write(self, chunks: list[d.OutputChunk]) -> None:
        if self.output_closed:
            return
        try:
            # In a thread: a slow reader must not delay the renewal of the lease.
            await asyncio.to_thread(write_chunks, chunks)
        except BrokenPipeError:
            self.output_closed = True
            self._cancel("the output pipe was closed")

    def _report_retry(self, failed: int, row: TaskRow) -> None:
        """Print once that an attempt failed, before the output of the next attempt."""
        if failed <= self.reported_attempt:
            return
        self.reported_attempt = failed
        reason = f" ({row.failure.message})" if row.failure else ""
        retry = "retrying"
        if row.due_at is not None:
            pause = max(row.due_at - self.services.now(), timedelta())
            retry = f"retrying in {formats.duration_text(pause)}"
        limit = row.spec.retry.max_attempts
        print_stderr(f"longshore: attempt {failed} of {limit} failed{reason}; {retry}")

    def _exit_code(self, row: TaskRow) -> int:
        if self.output_closed:
            raise BrokenPipeError
        if row.state is TaskState.CANCELLED:
            if self.signal_code is not None:
                return self.signal_code
            print_stderr(f"longshore: cancelled by {row.cancel.by if row.cancel else 'a user'}")
            return ExitCode.FAILED
        code = d.task_exit_code(row)
        if row.failure and row.failure.exit_code is None:
            hint = "; set a longer --timeout" if code == ExitCode.TIMED_OUT else ""
            print_stderr(f"longshore: {row.failure.message}{hint}")
        return ExitCode.FAILED if code is None else code
