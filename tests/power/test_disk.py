"""The disk of the power tests: what is synced stays, everything else may."""

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


def test_what_was_synced_is_there_whatever_happens_to_the_rest() -> None:
    disk = after(*A_FILE, Wrote(1, 0, b"kept"), Synced(1), Wrote(1, 4, b" lost"))

    assert image_of(disk, NOTHING).files == {"a": b"kept"}
    assert image_of(disk, EVERYTHING).files == {"a": b"kept lost"}


def test_a_synced_file_without_a_synced_name_may_be_gone() -> None:
    disk = after(Created(ROOT, "a", 1, is_folder=False), Wrote(1, 0, b"kept"), Synced(1))

    assert image_of(disk, NOTHING).files == {}
    assert image_of(disk, EVERYTHING).files == {"a": b"kept"}


def test_a_synced_name_of_a_file_that_was_not_synced_is_an_empty_file() -> None:
    disk = after(Created(ROOT, "a", 1, is_folder=False), Wrote(1, 0, b"lost"), Synced(ROOT))

    assert image_of(disk, NOTHING).files == {"a": b""}


def test_a_file_is_gone_with_the_folder_above_whose_name_was_not_synced() -> None:
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


def test_writes_since_the_last_sync_are_kept_or_lost_each_for_itself() -> None:
    disk = after(*A_FILE, Wrote(1, 0, b"----"), Synced(1), Wrote(1, 0, b"x"), Wrote(1, 3, b"y"))

    seen = {
        files["a"] for files in images_of(disk, LossProfile(names=0, writes=0.5, torn=0, grown=0))
    }

    assert seen == {b"----", b"x---", b"---y", b"x--y"}


def test_a_torn_write_is_torn_where_sectors_meet() -> None:
    old, new = b"-" * (2 * SECTOR), b"x" * (2 * SECTOR - 100)
    disk = after(*A_FILE, Wrote(1, 0, old), Synced(1), Wrote(1, 100, new))

    seen = {
        files["a"] for files in images_of(disk, LossProfile(names=0, writes=1, torn=1, grown=0))
    }

    first, second = b"-" * 100 + b"x" * (SECTOR - 100), b"x" * SECTOR
    kept = b"-" * SECTOR
    assert seen == {kept + kept, first + kept, kept + second, first + second}


def test_a_file_may_have_grown_without_what_was_written() -> None:
    disk = after(*A_FILE, Wrote(1, 0, b"xxxx"))

    seen = {
        files["a"] for files in images_of(disk, LossProfile(names=0, writes=0, torn=0, grown=0.5))
    }

    assert {b"", bytes(4)} <= seen
    assert {len(content) for content in seen} == {0, 4}


def test_a_file_may_have_its_old_length_after_it_was_cut() -> None:
    disk = after(*A_FILE, Wrote(1, 0, b"long"), Synced(1), Resized(1, 2))

    assert image_of(disk, NOTHING).files == {"a": b"long"}
    assert image_of(disk, EVERYTHING).files == {"a": b"lo"}


def test_after_an_orderly_shutdown_everything_is_there() -> None:
    disk = after(
        Created(ROOT, "folder", 1, is_folder=True),
        Created(1, "a", 2, is_folder=False),
        Wrote(2, 0, b"kept"),
        ShutDown(),
    )

    assert image_of(disk, NOTHING).files == {"folder/a": b"kept"}


def test_what_is_left_can_be_laid_out_in_a_folder(tmp_path: Path) -> None:
    DiskImage(files={"f/a": b"x", "b": b""}, folders=["f"]).write_to(tmp_path)

    assert (tmp_path / "f" / "a").read_bytes() == b"x"
    assert (tmp_path / "b").read_bytes() == b""


@pytest.mark.parametrize("seed", range(5))
def test_the_same_chance_leaves_the_same(seed: int) -> None:
    disk = after(*A_FILE, *(Wrote(1, 700 * number, b"x" * 700) for number in range(20)))
    fate = LossProfile(names=0.5, writes=0.5, torn=0.5, grown=0.5)

    assert image_of(disk, fate, seed).files == image_of(disk, fate, seed).files
