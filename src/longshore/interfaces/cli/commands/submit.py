"""``longshore submit``: submits a job from a file, and with ``--wait`` waits until it has ended.

While it waits, the progress is printed to stderr, so that stdout has only the result: on a terminal
as a progress bar, elsewhere as a line for each event.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.ids import split_task_id
from longshore.core.tasks.states import JobState, TaskState
from longshore.interfaces.cli.client import ApiClient, EntityRef, open_client
from longshore.interfaces.cli.commands.manage import warn_if_paused
from longshore.interfaces.cli.commands.shared import JobFile, RequestId
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.options import GlobalOptions, command, flag
from longshore.interfaces.cli.render import formats, screen
from longshore.interfaces.cli.render.event_text import parse_event
from longshore.interfaces.cli.signals import StopSignals, handle_signals
from longshore.interfaces.document_files import read_document
from longshore.interfaces.request_ids import draw_request_id
from longshore.services.documents import AcceptedJobDocument, JobDetailDocument
from longshore.services.resilience import race
from longshore.services.worker.group import WorkerGroup

_MAX_SHOWN_ROOTS = 10
_MAX_SHOWN_FAILURES = 10
_MAX_SHOWN_RUNNING = 3
_POLL_S = 1.0
_STOP_LIMIT = timedelta(seconds=30)  # without a worker
_ENDS = (e.TaskCompleted, e.TaskFailed, e.TaskTimeout, e.TaskCancelled)
# Printed above the progress bar.
_PROBLEMS = (
    *(e.TaskProcessingFailed, e.TaskFailed, e.TaskTimeout),
    *(e.TaskSubmittedForReview, e.TaskParked),
)


@command(
    ("longshore submit job.yaml", "workers run it"),
    ("longshore submit job.yaml --wait", "run it here and wait until it has ended"),
    ("generate-job | longshore submit - -o json", "from another program"),
    remote=True,
)
async def submit(
    options: GlobalOptions,
    file: JobFile,
    *,
    request_id: RequestId = None,
    wait: Annotated[
        bool,
        flag("Wait until the job ends, also for reviews; run it if no worker does.", "--wait"),
    ] = False,
) -> int:
    """Submit a job from a YAML or JSON file.

    \b
      name: greeting
      tasks:
        - taskId: hello
          name: command
          input: {argv: [echo, hello]}
        - taskId: world
          name: command
          dependsOn: [hello]
          input: {argv: [sh, -c, "sleep 1; echo world"]}

    Each task has a taskId and a name, which is the name of a definition: command, python, or your
    own. It may have an input and dependsOn. The job may have a name and a list of definitions,
    which are stored first. If anything is wrong, every problem is listed and nothing is stored.

    With --wait it exits with 1 if the job failed.
    """
    document = read_document(file)
    async with open_client(options, create=True) as client:
        job = await client.app.submit_file(document, request_id=request_id or draw_request_id())
        if not options.json:
            await _print_accepted(client, job, wait=wait)
        elif not wait:
            screen.print_json(job)
        if not wait:
            return ExitCode.OK
        if not await _wait_for_job(client, job.job_id):
            print_stderr(f"longshore: stopped waiting; workers continue {job.job_id}")
            return ExitCode.INTERRUPTED
        return _print_result(await client.get_job(job.job_id), as_json=options.json)


async def _print_accepted(client: ApiClient, job: AcceptedJobDocument, *, wait: bool) -> None:
    repeated = "" if job.created else f" (accepted before, now {job.status})"
    next_steps = []
    # Only here: a key of a server may allow to submit and not to read.
    if client.services is not None and not wait and not job.status.terminal:
        tasks = (await client.app.get_job(job.job_id)).tasks
        next_steps.append(client.worker_command(list(dict.fromkeys(t.queue for t in tasks))))
    if not wait:
        next_steps.append(f"longshore job {job.job_id}")
    screen.print_pairs(
        job=job.job_id + repeated,
        tasks=str(job.total_tasks),
        roots=_first(job.root_tasks, _MAX_SHOWN_ROOTS),
        request=job.request_id,
        next="; ".join(filter(None, next_steps)),
    )
    sys.stdout.flush()


def _first(names: list[str], limit: int) -> str:
    return ", ".join(names[:limit]) + (" …" if len(names) > limit else "")


def _print_result(job: JobDetailDocument, *, as_json: bool) -> int:
    if as_json:
        screen.print_json(job)
    else:
        print(
            f"{job.status} in {formats.duration_ms_text(job.duration_ms)}:"
            f" {job.progress.completed} of {formats.plural(job.total_tasks, 'task')} completed"
        )
        failed = [task for task in job.tasks if task.status is TaskState.FAILED]
        for task in failed[:_MAX_SHOWN_FAILURES]:
            print(f"  {task.task_id}: {task.error.message if task.error else 'failed'}")
        if failed:
            print(f"see: longshore why {failed[0].request_id}")
    return ExitCode.OK if job.status is JobState.COMPLETED else ExitCode.FAILED


async def _wait_for_job(client: ApiClient, job_id: str) -> bool:
    """Wait until the job has ended; False if a signal interrupts it.

    This process runs the tasks if it can and no worker serves their queues. The first signal drains
    its worker, the second stops it; the job stays as it is.
    """
    job = await client.get_job(job_id)
    if job.status.terminal:
        return True
    queues = tuple(dict.fromkeys(task.queue for task in job.tasks))
    await warn_if_paused(client.app, queues)
    groups: list[WorkerGroup] = []  # the worker of this process, if there is one

    def stop() -> None:
        # The worker stops when the race below has ended.
        if groups:
            hint = "press Ctrl-C again to release them now"
            print_stderr(f"longshore: waiting for running tasks; {hint}")

    def stop_now() -> None:
        for group in groups:
            group.stop_now()

    limit = client.services.settings.stop_deadline if client.services else _STOP_LIMIT
    signals = StopSignals(stop, stop_now, limit)
    remove_handlers = handle_signals(signals.on_signal)
    with _display(job.name or job_id, job.total_tasks) as show:
        running = _run_and_show(client, job_id, queues, groups, show)
        async with race(running, signals.requested.wait()) as (ended, _):
            if not ended.done():
                return False  # the handlers stay: a second signal may follow
            await ended
    remove_handlers()
    return True


async def _run_and_show(
    client: ApiClient,
    job_id: str,
    queues: tuple[str, ...],
    groups: list[WorkerGroup],
    show: Callable[[Event], None],
) -> None:
    async def follow() -> None:
        async for event in client.events(EntityRef(job_id), include_tasks=True, follow=True):
            show(parse_event(event))

    following = asyncio.ensure_future(follow())
    try:
        while not following.done():
            # Other workers may end before the job does, so this is asked again and again.
            if (group := client.worker_group(queues)) is not None:
                groups.append(group)
                async with group:
                    await group.run_alongside(following)
            else:
                await asyncio.wait((following,), timeout=_POLL_S)
        await following
    finally:
        following.cancel()


@contextmanager
def _display(name: str, total: int) -> Iterator[Callable[[Event], None]]:
    """Shows events: as a progress bar on a terminal, elsewhere as lines."""
    from rich import progress as rich

    terminal = screen.console(stderr=True, moves_cursor=True)
    if not terminal.is_terminal:
        yield _print_event
        return
    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=24),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("{task.fields[now]}", style="dim", markup=False),
    )
    with rich.Progress(*columns, console=terminal, transient=True) as progress:
        bar = progress.add_task(name, total=total, now="")
        running: dict[str, None] = {}

        def show(event: Event) -> None:
            key = split_task_id(event.entity_id)[1]
            if isinstance(event.body, e.TaskProcessingStarted):
                running[key] = None
            elif not isinstance(event.body, e.TaskHeartbeat):
                running.pop(key, None)
            if isinstance(event.body, _PROBLEMS):
                terminal.print(f"{key}: {_event_text(event)}")
            ended = isinstance(event.body, _ENDS)
            progress.update(bar, advance=ended, now=_first(list(running), _MAX_SHOWN_RUNNING))

        yield show


def _print_event(event: Event) -> None:
    if text := _event_text(event):
        print_stderr(f"{split_task_id(event.entity_id)[1]}: {text}")


def _event_text(event: Event) -> str:
    body = event.body
    match body:
        case e.TaskProcessingStarted(attempt_number=attempt) if attempt > 1:
            return f"started, attempt {attempt}"
        case e.TaskCompleted(duration=duration):
            return f"completed in {formats.duration_text(duration)}"
        case e.TaskTimeout(elapsed=elapsed):
            return f"failed: timed out after {formats.duration_text(elapsed)}"
    return _EVENT_TEXTS.get(type(body), "").format(body=body)


_EVENT_TEXTS: dict[type[e.EventBody], str] = {
    e.TaskProcessingStarted: "started",
    e.TaskProcessingFailed: "attempt {body.attempt_number} failed: {body.error}",
    e.TaskFailed: "failed: {body.error}",
    e.TaskCancelled: "cancelled",
    # The job does not continue until a user does this.
    e.TaskSubmittedForReview: "its result needs a review: longshore approve {body.task_id}",
    e.TaskParked: "parked ({body.reason}): longshore why {body.task_id}",
}
