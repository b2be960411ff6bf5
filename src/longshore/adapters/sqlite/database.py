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

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.errors import translate_error
from longshore.adapters.sqlite.notifier import Notifier, Topic
from longshore.adapters.sqlite.statements import Bindings, Row, rows
from longshore.adapters.sqlite.write_lock import WriteLock
from longshore.adapters.sqlite.writer import DatabaseWriter, OnDone, Work
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
        reach("store.folder_created")
        self.write_lock = WriteLock(folder)
        try:
            with self.write_lock:
                self.epoch = store_file.prepare(folder, busy_timeout=options.busy_timeout)
        except BaseException:
            self.write_lock.close()
            raise
        self._notifier = Notifier(folder, asyncio.get_running_loop())
        self._point_connection = self._connect_reader()
        self._scan_connection = self._connect_reader()
        self._reader_executor = ThreadPoolExecutor(1, thread_name_prefix="longshore-reader")
        self._writer = DatabaseWriter(
            self._connect_writer, self.write_lock, self._notifier, group_limit=options.group_limit
        )

    @property
    def path(self) -> Path:
        """The file itself."""
        return self.folder / store_file.FILE_NAME

    def _connect_writer(self) -> apsw.Connection:
        connection = store_file.connect(self.path, busy_timeout=self.options.busy_timeout)
        connection.execute(f"PRAGMA wal_autocheckpoint={self.options.wal_pages}")
        return connection

    def _connect_reader(self) -> apsw.Connection:
        connection = store_file.connect(self.path, busy_timeout=self.options.busy_timeout)
        connection.execute("PRAGMA query_only=ON")
        return connection

    def write(
        self,
        work: Work,
        *,
        durable: bool = True,
        topics: Collection[Topic] = (),
        on_done: OnDone | None = None,
    ) -> asyncio.Future[Any]:
        """Run ``work`` in the writer's next group; see ``Writer``."""
        return self._writer.write(work, durable=durable, topics=topics, on_done=on_done)

    def point(self, sql: str, values: Bindings = ()) -> list[Row]:
        """Rows found by a key or at the edge of an index: a few, at once."""
        try:
            return rows(self._point_connection, sql, values)
        except apsw.Error as error:
            raise translate_error(error) from error

    async def scan(self, sql: str, values: Bindings = ()) -> list[Row]:
        """Rows that may take a while to find."""
        return await self.run_in_reader(lambda: rows(self._scan_connection, sql, values))

    async def run_in_reader(self, read: Callable[[], ResultT]) -> ResultT:
        """Run a blocking read on the reading thread."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._reader_executor, read)
        except apsw.Error as error:
            raise translate_error(error) from error

    async def wait_for(
        self,
        topic: Topic,
        look: Callable[[], ResultT | None],
        *,
        wait: timedelta,
        next_change: Callable[[], timedelta | None] = lambda: None,
    ) -> ResultT | None:
        """What ``look`` finds, as soon as it finds something, or None after ``wait``.

        Registers, then looks, then waits, so no wake-up falls between. ``pause`` may name a time
        after which looking again is worth it even if no bell rings.
        """
        deadline = self.clock.elapsed() + wait
        with self._notifier.subscribe(topic) as heard:
            while True:
                heard.clear()
                if (found := look()) is not None:
                    return found
                left = deadline - self.clock.elapsed()
                if left <= timedelta(0):
                    return None
                await self._wait_for_wakeup(
                    heard, min(left, self.options.slow_poll, next_change() or left)
                )

    async def _wait_for_wakeup(self, woken: asyncio.Event, duration: timedelta) -> None:
        sleeping = asyncio.ensure_future(self.clock.sleep(duration))
        hearing = asyncio.ensure_future(woken.wait())
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
        self._reader_executor.shutdown(wait=True)
        self._point_connection.close()
        self._scan_connection.close()
        self._notifier.close()
        self.write_lock.close()
        reach("store.closed")
