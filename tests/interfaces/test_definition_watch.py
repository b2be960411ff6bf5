"""A folder of definitions that changes while it is watched."""

import os
from pathlib import Path
from typing import Any

import pytest

from longshore.interfaces import definition_files
from longshore.interfaces.definition_files import FolderWatch
from longshore.services.definitions import FolderContents
from tests.interfaces.test_definition_files import GOOD, names, problem_texts, put, write

BAD = "name: bad\nrunner: steam\n"


class WatchedFolder:
    """A folder that is watched, after its first reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.watch = FolderWatch(folder)
        self.watch.read()
        self.poll(2)

    def poll(self, times: int = 1) -> FolderContents:
        return [self.watch.poll() for _ in range(times)][-1]


def described(reading: FolderContents) -> dict[str, str]:
    return {entry.definition.name: entry.definition.description for entry in reading.definitions}


def test_a_change_is_read_when_the_file_is_the_same_at_two_polls(tmp_path: Path) -> None:
    write(tmp_path, a=f"{GOOD}description: before\n")
    watch = WatchedFolder(tmp_path)

    write(tmp_path, a=f"{GOOD}description: af")  # valid, but only half of it
    assert described(watch.poll()) == {"good": "before"}
    write(tmp_path, a=f"{GOOD}description: afterwards\n", b="name: b\nrunner: python\n")
    assert described(watch.poll()) == {"good": "before"}
    assert described(watch.poll()) == {"good": "afterwards", "b": ""}


def test_a_file_half_written_at_the_first_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Writes within one tick of the clock have the same time.
    monkeypatch.setattr(definition_files, "_signature", lambda now: (now.st_size,))
    write(tmp_path, a=f"{GOOD}description: abc\n")
    watch = FolderWatch(tmp_path)
    assert described(watch.read()) == {"good": "abc"}
    write(tmp_path, a=f"{GOOD}description: xyz\n")

    watch.poll()

    assert described(watch.poll()) == {"good": "xyz"}


def test_a_file_that_is_saved_by_renaming_is_never_gone(tmp_path: Path) -> None:
    write(tmp_path, a=f"{GOOD}description: before\n")
    watch = WatchedFolder(tmp_path)

    put(tmp_path / "new", f"{GOOD}description: after\n")
    (tmp_path / "definitions/a.yaml").unlink()
    assert described(watch.poll()) == {"good": "before"}
    (tmp_path / "new").rename(tmp_path / "definitions/a.yaml")
    assert described(watch.poll()) == {"good": "before"}
    assert described(watch.poll()) == {"good": "after"}


def test_a_file_that_stays_away_is_gone(tmp_path: Path) -> None:
    put(tmp_path / "longshore.yaml", "definitions: {own: {runner: command}}")
    write(tmp_path, a=GOOD)
    watch = WatchedFolder(tmp_path)

    (tmp_path / "definitions/a.yaml").unlink()
    assert names(watch.poll()) == ["good", "own"]
    assert names(watch.poll()) == ["own"]
    (tmp_path / "definitions").rmdir()
    (tmp_path / "longshore.yaml").unlink()
    assert watch.poll(2) == FolderContents((), ())


def test_an_invalid_file_is_a_problem_until_it_is_fixed(tmp_path: Path) -> None:
    write(tmp_path, a=GOOD)
    watch = WatchedFolder(tmp_path)

    write(tmp_path, a=BAD)
    reading = watch.poll(2)
    assert (names(reading), len(reading.problems)) == ([], 1)
    assert watch.poll() == reading
    write(tmp_path, a=f"{GOOD}# fixed")
    assert names(watch.poll(2)) == ["good"]
    assert problem_texts(watch.poll()) == []


def test_a_folder_that_cannot_be_listed_keeps_its_definitions(tmp_path: Path) -> None:
    write(tmp_path, a=GOOD)
    watch = WatchedFolder(tmp_path)

    (tmp_path / "definitions").rename(tmp_path / "moved")
    (tmp_path / "definitions").symlink_to("definitions")
    reading = watch.poll(3)
    assert (names(reading), len(reading.problems)) == (["good"], 1)
    (tmp_path / "definitions").unlink()
    (tmp_path / "moved").rename(tmp_path / "definitions")
    assert (names(watch.poll()), problem_texts(watch.poll())) == (["good"], [])


def test_a_file_that_changes_while_it_is_read_is_read_at_the_next_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a=f"{GOOD}description: before\n")
    watch = WatchedFolder(tmp_path)
    path, fstat, calls = tmp_path / "definitions/a.yaml", os.fstat, []
    words = iter(["afterwards", "later still"])

    def write_and_stat(descriptor: int) -> Any:
        calls.append(descriptor)
        if len(calls) == 2:
            put(path, f"{GOOD}description: {next(words)}\n")
        return fstat(descriptor)

    put(path, f"{GOOD}description: meanwhile\n")
    watch.poll()
    monkeypatch.setattr(definition_files.os, "fstat", write_and_stat)
    assert described(watch.poll()) == {"good": "before"}
    assert described(watch.poll(2)) == {"good": "afterwards"}
    calls.clear()
    (problem,) = problem_texts(FolderWatch(tmp_path).read())
    assert "it changed while it was read; it is read again at the next poll" in problem
