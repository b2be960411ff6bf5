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

from longshore.adapters.sqlite.bells import Bells, Topic
from longshore.adapters.sqlite.failures import not_done, translated
from longshore.adapters.sqlite.turnstile import Turnstile
from longshore.errors import BackendUnavailable, OutcomeUnknown
from longshore.failpoints import reach

logger = logging.getLogger(__name__)

EXIT_CODE_WITHOUT_WRITER = 5  # the command line's code for a store that cannot be used

Work = Callable[[apsw.Connection], Any]
Told = Callable[[BaseException | None], None]


@dataclass(slots=True)
class _Item:
    work: Work
    promised: bool
    topics: Collection[Topic]
    answer: asyncio.Future[Any]
    told: Told | None
    result: Any = None
    error: BaseException | None = None


class Writer:
    """Takes pieces of work from the event loop, answers when they are committed."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        turnstile: Turnstile,
        bells: Bells,
        *,
        group_limit: int,
    ) -> None:
        self._connect = connect
        self._connection: apsw.Connection | None = connect()
        self._full = True
        self._turnstile = turnstile
        self._bells = bells
        self._group_limit = group_limit
        self._loop = asyncio.get_running_loop()
        self._arriving: list[_Item] = []
        self._arrived: queue.SimpleQueue[list[_Item] | None] = queue.SimpleQueue()
        self._closed = False
        self._wakeup_failed = False
        self._thread = threading.Thread(target=self._run, name="longshore-writer", daemon=True)
        self._thread.start()

    def write(
        self,
        work: Work,
        *,
        promised: bool = True,
        topics: Collection[Topic] = (),
        told: Told | None = None,
    ) -> asyncio.Future[Any]:
        """Run ``work`` in the next group; the answer comes when the group is committed.

        ``told`` is called on the loop's thread with what went wrong, or None, in the order of the
        commits; also when nobody waits for the answer any more.
        """
        if self._closed:
            message = "the database is closed"
            raise BackendUnavailable(message)
        answer: asyncio.Future[Any] = self._loop.create_future()
        if not self._arriving:
            # Handed over when this turn of the loop is done: callers that were answered together
            # ask again together, and the two threads take turns instead of fighting over the GIL.
            self._loop.call_soon(self._hand_over)
        self._arriving.append(_Item(work, promised, topics, answer, told))
        return answer

    def _hand_over(self) -> None:
        if self._arriving:
            self._arrived.put(self._arriving)
            self._arriving = []

    async def close(self) -> None:
        """Commit what has arrived, then end the thread."""
        if not self._closed:
            self._closed = True
            self._hand_over()
            self._arrived.put(None)
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
                self._deliver(group)
        self._abandon()

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
        batch = self._arrived.get()
        taken: list[_Item] = []
        while batch is not None:
            taken += batch
            try:
                batch = self._arrived.get_nowait()
            except queue.Empty:
                return taken, True
        return taken, False

    def _commit(self, group: list[_Item]) -> None:
        try:
            with self._turnstile:
                reach("write.turn_taken")
                connection = self._connection = self._connection or self._connect()
                self._set_synchronous(connection, full=any(item.promised for item in group))
                connection.execute("BEGIN IMMEDIATE")
                reach("write.group_begun")
                if not all(self._tried(connection, item) for item in group):
                    connection.execute("ROLLBACK")
                    connection.execute("BEGIN IMMEDIATE")
                    for item in group:
                        self._try_alone(connection, item)
                self._end(connection, group)
        # The edge of the thread: whatever went wrong before the commit, nothing was written, and
        # the next group must find the thread alive.
        except Exception as error:  # noqa: BLE001
            self._fail(group, not_done(error))
            self._abandon()

    def _set_synchronous(self, connection: apsw.Connection, *, full: bool) -> None:
        if full is not self._full:
            connection.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
            self._full = full

    def _tried(self, connection: apsw.Connection, item: _Item) -> bool:
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
            item.error = translated(error)
        reach("write.item_written")
        return True

    def _try_alone(self, connection: apsw.Connection, item: _Item) -> None:
        """Run a piece of work in a savepoint: if it fails half way, it is undone alone."""
        item.result, item.error = None, None
        connection.execute("SAVEPOINT item")
        try:
            item.result = item.work(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO item")
            item.error = translated(error)
        connection.execute("RELEASE item")

    def _end(self, connection: apsw.Connection, group: list[_Item]) -> None:
        try:
            reach("write.committing")
            connection.execute("COMMIT")
            reach("write.committed")
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody knows what was written
            unknown = OutcomeUnknown("the commit failed; what was written must be read again")
            unknown.__cause__ = error
            self._fail(group, unknown)
            self._abandon()

    def _fail(self, group: list[_Item], error: BaseException) -> None:
        for item in group:
            item.error = item.error or error

    def _abandon(self) -> None:
        """Forget the connection: what it believes may not be so. The next group opens the file."""
        if self._connection is not None:
            with contextlib.suppress(apsw.Error):
                self._connection.close(force=True)
        self._connection = None
        self._full = True

    def _deliver(self, group: list[_Item]) -> None:
        topics = tuple({topic: None for item in group if not item.error for topic in item.topics})
        if topics:
            self._wake_others(topics)
        # The loop may be gone when a program ends without closing: then nobody waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._answer, group, topics)

    def _wake_others(self, topics: tuple[Topic, ...]) -> None:
        """Wake other processes; an error is logged, once until it works again.

        The commit is done and they poll as well, so an error here must not reach the caller.
        """
        try:
            reach("write.ringing")
            self._bells.ring_elsewhere(topics)
            reach("write.rung")
        except Exception:
            if not self._wakeup_failed:
                logger.warning("sqlite.wakeup_failed", exc_info=True)
            self._wakeup_failed = True
        else:
            self._wakeup_failed = False

    def _answer(self, group: list[_Item], topics: tuple[Topic, ...]) -> None:
        for item in group:
            if item.told is not None:
                item.told(item.error)
            if item.answer.done():
                continue
            if item.error is not None:
                item.answer.set_exception(item.error)
            else:
                item.answer.set_result(item.result)
        self._bells.ring_here(topics)
