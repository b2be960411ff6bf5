"""Worker processes as the supervisor has them: started, listened to, asked to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from longshore.services.worker.supervisor import WorkerStatus

# -P: a folder of the user's that is called like a library of ours must not be taken for it.
PROGRAM = (sys.executable, "-P", "-m", "longshore", "worker")
_CHUNK_BYTES = 65536
_MAX_LINE_BYTES = 65536
# More than a pipe can hold.
_LAST_CHUNKS = 32


class LocalWorkerProcess:
    """See ``services.supervisor.WorkerProcess``. Raises ``OSError`` if it cannot be started."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        on_message: Callable[[WorkerStatus], None],
        on_line: Callable[[str], None],
        memory_of: Callable[[int], int],
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._memory_of = memory_of
        self._channel, theirs = socket.socketpair()
        self._output, written = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*program, *arguments, "--supervisor-fd", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                pass_fds=(theirs.fileno(),),
                # Else Ctrl-C would reach the workers too, and ours would be their second signal.
                start_new_session=True,
            )
        except BaseException:
            self._channel.close()
            os.close(self._output)
            raise
        finally:
            theirs.close()
            os.close(written)
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int] = self._loop.create_future()
        self._readers = [
            _LineReader(self._output, on_line),
            _LineReader(self._channel.fileno(), lambda word: _deliver_message(word, on_message)),
        ]
        threading.Thread(target=self._wait, name="end of a worker", daemon=True).start()

    @property
    def process_id(self) -> int:
        return self._process.pid

    def request_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()

    def memory_bytes(self) -> int:
        return self._memory_of(self._process.pid)

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def _wait(self) -> None:
        self._process.wait()
        # A loop that is closed waits for nobody any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        for reader in self._readers:
            reader.finish()
        self._channel.close()
        os.close(self._output)
        if not self._end.cancelled():
            self._end.set_result(self._process.returncode)


def _deliver_message(word: str, on_message: Callable[[WorkerStatus], None]) -> None:
    # A worker may be of a newer version than its supervisor, and say more.
    if word in set(WorkerStatus):
        on_message(WorkerStatus(word))


class _LineReader:
    """Hands on what comes through a descriptor, line by line, without ever waiting for it."""

    def __init__(self, descriptor: int, on_line: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._on_line = on_line
        self._partial = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def finish(self) -> None:
        """Hand on what is there now; whoever else still holds the other end is not waited for."""
        for _ in range(_LAST_CHUNKS):
            if not self._read():
                break
        self._loop.remove_reader(self._descriptor)
        self._deliver([self._partial] if self._partial else [])

    def _read(self) -> bool:
        """Whether there may be more."""
        try:
            piece = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except ConnectionError:
            piece = b""
        if not piece:
            self._loop.remove_reader(self._descriptor)
            return False
        *whole, self._partial = (self._partial + piece).split(b"\n")
        if len(self._partial) > _MAX_LINE_BYTES:
            whole, self._partial = [*whole, self._partial], b""
        self._deliver(whole)
        return True

    def _deliver(self, lines: list[bytes]) -> None:
        for line in lines:
            self._on_line(line.decode(errors="backslashreplace"))
