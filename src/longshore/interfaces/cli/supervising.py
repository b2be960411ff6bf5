"""The body of ``longshore worker --processes``: the supervisor's door to the machine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta

from longshore.core.supervision import GivenUp, SupervisionPolicy
from longshore.errors import UsageError
from longshore.interfaces.cli import words
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.interruption import end_signals
from longshore.interfaces.cli.log_files import Journal
from longshore.interfaces.cli.supervising_processes import LocalWorker
from longshore.services.supervisor import Supervisor, Word, WorkerProcess
from longshore.settings import Settings

logger = logging.getLogger(__name__)

_BY_SIGNAL = 128
# On top of what a worker itself takes at most to stop.
_STOP_MARGIN = timedelta(seconds=10)


async def supervise(settings: Settings, arguments: Sequence[str], *, burst: bool) -> int:
    """Keep workers running until stopped, or until there is no point in going on.

    Args:
        arguments: The command line of each worker.
        burst: A worker that has ended well is not started again.
    """
    from longshore.wiring import memory_of, system_clock

    if settings.backend == "memory":
        message = "processes do not share the backend memory; leave out --processes, or use sqlite"
        raise UsageError(message)
    team = _Team([*arguments, "--log-format", _log_format(settings)], memory_of)
    supervisor = Supervisor(_policy(settings, burst=burst), team.start, system_clock())
    signals = _Signals(supervisor, settings.stops_within)
    signals.listen()
    _announce(settings, burst=burst)
    await supervisor.run()
    if supervisor.given_up is not None:
        _tell_why(supervisor.given_up, settings, team.last_words)
        return ExitCode.FAILED
    return signals.code


def _policy(settings: Settings, *, burst: bool) -> SupervisionPolicy:
    given = settings.supervisor
    return SupervisionPolicy(
        processes=given.processes,
        restart_delay=given.restart_delay,
        restart_limit=given.restart_limit,
        short_life=given.short_life,
        memory_ceiling_bytes=given.memory_ceiling,
        recycle_at=given.recycle_at,
        kill_after=settings.stops_within + _STOP_MARGIN,
        until_done=burst,
    )


def _log_format(settings: Settings) -> str:
    """How workers shall write, who see a pipe where the supervisor may see a terminal."""
    if settings.log_format != "auto":
        return settings.log_format
    return "text" if settings.log_file is None and sys.stderr.isatty() else "json"


def _announce(settings: Settings, *, burst: bool) -> None:
    worker = settings.worker
    until = "until nothing is left" if burst else "Ctrl-C stops"
    print(
        f"supervisor {os.getpid()}: {words.number_of(settings.supervisor.processes, 'worker')};"
        f" serving {', '.join(worker.queues)};"
        f" {words.number_of(worker.concurrency, 'task')} at once each;"
        f" {settings.data_dir.absolute()}; {until}",
        flush=True,
    )


def _tell_why(given_up: GivenUp, settings: Settings, last_words: dict[int, str]) -> None:
    extra = {"worker": given_up.place, "restarts": given_up.restarts, "code": given_up.code}
    logger.error("supervisor.gave_up", extra=extra)
    how = f"ended within {words.took(settings.supervisor.short_life)} of its start"
    if given_up.memory:
        ceiling = words.size(settings.supervisor.memory_ceiling)
        how = f"outgrew {ceiling} (supervisor.memory_ceiling) soon after its start"
    code = "" if given_up.code is None else f", the last time with {_end_of(given_up.code)}"
    said = last_words.get(given_up.place)
    say(
        f"longshore: gave up: worker {given_up.place} {how}"
        f" {words.number_of(given_up.restarts, 'time')} in a row{code}"
        + (f"; it said: {said}" if said and not given_up.memory else "")
    )


def _end_of(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    known = -code in set(signal.Signals)
    return signal.Signals(-code).name if known else f"signal {-code}"


class _Team:
    """Starts workers, and writes down what they print."""

    def __init__(self, arguments: Sequence[str], memory_of: Callable[[int], int]) -> None:
        self._arguments = arguments
        self._memory_of = memory_of
        self._journal = Journal()
        self.last_words: dict[int, str] = {}  # by the number of the place

    def start(self, number: int, heard: Callable[[Word], None]) -> WorkerProcess:
        return LocalWorker(
            self._arguments,
            heard=heard,
            printed=lambda line: self._printed(number, line),
            memory_of=self._memory_of,
        )

    def _printed(self, number: int, line: str) -> None:
        self.last_words[number] = line
        self._journal.write(number, line)


class _Signals:
    """The first drains all, the second does not wait; a hang-up brings fresh workers."""

    def __init__(self, supervisor: Supervisor, longest: timedelta) -> None:
        self._supervisor = supervisor
        self._longest = words.took(longest)
        self._terminal = _stdin_is_a_terminal()
        self._count = 0
        self.code: int = ExitCode.OK

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in end_signals():
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        # The same signal says that the terminal was closed, and then nobody wants fresh workers.
        if number is signal.SIGHUP and not (self._terminal and not _stdin_is_a_terminal()):
            self._supervisor.recycle()
            return
        self._count += 1
        if self._count == 1:
            workers = words.number_of(self._supervisor.running, "worker")
            again = "; once more gives up at once" if self._terminal else ""
            say(f"longshore: stopping {workers}, in {self._longest} at the latest{again}")
        else:
            self.code = _BY_SIGNAL + number
        self._supervisor.stop()


def _stdin_is_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
