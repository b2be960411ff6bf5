"""The writer: commits all waiting work of this process together, on one thread at a time.

An fsync costs the same for one transition as for two hundred, so the thread that commits takes all
work that has arrived, runs it in one transaction, and commits once. If an item fails half way, the
group runs again with a savepoint around each item: only that item is undone. The commit is an fsync
(FULL) if an item of the group must be durable; otherwise it only reaches the log (NORMAL), and the
next FULL commit makes it durable.

The thread that holds the lock commits, also the work of others. Work from the event loop is
committed by the writer's thread, because the loop must not block. A caller on another thread may
block: it takes the lock itself, and finds its work either committed by the thread that had the
lock, or commits it together with what has arrived meanwhile. The event loop commits a claim itself
if it has to wait for nothing, neither for a lock nor for the disk: two switches between threads are
most of the time that an idle worker needs to begin a task.

If the commit itself fails, it is unknown what is on disk. Then the outcome of the whole group is
unknown, the connection is opened again, and the callers must read (every change has an id for
that). The same holds for a group whose thread was interrupted by a signal handler: the next thread
with the lock answers it.

No error may stop the writer's thread: every later caller would hang. Waking other processes after a
commit is optional, because they poll too, so an error there is logged and the caller is answered.
If the thread dies all the same, the process ends with it.
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
from pathlib import Path
from typing import Any, TypeVar

import apsw

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.errors import not_written, outcome_unknown, translate_error
from longshore.adapters.sqlite.notifier import Notifier, Topic
from longshore.adapters.sqlite.rows import Names
from longshore.adapters.sqlite.store_file import BUSY_TIMEOUT_MS
from longshore.adapters.sqlite.transaction import StoreTransaction
from longshore.adapters.sqlite.write_lock import WriteLock
from longshore.errors import BackendUnavailable

logger = logging.getLogger(__name__)

EXIT_CODE_WITHOUT_WRITER = 5  # the command line's code for a store that cannot be used

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class _Item:
    work: Callable[[StoreTransaction], Any]
    durable: bool
    topics: Collection[Topic]
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None
    done: bool = False
    blocks: bool = False  # a thread waits for it, not the event loop
    on_loop: bool = False  # it is committed by the event loop, which has the write lock

    def resolve(self) -> None:
        """Answer the caller, on the thread that asked."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def _refuse() -> apsw.Connection:
    raise BackendUnavailable("the database is closed")


def end_process(problem: str) -> None:
    """End the process, because it cannot store anything any more."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"longshore: {problem}; ending this process\n")
        sys.stderr.flush()
    os._exit(EXIT_CODE_WITHOUT_WRITER)


class DatabaseWriter:
    """Takes work from any thread and answers when it is committed."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        write_lock: WriteLock,
        notifier: Notifier,
        names: Names,
        check_file: Callable[[], None],
        folder: Path,
        *,
        schema: int,
        group_limit: int,
        wal_pages: int,
    ) -> None:
        self._connect = connect
        self._connection: apsw.Connection | None = connect()
        self._synchronous_full = True
        self._schema = schema
        self._write_lock = write_lock
        self._notifier = notifier
        self._names = names
        self._check_file = check_file
        self._folder = folder
        self._group_limit = group_limit
        self._wal_pages = wal_pages
        self._loop = asyncio.get_running_loop()
        self._pending: list[_Item] = []  # of this turn of the loop
        self._arrived: list[_Item] = []  # threads append; the thread with the lock removes
        self._begun = 0  # items at the head of ``_arrived`` that a thread has begun to commit
        self._lock = threading.Lock()  # held by the thread that commits
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: the last one
        self._closed = False
        self._wakeup_failed = False
        self._thread = threading.Thread(target=self._run, name="longshore-writer", daemon=True)
        self._thread.start()

    def write(
        self,
        work: Callable[[StoreTransaction], ResultT],
        *,
        durable: bool = True,
        topics: Collection[Topic] = (),
        urgent: bool = False,
    ) -> asyncio.Future[ResultT]:
        """Run ``work`` in the next group. The future is done when the group is committed.

        On a thread without an event loop, this blocks until then.

        Args:
            urgent: Run and commit it before this returns, if that cannot block the event loop.
        """
        if self._closed:
            _refuse()
        item = _Item(work, durable, topics, self._loop.create_future())
        if asyncio._get_running_loop() is not self._loop:
            self._commit_here(item)
            return item.future
        if urgent and not (durable or self._pending) and self._commit_on_loop(item):
            return item.future
        if not self._pending:
            # Handed over when this turn of the loop is done: callers that were answered together
            # ask again together, and the two threads take turns instead of fighting over the GIL.
            self._loop.call_soon(self._flush_pending)
        self._pending.append(item)
        return item.future

    def _flush_pending(self) -> None:
        if self._pending:
            self._arrived.extend(self._pending)
            self._pending = []
            self._signals.put(True)

    def _commit_here(self, item: _Item) -> None:
        """Commit an item on this thread, or wait for the thread that commits it."""
        item.blocks = True
        try:
            self._arrived.append(item)
            with self._lock:
                while not item.done:
                    self._commit_next_group(self._group_limit)
        except BaseException:
            # A signal handler has interrupted this thread: the writer's thread does the rest.
            self._signals.put(True)
            raise
        item.resolve()

    def _commit_on_loop(self, item: _Item) -> bool:
        """Commit an item that need not be durable. Returns False if that could block the loop."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._arrived or not self._write_lock.acquire_if_free():
                return False
            try:
                if self._commit_would_sync():
                    return False
                item.blocks = item.on_loop = True
                self._arrived.insert(0, item)  # committed alone: another one may be durable
                self._commit_next_group(1)
            finally:
                self._write_lock.release()
        except BaseException:
            self._signals.put(True)  # as in ``_commit_here``
            raise
        finally:
            self._lock.release()
        item.resolve()
        return True

    def _commit_would_sync(self) -> bool:
        """Whether the log begins again with the next commit, which SQLite always syncs."""
        try:
            connection = self._connection = self._connection or self._connect()
            pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        except apsw.Error:
            return True  # it may; the writer's thread reports the error
        return pages == copied

    async def close(self) -> None:
        """Commit all work that has arrived, then end the thread."""
        if not self._closed:
            self._closed = True
            self._flush_pending()
            self._signals.put(False)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        """Commit the work of the event loop until the last signal arrives."""
        try:
            more = True
            while more:
                more = self._signals.get()
                with self._lock:
                    while self._arrived:
                        self._commit_next_group(self._group_limit)
            with self._lock:
                self._discard_connection()
                self._connect = _refuse
        # Including SystemExit: if this thread ends, the process must end.
        except BaseException as error:
            # Without this thread nothing is stored, and every caller would hang.
            logger.critical("sqlite.writer_died", exc_info=error)
            end_process(f"the SQLite writer stopped: {error!r}")

    def _commit_next_group(self, limit: int) -> None:
        """Commit and answer the work that has arrived first; with the lock."""
        if self._begun:
            group = self._arrived[: self._begun]
            interrupted = InterruptedError("the thread that committed was interrupted")
            failure = outcome_unknown(interrupted, self._folder)
            for item in group:
                item.error = item.error or failure
            self._discard_connection()
        else:
            group = self._arrived[:limit]
            self._begun = len(group)
            self._commit(group)
        self._notify(group)
        del self._arrived[: len(group)]
        self._begun = 0

    def _commit(self, group: list[_Item]) -> None:
        committing, on_loop = False, group[0].on_loop
        try:
            with contextlib.nullcontext() if on_loop else self._write_lock:
                reach("write.locked")
                connection = self._connection = self._connection or self._connect()
                # The event loop waits for no other program, and syncs no copy of the log.
                connection.set_busy_timeout(0 if on_loop else BUSY_TIMEOUT_MS)
                connection.wal_autocheckpoint(0 if on_loop else self._wal_pages)
                durable = any(item.durable for item in group)
                if durable:
                    self._check_file()
                if durable is not self._synchronous_full:
                    connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                    self._synchronous_full = durable
                before = connection.total_changes()
                connection.execute("BEGIN IMMEDIATE")
                self._check_schema(connection)
                self._names.begin()
                reach("write.group_begun")
                if not all(self._run_item(connection, item) for item in group):
                    connection.execute("ROLLBACK")
                    connection.execute("BEGIN IMMEDIATE")
                    self._names.begin()
                    for item in group:
                        self._run_item(connection, item, alone=True)
                committing = True
                reach("write.committing")
                if connection.total_changes() == before:
                    connection.execute("COMMIT")
                else:
                    self._notifier.commit_begun()
                    connection.execute("COMMIT")
                    self._notifier.commit_ended()
                reach("write.committed")
        # The thread must stay alive for the next group.
        except Exception as error:  # noqa: BLE001
            failure = (
                outcome_unknown(error, self._folder)
                if committing
                else not_written(error, self._folder)
            )
            for item in group:
                item.error = item.error or failure
            self._discard_connection()

    def _check_schema(self, connection: apsw.Connection) -> None:
        """End the process if a newer version has migrated the file, inside a transaction.

        A version that does not know the schema would write rows that break its rules.
        """
        ((schema,),) = connection.execute("PRAGMA user_version")
        if schema != self._schema:
            logger.critical("sqlite.schema_changed", extra={"schema": schema})
            end_process(
                f"another version of Longshore has changed {self._folder} to schema {schema}, and"
                f" this process knows schema {self._schema}; start it again with that version"
            )

    def _run_item(self, connection: apsw.Connection, item: _Item, *, alone: bool = False) -> bool:
        """Run an item. Returns False if it failed after a write that was not undone.

        Usually a refused item has not written anything, so that there is nothing to undo.

        Args:
            alone: Run it in a savepoint, so that it can be undone alone.
        """
        item.result, item.error = None, None
        before = connection.total_changes()
        if alone:
            connection.execute("SAVEPOINT item")
        try:
            transaction = StoreTransaction(connection, self._names)
            item.result = item.work(transaction)
            transaction.close()
        except Exception as error:
            if not connection.in_transaction:
                # SQLite has rolled back the whole transaction (disk full, I/O error).
                raise
            if alone:
                connection.execute("ROLLBACK TO item")
            elif connection.total_changes() != before:
                return False
            item.error = translate_error(error)
        if alone:
            connection.execute("RELEASE item")
        reach("write.item_written")
        return True

    def _discard_connection(self) -> None:
        """Close the connection, whose state may be wrong. The next group opens a new one."""
        if self._connection is not None:
            with contextlib.suppress(apsw.Error):
                self._connection.close(force=True)
        self._connection = None
        self._synchronous_full = True

    def _notify(self, group: list[_Item]) -> None:
        changed = {topic: None for item in group if not item.error for topic in item.topics}
        topics = self._notifier.take_expected(changed)
        if topics:
            self._wake_others(topics)
        on_loop = [item for item in group if not (item.blocks or item.done)]
        if on_loop or topics:
            # The loop may be closed if the program ends without closing: then no caller waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._resolve_futures, on_loop, topics)
        for item in group:
            item.done = True

    def _wake_others(self, topics: list[Topic]) -> None:
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

    def _resolve_futures(self, group: list[_Item], topics: list[Topic]) -> None:
        for item in group:
            item.resolve()
        self._notifier.wake_local(topics)
