"""A real server on a data folder, in a thread of the test process."""

import asyncio
import contextlib
import getpass
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from longshore.core.api_keys import ApiScope
from longshore.interfaces.rest.app import create_app
from longshore.interfaces.rest.server import bind_socket, serve
from longshore.settings import load_settings
from longshore.testing.memory.backend import memory_backend
from longshore.wiring.services import Services, open_services

TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where it is, and a key that may do everything."""

    url: str
    key: str


@contextlib.contextmanager
def run_server(
    folder: Path, *, fill_messages: Callable[[Services], Awaitable[None]] | None = None
) -> Iterator[ServerAddress]:
    """Serve a data folder from a thread of its own.

    Args:
        fill_messages: Serve a store with messages, in memory, that this has filled.
    """
    ready: list[ServerAddress] = []
    began, over = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(folder, fill_messages, ready, began, over)),
        name="server",
    )
    thread.start()
    try:
        assert began.wait(TIMEOUT_S)
        assert ready, "the server did not start"
        yield ready[0]
    finally:
        over.set()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


async def _serve(
    folder: Path,
    fill_messages: Callable[[Services], Awaitable[None]] | None,
    ready: list[ServerAddress],
    began: threading.Event,
    over: threading.Event,
) -> None:
    try:
        settings = load_settings({"data_dir": folder, "api.port": 0}, environ={})
        async with open_services(settings) as services:
            if fill_messages is not None:
                services = replace(services, backend=memory_backend(services.backend.clock))
                await fill_messages(services)
            services.api_keys.set_operator_tenant(settings.tenant)
            app = create_app(services, settings.api)
            socket = bind_socket(settings.api.host, settings.api.port)
            async with serve(app, socket):
                _, key = await services.api_keys.create(
                    settings.tenant, name=getpass.getuser(), scopes=(ApiScope.ADMIN,), by="tests"
                )
                ready.append(ServerAddress(f"http://127.0.0.1:{socket.getsockname()[1]}", key))
                began.set()
                await asyncio.to_thread(over.wait)
    finally:
        began.set()
