"""The body of ``longshore worker --processes``: the supervisor's door to the machine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta

from longshore.core.supervision import SupervisionFailure, SupervisionPolicy
from longshore.errors import UsageError
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.interruption import termination_signals
from longshore.interfaces.cli.log_files import WorkerLog
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.worker_process import LocalWorkerProcess
from longshore.services.worker.supervisor import Supervisor, WorkerProcess, WorkerStatus
from longshore.settings import Settings

logger = logging.getLogger(__name__)

_SIGNAL_BASE = 128
# On top of what a worker itself takes at most to stop.
_STOP_MARGIN = timedelta(seconds=10)


async def supervise(settings: Settings, arguments: Sequence[str], *, burst: bool) -> int:
    """Keep workers running until stopped, or until there is no point in going on.

    Args:
        arguments: The command line of each worker.
        burst: A worker that has ended well is not started again.
    """
    from longshore.wiring.services import resident_bytes, system_clock

    if settings.backend == "memory":
        message = "processes do not share the backend memory; leave out --processes, or use sqlite"
        raise UsageError(message)
    team = _WorkerLauncher([*arguments, "--log-format", _log_format(settings)], resident_bytes)
    supervisor = Supervisor(_policy(settings, burst=burst), team.start, system_clock())
    signals = _SupervisorSignals(supervisor, settings.stop_timeout)
    signals.listen()
    _print_startup(settings, burst=burst)
    await supervisor.run()
    if supervisor.failure is not None:
        _report_giving_up(supervisor.failure, settings, team.last_lines)
        return ExitCode.FAILED
    return signals.exit_code


def _policy(settings: Settings, *, burst: bool) -> SupervisionPolicy:
    given = settings.supervisor
    return SupervisionPolicy(
        processes=given.processes,
        restart_delay=given.restart_delay,
        restart_limit=given.restart_limit,
        memory_ceiling_bytes=given.memory_ceiling,
        recycle_at=given.recycle_at,
        kill_after=settings.stop_timeout + _STOP_MARGIN,
        until_done=burst,
    )


def _log_format(settings: Settings) -> str:
    """How workers shall write, who see a pipe where the supervisor may see a terminal."""
    if settings.log_format != "auto":
        return settings.log_format
    return "text" if settings.log_file is None and sys.stderr.isatty() else "json"


def _print_startup(settings: Settings, *, burst: bool) -> None:
    worker = settings.worker
    until = "until nothing is left" if burst else "Ctrl-C stops"
    print(
        f"supervisor {os.getpid()}: {formats.plural(settings.supervisor.processes, 'worker')};"
        f" serving {', '.join(worker.queues)};"
        f" {formats.plural(worker.concurrency, 'task')} at once each;"
        f" {settings.data_dir.absolute()}; {until}",
        flush=True,
    )


def _report_giving_up(
    given_up: SupervisionFailure, settings: Settings, last_lines: dict[int, str]
) -> None:
    extra = {"worker": given_up.slot, "restarts": given_up.restarts, "code": given_up.code}
    logger.error("supervisor.gave_up", extra=extra)
    how = f"ended within {formats.duration_text(SupervisionPolicy().short_life)} of its start"
    if given_up.out_of_memory:
        ceiling = formats.size(settings.supervisor.memory_ceiling)
        how = f"outgrew {ceiling} (supervisor.memory_ceiling) soon after its start"
    code = "" if given_up.code is None else f", the last time with {_exit_text(given_up.code)}"
    said = last_lines.get(given_up.slot)
    print_stderr(
        f"longshore: gave up: worker {given_up.slot} {how}"
        f" {formats.plural(given_up.restarts, 'time')} in a row{code}"
        + (f"; it said: {said}" if said and not given_up.out_of_memory else "")
    )


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    known = -code in set(signal.Signals)
    return signal.Signals(-code).name if known else f"signal {-code}"


class _WorkerLauncher:
    """Starts workers, and writes down what they print."""

    def __init__(self, arguments: Sequence[str], memory_of: Callable[[int], int]) -> None:
        self._arguments = arguments
        self._memory_of = memory_of
        self._log = WorkerLog()
        self.last_lines: dict[int, str] = {}  # by the number of the place

    def start(self, number: int, on_message: Callable[[WorkerStatus], None]) -> WorkerProcess:
        return LocalWorkerProcess(
            self._arguments,
            on_message=on_message,
            on_line=lambda line: self._on_line(number, line),
            memory_of=self._memory_of,
        )

    def _on_line(self, number: int, line: str) -> None:
        self.last_lines[number] = line
        self._log.write(number, line)


class _SupervisorSignals:
    """The first drains all, the second does not wait; a hang-up brings fresh workers."""

    def __init__(self, supervisor: Supervisor, longest: timedelta) -> None:
        self._supervisor = supervisor
        self._longest = formats.duration_text(longest)
        self._terminal = _stdin_is_terminal()
        self._count = 0
        self.exit_code: int = ExitCode.OK

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in termination_signals():
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        # The same signal says that the terminal was closed, and then nobody wants fresh workers.
        if number is signal.SIGHUP and not (self._terminal and not _stdin_is_terminal()):
            self._supervisor.recycle()
            return
        self._count += 1
        if self._count == 1:
            workers = formats.plural(self._supervisor.running, "worker")
            again = "; once more gives up at once" if self._terminal else ""
            print_stderr(f"longshore: stopping {workers}, in {self._longest} at the latest{again}")
        else:
            self.exit_code = _SIGNAL_BASE + number
        self._supervisor.stop()


def _stdin_is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
