"""Longshore runs no program that a repository or an agent provides, and writes nowhere else."""

import subprocess
from pathlib import Path

import pytest

from longshore.execution.runners.agent.git import GitFailed
from longshore.execution.runners.agent.workspace import PATCH_NAME
from tests.agents.git_repositories import Origin, WorkspaceMachine, apply_patch, git, patch_of


@pytest.fixture
def machine(tmp_path: Path) -> WorkspaceMachine:
    return WorkspaceMachine(tmp_path / "machine")


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path / "remotes" / "origin.git")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """Returns a program that creates a file when it runs."""
    program = tmp_path / "trap.sh"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    program.chmod(0o755)
    return program


def _triggered(trap: Path) -> bool:
    created = trap.with_name("sprung")
    result = created.exists()
    created.unlink(missing_ok=True)
    return result


def _set_traps(repository: Path, trap: Path) -> None:
    """Configure every setting of a repository that makes git run a program."""
    for name in ("post-checkout", "pre-auto-gc", "post-index-change", "reference-transaction"):
        hook = repository / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.unlink(missing_ok=True)
        hook.symlink_to(trap)
    with open(repository / "config", "a") as config:
        config.write(
            f'[core]\n\tfsmonitor = "{trap}"\n\tpager = "{trap}"\n\teditor = "{trap}"\n'
            f'\tsshCommand = "{trap}"\n\taskPass = "{trap}"\n\talternateRefsCommand = "{trap}"\n'
            f'[diff]\n\texternal = "{trap}"\n[diff "evil"]\n\ttextconv = "{trap}"\n'
            f'\tcommand = "{trap}"\n[filter "evil"]\n\tclean = "{trap}"\n\tsmudge = "{trap}"\n'
            f'\tprocess = "{trap}"\n\trequired = true\n[credential]\n\thelper = "{trap}"\n'
            f'[uploadpack]\n\tpackObjectsHook = "{trap}"\n[gc]\n\tauto = 1\n'
        )


TRICKS = {
    "a.txt": b"one\n",
    ".gitattributes": b"* filter=evil diff=evil merge=evil\n",
    ".lfsconfig": b"[lfs]\n\turl = http://127.0.0.1:1/\n",
    ".gitmodules": b'[submodule "sub"]\n\tpath = sub\n\turl = ext::touch\n\tupdate = !touch x\n',
    "sub": b"1" * 40,
    "hooks/post-checkout": b"#!/bin/sh\nexit 1\n",
}
GITLINK = {"sub": "160000"}


def test_a_repository_full_of_tricks_runs_nothing(
    origin: Origin, machine: WorkspaceMachine, trap: Path, tmp_path: Path
) -> None:
    origin.commit(TRICKS, modes=GITLINK)
    _set_traps(origin.path, trap)
    _triggered(trap)

    space = machine.open(origin.url)
    (space.folder / "a.txt").write_bytes(b"two\n")
    patch = patch_of(space, tmp_path / "artifacts")
    assert patch is not None

    assert not _triggered(trap)
    assert (space.folder / "sub").is_dir()
    assert b"-one\n+two\n" in patch.read_bytes()


def test_programs_in_the_agent_s_repository_are_not_run(
    origin: Origin, machine: WorkspaceMachine, trap: Path, tmp_path: Path
) -> None:
    origin.commit(TRICKS, modes=GITLINK)
    space = machine.open(origin.url)
    nested = space.folder / "nested"
    nested.mkdir()
    git("init", "--quiet", ".", at=nested)
    (nested / "inside").write_bytes(b"x\n")
    (nested / ".gitattributes").write_bytes(b"* filter=evil\n")
    (space.folder / "sub/inside").write_bytes(b"x\n")
    git("init", "--quiet", ".", at=space.folder / "sub")
    ours = space.folder.with_name("workspace.git")
    _set_traps(ours, trap)
    (ours / "info/attributes").unlink()
    (ours / "config").write_bytes((ours / "config").read_bytes() + b"[no settings")
    for position in (space.folder, nested, space.folder / "sub"):
        _set_traps(position / ".git", trap)
    (space.folder / "a.txt").write_bytes(b"two\n")
    # The traps are set: git as a person runs it springs them.
    subprocess.run(["git", "diff"], cwd=space.folder, capture_output=True, check=False)
    assert _triggered(trap)

    patch = patch_of(space, tmp_path / "artifacts")

    assert not _triggered(trap)
    assert patch is not None
    text = patch.read_text()
    assert "-one\n+two\n" in text
    assert "b/nested/inside" in text
    assert ".git/" not in text


def test_changes_are_found_although_the_agent_deleted_its_repository(
    origin: Origin, machine: WorkspaceMachine, tmp_path: Path
) -> None:
    origin.commit({"a.txt": b"one\n"})
    space = machine.open(origin.url)
    (space.folder / ".git").rename(space.folder / ".git-away")
    (space.folder / ".git").symlink_to("/etc")
    (space.folder / "a.txt").unlink()

    patch = patch_of(space, tmp_path / "artifacts")

    assert patch is not None
    assert "deleted file mode" in patch.read_text()


def test_a_link_that_leads_out_is_a_link_and_nothing_is_read_or_written_behind_it(
    origin: Origin, machine: WorkspaceMachine, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"outside\n")
    origin.commit(
        {"folder/file": b"inside\n", "out": str(outside).encode()}, modes={"out": "120000"}
    )
    space = machine.open(origin.url)
    (space.folder / "folder/file").unlink()
    (space.folder / "folder").rmdir()
    (space.folder / "folder").symlink_to(outside)

    patch = patch_of(space, tmp_path / "artifacts")

    assert patch is not None
    assert b"outside\n" not in patch.read_bytes().replace(str(outside).encode(), b"")
    other = machine.open(origin.url)
    apply_patch(other, patch)
    assert (other.folder / "folder").is_symlink()
    assert [file.read_bytes() for file in outside.iterdir()] == [b"outside\n"]


def test_the_patch_is_written_into_the_artifacts_and_nowhere_else(
    origin: Origin, machine: WorkspaceMachine, tmp_path: Path
) -> None:
    origin.commit({"a": b""})
    space = machine.open(origin.url)
    (space.folder / "new").write_bytes(b"x\n")
    precious, artifacts = tmp_path / "precious", tmp_path / "artifacts"
    precious.write_bytes(b"keep")
    artifacts.mkdir()
    (artifacts / PATCH_NAME).symlink_to(precious)

    assert patch_of(space, artifacts) is not None

    assert precious.read_bytes() == b"keep"
    assert not (artifacts / PATCH_NAME).is_symlink()
    (tmp_path / "led-away").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="leads elsewhere"):
        space.write_patch(tmp_path / "led-away")


def test_a_tree_that_would_write_into_the_repository_itself_is_refused(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    origin.commit({"x/hooks/post-checkout": b"#!/bin/sh\n"})
    inner = git("rev-parse", "main:x", at=origin.path)
    tree = b"40000 .git\0" + bytes.fromhex(inner)
    created = git(
        "hash-object", "-t", "tree", "--literally", "-w", "--stdin", at=origin.path, stdin=tree
    )
    someone = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    commit = git(*someone, "commit-tree", "-m", "x", created, at=origin.path)
    git("update-ref", "refs/heads/main", commit, at=origin.path)

    with pytest.raises(GitFailed):
        machine.open(origin.url)

    assert not list(machine.root.glob("attempt-*/workspace/.git/hooks"))
