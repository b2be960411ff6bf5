"""``longshore worker``: one worker in this process, or a supervisor of several processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from longshore.core.supervision import WorkerStatus
from longshore.errors import ConfigurationError, UsageError
from longshore.interfaces.cli.client import load_command_settings, open_command_services
from longshore.interfaces.cli.commands.shared import WorkerOptions
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.log_records import log_to_file
from longshore.interfaces.cli.options import GlobalOptions, command, flag, option
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.signals import StopSignals, end_process_after, handle_signals
from longshore.interfaces.cli.supervisor import SupervisorChannel, print_startup, supervise
from longshore.services.worker.group import WorkerGroup
from longshore.settings import Settings


@command(
    ("longshore worker", "until Ctrl-C"),
    ("longshore worker --queue mail --queue reports --concurrency 8", "two queues, eight at once"),
    ("longshore worker --burst", "until its queues are empty"),
    ("longshore worker --app shop.tasks", "with the functions of a module"),
    ("longshore worker --processes 3 --recycle-at 03:30", "three processes, replaced each night"),
    output=False,
)
def worker(
    options: GlobalOptions,
    *,
    tasks: WorkerOptions,
    burst: Annotated[bool, flag("Exit when the served queues are empty.", "--burst")] = False,
    processes: Annotated[
        int | None,
        option(
            "N", "Number of worker processes. [default: the setting supervisor.processes]", min=1
        ),
    ] = None,
    recycle_at: Annotated[
        str | None,
        option(
            "HH:MM", "When to replace them each day. [default: the setting supervisor.recycle_at]"
        ),
    ] = None,
    log_file: Annotated[
        Path | None,
        option("FILE", "Log to this file, not to stderr. [default: the setting log_file]"),
    ] = None,
    log_format: Annotated[
        str | None, option("NAME", "Log format: text or json. [default: the setting log_format]")
    ] = None,
    parent_fd: Annotated[
        int | None, option("N", "Socket to the supervisor.", min=3, hidden=True)
    ] = None,
) -> int:
    """Run tasks until stopped.

    Ctrl-C or SIGTERM drains the worker: it takes no new tasks, and running tasks may finish within
    the setting worker.drain_grace. Tasks that are still running then are released for another
    worker. A second signal releases them at once.

    With --burst, the worker waits for retries and delayed tasks that are due within the setting
    retry.cap. It does not wait for reviews, parked tasks, paused queues or other queues.

    With --processes, a supervisor runs this many workers. It restarts a worker that exits, and
    replaces a worker that uses too much memory; SIGHUP replaces all workers. A replaced worker
    finishes its tasks while the new one starts. The supervisor exits with 1 if workers keep
    exiting soon after their start.
    """
    flags = {
        **tasks.flags(),
        "supervisor.processes": processes,
        "supervisor.recycle_at": recycle_at,
        "log_file": log_file,
        "log_format": log_format,
    }
    settings = load_command_settings(options, flags, long_running=True).settings
    if recycle_at and not settings.supervisor.processes:
        raise UsageError("--recycle-at needs --processes: a worker cannot replace itself")
    check_app_modules(settings.worker.app, Path.cwd())
    if settings.log_file is not None and parent_fd is None:
        log_to_file(settings, settings.log_file)
    if parent_fd is not None or not settings.supervisor.processes:
        return asyncio.run(_run_worker(settings, parent_fd, burst=burst))
    repeated = {"data-dir": options.data_dir, "tenant": options.tenant, **asdict(tasks)}
    arguments = [
        *(f"--{name}={item}" for name, value in repeated.items() for item in _items(value)),
        *(["--burst"] if burst else []),
        *["--verbose"] * options.verbose,
    ]
    return asyncio.run(supervise(settings, arguments, burst=burst))


def _items(value: object) -> Sequence[object]:
    """The values of an option, which may have none or be repeated."""
    if isinstance(value, list):
        return value
    return () if value is None else (value,)


async def _run_worker(settings: Settings, parent_fd: int | None, *, burst: bool) -> int:
    channel = None if parent_fd is None else SupervisorChannel(parent_fd)
    with contextlib.nullcontext() if channel is None else contextlib.closing(channel):
        async with open_command_services(settings) as services, services.worker_group() as group:
            signals = _listen(group, settings, channel)
            print_startup(settings, f"worker {group.worker.id}:", burst=burst)
            gc.freeze()  # to look at all that was loaded would hold the event loop for 50 ms
            await (services.run_until_idle(group) if burst else group.wait())
        return signals.exit_code


def _listen(
    group: WorkerGroup, settings: Settings, channel: SupervisorChannel | None
) -> StopSignals:
    """Drain the worker at the first signal, or when its supervisor ends; stop at the second."""

    def drain() -> None:
        group.stop()
        if channel is not None:
            channel.send(WorkerStatus.DRAINING)
        report_draining(group, settings, again=sys.stdin.isatty())

    def on_supervisor_exit() -> None:
        print_stderr("longshore: the supervisor has ended")
        end_process_after(settings.stop_deadline)
        drain()

    signals = StopSignals(drain, group.stop_now, settings.stop_deadline)
    handle_signals(signals.on_signal)
    if channel is not None:
        channel.on_close(on_supervisor_exit)
        channel.send(WorkerStatus.SERVING)
    return signals


def report_draining(group: WorkerGroup, settings: Settings, *, again: bool = True) -> None:
    """Say which tasks are waited for, if any are running."""
    if running := len(group.worker.running):
        tasks = formats.plural(running, "running task")
        grace = formats.duration_text(settings.worker.drain_grace)
        hint = "; press Ctrl-C again to stop now" if again else ""
        print_stderr(f"longshore: stopping: waiting up to {grace} for {tasks}{hint}")


def check_app_modules(modules: Sequence[str], folder: Path) -> None:
    """Check that each module can be found, also in ``folder``, before any task is taken.

    A worker that cannot import the functions of its tasks would use up their attempts. The
    packages that contain the modules are imported.

    Raises:
        ConfigurationError: modules cannot be found; the message lists all of them.
    """
    path = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        problems = [problem for module in modules if (problem := _import_problem(module))]
    finally:
        sys.path[:] = path
    if problems:
        raise ConfigurationError([f"worker.app: {problem}" for problem in problems])


def _import_problem(module: str) -> str | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    except Exception as error:  # noqa: BLE001 - a package may raise anything when it is imported
        return f"the package of {module!r} cannot be imported: {error!r}"
    if spec is not None:
        return None
    hint = "; leave out the .py" if module.endswith(".py") else ""
    return f"no module {module!r} in the current folder or among the installed packages{hint}"
