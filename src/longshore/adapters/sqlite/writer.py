"""The writer: one thread per process, which commits all waiting work together.

An fsync costs the same for one transition as for two hundred, so the thread takes all work that has
arrived, runs it in one transaction, and commits once. If an item fails half way, the group runs
again with a savepoint around each item: only that item is undone. The commit is an fsync (FULL) if
an item of the group must be durable; otherwise it only reaches the log (NORMAL), and the next FULL
commit makes it durable.

If the commit itself fails, it is unknown what is on disk. Then the outcome of the whole group is
unknown, the connection is opened again, and the callers must read (every change has an id for
that).

No error may stop the thread: every later caller would hang. Waking other processes after a commit
is optional, because they poll too, so an error there is logged and the caller is answered. If the
thread dies all the same, the process ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import apsw

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.errors import not_written, outcome_unknown, translate_error
from longshore.adapters.sqlite.names import Names
from longshore.adapters.sqlite.notifier import Notifier, Topic
from longshore.adapters.sqlite.write_lock import WriteLock
from longshore.errors import BackendUnavailable

logger = logging.getLogger(__name__)

EXIT_CODE_WITHOUT_WRITER = 5  # the command line's code for a store that cannot be used

ResultT = TypeVar("ResultT")
OnDone = Callable[[BaseException | None], None]


@dataclass(slots=True)
class _Item:
    work: Callable[[apsw.Connection], Any]
    durable: bool
    topics: Collection[Topic]
    future: asyncio.Future[Any]
    on_done: OnDone | None
    result: Any = None
    error: BaseException | None = None


class DatabaseWriter:
    """Takes work from the event loop and answers when it is committed."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        write_lock: WriteLock,
        notifier: Notifier,
        names: Names,
        *,
        group_limit: int,
    ) -> None:
        self._connect = connect
        self._connection: apsw.Connection | None = connect()
        self._synchronous_full = True
        self._write_lock = write_lock
        self._notifier = notifier
        self._names = names
        self._group_limit = group_limit
        self._loop = asyncio.get_running_loop()
        self._pending: list[_Item] = []
        self._batches: queue.SimpleQueue[list[_Item] | None] = queue.SimpleQueue()
        self._closed = False
        self._wakeup_failed = False
        self._thread = threading.Thread(target=self._run, name="longshore-writer", daemon=True)
        self._thread.start()

    def write(
        self,
        work: Callable[[apsw.Connection], ResultT],
        *,
        durable: bool = True,
        topics: Collection[Topic] = (),
        on_done: OnDone | None = None,
    ) -> asyncio.Future[ResultT]:
        """Run ``work`` in the next group. The future is done when the group is committed.

        ``on_done`` is called on the loop's thread with the error or None, in the order of the
        commits, even if the future was cancelled.
        """
        if self._closed:
            message = "the database is closed"
            raise BackendUnavailable(message)
        answer: asyncio.Future[ResultT] = self._loop.create_future()
        if not self._pending:
            # Handed over when this turn of the loop is done: callers that were answered together
            # ask again together, and the two threads take turns instead of fighting over the GIL.
            self._loop.call_soon(self._flush_pending)
        self._pending.append(_Item(work, durable, topics, answer, on_done))
        return answer

    def _flush_pending(self) -> None:
        if self._pending:
            self._batches.put(self._pending)
            self._pending = []

    async def close(self) -> None:
        """Commit all work that has arrived, then end the thread."""
        if not self._closed:
            self._closed = True
            self._flush_pending()
            self._batches.put(None)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        """Commit all work that has arrived, in groups, until the end of the work arrives."""
        batches: list[list[_Item] | None] = []
        try:
            while None not in batches:
                batches = [self._batches.get()]
                while not self._batches.empty():
                    batches.append(self._batches.get())
                arrived = [item for batch in batches for item in batch or ()]
                for start in range(0, len(arrived), self._group_limit):
                    group = arrived[start : start + self._group_limit]
                    self._commit(group)
                    self._notify(group)
            self._discard_connection()
        # Including SystemExit: if this thread ends, the process must end.
        except BaseException as error:  # noqa: BLE001
            self._end_process(error)

    def _end_process(self, error: BaseException) -> None:
        """End the process: without this thread nothing is stored, and every caller would hang."""
        logger.critical("sqlite.writer_died", exc_info=error)
        message = f"longshore: the SQLite writer stopped: {error!r}; ending this process\n"
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(message)
            sys.stderr.flush()
        os._exit(EXIT_CODE_WITHOUT_WRITER)

    def _commit(self, group: list[_Item]) -> None:
        committing = False
        try:
            with self._write_lock:
                reach("write.locked")
                connection = self._connection = self._connection or self._connect()
                durable = any(item.durable for item in group)
                if durable is not self._synchronous_full:
                    connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                    self._synchronous_full = durable
                connection.execute("BEGIN IMMEDIATE")
                self._names.begin()
                reach("write.group_begun")
                if not all(self._run_in_group(connection, item) for item in group):
                    connection.execute("ROLLBACK")
                    connection.execute("BEGIN IMMEDIATE")
                    self._names.begin()
                    for item in group:
                        self._run_in_savepoint(connection, item)
                committing = True
                reach("write.committing")
                connection.execute("COMMIT")
                reach("write.committed")
        # The thread must stay alive for the next group.
        except Exception as error:  # noqa: BLE001
            failure = outcome_unknown(error) if committing else not_written(error)
            for item in group:
                item.error = item.error or failure
            self._discard_connection()

    def _run_in_group(self, connection: apsw.Connection, item: _Item) -> bool:
        """Run an item without a savepoint; False if it failed after a write.

        Usually a refused item has not written anything, so that there is nothing to undo.
        """
        before = connection.total_changes()
        try:
            item.result = item.work(connection)
        except Exception as error:
            if not connection.in_transaction:
                # SQLite has rolled back the whole transaction (disk full, I/O error).
                raise
            if connection.total_changes() != before:
                return False
            item.error = translate_error(error)
        reach("write.item_written")
        return True

    def _run_in_savepoint(self, connection: apsw.Connection, item: _Item) -> None:
        """Run an item in a savepoint, so that it can be undone alone."""
        item.result, item.error = None, None
        connection.execute("SAVEPOINT item")
        try:
            item.result = item.work(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO item")
            item.error = translate_error(error)
        connection.execute("RELEASE item")

    def _discard_connection(self) -> None:
        """Close the connection, whose state may be wrong. The next group opens a new one."""
        if self._connection is not None:
            with contextlib.suppress(apsw.Error):
                self._connection.close(force=True)
        self._connection = None
        self._synchronous_full = True

    def _notify(self, group: list[_Item]) -> None:
        topics = tuple({topic: None for item in group if not item.error for topic in item.topics})
        if topics:
            self._wake_others(topics)
        # The loop may be closed if the program ends without closing: then no caller waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._resolve_futures, group, topics)

    def _wake_others(self, topics: tuple[Topic, ...]) -> None:
        """Wake other processes. An error is logged, once until it works again.

        The commit is done and they poll too, so an error here must not reach the caller.
        """
        try:
            reach("write.waking")
            self._notifier.wake_others(topics)
            reach("write.woken")
        except Exception:
            if not self._wakeup_failed:
                logger.warning("sqlite.wakeup_failed", exc_info=True)
            self._wakeup_failed = True
        else:
            self._wakeup_failed = False

    def _resolve_futures(self, group: list[_Item], topics: tuple[Topic, ...]) -> None:
        for item in group:
            if item.on_done is not None:
                item.on_done(item.error)
            if item.future.done():
                continue
            if item.error is not None:
                item.future.set_exception(item.error)
            else:
                item.future.set_result(item.result)
        self._notifier.wake_local(topics)
