"""Opening a workspace, and what came of the work in it: real git, local repositories."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from longshore.core.agents.repositories import cache_name, validate_ref
from longshore.core.tasks.failures import ErrorCategory, failure_of
from longshore.execution.runners.agent.git import GitFailed, UnknownRef
from longshore.execution.runners.agent.workspace import Workspace
from tests.agents.git_repositories import Origin, WorkspaceMachine, fresh_git, git, patch_of

FILES = {"a.txt": b"one\n", "folder/b.bin": bytes(range(256)), "run.sh": b"#!/bin/sh\n"}


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    created = Origin(tmp_path / "remotes" / "origin.git")
    created.commit(FILES, modes={"run.sh": "100755"})
    return created


@pytest.fixture
def machine(tmp_path: Path) -> WorkspaceMachine:
    return WorkspaceMachine(tmp_path / "machine")


def _head(origin: Origin, ref: str = "main") -> str:
    return git("rev-parse", f"{ref}^{{commit}}", at=origin.path)


def test_the_files_of_the_default_branch_are_there_and_the_agent_can_use_git(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    first = _head(origin)
    second = origin.commit({"a.txt": b"two\n"})
    someone = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    git(*someone, "tag", "-a", "-m", "x", "v1", first, at=origin.path)

    space = machine.open(origin.url)

    assert space.commit == second
    assert (space.folder / "a.txt").read_bytes() == b"two\n"
    assert (space.folder / "folder/b.bin").read_bytes() == FILES["folder/b.bin"]
    assert os.access(space.folder / "run.sh", os.X_OK)
    assert stat.S_IMODE(space.folder.stat().st_mode) == 0o700
    assert git("status", "--porcelain", at=space.folder) == ""
    assert git("log", "--format=%H", at=space.folder).split() == [second, first]
    assert git("rev-parse", "origin/main", "v1^{commit}", at=space.folder).split() == [
        second,
        first,
    ]
    git("fsck", "--strict", at=space.folder)


@pytest.mark.parametrize(
    "ref", ["side", "refs/heads/side", "v1", "refs/tags/v1", "refs/pull/1/head", "commit", "hidden"]
)
def test_a_branch_a_tag_and_a_commit_are_found(
    origin: Origin, machine: WorkspaceMachine, ref: str
) -> None:
    expected = origin.commit({"a.txt": b"side\n"}, branch="side", fresh=True)
    git("tag", "v1", expected, at=origin.path)
    git("update-ref", "refs/pull/1/head", expected, at=origin.path)
    if ref == "hidden":
        # No branch and no tag leads to it; servers give it by its id all the same.
        expected = origin.commit({"a.txt": b"side\n"}, branch="refs/hidden/x", fresh=True)
        git("config", "uploadpack.allowAnySHA1InWant", "true", at=origin.path)

    space = machine.open(origin.url, expected if ref in ("commit", "hidden") else ref)

    assert space.commit == expected
    assert [file.name for file in space.folder.iterdir() if file.name != ".git"] == ["a.txt"]


def test_of_a_branch_and_a_tag_with_one_name_the_branch_is_taken(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    tagged = _head(origin)
    git("tag", "both", tagged, at=origin.path)
    branch = origin.commit({"x": b""}, branch="both")

    assert machine.open(origin.url, "both").commit == branch
    assert machine.open(origin.url, "refs/tags/both").commit == tagged


def test_a_branch_is_looked_up_each_time_and_a_commit_only_once(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    first = machine.open(origin.url, "main").commit
    second = origin.commit({"a.txt": b"two\n"})
    # Renamed into a folder that it was: both cannot be kept side by side.
    git("update-ref", "refs/heads/x", first, at=origin.path)
    assert machine.open(origin.url, "main").commit == second
    git("update-ref", "-d", "refs/heads/x", at=origin.path)
    git("update-ref", "refs/heads/x/y", first, at=origin.path)
    assert machine.open(origin.url, "x/y").commit == first
    rewritten = origin.commit({"a.txt": b"three\n"}, fresh=True)
    git("tag", "moving", first, at=origin.path)
    assert machine.open(origin.url, "moving").commit == first
    git("tag", "--force", "moving", rewritten, at=origin.path)
    assert machine.open(origin.url, "moving").commit == rewritten
    assert machine.open(origin.url, "main").commit == rewritten

    origin.path.rename(origin.path.with_name("gone.git"))

    assert machine.open(origin.url, second).commit == second
    with pytest.raises(GitFailed) as caught:
        machine.open(origin.url, "main")
    assert failure_of(caught.value).category is ErrorCategory.NOT_FOUND


def test_an_attempt_at_work_does_not_notice_that_the_cache_is_deleted(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    space = machine.open(origin.url)
    (space.folder / "a.txt").write_text("changed\n")
    for file in sorted(machine.cache.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    machine.cache.rmdir()

    git("fsck", "--full", at=space.folder)
    git("commit", "--quiet", "-a", "-m", "x", at=space.folder)
    patch = patch_of(space, machine.root / "artifacts")

    assert patch is not None
    # And the next attempt makes the cache again.
    assert machine.open(origin.url).commit == space.commit


def test_an_attempt_s_commits_are_not_in_the_next_workspace(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    space = machine.open(origin.url)
    (space.folder / "a.txt").write_text("changed\n")
    git("commit", "--quiet", "-a", "-m", "x", at=space.folder)
    git("branch", "mine", at=space.folder)
    before = {file: file.stat().st_nlink for file in machine.cache.rglob("*.pack")}

    other = machine.open(origin.url)

    assert other.commit == space.commit
    assert git("branch", "--list", "mine", at=other.folder) == ""
    # The same files on the disk, once more.
    assert all(file.stat().st_nlink == links + 1 for file, links in before.items())


def test_a_damaged_mirror_is_replaced(origin: Origin, machine: WorkspaceMachine) -> None:
    commit = machine.open(origin.url).commit
    position = machine.cache / f"{cache_name(origin.url)}.git"

    for ref, size in (("main", 40), (commit, 40), (commit, 0), ("main", 300)):
        (pack,) = (position / "objects/pack").glob("*.pack")
        pack.chmod(0o600)
        pack.write_bytes(pack.read_bytes()[:size])
        machine.progress.clear()
        space = machine.open(origin.url, ref)

        assert space.commit == commit
        assert (space.folder / "a.txt").read_bytes() == b"one\n"
        assert f"cloning {origin.url}" in machine.progress


def test_many_packs_are_joined(
    origin: Origin, machine: WorkspaceMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore.execution.runners.agent.mirror._MAX_PACKS", 2)
    for number in range(4):
        commit = origin.commit({"a.txt": f"{number}\n".encode()})
        space = machine.open(origin.url)
        assert space.commit == commit

    packs = list(machine.cache.glob("*.git/objects/pack/*.pack"))

    assert len(packs) <= 2
    git("fsck", "--full", at=space.folder)


@pytest.mark.parametrize("ref", ["nope", "refs/heads/nope", "refs/pull/9/head", "0" * 40, "abc123"])
def test_an_unknown_ref_is_the_callers_mistake(
    origin: Origin, machine: WorkspaceMachine, ref: str
) -> None:
    with pytest.raises(UnknownRef, match="correct 'ref'") as caught:
        machine.open(origin.url, ref)

    failure = failure_of(caught.value)
    assert (failure.category, failure.retryable) == (ErrorCategory.VALIDATION, False)


def test_a_repository_without_a_commit_is_the_callers_mistake(
    tmp_path: Path, machine: WorkspaceMachine
) -> None:
    empty = Origin(tmp_path / "empty.git")

    for ref in (None, "main"):
        with pytest.raises(UnknownRef):
            machine.open(empty.url, ref)


def test_nothing_is_cloned_from_a_host_that_is_not_allowed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"repository_hosts has github\.com"):
        Workspace.open(
            tmp_path / "cache",
            "https://127.0.0.1:1/a/b",
            None,
            tmp_path / "workspace",
            git=fresh_git(),
            hosts=["github.com"],
        )
    assert not (tmp_path / "cache").exists()


def test_without_permission_nothing_of_this_machine_is_cloned(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    for url in (origin.url, f"file://{origin.url}", "ext::sh -c id", "--upload-pack=id"):
        with pytest.raises(ValueError, match=r"expected|write such"):
            machine.open(url, allow_local=False)
    with pytest.raises(ValueError, match="branch"):
        machine.open(origin.url, "--upload-pack=id")
    assert not machine.cache.exists()


def test_a_folder_that_is_in_use_is_left_alone(origin: Origin, machine: WorkspaceMachine) -> None:
    into = machine.new_attempt_folder() / "workspace"
    into.mkdir(parents=True)
    (into / "mine").touch()
    machine._attempts -= 1

    with pytest.raises(FileExistsError):
        machine.open(origin.url)

    assert [file.name for file in into.iterdir()] == ["mine"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_local_repository_may_belong_to_another_user(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    for position in (origin.path, *origin.path.rglob("*")):
        os.chown(position, 65534, 65534)

    assert machine.open(origin.url).commit


def test_a_machine_without_git_says_so(
    origin: Origin, machine: WorkspaceMachine, tmp_path: Path
) -> None:
    with pytest.raises(GitFailed, match="install git") as caught:
        machine.open(origin.url, git=fresh_git(PATH=str(tmp_path)))

    assert failure_of(caught.value).category is ErrorCategory.NOT_FOUND


def test_git_accepts_the_same_refs(tmp_path: Path) -> None:
    parts = ["", ".", "..", "/", "//", "@", "@{", ".lock", " ", "~", ":", "[", "\\", "ü", "{", "*"]
    for name in {shape.format(part) for part in parts for shape in ("a{}b", "{}b", "a{}")}:
        try:
            accepted = validate_ref(name) == name
        except ValueError:
            accepted = False
        try:
            git("check-ref-format", "--allow-onelevel", name, at=tmp_path)
        except subprocess.CalledProcessError:
            assert not accepted, name
        else:
            assert accepted, name
