"""A real server on a data folder, beside the test: for commands that ask one."""

import asyncio
import contextlib
import getpass
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from longshore.core.keys import Scope
from longshore.interfaces.rest.app import create_app
from longshore.interfaces.rest.serving import bound, listening
from longshore.settings import load_settings
from longshore.wiring import wired
from tests.interfaces.rest.door import desk_of

PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Served:
    """Where it is, and a key that may do everything."""

    url: str
    key: str


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Serve a data folder from a thread of its own."""
    ready: list[Served] = []
    began, over = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(folder, ready, began, over)), name="server"
    )
    thread.start()
    try:
        assert began.wait(PATIENCE_S)
        assert ready, "the server did not start"
        yield ready[0]
    finally:
        over.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


async def _serve(
    folder: Path, ready: list[Served], began: threading.Event, over: threading.Event
) -> None:
    try:
        settings = load_settings({"data_dir": folder, "api.port": 0}, environ={})
        async with wired(settings) as services:
            desk = desk_of(services)
            app = create_app(desk, hosts=settings.api.hosts, body_bytes=settings.api.body_bytes)
            socket = bound(settings.api.host, settings.api.port)
            async with listening(app, socket):
                _, key = await services.access.create(
                    settings.tenant, name=getpass.getuser(), scopes=(Scope.ADMIN,), by="tests"
                )
                ready.append(Served(f"http://127.0.0.1:{socket.getsockname()[1]}", key))
                began.set()
                await asyncio.to_thread(over.wait)
    finally:
        began.set()
