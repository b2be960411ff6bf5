"""Folders of attempts go: at once, or in a moment with others."""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longshore.execution.host import folder_cleaner
from longshore.execution.host.folder_cleaner import FolderCleaner
from tests.execution.conftest import scenario, wait_until


def folders(work: Path, number: int) -> list[Path]:
    created = [work / f"task-{item}.1" for item in range(number)]
    for folder in created:
        folder.mkdir(parents=True)
    return created


def remaining_in(work: Path) -> list[str]:
    return sorted(str(path.relative_to(work)) for path in work.rglob("*"))


@scenario
async def test_a_folder_is_removed_with_its_content(tmp_path: Path) -> None:
    (folder,) = folders(tmp_path, 1)
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("x")

    await FolderCleaner(keep=False).remove(folder)

    assert remaining_in(tmp_path) == []


@scenario
async def test_another_attempt_of_the_task_keeps_its_folder(tmp_path: Path) -> None:
    (folder,) = folders(tmp_path, 1)
    other = folder.with_name("task-0.2")
    other.mkdir()

    await FolderCleaner(keep=False).remove(folder)

    assert remaining_in(tmp_path) == ["task-0.2"]


@scenario
async def test_folders_go_in_a_moment(tmp_path: Path) -> None:
    cleaner = FolderCleaner(keep=False)
    for folder in folders(tmp_path, 3):
        cleaner.remove_later(folder)

    await wait_until(lambda: not any(tmp_path.iterdir()))


@scenario
async def test_close_waits_until_pending_folders_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_cleaner, "_BATCH_DELAY_S", 1000)
    cleaner = FolderCleaner(keep=False)
    for folder in folders(tmp_path, 3):
        cleaner.remove_later(folder)

    await cleaner.close()

    assert remaining_in(tmp_path) == []
    await cleaner.close()


@scenario
async def test_no_folder_is_removed_when_folders_are_kept(tmp_path: Path) -> None:
    cleaner = FolderCleaner(keep=True)
    item, another, third = folders(tmp_path, 3)

    await cleaner.remove(item)
    cleaner.remove_later(another)
    cleaner.remove_now(third)
    await cleaner.close()

    assert len(remaining_in(tmp_path)) == 3


@scenario
async def test_without_a_thread_folders_go_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_thread(*_: object) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(asyncio, "to_thread", no_thread)
    (folder,) = folders(tmp_path, 1)

    await FolderCleaner(keep=False).remove(folder)

    assert remaining_in(tmp_path) == []


@pytest.mark.parametrize(("keep", "left"), [(False, ["new.agent", "old.1"]), (True, None)])
@scenario
async def test_folders_that_were_unused_for_long_are_removed(
    tmp_path: Path, keep: bool, left: list[str] | None
) -> None:
    for name in ("old.agent", "new.agent", "old.1"):
        (tmp_path / name / "files").mkdir(parents=True)
        for folder in (tmp_path / name / "files", tmp_path / name):
            os.utime(folder, (1_000_000, 1_000_000))
    # It was used since.
    os.utime(tmp_path / "new.agent" / "files", (3_000_000, 3_000_000))
    before = datetime.fromtimestamp(2_000_000, UTC)

    await FolderCleaner(keep=keep).remove_stale(tmp_path, "*.agent", before=before)

    there = sorted(path.name for path in tmp_path.iterdir())
    assert there == (["new.agent", "old.1", "old.agent"] if left is None else left)
