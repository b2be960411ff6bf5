"""The changes in a workspace: written as a patch that applies to another workspace."""

import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from longshore.execution.runners.agent.workspace import PATCH_NAME, Workspace
from tests.agents.git_repositories import Origin, WorkspaceMachine, apply_patch, git, patch_of

FILES = {"a.txt": b"one\n", "folder/b.bin": bytes(range(256)), "run.sh": b"#!/bin/sh\n"}


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    created = Origin(tmp_path / "remotes" / "origin.git")
    created.commit(FILES, modes={"run.sh": "100755"})
    return created


@pytest.fixture
def machine(tmp_path: Path) -> WorkspaceMachine:
    return WorkspaceMachine(tmp_path / "machine")


def test_nothing_changed_leaves_no_patch(origin: Origin, machine: WorkspaceMachine) -> None:
    space = machine.open(origin.url)
    artifacts = machine.root / "artifacts"

    os.utime(space.folder / "a.txt")

    assert patch_of(space, artifacts) is None
    assert list(artifacts.iterdir()) == []


def test_a_patch_reproduces_all_changes_byte_by_byte(
    origin: Origin, machine: WorkspaceMachine, tmp_path: Path
) -> None:
    origin.commit(
        {
            ".gitattributes": b"*.txt text eol=crlf\n*.u working-tree-encoding=NONSENSE ident\n",
            ".gitignore": b"*.log\n",
            "becomes-folder": b"x",
            "was-folder/x": b"x",
            "link": b"a.txt",
        },
        modes={"link": "120000"},
    )
    space = machine.open(origin.url)
    folder = space.folder
    (folder / "a.txt").write_bytes(b"mixed\r\nlines\n\x00")
    (folder / "folder/b.bin").unlink()
    (folder / "run.sh").chmod(0o644)
    (folder / "new folder").mkdir()
    (folder / "new folder/ü\n.bin").write_bytes(os.urandom(300))
    (folder / "new.u").write_bytes(b"$Id$ \xff\xfe")
    (folder / "note.log").write_bytes(b"ignored")
    (folder / "becomes-folder").unlink()
    (folder / "becomes-folder").mkdir()
    (folder / "becomes-folder/inside").write_bytes(b"y")
    (folder / "was-folder/x").unlink()
    (folder / "was-folder").rmdir()
    (folder / "was-folder").write_bytes(b"z")
    (folder / "link").unlink()
    (folder / "link").symlink_to("/etc/hostname")
    # What agents do: a project made by a tool that makes a repository of it, with one inside.
    for nested in ("made", "made/deep"):
        (folder / nested).mkdir()
        git("init", "--quiet", ".", at=folder / nested)
        (folder / nested / "code.py").write_bytes(nested.encode())
        (folder / nested / ".gitignore").write_bytes(b"*.o\n")
        (folder / nested / "x.o").write_bytes(b"")
    # A commit of the agent's own is a change like others.
    (folder / "committed").write_bytes(b"c")
    git("add", "committed", at=folder)
    git("commit", "--quiet", "-m", "x", at=folder)

    patch = patch_of(space, tmp_path / "artifacts")

    assert patch is not None
    other = machine.open(origin.url, space.commit)
    apply_patch(other, patch)
    ignored = {"note.log", "made/x.o", "made/deep/x.o"}
    assert _contents(other.folder) == {
        name: content for name, content in _contents(folder).items() if name not in ignored
    }
    again = patch_of(other, tmp_path / "again")
    assert again is not None
    assert again.read_bytes() == patch.read_bytes()


def _contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [file for file in folder.rglob("*") if ".git" not in file.parts[len(folder.parts) :]]
    return {
        str(file.relative_to(folder)): (
            stat.S_IMODE(file.lstat().st_mode) & 0o111,
            os.readlink(file).encode() if file.is_symlink() else file.read_bytes(),
        )
        for file in files
        if file.is_symlink() or file.is_file()
    }


def test_a_repeated_patch_replaces_the_previous_one(
    origin: Origin, machine: WorkspaceMachine, tmp_path: Path
) -> None:
    space = machine.open(origin.url)
    (space.folder / "new").write_bytes(b"1\n")
    assert patch_of(space, tmp_path) is not None
    (space.folder / "new").write_bytes(b"2\n")
    assert patch_of(space, tmp_path) is not None
    assert b"+2\n" in (tmp_path / PATCH_NAME).read_bytes()
    (space.folder / "new").unlink()

    assert patch_of(space, tmp_path) is None


def test_an_attempt_can_continue_in_the_workspace_of_a_killed_one(
    origin: Origin, machine: WorkspaceMachine, tmp_path: Path
) -> None:
    space = machine.open(origin.url)
    (space.folder / "new").write_bytes(b"1\n")
    # Killed while git was writing.
    space.folder.with_name("workspace.git").joinpath("index.lock").write_bytes(b"half")

    again = Workspace(folder=space.folder, commit=space.commit, git=space.git)

    assert patch_of(again, tmp_path) is not None
    assert b"+1\n" in (tmp_path / PATCH_NAME).read_bytes()
    late = replace(again, git=replace(again.git, deadline=time.monotonic()))
    with pytest.raises(TimeoutError):
        late.write_patch(tmp_path)


def test_a_patch_is_limited_and_lists_the_omitted_files(
    origin: Origin, machine: WorkspaceMachine, tmp_path: Path
) -> None:
    origin.commit({"old.txt": b"line\n" * 2_000})
    space = machine.open(origin.url)
    (space.folder / "big.bin").write_bytes(os.urandom(5_000))
    (space.folder / "a.txt").write_bytes(b"small\n")
    (space.folder / "old.txt").unlink()

    omitted = space.write_patch(tmp_path, limit=4_000)

    patch = tmp_path / PATCH_NAME
    assert omitted == ["big.bin", "old.txt"]
    assert patch.stat().st_size <= 4_000
    other = machine.open(origin.url)
    apply_patch(other, patch)
    assert (other.folder / "a.txt").read_bytes() == b"small\n"

    omitted = space.write_patch(tmp_path, limit=10)

    assert not patch.exists()
    assert set(omitted) == {"a.txt", "big.bin", "old.txt"}
