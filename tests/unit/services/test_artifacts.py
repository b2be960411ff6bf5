"""Files of an attempt on their way to the blob store: which, under what names, and how many."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.errors import BackendRejected, BackendUnavailable
from longshore.ports.blobs import BlobStore
from longshore.services.worker.artifacts import AttemptFiles, has_artifacts
from longshore.services.worker.context import ArtifactPolicy
from longshore.testing.clock import FakeClock
from longshore.testing.flaky_port import FlakyPort
from longshore.testing.memory.backend import memory_backend
from tests.unit.services.harness import BACKENDS, ServiceHarness, open_backend, scenario

TASK = "job-a_a"
PREFIX = f"task/logs/{TASK}/attempt-2/"


@pytest.fixture
def blobs() -> BlobStore:
    return memory_backend(FakeClock()).blobs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work" / "attempt-2"
    folder.mkdir(parents=True)
    return folder


def write(folder: Path, *names: str, text: str = "text") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


async def store(
    blobs: BlobStore, folder: Path | None, *, summaries: Any = (), **policy: int
) -> str | None:
    harness = ServiceHarness(replace(memory_backend(FakeClock()), blobs=blobs))
    context = harness.worker_context(artifacts=ArtifactPolicy(**policy))
    files = AttemptFiles(context, TASK, 2, summaries)
    return await harness.advance_until_done(files.store(folder, asyncio.Event()))


async def stored(blobs: BlobStore) -> list[str]:
    keys = await blobs.list_keys("")
    assert all(key.startswith(PREFIX) for key in keys)
    return [key.removeprefix(PREFIX) for key in keys]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_artifacts_traces_and_the_summary_are_kept_and_nothing_else(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    options = ["artifacts/a.csv", "artifacts/deep/er/b", "logs/summary.log", "traces/one.json"]
    write(folder, *options, "spec.json", "logs/other.log", "artifact/c", "notes")
    async with open_backend(kind, tmp_path / "data") as backend:
        note = await store(backend.blobs, folder)

        assert note is None
        assert await stored(backend.blobs) == options
        assert await backend.blobs.get(f"{PREFIX}artifacts/deep/er/b") == b"text"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_large_file_arrives_whole(kind: str, folder: Path, tmp_path: Path) -> None:
    data = os.urandom(1_000_001)
    write(folder, "artifacts/large", "artifacts/empty", text="")
    (folder / "artifacts" / "large").write_bytes(data)
    async with open_backend(kind, tmp_path / "data") as backend:
        note = await store(backend.blobs, folder)

        assert note is None
        assert await backend.blobs.get(f"{PREFIX}artifacts/large") == data
        assert await backend.blobs.get(f"{PREFIX}artifacts/empty") == b""


@scenario
async def test_an_attempt_without_a_folder_or_files_leaves_nothing(
    blobs: BlobStore, folder: Path
) -> None:
    write(folder, "notes")

    assert [has_artifacts(None), has_artifacts(folder)] == [False, False]
    assert [await store(blobs, None), await store(blobs, folder)] == [None, None]
    assert await stored(blobs) == []


@scenario
async def test_reported_summaries_are_stored_if_no_summary_file_was_written(
    blobs: BlobStore, folder: Path
) -> None:
    write(folder, "artifacts/a")

    await store(blobs, folder, summaries=["one", "zwölf"])

    assert await stored(blobs) == ["artifacts/a", "logs/summary.log"]
    assert await blobs.get(f"{PREFIX}logs/summary.log") == "one\nzwölf\n".encode()


@scenario
async def test_a_written_summary_is_not_replaced(blobs: BlobStore, folder: Path) -> None:
    write(folder, "logs/summary.log", text="by hand\n")

    await store(blobs, folder, summaries=["reported"])

    assert await blobs.get(f"{PREFIX}logs/summary.log") == b"by hand\n"


@scenario
async def test_files_beyond_the_number_are_skipped_and_named(
    blobs: BlobStore, folder: Path
) -> None:
    write(folder, *(f"artifacts/{number}" for number in range(9)), "traces/t", "logs/summary.log")

    note = await store(blobs, folder, limit_files=4)

    assert await stored(blobs) == ["artifacts/0", "artifacts/1", "logs/summary.log", "traces/t"]
    assert note == (
        "files that are not stored: artifacts/2 (more than 4 files), "
        "artifacts/3 (more than 4 files), artifacts/4 (more than 4 files), "
        "artifacts/5 (more than 4 files), artifacts/6 (more than 4 files) and 2 more"
    )


@scenario
async def test_files_beyond_the_bytes_are_left_out_and_smaller_ones_are_not(
    blobs: BlobStore, folder: Path
) -> None:
    write(folder, "artifacts/a", text="x" * 60)
    write(folder, "artifacts/b", text="x" * 41)
    write(folder, "artifacts/c", text="x" * 40)

    note = await store(blobs, folder, limit_bytes=100)

    assert await stored(blobs) == ["artifacts/a", "artifacts/c"]
    assert note == "files that are not stored: artifacts/b (more than 100 bytes in all)"


@scenario
async def test_a_folder_with_more_than_anybody_would_look_through_is_cut_short(
    blobs: BlobStore, folder: Path
) -> None:
    write(folder, *(f"artifacts/{number:02}" for number in range(30)))

    note = await store(blobs, folder, limit_files=2)

    assert len(await stored(blobs)) == 2
    assert note is not None
    assert note.endswith("and 14 more")  # 20 were looked at, and the folder is named once


@scenario
async def test_many_small_folders_are_cut_short_as_one_large_is(
    blobs: BlobStore, folder: Path
) -> None:
    write(folder, *(f"artifacts/{item}/{two}" for item in range(9) for two in range(9)))

    note = await store(blobs, folder, limit_files=1)

    assert await stored(blobs) == ["artifacts/0/0"]
    assert note is not None
    assert note.endswith("and 5 more")


@scenario
async def test_a_folder_that_cannot_be_read_is_reported_and_the_others_are_stored(
    blobs: BlobStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "artifacts/shut/a", "artifacts/open/b")
    look = os.scandir

    def refused(path: str) -> Any:
        if path.endswith("shut"):
            raise PermissionError(13, "Permission denied")
        return look(path)

    # Not by its mode: the tests may run as a user who may read everything.
    monkeypatch.setattr(os, "scandir", refused)

    note = await store(blobs, folder)

    assert await stored(blobs) == ["artifacts/open/b"]
    assert note == "files that are not stored: artifacts/shut (cannot be read: Permission denied)"


@scenario
async def test_a_link_is_followed_only_within_its_part_of_the_folder(
    blobs: BlobStore, folder: Path, tmp_path: Path
) -> None:
    write(folder, "artifacts/a", "artifacts/deep/b", "spec.json")
    write(tmp_path, "secret", "secrets/key")
    links = {
        "artifacts/inside": folder / "artifacts" / "deep" / "b",
        "artifacts/relative": Path("deep/b"),
        "artifacts/outside": tmp_path / "secret",
        "artifacts/folder": tmp_path / "secrets",
        "artifacts/upwards": Path("../spec.json"),
        "artifacts/dangling": folder / "artifacts" / "gone",
        "artifacts/circle": Path("circle"),
        "traces": tmp_path / "secrets",
        "logs": tmp_path,
    }
    write(tmp_path, "summary.log")
    for name, target in links.items():
        (folder / name).symlink_to(target)

    note = await store(blobs, folder, limit_files=10)

    options = ["artifacts/a", "artifacts/deep/b", "artifacts/inside", "artifacts/relative"]
    assert await stored(blobs) == options
    assert note is not None
    assert note.startswith("files that are not stored: logs/summary.log (a link that leads out of")
    assert note.endswith("and 2 more")


@scenario
async def test_a_link_to_a_folder_whose_name_only_begins_alike_leads_out(
    blobs: BlobStore, folder: Path
) -> None:
    write(folder, "artifacts/a", "artifacts2/b")
    (folder / "artifacts" / "near").symlink_to(Path("../artifacts2/b"))

    note = await store(blobs, folder)

    assert await stored(blobs) == ["artifacts/a"]
    assert note == "files that are not stored: artifacts/near (a link that leads out of artifacts)"


@scenario
async def test_a_folder_that_links_back_to_itself_ends(blobs: BlobStore, folder: Path) -> None:
    write(folder, "artifacts/deep/a")
    (folder / "artifacts" / "deep" / "again").symlink_to(folder / "artifacts")

    note = await store(blobs, folder)

    assert await stored(blobs) == ["artifacts/deep/a"]
    assert note is not None
    assert "artifacts/deep/again" in note


@scenario
async def test_what_is_no_file_is_left_out(blobs: BlobStore, folder: Path) -> None:
    write(folder, "artifacts/a")
    os.mkfifo(folder / "artifacts" / "pipe")
    (folder / "logs" / "summary.log").mkdir(parents=True)

    note = await store(blobs, folder)

    assert await stored(blobs) == ["artifacts/a"]
    assert note == "files that are not stored: artifacts/pipe (no file)"


@scenario
async def test_a_file_where_a_folder_is_expected_is_kept_as_what_it_is(
    blobs: BlobStore, folder: Path
) -> None:
    write(folder, "artifacts")

    assert await store(blobs, folder) is None
    assert await stored(blobs) == ["artifacts"]


@scenario
async def test_names_are_put_right_and_two_do_not_become_one(
    blobs: BlobStore, folder: Path
) -> None:
    write(folder, "artifacts/a_b", "artifacts/a\nb", "artifacts/a\x1bb", "artifacts/ü ok")
    (Path(os.fsdecode(os.fsencode(folder) + b"/artifacts/\xff"))).write_text("not unicode")

    note = await store(blobs, folder)

    names = await stored(blobs)
    assert note is None
    assert len(names) == 5
    assert {"artifacts/a_b", "artifacts/ü ok"} < set(names)
    assert all(name.isprintable() for name in names)


@scenario
async def test_a_path_deeper_than_a_key_can_be_long_has_its_place(
    blobs: BlobStore, folder: Path
) -> None:
    deep = "/".join(["d" * 100] * 12)
    write(folder, f"artifacts/{deep}/one", f"artifacts/{deep}/two")

    assert await store(blobs, folder) is None
    assert len(await stored(blobs)) == 2


class Vanishing:
    """A store that takes its time, in which others do away with the next file."""

    def __init__(self, blobs: BlobStore, path: Path) -> None:
        self._blobs = blobs
        self._path = path

    async def put(self, key: str, data: Any) -> int:
        size = await self._blobs.put(key, data)
        self._path.unlink()
        self._path.symlink_to("/etc/passwd")
        return size


@scenario
async def test_a_file_that_became_a_link_since_it_was_looked_at_is_not_followed(
    blobs: BlobStore, folder: Path
) -> None:
    write(folder, "artifacts/a", "artifacts/b")

    note = await store(Vanishing(blobs, folder / "artifacts" / "b"), folder)  # type: ignore[arg-type]

    assert await stored(blobs) == ["artifacts/a"]
    assert note is not None
    assert note.startswith("files that are not stored: artifacts/b (cannot be read: ")


@pytest.mark.parametrize(
    ("error", "tries"), [(BackendUnavailable("away"), 16), (BackendRejected("denied"), 1)]
)
@scenario
async def test_an_unavailable_store_skips_the_other_files_and_names_them(
    error: Exception, tries: int, blobs: BlobStore, folder: Path
) -> None:
    write(folder, "artifacts/a", "artifacts/b", "artifacts/c")
    flaky = FlakyPort(blobs, "put", error, times=None, skip=1)

    note = await store(flaky, folder)  # type: ignore[arg-type]

    assert flaky.calls == 1 + tries
    assert await stored(blobs) == ["artifacts/a"]
    assert note == (
        "files that are not stored: artifacts/b (the store could not be reached), "
        "artifacts/c (the store could not be reached)"
    )


@scenario
async def test_files_are_kept_also_when_there_is_no_thread_to_be_had(
    blobs: BlobStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_thread(*_: object) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr("asyncio.to_thread", no_thread)
    write(folder, "artifacts/a")

    assert await store(blobs, folder) is None
    assert await stored(blobs) == ["artifacts/a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give files away")
@scenario
async def test_of_a_task_of_another_user_only_files_of_that_user_are_kept(
    blobs: BlobStore, folder: Path, tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden"
    hidden.write_text("not for tasks")
    write(folder, "artifacts/own", "artifacts/large", text="x" * 300_000)
    # The kernel usually prevents a task from making this link.
    os.link(hidden, folder / "artifacts" / "hard")
    os.mkfifo(folder / "artifacts" / "pipe")
    for path in (folder / "artifacts" / "own", folder / "artifacts" / "large", folder):
        os.chown(path, 64_001, 64_001)

    note = await store(blobs, folder)

    assert await stored(blobs) == ["artifacts/large", "artifacts/own"]
    assert note is not None
    assert "artifacts/hard (cannot be read: it is no file of the task)" in note
