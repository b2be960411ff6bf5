"""The body of ``longshore worker``."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta

from longshore.interfaces.cli import words
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.interruption import end_signals
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.session import Session, opened, settings_for
from longshore.services.crew import Crew, until_nothing_is_left

_BY_SIGNAL = 128


async def work(
    here: Here, *, queues: Sequence[str] | None, concurrency: int | None, burst: bool
) -> int:
    """Work until stopped, or until nothing is left."""
    flags = {"worker.queues": tuple(queues) if queues else None, "worker.concurrency": concurrency}
    settings = settings_for(here, flags, talkative=True)
    async with opened(settings) as session:
        crew = session.crew()
        stopping = _Stopping(crew, settings.worker.drain_grace)
        async with crew:
            stopping.listen()
            _announce(session, crew, burst=burst)
            if burst:
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
    """What signals do to a worker: the first drains it, the second does not wait."""

    def __init__(self, crew: Crew, grace: timedelta) -> None:
        self._crew = crew
        self._grace = words.took(grace)
        self._count = 0
        self.code: int = ExitCode.OK

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in end_signals():
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        self._count += 1
        if self._count == 1:
            self._crew.stop()
            if running := len(self._crew.worker.running):
                tasks = words.number_of(running, "task")
                again = "; once more gives up at once" if sys.stdin.isatty() else ""
                say(f"longshore: stopping when {tasks} ended, or in {self._grace}{again}")
        else:
            self._crew.stop_at_once()
            self.code = _BY_SIGNAL + number
