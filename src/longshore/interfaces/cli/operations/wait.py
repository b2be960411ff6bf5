"""Waits until a job has ended, works on it meanwhile if it can, and shows how far it is.

On a terminal there is one line that moves; elsewhere a line for each thing that happens. Both are
told by the job's events and go to stderr, so that stdout has the answer alone.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.ids import split_task_id
from longshore.interfaces.cli.client import ApiClient, EntityRef
from longshore.interfaces.cli.commands.queues import warn_if_paused
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.event_text import parse_event
from longshore.interfaces.cli.render.screen import console
from longshore.interfaces.cli.signals import handle_signals
from longshore.services.worker.group import WorkerGroup

_ENDS = (e.TaskCompleted, e.TaskFailed, e.TaskTimeout, e.TaskCancelled)
_PRINTED = (
    *(e.TaskProcessingFailed, e.TaskFailed, e.TaskTimeout),
    *(e.TaskSubmittedForReview, e.TaskParked),
)
_MAX_SHOWN = 3
_POLL_S = 1.0


class _Display(Protocol):
    def event(self, event: Event) -> None: ...


async def wait_for_job(client: ApiClient, job_id: str) -> int:
    """Wait until the job has ended; 0, or an exit code if somebody interrupted it.

    Where the data are, this process works on it meanwhile, unless others are there to do it; behind
    a server they are.
    """
    job = await client.get_job(job_id)
    if job.status.terminal:
        return ExitCode.OK
    queues = tuple(dict.fromkeys(task.queue for task in job.tasks))
    await warn_if_paused(client, queues)
    crew = client.worker_group(queues)
    with _display(job.name or job_id, job.total_tasks) as display:
        watching = _watch(client, job_id, display)
        if crew is None:
            done = await _run_until_interrupted(_watch_others(client, queues, watching))
        else:
            done = await _work_and_watch(crew, watching)
    if done:
        return ExitCode.OK
    others = "others go" if crew is None else "`longshore worker` goes"
    print_stderr(f"longshore: {job_id} stays accepted; {others} on with it")
    return ExitCode.INTERRUPTED


async def _watch_others(
    client: ApiClient, queues: tuple[str, ...], watching: Coroutine[Any, Any, None]
) -> None:
    """Watch what others do; if they are gone before the end, do it here."""
    seen = asyncio.ensure_future(watching)
    try:
        while not seen.done():
            await asyncio.wait((seen,), timeout=_POLL_S)
            if not seen.done() and (crew := client.worker_group(queues)) is not None:
                async with crew:
                    await crew.run_alongside(seen)
        await seen
    finally:
        seen.cancel()


async def _work_and_watch(worker_group: WorkerGroup, watching: Coroutine[Any, Any, None]) -> bool:
    """Work while somebody watches; whether they saw the end.

    The first signal stops the crew, the second one at once; the job itself stays.
    """

    def stop() -> None:
        worker_group.stop()
        print_stderr(
            "longshore: what runs may still finish; Ctrl-C once more gives it back at once"
        )

    async with worker_group:
        return await _run_until_interrupted(
            worker_group.run_alongside(watching), first=stop, second=worker_group.stop_now
        )


async def _run_until_interrupted(
    watching: Coroutine[Any, Any, None],
    *,
    first: Callable[[], None] = lambda: None,
    second: Callable[[], None] = lambda: None,
) -> bool:
    stopped = asyncio.Event()

    def received(_: signal.Signals) -> None:
        if stopped.is_set():
            second()
        else:
            first()
            stopped.set()

    remove_handlers = handle_signals(received)
    stop = asyncio.ensure_future(stopped.wait())
    done = asyncio.ensure_future(watching)
    try:
        await asyncio.wait((done, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if done.done():
            await done
            return True
        done.cancel()
        await asyncio.gather(done, return_exceptions=True)
        return False
    finally:
        # After the first signal the handlers stay: a second one must still be heard.
        if not stopped.is_set():
            remove_handlers()


async def _watch(client: ApiClient, job_id: str, display: _Display) -> None:
    async for event in client.events(EntityRef(job_id), include_tasks=True, follow=True):
        display.event(parse_event(event))


@contextmanager
def _display(name: str, total: int) -> Iterator[_Display]:
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield _ProgressLines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", style="dim", markup=False),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        yield _ProgressBar(progress, name, total)


class _ProgressLines:
    """A line an event, of those that a person waits for."""

    def event(self, event: Event) -> None:
        if text := _event_text(event):
            print_stderr(f"{split_task_id(event.entity_id)[1]}: {text}")


class _ProgressBar:
    """One bar for the whole job; what goes wrong or wants somebody is printed above it."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress = progress
        self._bar = progress.add_task(name, total=total, now="")
        self._running: dict[str, None] = {}
        self._ended = 0

    def event(self, event: Event) -> None:
        key = split_task_id(event.entity_id)[1]
        if isinstance(event.body, e.TaskProcessingStarted):
            self._running[key] = None
        elif isinstance(event.body, _ENDS):
            self._ended += 1
        if not isinstance(event.body, e.TaskProcessingStarted | e.TaskHeartbeat):
            self._running.pop(key, None)
        if isinstance(event.body, _PRINTED):
            self._progress.console.print(f"{key}: {_event_text(event)}")
        shown = list(self._running)
        now = ", ".join(shown[:_MAX_SHOWN]) + (" …" if len(shown) > _MAX_SHOWN else "")
        self._progress.update(self._bar, completed=self._ended, now=now)


def _event_text(event: Event) -> str | None:
    match event.body:
        case e.TaskProcessingStarted() as body:
            again = f", attempt {body.attempt_number}" if body.attempt_number > 1 else ""
            return f"started{again}"
        case e.TaskCompleted() as body:
            return f"completed in {formats.duration_text(body.duration)}"
        case e.TaskProcessingFailed() as body:
            return f"attempt {body.attempt_number} failed: {body.error}"
        case e.TaskFailed() as body:
            return f"failed: {body.error}"
        case e.TaskTimeout() as body:
            return f"failed: its time was up after {formats.duration_text(body.elapsed)}"
        case e.TaskCancelled():
            return "cancelled"
        case e.TaskSubmittedForReview() as body:
            # Nothing goes on until somebody does this, so it must be said here.
            return f"its result waits for review: longshore approve {body.task_id}"
        case e.TaskParked() as body:
            return f"parked ({body.reason}): longshore why {body.task_id}"
    return None
