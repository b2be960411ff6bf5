"""The writer: groups, isolation of their pieces, fsync only for promises, unknown outcomes."""

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import apsw
import pytest

from longshore.adapters.shared import failpoints
from longshore.adapters.sqlite import database as database_module
from longshore.adapters.sqlite import errors as sqlite_errors
from longshore.adapters.sqlite.database import Database, SqliteOptions
from longshore.adapters.sqlite.notifier import Notifier, Topic
from longshore.adapters.sqlite.writer import EXIT_CODE_WITHOUT_WRITER
from longshore.errors import BackendUnavailable, LongshoreError, OutcomeUnknown
from longshore.testing.clock import FakeClock


@asynccontextmanager
async def a_database(folder: Path, **options) -> AsyncIterator[Database]:
    database = Database(folder, FakeClock(), SqliteOptions(**options))
    try:
        yield database
    finally:
        await database.close()


def naming(name: str, value: str = "x"):
    def work(connection: apsw.Connection) -> str:
        connection.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (name, value))
        return name

    return work


def names_in(database: Database) -> set[str]:
    return {name for (name,) in database.point("SELECT name FROM meta WHERE name LIKE 'n%'")}


def test_work_that_is_waiting_together_is_committed_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            commits = []
            database._writer._connection.set_commit_hook(lambda: bool(commits.append(1)))

            answers = await asyncio.gather(*(database.write(naming(f"n{i}")) for i in range(50)))

            assert answers == [f"n{i}" for i in range(50)]
            assert len(commits) == 1

    asyncio.run(scenario())


def test_a_group_is_no_larger_than_its_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path, group_limit=8) as database:
            commits = []
            database._writer._connection.set_commit_hook(lambda: bool(commits.append(1)))

            await asyncio.gather(*(database.write(naming(f"n{i}")) for i in range(20)))

            assert len(commits) == 3

    asyncio.run(scenario())


def test_a_piece_that_fails_half_way_is_undone_alone(tmp_path: Path) -> None:
    def half(connection: apsw.Connection) -> None:
        connection.execute("INSERT INTO meta (name, value) VALUES ('n-half', 'x')")
        message = "on purpose"
        raise LongshoreError(message)

    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            before, failed, after = await asyncio.gather(
                database.write(naming("n1")),
                database.write(half),
                database.write(naming("n2")),
                return_exceptions=True,
            )

            assert (before, after) == ("n1", "n2")
            assert isinstance(failed, LongshoreError)
            assert names_in(database) == {"n1", "n2"}

    asyncio.run(scenario())


def test_a_refusal_before_any_write_affects_no_other_item(tmp_path: Path) -> None:
    def refuse(connection: apsw.Connection) -> None:
        message = "on purpose"
        raise LongshoreError(message)

    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            answers = await asyncio.gather(
                database.write(naming("n1")), database.write(refuse), return_exceptions=True
            )

            assert answers[0] == "n1"
            assert isinstance(answers[1], LongshoreError)
            assert names_in(database) == {"n1"}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("promises", "level"),
    [
        pytest.param([False, False], 1, id="nothing promised: NORMAL"),
        pytest.param([False, True], 2, id="one promise makes the group FULL"),
    ],
)
def test_a_commit_is_synced_only_for_a_promise(tmp_path: Path, promises, level) -> None:
    def look(connection: apsw.Connection) -> int:
        return connection.execute("PRAGMA synchronous").fetchall()[0][0]

    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            levels = await asyncio.gather(
                *(database.write(look, durable=promised) for promised in promises)
            )

            assert levels == [level, level]

    asyncio.run(scenario())


def test_an_error_at_the_commit_makes_the_whole_group_unknown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            # A commit hook that says no turns the commit into a rollback with an error, the same
            # way a failing disk does: SQLite answers COMMIT itself with the error.
            database._writer._connection.set_commit_hook(lambda: True)

            answers = await asyncio.gather(
                *(database.write(naming(f"n{i}")) for i in range(3)), return_exceptions=True
            )

            assert [type(answer) for answer in answers] == [OutcomeUnknown] * 3
            assert await database.write(naming("n-after")) == "n-after"
            assert names_in(database) == {"n-after"}

    asyncio.run(scenario())


def test_no_caller_is_answered_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered_before = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with a_database(tmp_path) as database:

            def look(point: str) -> None:
                if point == "write.committing":
                    looked = threading.Event()
                    # After every answer that the writer has already handed to the loop.
                    loop.call_soon_threadsafe(lambda: answered_before.append(written.done()))
                    loop.call_soon_threadsafe(looked.set)
                    assert looked.wait(30)

            monkeypatch.setattr(failpoints, "_armed", look)
            written = database.write(naming("n1"))
            assert await written == "n1"
            monkeypatch.undo()

    asyncio.run(scenario())
    assert answered_before == [False]


def test_a_file_that_cannot_be_opened_fails_the_group_and_not_the_thread(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            writer = database._writer
            connect, writer._connection = writer._connect, None

            def broken() -> apsw.Connection:
                raise apsw.CantOpenError

            writer._connect = broken
            with pytest.raises(BackendUnavailable):
                await database.write(naming("n1"))
            writer._connect = connect

            assert await database.write(naming("n2")) == "n2"
            assert names_in(database) == {"n2"}

    asyncio.run(scenario())


def test_what_was_asked_before_the_close_is_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            answers = [database.write(naming(f"n{i}")) for i in range(5)]
        await asyncio.gather(*answers)
        with pytest.raises(BackendUnavailable):
            database.write(naming("n-late"))
        async with a_database(tmp_path) as database:
            assert names_in(database) == {f"n{i}" for i in range(5)}

    asyncio.run(scenario())


def test_a_foreign_writer_on_the_file_is_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            foreign = apsw.Connection(str(database.path))
            foreign.execute("BEGIN IMMEDIATE")
            waiting = asyncio.ensure_future(database.write(naming("n1")))
            await asyncio.sleep(0)

            assert not waiting.done()
            foreign.execute("ROLLBACK")
            foreign.close()

            assert await waiting == "n1"

    asyncio.run(scenario())


def test_an_error_while_waking_other_processes_does_not_stop_the_writer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(point: str) -> None:
        if point == "write.waking":
            raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            monkeypatch.setattr(failpoints, "_armed", fail)
            for name in ("n1", "n2"):
                database.notifier.expect(Topic.QUEUE)
                written = database.write(naming(name), topics=[Topic.QUEUE])
                assert await asyncio.wait_for(written, 10) == name
            monkeypatch.undo()

            assert await database.write(naming("n3"), topics=[Topic.QUEUE]) == "n3"

    asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["sqlite.wakeup_failed"]


def test_a_commit_looks_for_other_processes_only_if_there_is_a_waiter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups: list[str] = []
    refresh = Notifier._refresh_peers

    def counted(notifier: Notifier) -> OSError | None:
        lookups.append(notifier._name)
        return refresh(notifier)

    monkeypatch.setattr(Notifier, "_refresh_peers", counted)

    async def scenario() -> None:
        async with a_database(tmp_path) as waiting, a_database(tmp_path) as database:

            def look() -> bool | None:
                return True if "n2" in names_in(waiting) else None

            await database.write(naming("n1"), topics=[Topic.QUEUE])
            assert lookups == []

            woken = asyncio.ensure_future(waiting.waiters[Topic.QUEUE].wait_until(look))
            await asyncio.sleep(0)
            await database.write(naming("n2"), topics=[Topic.ENDS])
            assert lookups == []
            await database.write(naming("n3"), topics=[Topic.QUEUE])
            assert await asyncio.wait_for(woken, 10)
            assert len(lookups) == 1

            await database.write(naming("n4"), topics=[Topic.QUEUE])
            assert len(lookups) == 1

    asyncio.run(scenario())


def test_a_missing_wakeup_folder_does_not_stop_the_writer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            (tmp_path / "wakeups").rename(tmp_path / "moved")

            for name in ("n1", "n2"):
                database.notifier.expect(Topic.QUEUE)
                written = database.write(naming(name), topics=[Topic.QUEUE])
                assert await asyncio.wait_for(written, 10) == name

            (tmp_path / "moved").rename(tmp_path / "wakeups")

    asyncio.run(scenario())


def test_running_out_of_descriptors_leaves_the_pipe_of_a_living_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def no_descriptor_left(path, flags, *args, **kwargs):
        if flags & os.O_WRONLY and str(path).startswith(str(tmp_path / "wakeups")):
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return real_open(path, flags, *args, **kwargs)

    async def scenario() -> None:
        async with a_database(tmp_path) as neighbour, a_database(tmp_path) as database:
            pipe = tmp_path / "wakeups" / neighbour.notifier._name
            monkeypatch.setattr(os, "open", no_descriptor_left)
            database.notifier.expect(Topic.QUEUE)
            await database.write(naming("n1"), topics=[Topic.QUEUE])
            monkeypatch.undo()
            assert pipe.exists()

            def look() -> bool | None:
                return True if "n2" in names_in(neighbour) else None

            # The fake clock does not move: without the wake-up there is no second look.
            woken = asyncio.ensure_future(neighbour.waiters[Topic.QUEUE].wait_until(look))
            await asyncio.sleep(0)
            await database.write(naming("n2"), topics=[Topic.QUEUE])
            assert await asyncio.wait_for(woken, 10)

    asyncio.run(scenario())


def test_a_writer_that_dies_ends_the_process_with_a_message(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from unittest.mock import Mock
from longshore.adapters.sqlite.database import Database, SqliteOptions
from longshore.testing.clock import FakeClock

def die(connection):
    raise SystemExit("on purpose")

async def main():
    database = Database(Path(sys.argv[1]), FakeClock(), SqliteOptions())
    await database.write(die)

asyncio.run(main())
"""

    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )

    assert ended.returncode == EXIT_CODE_WITHOUT_WRITER
    assert "the SQLite writer stopped: SystemExit('on purpose')" in ended.stderr


def without_loop(write: Callable[[], asyncio.Future]) -> object:
    """The result of a write on a thread without an event loop."""

    async def wait() -> object:
        return await write()

    work = wait()
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waited for an event loop")


def test_a_thread_without_an_event_loop_commits_itself(tmp_path: Path) -> None:
    threads = []

    def work(connection: apsw.Connection) -> str:
        threads.append(threading.get_ident())
        return naming("n1")(connection)

    async def scenario() -> None:
        async with a_database(tmp_path) as database:

            def call() -> tuple[object, int]:
                return without_loop(lambda: database.write(work)), threading.get_ident()

            answer, thread = await asyncio.to_thread(call)

            assert answer == "n1"
            assert threads == [thread]
            assert names_in(database) == {"n1"}

    asyncio.run(scenario())


def thread_of_urgent_work(database: Database) -> asyncio.Future[int]:
    """Which thread commits work that is urgent and not durable."""

    def work(connection: apsw.Connection) -> int:
        naming("n-urgent")(connection)
        return threading.get_ident()

    with database._writer._lock:
        pass  # the writer's thread answers before it releases the lock
    return database.write(work, durable=False, urgent=True)


def test_urgent_work_is_committed_on_the_event_loop_before_the_call_returns(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            await database.write(naming("n1"))

            written = thread_of_urgent_work(database)

            assert written.result() == threading.get_ident()
            assert names_in(database) == {"n1", "n-urgent"}

    asyncio.run(scenario())


def test_urgent_work_waits_for_earlier_work_of_the_event_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            await database.write(naming("n1"))
            earlier = database.write(naming("n2"))

            written = thread_of_urgent_work(database)

            assert not written.done()
            assert await written != threading.get_ident()
            assert earlier.done()

    asyncio.run(scenario())


@pytest.mark.parametrize("lock", ["write_lock.next", "write_lock.owner"])
def test_urgent_work_does_not_make_the_event_loop_wait_for_another_process(
    tmp_path: Path, lock: str
) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            await database.write(naming("n1"))
            with (tmp_path / lock).open() as other:
                fcntl.flock(other, fcntl.LOCK_EX)
                written = thread_of_urgent_work(database)
                assert not written.done()

            assert await written != threading.get_ident()

    asyncio.run(scenario())


def test_urgent_work_does_not_make_the_event_loop_wait_for_another_program(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            await database.write(naming("n1"))
            foreign = apsw.Connection(str(database.path))
            foreign.execute("BEGIN IMMEDIATE")

            with pytest.raises(BackendUnavailable):
                thread_of_urgent_work(database).result()

            foreign.execute("ROLLBACK")
            foreign.close()
            assert thread_of_urgent_work(database).result() == threading.get_ident()

    asyncio.run(scenario())


def test_urgent_work_syncs_nothing_on_the_event_loop(tmp_path: Path) -> None:
    """Neither a log that begins again nor a log that is copied into the database."""

    async def scenario() -> None:
        async with a_database(tmp_path, wal_pages=1) as database:
            await database.write(naming("n1"))  # and all of the log is copied
            begun_again = thread_of_urgent_work(database)
            assert not begun_again.done()
            await begun_again

        async with a_database(tmp_path, wal_pages=5) as database:
            await database.write(naming("n2"))
            pages = []
            with database._writer._lock:
                pass
            for number in range(10):
                written = database.write(naming(f"n{number}-urgent"), durable=False, urgent=True)
                assert written.done()
                noop = apsw.SQLITE_CHECKPOINT_NOOP
                pages.append(database._writer._connection.wal_checkpoint(mode=noop))

            assert pages[-1][0] > 5
            assert {copied for _, copied in pages} == {0}

            await database.write(naming("n3"))
            length, copied = database._writer._connection.wal_checkpoint(mode=noop)
            assert length == copied

    asyncio.run(scenario())


def test_threads_that_wait_for_a_commit_share_the_next_one(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(connection: apsw.Connection) -> str:
        begun.set()
        assert go_on.wait(30)
        return naming("n-first")(connection)

    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            commits = []
            database._writer._connection.set_commit_hook(lambda: bool(commits.append(1)))
            write = database.write

            async with asyncio.TaskGroup() as group:
                first = asyncio.to_thread(without_loop, lambda: write(hold))
                calls = [group.create_task(first)]
                await asyncio.to_thread(begun.wait, 30)
                for number in range(3):
                    work = naming(f"n{number}")
                    call = asyncio.to_thread(without_loop, lambda work=work: write(work))
                    calls.append(group.create_task(call))
                on_loop = write(naming("n-loop"))
                while len(database._writer._arrived) < 5:
                    await asyncio.sleep(0)
                go_on.set()

            assert [call.result() for call in calls] == ["n-first", "n0", "n1", "n2"]
            assert await on_loop == "n-loop"
            assert len(commits) == 2

    asyncio.run(scenario())


def test_an_error_on_a_calling_thread_is_raised_there_and_undoes_nothing_else(
    tmp_path: Path,
) -> None:
    def refuse(connection: apsw.Connection) -> None:
        naming("n-half")(connection)
        raise LongshoreError("refused")

    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            with pytest.raises(LongshoreError, match="refused"):
                await asyncio.to_thread(without_loop, lambda: database.write(refuse))
            write = database.write
            assert await asyncio.to_thread(without_loop, lambda: write(naming("n1"))) == "n1"
            assert names_in(database) == {"n1"}

    asyncio.run(scenario())


def test_a_thread_that_is_interrupted_leaves_the_others_an_answer(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(connection: apsw.Connection) -> None:
        begun.set()
        assert go_on.wait(30)

    def interrupt(connection: apsw.Connection) -> None:
        naming("n-interrupted")(connection)
        raise KeyboardInterrupt

    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            write = database.write

            def call(work: Callable) -> BaseException | None:
                try:
                    without_loop(lambda: write(work))
                except (KeyboardInterrupt, OutcomeUnknown) as error:
                    return error
                return None

            # All of them are in the group of the thread that is interrupted.
            first = asyncio.ensure_future(asyncio.to_thread(call, hold))
            await asyncio.to_thread(begun.wait, 30)
            others = [
                asyncio.ensure_future(asyncio.to_thread(call, work))
                for work in (interrupt, naming("n1"), naming("n2"))
            ]
            while len(database._writer._arrived) < 4:
                await asyncio.sleep(0)
            go_on.set()

            assert await first is None
            kinds = {type(await other) for other in others}
            assert kinds <= {KeyboardInterrupt, OutcomeUnknown}
            assert KeyboardInterrupt in kinds
            assert names_in(database) == set()
            assert await asyncio.wait_for(write(naming("n3")), 30) == "n3"

    asyncio.run(scenario())


def test_after_the_end_a_thread_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            write = database.write
        with pytest.raises(BackendUnavailable, match="closed"):
            await asyncio.to_thread(without_loop, lambda: write(naming("n1")))

    asyncio.run(scenario())


def test_nothing_durable_is_written_to_a_file_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_process(problem: str) -> None:
        raise BackendUnavailable(problem)

    monkeypatch.setattr(database_module, "end_process", end_process)

    async def scenario() -> None:
        folder = tmp_path / "data"
        async with a_database(folder) as database:
            await database.write(naming("n1"))
            folder.rename(tmp_path / "moved")
            with pytest.raises(BackendUnavailable, match=r"data was removed or replaced"):
                await database.write(naming("n2"))

            (tmp_path / "moved").rename(folder)
            assert await database.write(naming("n3")) == "n3"
            assert names_in(database) >= {"n1", "n3"}
            assert "n2" not in names_in(database)

    asyncio.run(scenario())


def test_a_test_write_reaches_the_file_and_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            await database.write(naming("n1"))
            wal = tmp_path / f"{database.path.name}-wal"
            before, stored = wal.stat().st_size, database.point("SELECT * FROM meta")

            await database.prove_write()

            assert wal.stat().st_size > before
            assert database.point("SELECT * FROM meta") == stored

    asyncio.run(scenario())


def test_a_test_write_on_a_nearly_full_disk_names_folder_and_free_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with a_database(tmp_path) as database:
            # SQLite may still find room in its log, and a job finds none for its blobs.
            monkeypatch.setattr(sqlite_errors.shutil, "disk_usage", lambda _: Mock(free=1_000_000))
            with pytest.raises(BackendUnavailable, match=f"full: {tmp_path} has 1,000,000 bytes"):
                await database.prove_write()

    asyncio.run(scenario())


def test_a_test_write_in_a_folder_that_is_gone_says_so_and_does_not_end_the_process(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        folder = tmp_path / "data"
        async with a_database(folder) as database:
            folder.rename(tmp_path / "moved")
            with pytest.raises(BackendUnavailable, match="was removed or replaced"):
                await database.prove_write()
            (tmp_path / "moved").rename(folder)

    asyncio.run(scenario())
