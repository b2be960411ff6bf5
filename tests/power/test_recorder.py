"""A recording has every disk operation: replaying it gives the same files."""

import os
from pathlib import Path
from random import Random

import apsw
import pytest

from verification.power.campaign import DATA, Recording, record_workload
from verification.power.disk import Disk, LossProfile
from verification.power.operations import Created, DiskOperation, ShutDown, Synced, Wrote
from verification.power.recorder import Recorder, record_os_calls
from verification.power.vfs import record_sqlite

EVERYTHING = LossProfile(names=1.0, writes=1.0, torn=0.0, grown=0.0)


def replayed(log: list[DiskOperation]) -> dict[str, bytes]:
    disk = Disk()
    for operation in log:
        disk.apply(operation)
    return disk.cut(EVERYTHING, Random(0)).files


def test_every_write_of_sqlite_is_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with record_sqlite(recorder):
        connection = apsw.Connection(str(tmp_path / "db"))
        connection.execute("CREATE TABLE before (x)")  # with a journal
        connection.execute("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=3")
        for number in range(20):
            connection.execute("CREATE TABLE t%d (x)" % number)  # noqa: UP031
        files = {name: (tmp_path / name).read_bytes() for name in ("db", "db-wal")}
        recorded = replayed(recorder.log)
        connection.close()

    assert recorded == files
    assert replayed(recorder.log) == {"db": (tmp_path / "db").read_bytes()}


def test_sqlite_uses_its_own_vfs_again_after_the_recording(tmp_path: Path) -> None:
    before = apsw.vfs_names()
    recorder = Recorder(tmp_path)
    with record_sqlite(recorder):
        pass

    apsw.Connection(str(tmp_path / "db")).execute("CREATE TABLE t (x)")

    assert apsw.vfs_names() == before
    assert recorder.log == []


def test_a_new_log_is_synced_together_with_its_name(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with record_sqlite(recorder):
        connection = apsw.Connection(str(tmp_path / "db"))
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (x)")
        log = next(
            operation
            for operation in recorder.log
            if isinstance(operation, Created) and operation.name == "db-wal"
        )
        syncs = [operation.node for operation in recorder.log if isinstance(operation, Synced)]
        connection.close()

    # First the log's header with the folder, then the commit.
    assert syncs[-3:] == [log.node, log.folder, log.node]


def test_every_write_through_os_is_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with record_os_calls(recorder):
        folder = tmp_path / "deep" / "deeper"
        folder.mkdir(parents=True)
        with os.fdopen(os.open(folder / "draft", os.O_WRONLY | os.O_CREAT), "wb") as file:
            file.write(b"x" * 100_000)
            file.write(b"the end")
            file.flush()
            os.fsync(file.fileno())
        (folder / "draft").rename(folder / "file")
        (tmp_path / "gone").mkdir()
        (tmp_path / "gone").rmdir()

    recorded = replayed(recorder.log)
    assert recorded == {"deep/deeper/file": (folder / "file").read_bytes()}
    assert sum(isinstance(operation, Synced) for operation in recorder.log) == 1


def test_operations_outside_the_folder_are_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    recorder = Recorder(tmp_path / "here")
    with record_os_calls(recorder):
        (tmp_path / "there").mkdir()
        os.close(os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT))

    assert recorder.log == []


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record_workload(1)


def _shape(recording: Recording) -> list[tuple[object, ...]]:
    return [
        (operation.node, operation.offset, len(operation.data))
        if isinstance(operation, Wrote)
        else (repr(operation),)
        for operation in recording.log
    ]


def test_the_same_seed_gives_the_same_operations(recording: Recording) -> None:
    again = record_workload(1)

    assert _shape(again) == _shape(recording)
    assert again.oracle.answers == recording.oracle.answers


def test_a_workload_writes_every_kind_of_data(recording: Recording) -> None:
    kinds = {note.subject[0] for note in (*recording.oracle.rows, *recording.oracle.values)}
    names = [operation.name for operation in recording.log if isinstance(operation, Created)]

    assert kinds == {"task", "job", "blob", "definition", "version", "key", "budget"}
    assert sum(name.endswith(".draft") for name in names) > 3
    assert len({fence >> 32 for _, fence in recording.oracle.fences}) > 1  # epochs
    assert sum(isinstance(operation, ShutDown) for operation in recording.log) > 1
    assert names[0] == DATA
