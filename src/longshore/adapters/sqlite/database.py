"""The database: one file, one writing thread, readers that never block it.

Point reads run on the event loop's own thread: a row by its key takes a few microseconds in WAL
mode, while handing it to another thread and back costs tens. Whatever scans goes to a reading
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import apsw

from longshore.adapters.sqlite import opening
from longshore.adapters.sqlite.bells import Bells, Topic
from longshore.adapters.sqlite.failures import translated
from longshore.adapters.sqlite.statements import Bindings, Row, rows
from longshore.adapters.sqlite.turnstile import Turnstile
from longshore.adapters.sqlite.writer import Told, Work, Writer
from longshore.failpoints import reach
from longshore.ports.clock import Clock

ResultT = TypeVar("ResultT")

_FOLDER_MODE = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions:
    """What may be tuned."""

    busy_timeout: timedelta = timedelta(seconds=30)
    group_limit: int = 256
    wal_pages: int = 1000
    slow_poll: timedelta = timedelta(seconds=1)  # the net under the bells


class Database:
    """The file, and everything that is open on it in this process."""

    def __init__(self, folder: Path, clock: Clock, options: SqliteOptions) -> None:
        self.folder = folder
        self.clock = clock
        self.options = options
        self._closed = False
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        reach("store.folder_made")
        self.turnstile = Turnstile(folder)
        try:
            with self.turnstile:
                self.epoch = opening.prepare(folder, busy_timeout=options.busy_timeout)
        except BaseException:
            self.turnstile.close()
            raise
        self._bells = Bells(folder, asyncio.get_running_loop())
        self._point = self._connect_reader()
        self._scan = self._connect_reader()
        self._scanner = ThreadPoolExecutor(1, thread_name_prefix="longshore-reader")
        self._writer = Writer(
            self._connect_writer, self.turnstile, self._bells, group_limit=options.group_limit
        )

    @property
    def path(self) -> Path:
        """The file itself."""
        return self.folder / opening.FILE_NAME

    def _connect_writer(self) -> apsw.Connection:
        connection = opening.connect(self.path, busy_timeout=self.options.busy_timeout)
        connection.execute(f"PRAGMA wal_autocheckpoint={self.options.wal_pages}")
        return connection

    def _connect_reader(self) -> apsw.Connection:
        connection = opening.connect(self.path, busy_timeout=self.options.busy_timeout)
        connection.execute("PRAGMA query_only=ON")
        return connection

    def write(
        self,
        work: Work,
        *,
        promised: bool = True,
        topics: Collection[Topic] = (),
        told: Told | None = None,
    ) -> asyncio.Future[Any]:
        """Run ``work`` in the writer's next group; see ``Writer``."""
        return self._writer.write(work, promised=promised, topics=topics, told=told)

    def point(self, sql: str, values: Bindings = ()) -> list[Row]:
        """Rows found by a key or at the edge of an index: a few, at once."""
        try:
            return rows(self._point, sql, values)
        except apsw.Error as error:
            raise translated(error) from error

    async def scan(self, sql: str, values: Bindings = ()) -> list[Row]:
        """Rows that may take a while to find."""
        return await self.in_reader(lambda: rows(self._scan, sql, values))

    async def in_reader(self, read: Callable[[], ResultT]) -> ResultT:
        """Run a blocking read on the reading thread."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._scanner, read)
        except apsw.Error as error:
            raise translated(error) from error

    async def wait_for(
        self,
        topic: Topic,
        look: Callable[[], ResultT | None],
        *,
        wait: timedelta,
        pause: Callable[[], timedelta | None] = lambda: None,
    ) -> ResultT | None:
        """What ``look`` finds, as soon as it finds something, or None after ``wait``.

        Registers, then looks, then waits, so no wake-up falls between. ``pause`` may name a time
        after which looking again is worth it even if no bell rings.
        """
        deadline = self.clock.elapsed() + wait
        with self._bells.listening(topic) as heard:
            while True:
                heard.clear()
                if (found := look()) is not None:
                    return found
                left = deadline - self.clock.elapsed()
                if left <= timedelta(0):
                    return None
                await self._rest(heard, min(left, self.options.slow_poll, pause() or left))

    async def _rest(self, heard: asyncio.Event, duration: timedelta) -> None:
        sleeping = asyncio.ensure_future(self.clock.sleep(duration))
        hearing = asyncio.ensure_future(heard.wait())
        try:
            await asyncio.wait((sleeping, hearing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            hearing.cancel()

    async def close(self) -> None:
        """Commit what is under way and let go of the file; once, however often it is called."""
        if self._closed:
            return
        self._closed = True
        await self._writer.close()
        self._scanner.shutdown(wait=True)
        self._point.close()
        self._scan.close()
        self._bells.close()
        self.turnstile.close()
        reach("store.closed")
