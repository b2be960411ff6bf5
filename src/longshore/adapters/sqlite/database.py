"""The database: one file, one writer, and readers that never block it.

Point reads run on the caller's thread: a row by its key takes a few microseconds in WAL mode, while
a hop to another thread and back takes tens. Each thread reads with a connection of its own. Scans
run on a reading thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.shared.waiters import Waiters
from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.blob_files import create_lock
from longshore.adapters.sqlite.errors import check_free_space, translate_error
from longshore.adapters.sqlite.notifier import Notifier, Topic
from longshore.adapters.sqlite.rows import Names, StoreReader
from longshore.adapters.sqlite.store_file import Bindings, Row
from longshore.adapters.sqlite.transaction import StoreTransaction
from longshore.adapters.sqlite.write_lock import WriteLock
from longshore.adapters.sqlite.writer import DatabaseWriter, end_process
from longshore.errors import BackendUnavailable
from longshore.ports.clock import Clock, sleep_until_multiple

logger = logging.getLogger(__name__)

_FOLDER_MODE = 0o700
_POLLS_PER_FILE_CHECK = 10  # most polls make no system call

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions:
    """Times and limits, which tests change."""

    group_limit: int = 256  # changes in one commit
    wal_pages: int = 1000  # of the write-ahead log before a checkpoint
    slow_poll: timedelta = timedelta(seconds=1)  # finds work if a wake-up is lost


class Database:
    """The file and the connections of this process to it."""

    def __init__(self, folder: Path, clock: Clock, options: SqliteOptions) -> None:
        self.folder = folder
        self.path = folder / store_file.FILE_NAME
        self.clock = clock
        self._closed = False
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        reach("store.folder_created")
        self.write_lock = WriteLock(folder)
        try:
            with self.write_lock:
                self.epoch = store_file.prepare(folder)
            self.epoch_ends = store_file.epoch_ends(self.path)
        except BaseException:
            self.write_lock.close()
            raise
        create_lock(folder)
        self._file_id = _file_id(self.path)
        self.waiters = {topic: Waiters(clock, partial(self._before_wait, topic)) for topic in Topic}
        self._poll_interval = options.slow_poll
        self._polls = 0
        self._polling: asyncio.Task[None] | None = None
        self._commits: int | None = None  # when the waiters were last woken by polling
        self.notifier = Notifier(folder, self.waiters)
        self.names = Names()
        self._of_thread = threading.local()
        self._connections: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()
        scan_connection = store_file.connect(self.path, "query_only=ON")
        self._scan_reader = StoreReader(scan_connection, self.names)
        self._reader_executor = ThreadPoolExecutor(1, thread_name_prefix="longshore-reader")
        self._writer = DatabaseWriter(
            self._connect,
            self.write_lock,
            self.notifier,
            self.names,
            self._check_file,
            folder,
            schema=store_file.migrations()[-1][0],
            group_limit=options.group_limit,
            wal_pages=options.wal_pages,
        )
        self.write = self._writer.write

    @property
    def reader(self) -> StoreReader:
        """The reader of this thread."""
        try:
            reader: StoreReader = self._of_thread.reader
        except AttributeError:
            connection = self._connect("query_only=ON")
            reader = self._of_thread.reader = StoreReader(connection, self.names)
            self._connections.add(connection)
        return reader

    def look(self, read: Callable[[StoreReader], ResultT]) -> ResultT:
        """The result of ``read``, on this thread: for rows by a key or at the end of an index."""
        try:
            return read(self.reader)
        except apsw.Error as error:
            raise translate_error(error) from error

    def point(self, sql: str, values: Bindings = ()) -> list[Row]:
        """A few rows by a key or at the end of an index, on this thread."""
        return self.look(lambda reader: reader.select(sql, values))

    def point_value(self, sql: str, values: Bindings = ()) -> Any:
        """The first column of the first row; None if there is no row."""
        return self.look(lambda reader: reader.value(sql, values))

    async def scan_with(self, read: Callable[[StoreReader], ResultT]) -> ResultT:
        """The result of ``read``, on the reading thread: for any number of rows."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._reader_executor, read, self._scan_reader)
        except apsw.Error as error:
            raise translate_error(error) from error

    async def scan(self, sql: str, values: Bindings = ()) -> list[Row]:
        """Any number of rows, read on the reading thread."""
        return await self.scan_with(lambda reader: reader.select(sql, values))

    async def scan_column(self, sql: str, values: Bindings = ()) -> list[Any]:
        """The first column of every row."""
        return [row[0] for row in await self.scan(sql, values)]

    def find_name(self, text: str) -> int:
        """The number of a name; -1 if no row has the name."""
        number = self.look(lambda reader: reader.find_name(text))
        return -1 if number is None else number

    async def prove_write(self) -> None:
        """See ``ports.backend.Backend.prove_write``."""
        with contextlib.suppress(PermissionError):
            if _file_id(self.path) != self._file_id:
                raise BackendUnavailable(f"the data folder {self.folder} was removed or replaced")
        await self.write(self._rewrite)

    def _rewrite(self, transaction: StoreTransaction) -> None:
        check_free_space(self.folder)
        transaction.execute(store_file.TEST_WRITE)

    def _before_wait(self, topic: Topic) -> None:
        if self._polling is None and not self._closed:
            self._polling = asyncio.ensure_future(self._poll())
        self.notifier.expect(topic)

    async def _poll(self) -> None:
        """Wake all waiters if the file was changed, in case a wake-up was lost."""
        while any(waiters.any_waiting for waiters in self.waiters.values()):
            await sleep_until_multiple(self.clock, self._poll_interval)
            self._polls += 1
            if self._polls % _POLLS_PER_FILE_CHECK == 0:
                self._check_file()
            commits = self.notifier.commits
            if commits is None or commits != self._commits:
                self._commits = commits
                self.notifier.wake_local(Topic)
        self._polling = None

    def _connect(self, *pragmas: str) -> apsw.Connection:
        self._check_file()
        return store_file.connect(self.path, *pragmas)

    def _check_file(self) -> None:
        """End the process if the file was removed: it would write to a file without a name."""
        with contextlib.suppress(PermissionError):
            if _file_id(self.path) != self._file_id:
                logger.critical("sqlite.file_removed")
                end_process(f"the data folder {self.folder} was removed or replaced")

    async def close(self) -> None:
        """Commit pending work and close the file. Later calls do nothing."""
        if self._closed:
            return
        self._closed = True
        if self._polling is not None:
            self._polling.cancel()
        await self._writer.close()
        self._reader_executor.shutdown(wait=True)
        for connection in list(self._connections):
            with contextlib.suppress(apsw.ThreadingViolationError):  # a thread still reads
                connection.close()
        self._scan_reader.connection.close()
        self.notifier.close()
        self.write_lock.close()
        reach("store.closed")


def _file_id(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if it does not exist."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
