"""The writer: one thread a process, which commits together whatever is waiting.

An fsync costs the same for one transition as for two hundred, so the thread takes all the work
that has arrived, runs it in one transaction, and commits once. If a piece fails half way, the
group is run again with a savepoint around each: that piece is undone alone and the others do not
notice. The commit is an fsync (FULL) if anything in the group was promised, else it only reaches
the log (NORMAL): a later FULL commit carries it along.

If the commit itself fails, nobody can say what is on disk. Then the whole group's outcome is
unknown, the connection is opened afresh, and whoever asked must look (every change carries an id
for that).

No error may stop the thread: everything after it would hang. Waking other processes after a commit
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
from typing import Any

import apsw

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.errors import not_written, translate_error
from longshore.adapters.sqlite.notifier import Notifier, Topic
from longshore.adapters.sqlite.write_lock import WriteLock
from longshore.errors import BackendUnavailable, OutcomeUnknown

logger = logging.getLogger(__name__)

EXIT_CODE_WITHOUT_WRITER = 5  # the command line's code for a store that cannot be used

Work = Callable[[apsw.Connection], Any]
OnDone = Callable[[BaseException | None], None]


@dataclass(slots=True)
class _Item:
    work: Work
    durable: bool
    topics: Collection[Topic]
    future: asyncio.Future[Any]
    on_done: OnDone | None
    result: Any = None
    error: BaseException | None = None


class DatabaseWriter:
    """Takes pieces of work from the event loop, answers when they are committed."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        write_lock: WriteLock,
        notifier: Notifier,
        *,
        group_limit: int,
    ) -> None:
        self._connect = connect
        self._connection: apsw.Connection | None = connect()
        self._synchronous_full = True
        self._write_lock = write_lock
        self._notifier = notifier
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
        work: Work,
        *,
        durable: bool = True,
        topics: Collection[Topic] = (),
        on_done: OnDone | None = None,
    ) -> asyncio.Future[Any]:
        """Run ``work`` in the next group; the answer comes when the group is committed.

        ``told`` is called on the loop's thread with what went wrong, or None, in the order of the
        commits; also when nobody waits for the answer any more.
        """
        if self._closed:
            message = "the database is closed"
            raise BackendUnavailable(message)
        answer: asyncio.Future[Any] = self._loop.create_future()
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
        """Commit what has arrived, then end the thread."""
        if not self._closed:
            self._closed = True
            self._flush_pending()
            self._batches.put(None)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            self._commit_groups()
        # Also SystemExit: whatever ends this thread must end the process.
        except BaseException as error:  # noqa: BLE001
            self._end_process(error)

    def _commit_groups(self) -> None:
        going = True
        while going:
            arrived, going = self._take_all()
            for start in range(0, len(arrived), self._group_limit):
                group = arrived[start : start + self._group_limit]
                self._commit(group)
                self._notify(group)
        self._discard_connection()

    def _end_process(self, error: BaseException) -> None:
        """End the process: without this thread nothing is stored, and every caller would hang."""
        logger.critical("sqlite.writer_died", exc_info=error)
        message = f"longshore: the SQLite writer stopped: {error!r}; ending this process\n"
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(message)
            sys.stderr.flush()
        os._exit(EXIT_CODE_WITHOUT_WRITER)

    def _take_all(self) -> tuple[list[_Item], bool]:
        """Everything that has arrived, waiting for the first; and whether more may come."""
        batch = self._batches.get()
        taken: list[_Item] = []
        while batch is not None:
            taken += batch
            try:
                batch = self._batches.get_nowait()
            except queue.Empty:
                return taken, True
        return taken, False

    def _commit(self, group: list[_Item]) -> None:
        try:
            with self._write_lock:
                reach("write.locked")
                connection = self._connection = self._connection or self._connect()
                self._set_synchronous(connection, full=any(item.durable for item in group))
                connection.execute("BEGIN IMMEDIATE")
                reach("write.group_begun")
                if not all(self._run_in_group(connection, item) for item in group):
                    connection.execute("ROLLBACK")
                    connection.execute("BEGIN IMMEDIATE")
                    for item in group:
                        self._run_in_savepoint(connection, item)
                self._commit_transaction(connection, group)
        # The edge of the thread: whatever went wrong before the commit, nothing was written, and
        # the next group must find the thread alive.
        except Exception as error:  # noqa: BLE001
            self._fail(group, not_written(error))
            self._discard_connection()

    def _set_synchronous(self, connection: apsw.Connection, *, full: bool) -> None:
        if full is not self._synchronous_full:
            connection.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
            self._synchronous_full = full

    def _run_in_group(self, connection: apsw.Connection, item: _Item) -> bool:
        """Run a piece of work without a net; False if it failed half way.

        A refusal before anything was written, which is the usual one, leaves nothing to undo.
        """
        before = connection.total_changes()
        try:
            item.result = item.work(connection)
        except Exception as error:
            if not connection.in_transaction:
                # SQLite gave up the whole transaction (disk full, I/O error): all of it is undone.
                raise
            if connection.total_changes() != before:
                return False
            item.error = translate_error(error)
        reach("write.item_written")
        return True

    def _run_in_savepoint(self, connection: apsw.Connection, item: _Item) -> None:
        """Run a piece of work in a savepoint: if it fails half way, it is undone alone."""
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

    def _commit_transaction(self, connection: apsw.Connection, group: list[_Item]) -> None:
        try:
            reach("write.committing")
            connection.execute("COMMIT")
            reach("write.committed")
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody knows what was written
            unknown = OutcomeUnknown("the commit failed; what was written must be read again")
            unknown.__cause__ = error
            self._fail(group, unknown)
            self._discard_connection()

    def _fail(self, group: list[_Item], error: BaseException) -> None:
        for item in group:
            item.error = item.error or error

    def _discard_connection(self) -> None:
        """Forget the connection: what it believes may not be so. The next group opens the file."""
        if self._connection is not None:
            with contextlib.suppress(apsw.Error):
                self._connection.close(force=True)
        self._connection = None
        self._synchronous_full = True

    def _notify(self, group: list[_Item]) -> None:
        topics = tuple({topic: None for item in group if not item.error for topic in item.topics})
        if topics:
            self._wake_others(topics)
        # The loop may be gone when a program ends without closing: then nobody waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._resolve_futures, group, topics)

    def _wake_others(self, topics: tuple[Topic, ...]) -> None:
        """Wake other processes; an error is logged, once until it works again.

        The commit is done and they poll as well, so an error here must not reach the caller.
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
