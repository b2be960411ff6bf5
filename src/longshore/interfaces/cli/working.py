"""The body of ``longshore worker``."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.errors import UsageError
from longshore.interfaces.cli import words
from longshore.interfaces.cli.app_modules import check_app
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.interruption import end_signals
from longshore.interfaces.cli.lifeline import Lifeline
from longshore.interfaces.cli.log_files import log_to_file
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.session import Session, opened, settings_for
from longshore.services.crew import Crew, until_nothing_is_left
from longshore.services.supervisor import Word
from longshore.settings import Settings

_BY_SIGNAL = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks of a worker; what is None is left to the settings."""

    queues: tuple[str, ...] | None = None
    concurrency: int | None = None
    app: tuple[str, ...] | None = None
    burst: bool = False
    processes: int | None = None
    recycle_at: str | None = None
    log_file: Path | None = None
    log_format: str | None = None
    lifeline: int | None = None  # the line to the supervisor, if this is one of its workers

    def flags(self) -> dict[str, Any]:
        """By the names of the settings."""
        return {
            "worker.queues": self.queues,
            "worker.concurrency": self.concurrency,
            "worker.app": self.app,
            "supervisor.processes": self.processes,
            "supervisor.recycle_at": self.recycle_at,
            "log_file": self.log_file,
            "log_format": self.log_format,
        }

    def arguments(self, here: Here) -> Iterator[str]:
        """The command line of each of several workers that shall do what was asked of one."""
        options: list[tuple[str, object]] = [
            ("--data-dir", here.data_dir),
            ("--tenant", here.tenant),
            ("--concurrency", self.concurrency),
            *(("--queue", queue) for queue in self.queues or ()),
            *(("--app", module) for module in self.app or ()),
        ]
        yield from (f"{name}={value}" for name, value in options if value is not None)
        yield from ["--burst"] if self.burst else []
        yield from ["--verbose"] * here.verbose


def work(here: Here, asked: Asked) -> int:
    """Work until stopped, or until nothing is left; or see to it that others do.

    Raises:
        ConfigurationError: a module of the app, or the log file, cannot be used.
        UsageError: the options do not fit together.
    """
    settings = settings_for(here, asked.flags(), talkative=True)
    supervised, several = asked.lifeline is not None, settings.supervisor.processes > 0
    if asked.recycle_at and not several:
        message = "--recycle-at needs --processes: a worker cannot replace itself"
        raise UsageError(message)
    check_app(settings.worker.app, Path.cwd())
    if settings.log_file is not None and not supervised:
        log_to_file(settings, settings.log_file)
    if supervised or not several:
        return asyncio.run(_work(settings, asked))
    from longshore.interfaces.cli import supervising

    arguments = list(asked.arguments(here))
    return asyncio.run(supervising.supervise(settings, arguments, burst=asked.burst))


async def _work(settings: Settings, asked: Asked) -> int:
    with contextlib.ExitStack() as stack:
        line = None
        if asked.lifeline is not None:
            line = stack.enter_context(contextlib.closing(Lifeline(asked.lifeline)))
        async with opened(settings) as session:
            crew = session.crew()
            stopping = _Stopping(crew, settings.worker.drain_grace, line)
            async with crew:
                stopping.listen()
                _announce(session, crew, burst=asked.burst)
                if asked.burst:
                    await _until_stopped_or_done(session, crew)
                else:
                    await crew.ended()
            return stopping.code


def _announce(session: Session, crew: Crew, *, burst: bool) -> None:
    settings = session.settings
    until = "until nothing is left" if burst else "Ctrl-C stops"
    place = settings.backend if settings.backend == "memory" else settings.data_dir.absolute()
    print(
        f"worker {crew.worker.id}: serving {', '.join(settings.worker.queues)};"
        f" {words.number_of(settings.worker.concurrency, 'task')} at once; {place}; {until}",
        flush=True,
    )


async def _until_stopped_or_done(session: Session, crew: Crew) -> None:
    settings = session.settings
    left = until_nothing_is_left(
        session.backend,
        session.dispatcher,
        tenant=settings.tenant,
        queues=settings.worker.queues,
        # A task that waits for its next attempt is worth waiting for; one for next week is not.
        horizon=settings.retry.cap,
    )
    done = asyncio.ensure_future(left)
    ended = asyncio.ensure_future(crew.ended())
    await asyncio.wait((done, ended), return_when=asyncio.FIRST_COMPLETED)
    for part in (done, ended):
        if part.done():
            await part
        part.cancel()
    await asyncio.gather(done, ended, return_exceptions=True)


class _Stopping:
    """What signals do to a worker: the first drains it, the second does not wait.

    The end of its supervisor drains it too.
    """

    def __init__(self, crew: Crew, grace: timedelta, line: Lifeline | None) -> None:
        self._crew = crew
        self._grace = words.took(grace)
        self._line = line
        self._count = 0
        self.code: int = ExitCode.OK

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in end_signals():
            loop.add_signal_handler(number, self._received, number)
        if self._line is not None:
            self._line.at_its_end(self._orphaned)
            self._line.tell(Word.SERVING)

    def _orphaned(self) -> None:
        say("longshore: the supervisor has gone")
        self._drain()

    def _drain(self) -> None:
        self._crew.stop()
        if self._line is not None:
            self._line.tell(Word.DRAINING)
        if running := len(self._crew.worker.running):
            tasks = words.number_of(running, "task")
            again = "; once more gives up at once" if sys.stdin.isatty() else ""
            say(f"longshore: stopping when {tasks} ended, or in {self._grace}{again}")

    def _received(self, number: signal.Signals) -> None:
        self._count += 1
        if self._count == 1:
            self._drain()
        else:
            self._crew.stop_at_once()
            self.code = _BY_SIGNAL + number
