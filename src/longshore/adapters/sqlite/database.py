"""The database: one file, one writing thread, and readers that never block it.

Point reads run on the event loop's thread: a row by its key takes a few microseconds in WAL mode,
while a hop to another thread and back takes tens. Scans run on a reading thread.
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
from longshore.adapters.sqlite.store_file import Bindings, Row, rows
from longshore.adapters.sqlite.write_lock import WriteLock
from longshore.adapters.sqlite.writer import DatabaseWriter, OnDone
from longshore.ports.clock import Clock

ResultT = TypeVar("ResultT")

_FOLDER_MODE = 0o700
_FOREVER = timedelta(days=36500)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions:
    """Times and limits, which tests change."""

    busy_timeout: timedelta = timedelta(seconds=30)
    group_limit: int = 256  # changes in one commit
    wal_pages: int = 1000  # of the write-ahead log before a checkpoint
    slow_poll: timedelta = timedelta(seconds=1)  # finds work if a wake-up is lost


class Database:
    """The file and the connections of this process to it."""

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
        work: Callable[[apsw.Connection], ResultT],
        *,
        durable: bool = True,
        topics: Collection[Topic] = (),
        on_done: OnDone | None = None,
    ) -> asyncio.Future[ResultT]:
        """Run ``work`` in the writer's next group; see ``DatabaseWriter.write``."""
        return self._writer.write(work, durable=durable, topics=topics, on_done=on_done)

    def point(self, sql: str, values: Bindings = ()) -> list[Row]:
        """A few rows by a key or at the end of an index, on this thread."""
        try:
            return rows(self._point_connection, sql, values)
        except apsw.Error as error:
            raise translate_error(error) from error

    def point_value(self, sql: str, values: Bindings = ()) -> Any:
        """The first column of the first row; None if there is no row."""
        matches = self.point(sql, values)
        return matches[0][0] if matches else None

    async def scan(self, sql: str, values: Bindings = ()) -> list[Row]:
        """Any number of rows, read on the reading thread."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._reader_executor, rows, self._scan_connection, sql, values
            )
        except apsw.Error as error:
            raise translate_error(error) from error

    async def scan_column(self, sql: str, values: Bindings = ()) -> list[Any]:
        """The first column of every row."""
        return [row[0] for row in await self.scan(sql, values)]

    async def wait_for(
        self,
        topic: Topic,
        look: Callable[[], ResultT | None],
        *,
        wait: timedelta,
        next_change: Callable[[], timedelta | None] = lambda: None,
    ) -> ResultT | None:
        """The first result of ``look`` that is not None; None after ``wait``.

        It subscribes, then looks, then waits, so that no wake-up is missed. ``next_change`` is the
        time after which the result may change without a wake-up.
        """
        deadline = self.clock.elapsed() + wait
        with self._notifier.subscribe(topic) as woken:
            while True:
                woken.clear()
                if (result := look()) is not None:
                    return result
                left = deadline - self.clock.elapsed()
                if left <= timedelta(0):
                    return None
                await self._wait_for_wakeup(
                    woken, min(left, self.options.slow_poll, next_change() or left)
                )

    async def wait_for_ever(
        self,
        topic: Topic,
        look: Callable[[], ResultT | None],
        *,
        next_change: Callable[[], timedelta | None] = lambda: None,
    ) -> ResultT:
        """The first result of ``look`` that is not None; see ``wait_for``."""
        while True:
            result = await self.wait_for(topic, look, wait=_FOREVER, next_change=next_change)
            if result is not None:
                return result

    async def _wait_for_wakeup(self, woken: asyncio.Event, duration: timedelta) -> None:
        sleep = asyncio.ensure_future(self.clock.sleep(duration))
        wakeup = asyncio.ensure_future(woken.wait())
        try:
            await asyncio.wait((sleep, wakeup), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            wakeup.cancel()

    async def close(self) -> None:
        """Commit pending work and close the file. Later calls do nothing."""
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
