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

from longshore.services.supervisor import Word

# -P: a folder of the user's that is called like a library of ours must not be taken for it.
PROGRAM = (sys.executable, "-P", "-m", "longshore", "worker")
_PIECE_BYTES = 65536
_LONGEST_LINE_BYTES = 65536
# More than a pipe can hold.
_LAST_PIECES = 32


class LocalWorker:
    """See ``services.supervisor.WorkerProcess``. Raises ``OSError`` if it cannot be started."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        heard: Callable[[Word], None],
        printed: Callable[[str], None],
        memory_of: Callable[[int], int],
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._memory_of = memory_of
        self._line, theirs = socket.socketpair()
        self._output, written = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*program, *arguments, "--lifeline", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                pass_fds=(theirs.fileno(),),
                # Else Ctrl-C would reach the workers too, and ours would be their second signal.
                start_new_session=True,
            )
        except BaseException:
            self._line.close()
            os.close(self._output)
            raise
        finally:
            theirs.close()
            os.close(written)
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int] = self._loop.create_future()
        self._readers = [
            _LineReader(self._output, printed),
            _LineReader(self._line.fileno(), lambda word: _hand_on_known(word, heard)),
        ]
        threading.Thread(target=self._wait, name="end of a worker", daemon=True).start()

    @property
    def process_id(self) -> int:
        return self._process.pid

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()

    def memory_bytes(self) -> int:
        return self._memory_of(self._process.pid)

    async def ended(self) -> int:
        return await asyncio.shield(self._end)

    def _wait(self) -> None:
        self._process.wait()
        # A loop that is closed waits for nobody any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        for reader in self._readers:
            reader.finish()
        self._line.close()
        os.close(self._output)
        if not self._end.cancelled():
            self._end.set_result(self._process.returncode)


def _hand_on_known(word: str, heard: Callable[[Word], None]) -> None:
    # A worker may be of a newer version than its supervisor, and say more.
    if word in set(Word):
        heard(Word(word))


class _LineReader:
    """Hands on what comes through a descriptor, line by line, without ever waiting for it."""

    def __init__(self, descriptor: int, line: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._line = line
        self._begun = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def finish(self) -> None:
        """Hand on what is there now; whoever else still holds the other end is not waited for."""
        for _ in range(_LAST_PIECES):
            if not self._read():
                break
        self._loop.remove_reader(self._descriptor)
        self._hand_on([self._begun] if self._begun else [])

    def _read(self) -> bool:
        """Whether there may be more."""
        try:
            piece = os.read(self._descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return False
        except ConnectionError:
            piece = b""
        if not piece:
            self._loop.remove_reader(self._descriptor)
            return False
        *whole, self._begun = (self._begun + piece).split(b"\n")
        if len(self._begun) > _LONGEST_LINE_BYTES:
            whole, self._begun = [*whole, self._begun], b""
        self._hand_on(whole)
        return True

    def _hand_on(self, lines: list[bytes]) -> None:
        for line in lines:
            self._line(line.decode(errors="backslashreplace"))
