"""Works on a job in this process until it ends, and shows how far it is.

On a terminal there is one line that moves; elsewhere a line for each thing that happens. Both are
told by the job's events and go to stderr, so that stdout has the answer alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.ids import split_task_id
from longshore.interfaces.cli import words
from longshore.interfaces.cli.event_view import JobHistory
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.interruption import end_signals
from longshore.interfaces.cli.listing import all_tasks
from longshore.interfaces.cli.screen import console
from longshore.interfaces.cli.session import Session
from longshore.services.crew import Crew
from longshore.services.following import LOOK_EVERY

_ENDS = (e.TaskCompleted, e.TaskFailed, e.TaskTimeout, e.TaskCancelled)
_SHOWN = 3


class _Display(Protocol):
    def event(self, event: Event) -> None: ...


async def wait_for_job(session: Session, job_id: str) -> int:
    """Work until the job has ended; 0, or an exit code if somebody interrupted it."""
    job = await session.backend.ledger.job(job_id)
    if job is None or job.state.terminal:
        return ExitCode.OK
    tasks = await all_tasks(session.backend.ledger, job)
    queues = tuple(dict.fromkeys(task.spec.queue for task in tasks))
    crew = session.crew(queues)
    async with crew:
        with (
            _stopped_by_signals(crew) as stopped,
            _display(job.spec.name or job.id, job.total) as (display),
        ):
            watching = crew.during(_watch(session, job_id, display))
            stop = asyncio.ensure_future(stopped.wait())
            done = asyncio.ensure_future(watching)
            await asyncio.wait((done, stop), return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if done.done():
                await done
                return ExitCode.OK
            done.cancel()
            await asyncio.gather(done, return_exceptions=True)
            say(f"longshore: {job_id} stays accepted; `longshore worker` goes on with it")
            return ExitCode.INTERRUPTED


@contextmanager
def _stopped_by_signals(crew: Crew) -> Iterator[asyncio.Event]:
    """The first signal stops the crew, the second one at once; the job itself stays."""
    loop, stopped, signals = asyncio.get_running_loop(), asyncio.Event(), end_signals()

    def received() -> None:
        if stopped.is_set():
            crew.stop_at_once()
        else:
            crew.stop()
            stopped.set()

    for number in signals:
        loop.add_signal_handler(number, received)
    try:
        yield stopped
    finally:
        if not stopped.is_set():
            for number in signals:
                loop.remove_signal_handler(number)


async def _watch(session: Session, job_id: str, display: _Display) -> None:
    history = JobHistory(session, job_id)
    while True:
        job = await session.backend.ledger.job(job_id)
        async for event in history.more():
            display.event(event)
        if job is None or job.state.terminal:
            return
        await session.backend.clock.sleep(LOOK_EVERY)


@contextmanager
def _display(name: str, total: int) -> Iterator[_Display]:
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", style="dim", markup=False),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        yield _Bar(progress, name, total)


class _Lines:
    """A line an event, of those that a person waits for."""

    def event(self, event: Event) -> None:
        if text := _told(event):
            say(f"{split_task_id(event.entity_id)[1]}: {text}")


class _Bar:
    """One bar for the whole job; what goes wrong is printed above it."""

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
        if isinstance(event.body, e.TaskProcessingFailed | e.TaskFailed | e.TaskTimeout):
            self._progress.console.print(f"{key}: {_told(event)}")
        shown = list(self._running)
        now = ", ".join(shown[:_SHOWN]) + (" …" if len(shown) > _SHOWN else "")
        self._progress.update(self._bar, completed=self._ended, now=now)


def _told(event: Event) -> str | None:
    match event.body:
        case e.TaskProcessingStarted() as body:
            again = f", attempt {body.attempt_number}" if body.attempt_number > 1 else ""
            return f"started{again}"
        case e.TaskCompleted() as body:
            return f"completed in {words.took(body.duration)}"
        case e.TaskProcessingFailed() as body:
            return f"attempt {body.attempt_number} failed: {body.error}"
        case e.TaskFailed() as body:
            return f"failed: {body.error}"
        case e.TaskTimeout() as body:
            return f"failed: its time was up after {words.took(body.elapsed)}"
        case e.TaskCancelled():
            return "cancelled"
    return None
