"""The body of ``longshore up``: the API, a worker, dispatcher and sweeper in one process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longshore.core.definitions.schema import DEFINITIONS
from longshore.core.text.durations import format_duration
from longshore.interfaces.cli.app_modules import check_app_modules
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.interruption import termination_signals
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.services import open_command_services, settings_for
from longshore.interfaces.definition_files import LONGSHORE_YAML, FolderWatch
from longshore.interfaces.rest.app import create_app
from longshore.interfaces.rest.server import bind_socket, serve
from longshore.services.definitions import ApplyResult, DefinitionSync, FolderContents
from longshore.services.worker.group import WorkerGroup
from longshore.settings import Settings

if TYPE_CHECKING:
    from longshore.wiring.services import Services

_SIGNAL_BASE = 128
_SHOWN_PROBLEMS = 10
_LABEL_WIDTH = 9


def up(options: GlobalOptions, flags: Mapping[str, Any], *, with_worker: bool) -> int:
    """Serve until stopped.

    Raises:
        ConfigurationError: a module of the app cannot be used, or the key file is not safe.
        UsageError: the address is taken.
    """
    settings = settings_for(options, flags, long_running=True)
    check_app_modules(settings.worker.app, Path.cwd())
    return asyncio.run(_up(settings, with_worker=with_worker))


async def _up(settings: Settings, *, with_worker: bool) -> int:
    # Before anything is stored: whether there is a place to listen is the first thing to know.
    with contextlib.closing(bind_socket(settings.api.host, settings.api.port)) as at:
        async with contextlib.AsyncExitStack() as stack:
            session = await stack.enter_async_context(open_command_services(settings))
            key_file = await session.ensure_machine_key()
            app = create_app(
                session,
                hosts=settings.api.hosts,
                body_bytes=settings.api.body_bytes,
            )
            ending = _Shutdown()
            # Before anything is served or done: what is submitted next may name them.
            files = await _apply_definition_files(session)
            serving = await stack.enter_async_context(serve(app, at))
            # Entered last, and so left first: what runs may finish while requests are answered.
            helping = _background_tasks(session, files, with_worker=with_worker)
            parts = [serving, *await stack.enter_async_context(helping)]
            if with_worker:
                crew = session.worker_group()
                ending.worker_group = await stack.enter_async_context(crew)
                parts.append(asyncio.ensure_future(crew.wait()))
            ending.listen()
            _print_startup(session, at, key_file, files, with_worker=with_worker)
            asked = asyncio.ensure_future(ending.requested.wait())
            await asyncio.wait((asked, *parts), return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            for part in parts:
                if part.done():
                    await part  # it broke, and says why
            ending.report(formats.duration_text(settings.worker.drain_grace))
            if ending.worker_group is not None:
                ending.worker_group.stop()
                await asyncio.wait(parts[-1:])
        return ending.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class _DefinitionFiles:
    """What the files of the folder said at the start, and what came of it."""

    folder: Path
    folder_watch: FolderWatch
    sync: DefinitionSync
    reading: FolderContents
    applied: ApplyResult

    def watch(self, session: Services) -> Coroutine[Any, Any, None]:
        """Go on looking."""

        async def look() -> FolderContents:
            return await asyncio.to_thread(self.folder_watch.poll)

        settings = session.settings
        return self.sync.watch_folder(
            settings.tenant,
            str(self.folder),
            look,
            every=settings.definitions.watch_every,
            # Those on the screen; the others are left to the log.
            reported=self.reading.problems[:_SHOWN_PROBLEMS],
        )


async def _apply_definition_files(session: Services) -> _DefinitionFiles | None:
    """Bring the definitions of the folder into the store, as far as they can be understood."""
    settings = session.settings
    if settings.definitions.folder is None:
        return None
    folder = settings.definitions.folder.absolute()
    folder_watch = FolderWatch(folder)
    sync = session.definition_sync
    reading = await asyncio.to_thread(folder_watch.read)
    applied = await sync.sync_folder(settings.tenant, str(folder), reading.definitions)
    return _DefinitionFiles(
        folder=folder, folder_watch=folder_watch, sync=sync, reading=reading, applied=applied
    )


@contextlib.asynccontextmanager
async def _background_tasks(
    session: Services, files: _DefinitionFiles | None, *, with_worker: bool
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """What goes on beside: a crew has its own dispatcher and sweeper."""
    wanted = [] if with_worker else [session.sweeper.run()]
    if not with_worker and session.settings.workers_dispatch:
        wanted.append(session.dispatcher.run())
    if session.settings.checks_health:
        wanted.append(session.health_check.run())
    if files is not None and session.settings.definitions.watch_every:
        wanted.append(files.watch(session))
    helping = [asyncio.ensure_future(one) for one in wanted]
    try:
        yield helping
    finally:
        for one in helping:
            one.cancel()
        await asyncio.gather(*helping, return_exceptions=True)


def _print_startup(
    session: Services,
    server_socket: socket.socket,
    key_file: Path,
    files: _DefinitionFiles | None,
    *,
    with_worker: bool,
) -> None:
    settings = session.settings
    host, port = server_socket.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    tasks = formats.plural(settings.worker.concurrency, "task")
    queues = ", ".join(settings.worker.queues)
    lines = {
        "key": f"{key_file}",
        "data": f"{settings.data_dir.absolute()}",
        "defined": _definitions_text(files),
        "health": _health_text(settings),
        "worker": f"serving {queues}; {tasks} at once" if with_worker else "none here",
        "try": f'curl -H "x-api-key: $(cat {key_file})" {address}/v1/jobs',
        "stop": "Ctrl-C",
    }
    print(f"longshore is up at {address}")
    for name, text in lines.items():
        print(f"  {name:<{_LABEL_WIDTH}}{text}")
    for line in _problem_lines(files, settings):
        print(line)
    print(end="", flush=True)


def _definitions_text(files: _DefinitionFiles | None) -> str:
    """How many definitions came from where, and what is new of them."""
    if files is None:
        return "not read from files (the setting definitions.folder is none)"
    counts = Counter(one.file for one in files.reading.definitions)
    own = counts.pop(LONGSHORE_YAML, 0)
    places = [f"{own} in {LONGSHORE_YAML}"] if own else []
    if counts:
        number = formats.plural(len(counts), "file")
        places.append(f"{counts.total()} in {number} of {DEFINITIONS}/")
    shown = f"{' and '.join(places) or 'nothing'} in {files.folder}"
    came = files.applied
    kinds = {
        "new": len(came.new),
        "changed": len(came.changed),
        "left as others changed them": len(came.overridden),
    }
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    return f"{shown} ({told})" if told else shown


def _problem_lines(files: _DefinitionFiles | None, settings: Settings) -> list[str]:
    """What is wrong with files, and what becomes of it."""
    problems = files.reading.problems if files else ()
    if not problems:
        return []
    shown = [f"broken   {_printable(str(problem))}" for problem in problems[:_SHOWN_PROBLEMS]]
    if (more := len(problems) - len(shown)) > 0:
        shown.append(f"         and {more} more, which the log tells")
    every = settings.definitions.watch_every
    again = f"it is read again within {format_duration(2 * every)}" if every else "start again"
    shown.append(f"         nothing of a broken file was stored; mend it, and {again}")
    return [f"  {line}" for line in shown]


def _printable(text: str) -> str:
    # Part of it is the file's own words, and those must not steer a terminal.
    return "".join(character if character.isprintable() else "?" for character in text)


def _health_text(settings: Settings) -> str:
    if not settings.checks_health:
        return "not checked (environment is dev; see the setting health.enabled)"
    return f"checked every {format_duration(settings.health.every)}"


class _Shutdown:
    """What signals do: the first lets what runs finish, the second does not wait."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.worker_group: WorkerGroup | None = None
        self.exit_code: int = ExitCode.OK

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in termination_signals():
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self.requested.is_set():
            self.requested.set()
            return
        self.exit_code = _SIGNAL_BASE + number
        if self.worker_group is not None:
            self.worker_group.stop_now()

    def report(self, grace: str) -> None:
        """Say what is waited for, if anything is."""
        if self.worker_group is not None and (running := len(self.worker_group.worker.running)):
            tasks = formats.plural(running, "task")
            print_stderr(
                f"longshore: stopping when {tasks} ended, or in {grace}; once more gives up at once"
            )
