"""``longshore up``: the API, a worker, the dispatcher and the sweeper in one process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
from collections import Counter
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.core.definitions.reader import DEFINITIONS
from longshore.core.text.durations import format_duration
from longshore.interfaces.cli.client import load_command_settings, open_command_services
from longshore.interfaces.cli.commands.shared import WorkerOptions
from longshore.interfaces.cli.commands.worker import check_app_modules, report_draining
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import GlobalOptions, command, option
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.signals import StopSignals, handle_signals
from longshore.interfaces.definition_files import LONGSHORE_YAML, FolderWatch
from longshore.interfaces.rest.app import create_app
from longshore.interfaces.rest.server import bind_socket, serve
from longshore.services.definitions import ApplyResult, DefinitionSync, FolderContents
from longshore.services.resilience import race
from longshore.settings import Settings

if TYPE_CHECKING:
    from longshore.wiring.services import Services

_SHOWN_PROBLEMS = 10
_LABEL_WIDTH = 13


@command(
    ("longshore up", "API, worker and recovery; until Ctrl-C"),
    ("longshore up --port 9000 --concurrency 8", "another port, eight tasks at once"),
    ("longshore up --no-worker", "workers run elsewhere: `longshore worker`"),
    ("longshore up --app shop.tasks", "with the functions of a module"),
    output=False,
)
def up(
    options: GlobalOptions,
    *,
    host: Annotated[
        str | None, option("ADDRESS", "Address to listen on. [default: 127.0.0.1, localhost only]")
    ] = None,
    port: Annotated[
        int | None,
        option("N", "Port to listen on; 0 chooses a free port. [default: 8421]", min=0, max=65_535),
    ] = None,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run tasks in this process.")
    ] = True,
    tasks: WorkerOptions,
) -> int:
    """Run Longshore as a service on this machine.

    One process serves the API, runs tasks, dispatches events and recovers from crashes. On first
    start it generates an API key in a file that only you can read, outside of the data folder (the
    setting keys_dir); requests need it. It listens on localhost unless --host is given; the setting
    api.hosts must then contain the host names that clients use.

    Ctrl-C or SIGTERM lets running tasks finish within the setting worker.drain_grace; a second
    one releases them at once.
    """
    flags = {"api.host": host, "api.port": port, **tasks.flags()}
    settings = load_command_settings(options, flags, long_running=True).settings
    check_app_modules(settings.worker.app, Path.cwd())
    return asyncio.run(_up(settings, with_worker=worker))


async def _up(settings: Settings, *, with_worker: bool) -> int:
    async with contextlib.AsyncExitStack() as stack:
        # First, so that nothing is stored if the address is taken.
        server_socket = stack.enter_context(
            contextlib.closing(bind_socket(settings.api.host, settings.api.port))
        )
        services = await stack.enter_async_context(open_command_services(settings))
        if with_worker:
            services = replace(services, task_secrets=settings.worker.task_secrets)
        key_file = await services.ensure_machine_key()
        # Before requests are served: the next job may name these definitions.
        files = await _apply_definition_files(services)
        app = create_app(services, settings.api)
        parts = [await stack.enter_async_context(serve(app, server_socket))]
        group = None
        if with_worker:
            # Entered last and so left first: requests are served while running tasks finish.
            group = await stack.enter_async_context(services.worker_group())
            parts.append(asyncio.ensure_future(group.wait()))
        stop_now = group.stop_now if group else lambda: None
        signals = StopSignals(lambda: None, stop_now, settings.stop_deadline)
        handle_signals(signals.on_signal)
        _print_startup(services, server_socket, key_file, files, with_worker=with_worker)
        if (warning := await services.api_keys.shared_workers_warning()) is not None:
            print_stderr(f"longshore: warning: {warning}")
        loops = _background_loops(services, files, with_worker=with_worker)
        gc.freeze()  # to look at all that was loaded would hold the event loop for 50 ms
        async with race(signals.requested.wait(), *parts, *loops) as (_, *running):
            for part in running:
                if part.done():
                    await part  # raises the error that ended it
        if group is not None:
            report_draining(group, settings)
            group.stop()
            await asyncio.wait(parts[-1:])
    return signals.exit_code


@dataclass(slots=True)
class _DefinitionFiles:
    """The folder of definition files: its content at the start, and what was stored of it."""

    folder: Path
    watch: FolderWatch
    contents: FolderContents
    sync: DefinitionSync
    applied: ApplyResult
    task_secrets: Collection[str] | None

    async def poll(self) -> FolderContents:
        contents = await asyncio.to_thread(self.watch.poll)
        return contents.with_secrets_checked(self.task_secrets)


async def _apply_definition_files(services: Services) -> _DefinitionFiles | None:
    """Store the definitions of the folder, except those of invalid files."""
    settings = services.settings
    if settings.definitions.folder is None:
        return None
    folder = settings.definitions.folder.absolute()
    watch = FolderWatch(folder)
    secrets = services.task_secrets
    contents = (await asyncio.to_thread(watch.read)).with_secrets_checked(secrets)
    sync = services.definition_sync(folder)
    applied = await sync.sync(contents.definitions)
    return _DefinitionFiles(folder, watch, contents, sync, applied, secrets)


def _background_loops(
    services: Services, files: _DefinitionFiles | None, *, with_worker: bool
) -> list[Coroutine[Any, Any, None]]:
    """What no worker group runs: a worker group has its own dispatcher and sweeper."""
    settings = services.settings
    loops = [] if with_worker else [services.sweeper.run()]
    if not with_worker and settings.workers_dispatch:
        loops.append(services.dispatcher.run())
    if settings.checks_health:
        loops.append(services.health_check.run())
    if files is not None and settings.definitions.watch_every:
        watching = files.sync.watch(
            files.poll,
            every=settings.definitions.watch_every,
            # These are printed at the start; the others are logged.
            reported=files.contents.problems[:_SHOWN_PROBLEMS],
        )
        loops.append(watching)
    return loops


def _print_startup(
    services: Services,
    server_socket: socket.socket,
    key_file: Path,
    files: _DefinitionFiles | None,
    *,
    with_worker: bool,
) -> None:
    settings = services.settings
    host, port = server_socket.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    tasks = formats.plural(settings.worker.concurrency, "task")
    queues = ", ".join(settings.worker.queues)
    health = "not checked (environment is dev; see the setting health.enabled)"
    if settings.checks_health:
        health = f"checked every {format_duration(settings.health.every)}"
    lines = {
        "key": f"{key_file}",
        "data": f"{settings.data_dir.absolute()}",
        "definitions": _definitions_text(files),
        "health": health,
        "worker": f"serving {queues}; {tasks} at once" if with_worker else "none here",
        # The key is not an argument: other users can see the arguments of a process.
        "try": f"sed 's/^/x-api-key: /' {key_file} | curl -H @- {address}/v1/jobs",
        "stop": "Ctrl-C or SIGTERM",
    }
    print(f"longshore is up at {address}")
    for name, text in lines.items():
        print(f"  {name:<{_LABEL_WIDTH}}{text}")
    for line in _problem_lines(files, settings):
        print(line)
    print(end="", flush=True)


def _definitions_text(files: _DefinitionFiles | None) -> str:
    """How many definitions the files contain, and how many of them changed the store."""
    if files is None:
        return "not read from files (the setting definitions.folder is none)"
    counts = Counter(item.file for item in files.contents.definitions)
    own = counts.pop(LONGSHORE_YAML, 0)
    sources = [f"{own} in {LONGSHORE_YAML}"] if own else []
    if counts:
        number = formats.plural(len(counts), "file")
        sources.append(f"{counts.total()} in {number} of {DEFINITIONS}/")
    none = "none valid" if files.contents.problems else "none found"
    text = f"{' and '.join(sources) or none} in {files.folder}"
    changes = {
        "new": len(files.applied.new),
        "changed": len(files.applied.changed),
        "kept as changed through the API": len(files.applied.overridden),
    }
    changed = ", ".join(f"{count} {kind}" for kind, count in changes.items() if count)
    return f"{text} ({changed})" if changed else text


def _problem_lines(files: _DefinitionFiles | None, settings: Settings) -> list[str]:
    """The problems of definition files, and how to go on."""
    problems = files.contents.problems if files else ()
    if not problems:
        return []
    # The file's own text may contain control characters.
    texts = ("".join(c if c.isprintable() else "?" for c in str(problem)) for problem in problems)
    shown = [f"  invalid  {text}" for text in itertools.islice(texts, _SHOWN_PROBLEMS)]
    if (more := len(problems) - len(shown)) > 0:
        shown.append(f"           and {more} more, see the log")
    every = settings.definitions.watch_every
    again = f"it is read again within {format_duration(2 * every)}" if every else "restart"
    return [*shown, f"           nothing of an invalid file was stored; fix the file, and {again}"]
