"""The disk of the power tests keeps synced data; everything else may be lost."""

from pathlib import Path
from random import Random

import pytest

from verification.power.disk import SECTOR, Disk, DiskImage, LossProfile
from verification.power.operations import (
    ROOT,
    Created,
    DiskOperation,
    Removed,
    Renamed,
    Resized,
    ShutDown,
    Synced,
    Wrote,
)

NOTHING = LossProfile(names=0.0, writes=0.0, torn=0.0, grown=0.0)
EVERYTHING = LossProfile(names=1.0, writes=1.0, torn=0.0, grown=0.0)
A_FILE = (Created(ROOT, "a", 1, is_folder=False), Synced(ROOT))


def after(*operations: DiskOperation) -> Disk:
    disk = Disk()
    for operation in operations:
        disk.apply(operation)
    return disk


def image_of(disk: Disk, profile: LossProfile, seed: int = 0) -> DiskImage:
    return disk.cut(profile, Random(seed))


def images_of(disk: Disk, profile: LossProfile) -> list[dict[str, bytes]]:
    return [image_of(disk, profile, seed).files for seed in range(200)]


def test_synced_data_is_kept_when_later_writes_are_lost() -> None:
    disk = after(*A_FILE, Wrote(1, 0, b"kept"), Synced(1), Wrote(1, 4, b" lost"))

    assert image_of(disk, NOTHING).files == {"a": b"kept"}
    assert image_of(disk, EVERYTHING).files == {"a": b"kept lost"}


def test_a_synced_file_without_a_synced_name_may_be_lost() -> None:
    disk = after(Created(ROOT, "a", 1, is_folder=False), Wrote(1, 0, b"kept"), Synced(1))

    assert image_of(disk, NOTHING).files == {}
    assert image_of(disk, EVERYTHING).files == {"a": b"kept"}


def test_a_synced_name_of_an_unsynced_file_is_an_empty_file() -> None:
    disk = after(Created(ROOT, "a", 1, is_folder=False), Wrote(1, 0, b"lost"), Synced(ROOT))

    assert image_of(disk, NOTHING).files == {"a": b""}


def test_a_file_is_lost_with_a_parent_folder_whose_name_was_not_synced() -> None:
    disk = after(
        Created(ROOT, "folder", 1, is_folder=True),
        Created(1, "a", 2, is_folder=False),
        Synced(2),
        Synced(1),
    )

    assert image_of(disk, NOTHING).folders == []
    assert image_of(disk, EVERYTHING).files == {"folder/a": b""}


def test_a_rename_or_removal_may_be_undone_until_the_folder_is_synced() -> None:
    renamed = after(*A_FILE, Renamed(ROOT, "a", "b", 1))
    removed = after(*A_FILE, Removed(ROOT, "a"))

    assert set(image_of(renamed, NOTHING).files) == {"a"}
    assert set(image_of(renamed, EVERYTHING).files) == {"b"}
    assert set(image_of(removed, NOTHING).files) == {"a"}
    assert set(image_of(removed, EVERYTHING).files) == set()
    renamed.apply(Synced(ROOT))
    removed.apply(Synced(ROOT))
    assert set(image_of(renamed, NOTHING).files) == {"b"}
    assert set(image_of(removed, NOTHING).files) == set()


def test_each_write_since_the_last_sync_is_kept_or_lost_independently() -> None:
    disk = after(*A_FILE, Wrote(1, 0, b"----"), Synced(1), Wrote(1, 0, b"x"), Wrote(1, 3, b"y"))

    seen = {
        files["a"] for files in images_of(disk, LossProfile(names=0, writes=0.5, torn=0, grown=0))
    }

    assert seen == {b"----", b"x---", b"---y", b"x--y"}


def test_a_torn_write_is_torn_at_a_sector_boundary() -> None:
    old, new = b"-" * (2 * SECTOR), b"x" * (2 * SECTOR - 100)
    disk = after(*A_FILE, Wrote(1, 0, old), Synced(1), Wrote(1, 100, new))

    seen = {
        files["a"] for files in images_of(disk, LossProfile(names=0, writes=1, torn=1, grown=0))
    }

    first, second = b"-" * 100 + b"x" * (SECTOR - 100), b"x" * SECTOR
    unchanged = b"-" * SECTOR
    assert seen == {unchanged + unchanged, first + unchanged, unchanged + second, first + second}


def test_a_file_may_have_grown_without_the_written_bytes() -> None:
    disk = after(*A_FILE, Wrote(1, 0, b"xxxx"))

    seen = {
        files["a"] for files in images_of(disk, LossProfile(names=0, writes=0, torn=0, grown=0.5))
    }

    assert {b"", bytes(4)} <= seen
    assert {len(content) for content in seen} == {0, 4}


def test_a_truncated_file_may_have_its_old_length() -> None:
    disk = after(*A_FILE, Wrote(1, 0, b"long"), Synced(1), Resized(1, 2))

    assert image_of(disk, NOTHING).files == {"a": b"long"}
    assert image_of(disk, EVERYTHING).files == {"a": b"lo"}


def test_after_an_orderly_shutdown_everything_is_kept() -> None:
    disk = after(
        Created(ROOT, "folder", 1, is_folder=True),
        Created(1, "a", 2, is_folder=False),
        Wrote(2, 0, b"kept"),
        ShutDown(),
    )

    assert image_of(disk, NOTHING).files == {"folder/a": b"kept"}


def test_an_image_can_be_written_to_a_folder(tmp_path: Path) -> None:
    DiskImage(files={"f/a": b"x", "b": b""}, folders=["f"]).write_to(tmp_path)

    assert (tmp_path / "f" / "a").read_bytes() == b"x"
    assert (tmp_path / "b").read_bytes() == b""


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_gives_the_same_image(seed: int) -> None:
    disk = after(*A_FILE, *(Wrote(1, 700 * number, b"x" * 700) for number in range(20)))
    profile = LossProfile(names=0.5, writes=0.5, torn=0.5, grown=0.5)

    assert image_of(disk, profile, seed).files == image_of(disk, profile, seed).files
