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
from typing import Any

from longshore.durations import format_duration
from longshore.interfaces.cli import words
from longshore.interfaces.cli.app_modules import check_app
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.interruption import end_signals
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.session import Session, opened, settings_for
from longshore.interfaces.definition_files import LONGSHORE_YAML, FolderWatch
from longshore.interfaces.definition_schema import DEFINITIONS
from longshore.interfaces.rest.app import create_app
from longshore.interfaces.rest.desk import Desk
from longshore.interfaces.rest.serving import bound, listening
from longshore.services.crew import Crew
from longshore.services.definition_sync import Applied, DefinitionSync, Reading
from longshore.settings import Settings

_BY_SIGNAL = 128
_SHOWN_PROBLEMS = 10
_LABEL_WIDTH = 9


def up(here: Here, flags: Mapping[str, Any], *, working: bool) -> int:
    """Serve until stopped.

    Raises:
        ConfigurationError: a module of the app cannot be used, or the key file is not safe.
        UsageError: the address is taken.
    """
    settings = settings_for(here, flags, talkative=True)
    check_app(settings.worker.app, Path.cwd())
    return asyncio.run(_up(settings, working=working))


async def _up(settings: Settings, *, working: bool) -> int:
    # Before anything is stored: whether there is a place to listen is the first thing to know.
    with contextlib.closing(bound(settings.api.host, settings.api.port)) as at:
        async with contextlib.AsyncExitStack() as stack:
            session = await stack.enter_async_context(opened(settings))
            key_file = await session.own_key()
            app = create_app(
                _desk(session), hosts=settings.api.hosts, body_bytes=settings.api.body_bytes
            )
            ending = _Ending()
            # Before anything is served or done: what is submitted next may name them.
            files = await _read_files(session)
            serving = await stack.enter_async_context(listening(app, at))
            # Entered last, and so left first: what runs may finish while requests are answered.
            helping = _helping(session, files, working=working)
            parts = [serving, *await stack.enter_async_context(helping)]
            if working:
                crew = session.crew()
                ending.crew = await stack.enter_async_context(crew)
                parts.append(asyncio.ensure_future(crew.ended()))
            ending.listen()
            _announce(session, at, key_file, files, working=working)
            asked = asyncio.ensure_future(ending.asked.wait())
            await asyncio.wait((asked, *parts), return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            for part in parts:
                if part.done():
                    await part  # it broke, and says why
            ending.tell(words.took(settings.worker.drain_grace))
            if ending.crew is not None:
                ending.crew.stop()
                await asyncio.wait(parts[-1:])
        return ending.code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """What the files of the folder said at the start, and what came of it."""

    folder: Path
    folder_watch: FolderWatch
    sync: DefinitionSync
    reading: Reading
    applied: Applied

    def watching(self, session: Session) -> Coroutine[Any, Any, None]:
        """Go on looking."""

        async def look() -> Reading:
            return await asyncio.to_thread(self.folder_watch.look)

        settings = session.settings
        return self.sync.watch(
            settings.tenant,
            str(self.folder),
            look,
            every=settings.definitions.watch_every,
            # Those on the screen; the others are left to the log.
            told=self.reading.problems[:_SHOWN_PROBLEMS],
        )


async def _read_files(session: Session) -> _Files | None:
    """Bring the definitions of the folder into the store, as far as they can be understood."""
    from longshore.wiring import definition_sync_on

    settings = session.settings
    if settings.definitions.folder is None:
        return None
    folder = settings.definitions.folder.absolute()
    folder_watch = FolderWatch(folder)
    sync = definition_sync_on(session.backend)
    reading = await asyncio.to_thread(folder_watch.read)
    applied = await sync.follow(settings.tenant, str(folder), reading.documents)
    return _Files(
        folder=folder, folder_watch=folder_watch, sync=sync, reading=reading, applied=applied
    )


@contextlib.asynccontextmanager
async def _helping(
    session: Session, files: _Files | None, *, working: bool
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """What goes on beside: a crew has its own dispatcher and sweeper."""
    wanted = [] if working else [session.sweeper.run()]
    if not working and session.settings.works_alone:
        wanted.append(session.dispatcher.run())
    if session.settings.checks_health:
        wanted.append(session.health_check.run())
    if files is not None and session.settings.definitions.watch_every:
        wanted.append(files.watching(session))
    helping = [asyncio.ensure_future(one) for one in wanted]
    try:
        yield helping
    finally:
        for one in helping:
            one.cancel()
        await asyncio.gather(*helping, return_exceptions=True)


def _desk(session: Session) -> Desk:
    return Desk(
        backend=session.backend,
        documents=session.documents,
        producer=session.producer,
        adding=session.adding,
        cancelling=session.cancelling,
        resuming=session.resuming,
        reviewing=session.reviewing,
        budgeting=session.budgeting,
        explaining=session.explaining,
        dead_letters=session.dead_letters,
        health_check=session.health_check,
        access=session.access,
        environment=session.settings.environment,
        events_ttl_days=session.settings.limits.events_ttl_days,
    )


def _announce(
    session: Session, at: socket.socket, key_file: Path, files: _Files | None, *, working: bool
) -> None:
    settings = session.settings
    host, port = at.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    tasks = words.number_of(settings.worker.concurrency, "task")
    queues = ", ".join(settings.worker.queues)
    lines = {
        "key": f"{key_file}",
        "data": f"{settings.data_dir.absolute()}",
        "defined": _defined(files),
        "health": _health(settings),
        "worker": f"serving {queues}; {tasks} at once" if working else "none here",
        "try": f'curl -H "x-api-key: $(cat {key_file})" {address}/v1/jobs',
        "stop": "Ctrl-C",
    }
    print(f"longshore is up at {address}")
    for name, text in lines.items():
        print(f"  {name:<{_LABEL_WIDTH}}{text}")
    for line in _broken(files, settings):
        print(line)
    print(end="", flush=True)


def _defined(files: _Files | None) -> str:
    """How many definitions came from where, and what is new of them."""
    if files is None:
        return "not read from files (the setting definitions.folder is none)"
    counts = Counter(one.file for one in files.reading.documents)
    own = counts.pop(LONGSHORE_YAML, 0)
    places = [f"{own} in {LONGSHORE_YAML}"] if own else []
    if counts:
        number = words.number_of(len(counts), "file")
        places.append(f"{counts.total()} in {number} of {DEFINITIONS}/")
    shown = f"{' and '.join(places) or 'nothing'} in {files.folder}"
    came = files.applied
    kinds = {
        "new": len(came.new),
        "changed": len(came.changed),
        "left as others changed them": len(came.elsewhere),
    }
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    return f"{shown} ({told})" if told else shown


def _broken(files: _Files | None, settings: Settings) -> list[str]:
    """What is wrong with files, and what becomes of it."""
    problems = files.reading.problems if files else ()
    if not problems:
        return []
    shown = [f"broken   {_visible(str(problem))}" for problem in problems[:_SHOWN_PROBLEMS]]
    if (more := len(problems) - len(shown)) > 0:
        shown.append(f"         and {more} more, which the log tells")
    every = settings.definitions.watch_every
    again = f"it is read again within {format_duration(2 * every)}" if every else "start again"
    shown.append(f"         nothing of a broken file was stored; mend it, and {again}")
    return [f"  {line}" for line in shown]


def _visible(text: str) -> str:
    # Part of it is the file's own words, and those must not steer a terminal.
    return "".join(character if character.isprintable() else "?" for character in text)


def _health(settings: Settings) -> str:
    if not settings.checks_health:
        return "not checked (environment is dev; see the setting health.enabled)"
    return f"checked every {format_duration(settings.health.every)}"


class _Ending:
    """What signals do: the first lets what runs finish, the second does not wait."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.crew: Crew | None = None
        self.code: int = ExitCode.OK

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in end_signals():
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        if not self.asked.is_set():
            self.asked.set()
            return
        self.code = _BY_SIGNAL + number
        if self.crew is not None:
            self.crew.stop_at_once()

    def tell(self, grace: str) -> None:
        """Say what is waited for, if anything is."""
        if self.crew is not None and (running := len(self.crew.worker.running)):
            tasks = words.number_of(running, "task")
            say(
                f"longshore: stopping when {tasks} ended, or in {grace}; once more gives up at once"
            )
