"""The supervisor of ``longshore worker --processes`` on this machine, and its worker processes.

A supervisor and a worker are connected by a socket pair. The worker reports its status on it, so
that its successor starts when the worker stops taking work, not when it has finished. The socket
closes when the supervisor ends, for any reason; the worker then drains. (The parent-death signal of
Linux would not do: it is sent when the *thread* that started the worker ends.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, cast

from longshore.core.supervision import SupervisedWorker, SupervisionPolicy, WorkerStatus
from longshore.core.tasks.failures import signal_name
from longshore.errors import UsageError
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.log_records import write_worker_line
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.signals import StopSignals, handle_signals
from longshore.services.worker.supervisor import Supervisor, WorkerProcess
from longshore.settings import Settings

logger = logging.getLogger(__name__)

# -P: a folder of the user with the name of a library must not be imported in its place.
PROGRAM = (sys.executable, "-P", "-m", "longshore", "worker")
# In addition to the time in which a worker stops by itself.
_STOP_MARGIN = timedelta(seconds=10)
# As much as a pipe can hold, so that one read empties it.
_CHUNK_BYTES = 2**20
_MAX_LINE_BYTES = 65536


async def supervise(settings: Settings, arguments: Sequence[str], *, burst: bool) -> int:
    """Keep workers running until stopped, or until they keep failing.

    Args:
        arguments: The command line of each worker.
        burst: Do not restart a worker that ended successfully.
    """
    from longshore.wiring.services import system_clock

    last_lines: dict[int, str] = {}
    log_format: str = settings.log_format
    if log_format == "auto":
        # Workers have a pipe; the supervisor may have a terminal.
        log_format = "text" if settings.log_file is None and sys.stderr.isatty() else "json"

    def start(number: int, on_message: Callable[[WorkerStatus], None]) -> WorkerProcess:
        def on_line(line: str) -> None:
            last_lines[number] = line
            write_worker_line(number, line)

        return LocalWorkerProcess(
            [*arguments, "--log-format", log_format],
            on_message=on_message,
            on_line=on_line,
        )

    policy = SupervisionPolicy(
        processes=settings.supervisor.processes,
        restart_delay=settings.supervisor.restart_delay,
        restart_limit=settings.supervisor.restart_limit,
        memory_ceiling_bytes=settings.supervisor.memory_ceiling,
        recycle_at=settings.supervisor.recycle_at,
        kill_after=settings.stop_timeout + _STOP_MARGIN,
        until_done=burst,
    )
    supervisor = Supervisor(policy, start, system_clock())
    signals = _listen(supervisor, settings)
    workers = formats.plural(policy.processes, "worker")
    print_startup(settings, f"supervisor {os.getpid()}: {workers};", suffix=" each", burst=burst)
    await supervisor.run()
    if supervisor.failure is not None:
        _report_giving_up(supervisor.failure, settings, last_lines)
        return ExitCode.FAILED
    return signals.exit_code


def print_startup(settings: Settings, process: str, *, suffix: str = "", burst: bool) -> None:
    """Print what a worker or a supervisor serves."""
    until = "until its queues are empty" if burst else "Ctrl-C stops"
    print(
        f"{process} serving {', '.join(settings.worker.queues)};"
        f" {formats.plural(settings.worker.concurrency, 'task')} at once{suffix};"
        f" {settings.data_dir.absolute()}; {until}",
        flush=True,
    )


def _listen(supervisor: Supervisor, settings: Settings) -> StopSignals:
    """Drain all workers at the first signal, stop them at the second, replace them at SIGHUP."""
    had_terminal = _stdin_is_terminal()

    def drain() -> None:
        workers = formats.plural(supervisor.running, "worker")
        longest = formats.duration_text(settings.stop_timeout)
        again = "; press Ctrl-C again to stop now" if had_terminal else ""
        print_stderr(f"longshore: stopping {workers}, within {longest}{again}")
        supervisor.stop()

    signals = StopSignals(drain, supervisor.stop, settings.stop_deadline)

    def on_signal(number: signal.Signals) -> None:
        # SIGHUP is also sent when the terminal is closed. It then stops the workers.
        terminal_closed = had_terminal and not _stdin_is_terminal()
        if number is signal.SIGHUP and not terminal_closed:
            supervisor.recycle()
        else:
            signals.on_signal(number)

    handle_signals(on_signal)
    return signals


def _stdin_is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _report_giving_up(
    failure: SupervisedWorker, settings: Settings, last_lines: dict[int, str]
) -> None:
    number, restarts, code = failure.slot, failure.short_runs, failure.exit_code or 0
    extra = {"worker": number, "restarts": restarts, "code": code}
    logger.error("supervisor.gave_up", extra=extra)
    times = f"{formats.plural(restarts, 'time')} in a row"
    # A worker that was drained is given up for its memory only.
    if failure.stop_reason is not None:
        ceiling = formats.size(settings.supervisor.memory_ceiling)
        text = f"exceeded {ceiling} (supervisor.memory_ceiling) soon after its start {times}"
    else:
        limit = formats.duration_text(SupervisionPolicy().short_life)
        end = f"exit code {code}" if code >= 0 else signal_name(-code)
        line = last_lines.get(number)
        output = f"; its last output: {line}" if line else ""
        text = f"exited within {limit} of its start {times}, the last time with {end}{output}"
    print_stderr(f"longshore: gave up: worker {number} {text}")


class LocalWorkerProcess:
    """Implements ``WorkerProcess``. Raises ``OSError`` if it cannot be started."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        on_message: Callable[[WorkerStatus], None],
        on_line: Callable[[str], None],
        program: Sequence[str] = PROGRAM,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._channel, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*program, *arguments, "--parent-fd", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    # Otherwise workers receive Ctrl-C too, and SIGTERM is their second signal.
                    start_new_session=True,
                    env=environment,
                    cwd=folder,
                )
            try:
                self._exit = os.pidfd_open(self._process.pid)
            except OSError:  # there are not enough descriptors
                self._process.kill()
                self._process.communicate()
                raise
        except BaseException:
            self._channel.close()
            raise
        self.process_id = self._process.pid
        self._output = cast("IO[bytes]", self._process.stdout)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._readers = [
            _LineReader(self._output.fileno(), on_line),
            # A worker of a newer version may send more.
            _LineReader(
                self._channel.fileno(),
                lambda word: on_message(WorkerStatus(word)) if word in set(WorkerStatus) else None,
            ),
        ]
        self._loop.add_reader(self._exit, self._finish)

    def request_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()

    def memory_bytes(self) -> int:
        from longshore.wiring.services import resident_bytes

        return resident_bytes(self.process_id)

    def _finish(self) -> None:
        self._loop.remove_reader(self._exit)
        os.close(self._exit)
        for reader in self._readers:
            reader.finish()
        self._channel.close()
        self._output.close()
        self.ended.set_result(self._process.wait())


class _LineReader:
    """Calls ``on_line`` for each line of a descriptor, without blocking."""

    def __init__(
        self,
        descriptor: int,
        on_line: Callable[[str], None],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._descriptor, self._on_line, self._on_close = descriptor, on_line, on_close
        self._partial = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def finish(self) -> None:
        """Deliver what is there now; other processes may still hold the other end open."""
        self._read()
        self._loop.remove_reader(self._descriptor)
        if self._partial:
            self._deliver(self._partial)

    def _read(self) -> None:
        try:
            chunk = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            chunk = b""
        if not chunk:
            self._loop.remove_reader(self._descriptor)
            self._on_close()
            return
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > _MAX_LINE_BYTES:
            lines, self._partial = [*lines, self._partial], b""
        for line in lines:
            self._deliver(line)

    def _deliver(self, line: bytes) -> None:
        self._on_line(line.decode(errors="backslashreplace"))


class SupervisorChannel:
    """The worker's end of the socket to its supervisor."""

    def __init__(self, descriptor: int) -> None:
        try:
            self._socket = socket.socket(fileno=descriptor)
        except OSError as error:
            message = f"--parent-fd {descriptor} is not a socket: {error.strerror}"
            raise UsageError(message) from error
        self._socket.setblocking(False)
        # Child processes of the worker do not get it.
        self._socket.set_inheritable(False)

    def send(self, status: WorkerStatus) -> None:
        """Report a status, if the supervisor still listens."""
        with contextlib.suppress(OSError):
            self._socket.send(f"{status}\n".encode())

    def on_close(self, call: Callable[[], None]) -> None:
        """Call this when the supervisor has ended."""
        _LineReader(self._socket.fileno(), lambda _: None, call)

    def close(self) -> None:
        self._socket.close()
