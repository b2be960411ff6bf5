"""The line between a supervisor and one of its workers, as the worker holds it.

It is a socket that the worker inherits. Over it the worker says what it does, so that its follower
is started when it takes no more work, and not when it has finished. And it ends with the
supervisor, however that ends, so that no worker goes on with nobody to look after it. A signal at
the death of a parent would do the same on Linux alone, and there it is the end of a thread that
counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from longshore.errors import UsageError
from longshore.services.worker.supervisor import WorkerStatus

_CHUNK_BYTES = 1024


class SupervisorChannel:
    """A worker's end."""

    def __init__(self, descriptor: int) -> None:
        try:
            self._socket = socket.socket(fileno=descriptor)
        except OSError as error:
            message = (
                f"--supervisor-fd {descriptor} is not a line to a supervisor: {error.strerror}"
            )
            raise UsageError(message) from error
        self._socket.setblocking(False)
        # Whatever the worker starts has no business with it.
        self._socket.set_inheritable(False)

    def send(self, word: WorkerStatus) -> None:
        """Say something; if nobody listens any more, so be it."""
        with contextlib.suppress(OSError):
            self._socket.send(f"{word}\n".encode())

    def on_close(self, call: Callable[[], None]) -> None:
        """Call this when the supervisor has gone."""
        asyncio.get_running_loop().add_reader(self._socket, self._on_readable, call)

    def _on_readable(self, call: Callable[[], None]) -> None:
        try:
            over = not self._socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            over = True
        if over:
            asyncio.get_running_loop().remove_reader(self._socket)
            call()

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()
