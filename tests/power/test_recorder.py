"""A recording has everything that was asked of the disk: what is replayed is what is there."""

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


def test_whatever_sqlite_writes_is_noted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with record_sqlite(recorder):
        connection = apsw.Connection(str(tmp_path / "db"))
        connection.execute("CREATE TABLE before (x)")  # with a journal
        connection.execute("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=3")
        for number in range(20):
            connection.execute("CREATE TABLE t%d (x)" % number)  # noqa: UP031
        there = {name: (tmp_path / name).read_bytes() for name in ("db", "db-wal")}
        noted = replayed(recorder.log)
        connection.close()

    assert noted == there
    assert replayed(recorder.log) == {"db": (tmp_path / "db").read_bytes()}


def test_sqlite_goes_its_usual_way_when_nobody_listens_any_more(tmp_path: Path) -> None:
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
        log = next(one for one in recorder.log if isinstance(one, Created) and one.name == "db-wal")
        syncs = [one.node for one in recorder.log if isinstance(one, Synced)]
        connection.close()

    # First the log's head, with the folder; then what was committed.
    assert syncs[-3:] == [log.node, log.folder, log.node]


def test_whatever_goes_through_os_is_noted(tmp_path: Path) -> None:
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

    noted = replayed(recorder.log)
    assert noted == {"deep/deeper/file": (folder / "file").read_bytes()}
    assert sum(isinstance(one, Synced) for one in recorder.log) == 1


def test_what_happens_elsewhere_is_not_noted(tmp_path: Path) -> None:
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
        (one.node, one.offset, len(one.data)) if isinstance(one, Wrote) else (repr(one),)
        for one in recording.log
    ]


def test_the_same_seed_asks_for_the_same_operations(recording: Recording) -> None:
    again = record_workload(1)

    assert _shape(again) == _shape(recording)
    assert again.oracle.answers == recording.oracle.answers


def test_a_workload_leaves_nothing_out(recording: Recording) -> None:
    kinds = {note.subject[0] for note in (*recording.oracle.rows, *recording.oracle.values)}
    names = [one.name for one in recording.log if isinstance(one, Created)]

    assert kinds == {"task", "job", "blob", "definition", "version", "key", "account"}
    assert sum(name.endswith(".draft") for name in names) > 3
    assert len({fence >> 32 for _, fence in recording.oracle.fences}) > 1  # epochs
    assert sum(isinstance(one, ShutDown) for one in recording.log) > 1
    assert names[0] == DATA
