"""Waits until a job has ended, works on it meanwhile if it can, and shows how far it is.

On a terminal there is one line that moves; elsewhere a line for each thing that happens. Both are
told by the job's events and go to stderr, so that stdout has the answer alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.ids import split_task_id
from longshore.core.states import JobState
from longshore.interfaces.cli import words
from longshore.interfaces.cli.desks.desk import Desk
from longshore.interfaces.cli.event_view import event_of
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.interruption import end_signals
from longshore.interfaces.cli.naming import Named
from longshore.interfaces.cli.queueing import tell_of_pauses
from longshore.interfaces.cli.screen import console
from longshore.services.crew import Crew

_ENDS = (e.TaskCompleted, e.TaskFailed, e.TaskTimeout, e.TaskCancelled)
_PRINTED = (
    *(e.TaskProcessingFailed, e.TaskFailed, e.TaskTimeout),
    *(e.TaskSubmittedForReview, e.TaskParked),
)
_SHOWN = 3
_LOOK_S = 1.0


class _Display(Protocol):
    def event(self, event: Event) -> None: ...


async def wait_for_job(desk: Desk, job_id: str) -> int:
    """Wait until the job has ended; 0, or an exit code if somebody interrupted it.

    Where the data are, this process works on it meanwhile, unless others are there to do it; behind
    a server they are.
    """
    job = await desk.job(job_id)
    if JobState(job["status"]).terminal:
        return ExitCode.OK
    queues = tuple(dict.fromkeys(task["queue"] for task in job["tasks"]))
    await tell_of_pauses(desk, queues)
    crew = desk.crew(queues)
    with _display(job["name"] or job_id, job["totalTasks"]) as display:
        watching = _watch(desk, job_id, display)
        if crew is None:
            done = await _until_interrupted(_others_work(desk, queues, watching))
        else:
            done = await _working(crew, watching)
    if done:
        return ExitCode.OK
    others = "others go" if crew is None else "`longshore worker` goes"
    say(f"longshore: {job_id} stays accepted; {others} on with it")
    return ExitCode.INTERRUPTED


async def _others_work(
    desk: Desk, queues: tuple[str, ...], watching: Coroutine[Any, Any, None]
) -> None:
    """Watch what others do; if they are gone before the end, do it here."""
    seen = asyncio.ensure_future(watching)
    try:
        while not seen.done():
            await asyncio.wait((seen,), timeout=_LOOK_S)
            if not seen.done() and (crew := desk.crew(queues)) is not None:
                async with crew:
                    await crew.during(seen)
        await seen
    finally:
        seen.cancel()


async def _working(crew: Crew, watching: Coroutine[Any, Any, None]) -> bool:
    """Work while somebody watches; whether they saw the end.

    The first signal stops the crew, the second one at once; the job itself stays.
    """

    def stop() -> None:
        crew.stop()
        say("longshore: what runs may still finish; Ctrl-C once more gives it back at once")

    async with crew:
        return await _until_interrupted(crew.during(watching), first=stop, second=crew.stop_at_once)


async def _until_interrupted(
    watching: Coroutine[Any, Any, None],
    *,
    first: Callable[[], None] = lambda: None,
    second: Callable[[], None] = lambda: None,
) -> bool:
    loop, stopped, signals = asyncio.get_running_loop(), asyncio.Event(), end_signals()

    def received() -> None:
        if stopped.is_set():
            second()
        else:
            first()
            stopped.set()

    for number in signals:
        loop.add_signal_handler(number, received)
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
            for number in signals:
                loop.remove_signal_handler(number)


async def _watch(desk: Desk, job_id: str, display: _Display) -> None:
    async for event in desk.events(Named(job_id), every=True, follow=True):
        display.event(event_of(event))


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
        case e.TaskSubmittedForReview() as body:
            # Nothing goes on until somebody does this, so it must be said here.
            return f"its result waits for review: longshore approve {body.task_id}"
        case e.TaskParked() as body:
            return f"parked ({body.reason}): longshore why {body.task_id}"
    return None
