"""The body of ``longshore up``: the API, a worker, dispatcher and sweeper in one process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from longshore.durations import format_duration
from longshore.interfaces.cli import words
from longshore.interfaces.cli.app_modules import check_app
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.interruption import end_signals
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.session import Session, opened, settings_for
from longshore.interfaces.rest.app import create_app
from longshore.interfaces.rest.desk import Desk
from longshore.interfaces.rest.serving import bound, listening
from longshore.services.crew import Crew
from longshore.settings import Settings

_BY_SIGNAL = 128


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
            serving = await stack.enter_async_context(listening(app, at))
            # Entered last, and so left first: what runs may finish while requests are answered.
            parts = [serving, *await stack.enter_async_context(_helping(session, working=working))]
            if working:
                crew = session.crew()
                ending.crew = await stack.enter_async_context(crew)
                parts.append(asyncio.ensure_future(crew.ended()))
            ending.listen()
            _announce(session, at, key_file, working=working)
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


@contextlib.asynccontextmanager
async def _helping(session: Session, *, working: bool) -> AsyncIterator[list[asyncio.Task[None]]]:
    """What goes on beside: a crew has its own dispatcher and sweeper."""
    wanted = [] if working else [session.dispatcher.run(), session.sweeper.run()]
    if session.settings.checks_health:
        wanted.append(session.health_check.run())
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
        explaining=session.explaining,
        dead_letters=session.dead_letters,
        health_check=session.health_check,
        access=session.access,
        environment=session.settings.environment,
    )


def _announce(session: Session, at: socket.socket, key_file: Path, *, working: bool) -> None:
    settings = session.settings
    host, port = at.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    tasks = words.number_of(settings.worker.concurrency, "task")
    queues = ", ".join(settings.worker.queues)
    lines = {
        "key": f"{key_file}",
        "data": f"{settings.data_dir.absolute()}",
        "health": _health(settings),
        "worker": f"serving {queues}; {tasks} at once" if working else "none here",
        "try": f'curl -H "x-api-key: $(cat {key_file})" {address}/v1/jobs',
        "stop": "Ctrl-C",
    }
    print(f"longshore is up at {address}")
    for name, text in lines.items():
        print(f"  {name:<8}{text}")
    print(end="", flush=True)


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
