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
from typing import TYPE_CHECKING, Any

from longshore.errors import UsageError
from longshore.interfaces.cli.app_modules import check_app_modules
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.interruption import termination_signals
from longshore.interfaces.cli.log_files import log_to_file
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.services import open_command_services, settings_for
from longshore.interfaces.cli.supervisor_channel import SupervisorChannel
from longshore.services.worker.group import WorkerGroup, wait_until_idle
from longshore.services.worker.supervisor import WorkerStatus
from longshore.settings import Settings

if TYPE_CHECKING:
    from longshore.wiring.services import Services

_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What the command line asks of a worker; what is None is left to the settings."""

    queues: tuple[str, ...] | None = None
    concurrency: int | None = None
    app: tuple[str, ...] | None = None
    burst: bool = False
    processes: int | None = None
    recycle_at: str | None = None
    log_file: Path | None = None
    log_format: str | None = None
    supervisor_fd: int | None = None  # the line to the supervisor, if this is one of its workers

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

    def arguments(self, global_options: GlobalOptions) -> Iterator[str]:
        """The command line of each of several workers that shall do what was asked of one."""
        options: list[tuple[str, object]] = [
            ("--data-dir", global_options.data_dir),
            ("--tenant", global_options.tenant),
            ("--concurrency", self.concurrency),
            *(("--queue", queue) for queue in self.queues or ()),
            *(("--app", module) for module in self.app or ()),
        ]
        yield from (f"{name}={value}" for name, value in options if value is not None)
        yield from ["--burst"] if self.burst else []
        yield from ["--verbose"] * global_options.verbose


def run_worker(options: GlobalOptions, worker_options: WorkerOptions) -> int:
    """Work until stopped, or until nothing is left; or see to it that others do.

    Raises:
        ConfigurationError: a module of the app, or the log file, cannot be used.
        UsageError: the options do not fit together.
    """
    settings = settings_for(options, worker_options.flags(), long_running=True)
    supervised, several = (
        worker_options.supervisor_fd is not None,
        settings.supervisor.processes > 0,
    )
    if worker_options.recycle_at and not several:
        message = "--recycle-at needs --processes: a worker cannot replace itself"
        raise UsageError(message)
    check_app_modules(settings.worker.app, Path.cwd())
    if settings.log_file is not None and not supervised:
        log_to_file(settings, settings.log_file)
    if supervised or not several:
        return asyncio.run(_run_worker(settings, worker_options))
    from longshore.interfaces.cli.operations import supervisor

    arguments = list(worker_options.arguments(options))
    return asyncio.run(supervisor.supervise(settings, arguments, burst=worker_options.burst))


async def _run_worker(settings: Settings, worker_options: WorkerOptions) -> int:
    with contextlib.ExitStack() as stack:
        line = None
        if worker_options.supervisor_fd is not None:
            line = stack.enter_context(
                contextlib.closing(SupervisorChannel(worker_options.supervisor_fd))
            )
        async with open_command_services(settings) as session:
            crew = session.worker_group()
            stopping = _WorkerSignals(crew, settings.worker.drain_grace, line)
            async with crew:
                stopping.listen()
                _print_startup(session, crew, burst=worker_options.burst)
                if worker_options.burst:
                    await _run_burst(session, crew)
                else:
                    await crew.wait()
            return stopping.exit_code


def _print_startup(session: Services, worker_group: WorkerGroup, *, burst: bool) -> None:
    settings = session.settings
    until = "until nothing is left" if burst else "Ctrl-C stops"
    place = settings.backend if settings.backend == "memory" else settings.data_dir.absolute()
    print(
        f"worker {worker_group.worker.id}: serving {', '.join(settings.worker.queues)};"
        f" {formats.plural(settings.worker.concurrency, 'task')} at once; {place}; {until}",
        flush=True,
    )


async def _run_burst(session: Services, worker_group: WorkerGroup) -> None:
    settings = session.settings
    left = wait_until_idle(
        session.backend,
        session.dispatcher,
        tenant=settings.tenant,
        queues=settings.worker.queues,
        # A task that waits for its next attempt is worth waiting for; one for next week is not.
        horizon=settings.retry.cap,
    )
    done = asyncio.ensure_future(left)
    ended = asyncio.ensure_future(worker_group.wait())
    await asyncio.wait((done, ended), return_when=asyncio.FIRST_COMPLETED)
    for part in (done, ended):
        if part.done():
            await part
        part.cancel()
    await asyncio.gather(done, ended, return_exceptions=True)


class _WorkerSignals:
    """What signals do to a worker: the first drains it, the second does not wait.

    The end of its supervisor drains it too.
    """

    def __init__(
        self, worker_group: WorkerGroup, grace: timedelta, channel: SupervisorChannel | None
    ) -> None:
        self._worker_group = worker_group
        self._grace = formats.duration_text(grace)
        self._channel = channel
        self._count = 0
        self.exit_code: int = ExitCode.OK

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in termination_signals():
            loop.add_signal_handler(number, self._on_signal, number)
        if self._channel is not None:
            self._channel.on_close(self._on_supervisor_exit)
            self._channel.send(WorkerStatus.SERVING)

    def _on_supervisor_exit(self) -> None:
        print_stderr("longshore: the supervisor has gone")
        self._drain()

    def _drain(self) -> None:
        self._worker_group.stop()
        if self._channel is not None:
            self._channel.send(WorkerStatus.DRAINING)
        if running := len(self._worker_group.worker.running):
            tasks = formats.plural(running, "task")
            again = "; once more gives up at once" if sys.stdin.isatty() else ""
            print_stderr(f"longshore: stopping when {tasks} ended, or in {self._grace}{again}")

    def _on_signal(self, number: signal.Signals) -> None:
        self._count += 1
        if self._count == 1:
            self._drain()
        else:
            self._worker_group.stop_now()
            self.exit_code = _SIGNAL_BASE + number
