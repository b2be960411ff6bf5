"""An agent's working directory: the task's folder, a repository in it, or a configured folder.

A task's folder outlives a failed attempt, so that the next attempt continues with its files. It is
removed when the work is done, or at the start of a worker when it has been unused for a month. The
changes in a repository are stored as a patch.

A workspace has two repositories. The inner one, ``.git``, belongs to the agent; Longshore never
runs git in it again, because its configuration may name programs. Longshore's own is next to the
folder, and depends on nothing that the agent wrote. Both are independent of the mirror: deleting
the folders removes everything.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from longshore.core.agents.plan import AgentPlan, Repository
from longshore.core.agents.repositories import DEFAULT_REF, transport_of, validate_ref
from longshore.core.tasks.failures import ErrorCategory, Failure, FailureRaised
from longshore.execution.runners.agent.git import (
    Git,
    GitOutputTooLarge,
    RepositoryDamaged,
    replace_file,
)
from longshore.execution.runners.agent.mirror import FetchedCommit, Mirror
from longshore.execution.runners.channel import Send

PATCH_NAME: Final = "changes.patch"
PATCH_LIMIT_BYTES: Final = 32 * 1024 * 1024
_FOLDER_MODE = 0o700
_GIT_TIMEOUT_S = 600.0
_PATCH_TIMEOUT_S = 60.0
_FILES, _RECORD_FILE = "files", "repository.json"
_NEXT_FILE = b"\ndiff --git "

_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfilemode = true\n"
# No conversions: files contain the committed bytes, and the patch the bytes that the agent wrote.
_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"
_AGENT_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tbare = false
\tfilemode = true
\tlogallrefupdates = true
[user]
\tname = Longshore agent
\temail = agent@longshore.invalid
[remote "origin"]
\turl = "{url}"
\tfetch = +refs/heads/*:refs/remotes/origin/*
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A folder with the files of a commit."""

    folder: Path
    commit: str
    git: Git

    @classmethod
    def open(
        cls,
        cache: Path,
        url: str,
        ref: str | None,
        target: Path,
        *,
        git: Git,
        allow_local: bool = False,
        hosts: Collection[str] = (),
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> Workspace:
        """Check out a commit into a new folder. Returns the workspace.

        Longshore's own repository is created next to it, with the suffix ``.git``.

        Args:
            cache: The folder of the mirrors, which all attempts of the machine share.
            ref: None: the repository's default branch.
            git: Its deadline covers the whole operation.
            allow_local: Whether repositories of this machine are accepted.
            hosts: The only hosts of other repositories; empty: any host.
            on_progress: Called with a line before each operation that may take long.

        Raises:
            ValueError: the address or ref is not allowed.
            FileExistsError: the folder exists.
            GitFailed: the repository or the commit cannot be fetched.
            TimeoutError: the deadline has passed.
        """
        transport = transport_of(url, local=allow_local, hosts=hosts)
        checked_ref = DEFAULT_REF if ref is None else validate_ref(ref)
        target = target.absolute()
        mirror = Mirror(cache, url, transport, git, on_progress)
        try:
            return cls._create(mirror, checked_ref, target, git, url)
        except RepositoryDamaged:
            on_progress(f"the copy of {url} is damaged: making a new one")
            mirror.delete()
            shutil.rmtree(target)
            shutil.rmtree(_git_dir_of(target))
            return cls._create(mirror, checked_ref, target, git, url)

    @classmethod
    def _create(cls, mirror: Mirror, ref: str, target: Path, git: Git, url: str) -> Workspace:
        for folder in (target, _git_dir_of(target)):
            folder.mkdir(mode=_FOLDER_MODE, parents=True)
        fetched = mirror.fetch_commit(ref, _git_dir_of(target))
        workspace = cls(folder=target, commit=fetched.commit, git=git)
        (workspace._git_dir / "refs").mkdir(mode=_FOLDER_MODE)
        workspace._reset_config()
        workspace._run("read-tree", "--reset", "-u", fetched.commit)
        workspace._create_agent_repository(fetched, url)
        return workspace

    def write_patch(self, artifacts: Path, *, limit: int = PATCH_LIMIT_BYTES) -> Sequence[str]:
        """Write the changes since the commit to ``changes.patch``, if there are any.

        The patch includes binary and new files, but not ignored ones. It is never longer than
        ``limit``: the largest files are omitted first. A repeated call replaces the patch.

        Returns:
            The names of the omitted files.

        Raises:
            ValueError: ``artifacts`` is a symbolic link.
        """
        if artifacts.is_symlink():
            raise ValueError(f"{artifacts} leads elsewhere: nothing is written there")
        artifacts.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        self._reset_config()
        draft = self._git_dir / f"{PATCH_NAME}.partial"
        omitted = [*self._update_index(limit), *self._write_diff(draft, limit)]
        if draft.stat().st_size:
            os.replace(draft, artifacts / PATCH_NAME)
        else:
            draft.unlink()
            (artifacts / PATCH_NAME).unlink(missing_ok=True)
        return omitted

    @property
    def _git_dir(self) -> Path:
        return _git_dir_of(self.folder)

    def _run(
        self, *arguments: str, stdin: bytes = b"", subfolder: bytes = b"", index: Path | None = None
    ) -> bytes:
        return self.git.run(
            *arguments,
            operation=f"git {arguments[0]} in the workspace",
            repository=self._git_dir,
            tree=self.folder / os.fsdecode(subfolder),
            index=index,
            stdin=stdin,
        )

    def _names(self, *arguments: str, **more: Any) -> list[bytes]:
        """Returns the file names that a command prints, separated by NUL."""
        return [name for name in self._run(*arguments, **more).split(b"\0") if name]

    def _reset_config(self) -> None:
        """Rewrite git's configuration, which the agent may have changed.

        A killed attempt may have left its index lock; no other process uses the workspace now.
        """
        (self._git_dir / "index.lock").unlink(missing_ok=True)
        (self._git_dir / "info").mkdir(mode=_FOLDER_MODE, exist_ok=True)
        texts = {"HEAD": f"{self.commit}\n", "config": _CONFIG, "info/attributes": _ATTRIBUTES}
        for name, text in texts.items():
            replace_file(self._git_dir / name, text)

    def _create_agent_repository(self, fetched: FetchedCommit, url: str) -> None:
        """Create the agent's own repository, as a clone would."""
        git_folder = self.folder / ".git"
        for folder in ("objects/info", "objects/pack", "refs/heads", "info"):
            (git_folder / folder).mkdir(mode=_FOLDER_MODE, parents=True)
        heads, remotes = "refs/heads/", "refs/remotes/origin/"
        names = sorted(
            (os.fsencode(name.replace(heads, remotes, 1)), at) for at, name in fetched.refs
        )
        packed = b"".join(at.encode() + b" " + name + b"\n" for name, at in names)
        (git_folder / "packed-refs").write_bytes(b"# pack-refs with: sorted \n" + packed)
        (git_folder / "objects/info/alternates").write_text(f"{self._git_dir / 'objects'}\n")
        quoted = url.replace("\\", "\\\\").replace('"', '\\"')
        (git_folder / "config").write_text(_AGENT_CONFIG.format(url=quoted))
        shutil.copy2(self._git_dir / "index", git_folder / "index")
        # Last: without HEAD git does not recognise a repository.
        (git_folder / "HEAD").write_text(f"{self.commit}\n")

    def _update_index(self, limit: int) -> Iterator[str]:
        """Update the index from the folder. Yields the names of files that exceed the limit."""
        altered = self._names("diff-files", "-z", "--name-only", "--ignore-submodules=all")
        sizes = {name: self._size(name) for name in (*altered, *self._new_files())}
        gone = [name for name in altered if sizes[name] is None]
        present = sorted((size, name) for name, size in sizes.items() if size is not None)
        fitting: list[bytes] = []
        for size, name in present:
            limit -= size
            if limit >= 0 and self._readable(name):
                fitting.append(name)
            else:
                yield os.fsdecode(name)
        # Removed files first: a new file may have the name of a removed folder.
        for option, names in (("--force-remove", gone), ("--add", fitting)):
            if names:
                listed = b"".join(name + b"\0" for name in names)
                self._run("update-index", "-z", option, "--stdin", stdin=listed)

    def _new_files(self, folder: bytes = b"") -> Iterator[bytes]:
        """Yields the files below a folder that are not in the commit and not ignored.

        A nested repository is treated as a folder: agents create them, and mean their files.
        """
        # In a nested repository every file is new: use an empty index.
        index = self._git_dir / "no-index" if folder else None
        listing = ("ls-files", "-z", "--others", "--exclude-standard")
        for name in self._names(*listing, subfolder=folder, index=index):
            if name.endswith(b"/"):
                yield from self._new_files(folder + name)
            else:
                yield folder + name

    def _readable(self, name: bytes) -> bool:
        path = self.folder / os.fsdecode(name)
        return path.is_symlink() or os.access(path, os.R_OK)

    def _size(self, name: bytes) -> int | None:
        """Returns the size of a file or link in the folder, not behind a link; None if removed."""
        parent = os.path.dirname(os.fsdecode(name))
        folder = os.path.normpath(os.path.join(os.path.realpath(self.folder), parent))
        if os.path.realpath(folder) != folder:
            return None
        try:
            status = os.lstat(self.folder / os.fsdecode(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        is_file_or_link = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        return status.st_size if is_file_or_link else None

    def _write_diff(self, draft: Path, limit: int) -> Sequence[str]:
        """Write the patch. Returns the names of files that did not fit."""
        compared = ("diff-index", "--cached", "--no-renames", "--ignore-submodules=all")
        shown = ("-p", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv")
        with open(draft, "w+b") as file:
            try:
                self.git.run(
                    *(*compared, *shown, self.commit),
                    operation="writing what the agent changed",
                    repository=self._git_dir,
                    tree=self.folder,
                    stdout=file,
                    limit=limit,
                )
            except GitOutputTooLarge:
                file.seek(0)
                text = file.read()
                # Cut between two files, so that the rest is a valid patch.
                complete_part = text[: text.rfind(_NEXT_FILE) + 1]
                file.truncate(len(complete_part))
                names = self._names(*compared, "-z", "--name-only", self.commit)
                written = (b"\n" + complete_part).count(_NEXT_FILE)
                return [os.fsdecode(name) for name in names[written:]]
        return ()


def _git_dir_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.git")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingDirectory:
    """The folder in which an agent works."""

    folder: Path
    task_folder: Path | None = None  # its parent; None: the folder does not belong to the task
    workspace: Workspace | None = None

    async def save_changes(self, artifacts: Path, send: Send) -> None:
        """Write the changes in the repository to a patch among the artifacts."""
        if self.workspace is None:
            return
        git = replace(self.workspace.git, deadline=time.monotonic() + _PATCH_TIMEOUT_S)
        omitted = await asyncio.to_thread(replace(self.workspace, git=git).write_patch, artifacts)
        if omitted:
            names = ", ".join(omitted[:3])
            text = f"longshore: changes of some files are too large to be stored: {names}"
            send("log", text=text)

    def remove(self) -> None:
        """Remove the task's folder."""
        if self.task_folder is not None:
            shutil.rmtree(self.task_folder, ignore_errors=True)


def open_working_directory(
    spec: Mapping[str, Any], plan: AgentPlan, send: Send
) -> WorkingDirectory:
    """Returns the task's working directory, created if it does not exist."""
    if plan.folder is not None:
        folder = Path(plan.folder)
        if not folder.is_dir():
            message = f"the definition's folder {folder} does not exist on the worker's machine"
            raise FailureRaised(Failure(category=ErrorCategory.NOT_FOUND, message=message))
        return WorkingDirectory(folder=folder)
    task_folder = Path(spec["agent"]["workspace"])
    task_folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    os.utime(task_folder)  # resets the age by which unused folders are removed
    files = task_folder / _FILES
    if plan.repository is None:
        files.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        return WorkingDirectory(folder=files, task_folder=task_folder)
    workspace = _open_repository(plan.repository, task_folder, spec, send)
    return WorkingDirectory(folder=files, task_folder=task_folder, workspace=workspace)


def _open_repository(
    repository: Repository, task_folder: Path, spec: Mapping[str, Any], send: Send
) -> Workspace:
    git = Git(deadline=time.monotonic() + _GIT_TIMEOUT_S, environment=spec["environment"])
    files, record_file = task_folder / _FILES, task_folder / _RECORD_FILE
    request = {"url": repository.url, "ref": repository.ref}
    if (commit := _recorded_commit(record_file, request)) is not None:
        return Workspace(folder=files, commit=commit, git=git)
    for partial in (files, files.with_name(f"{_FILES}.git")):
        shutil.rmtree(partial, ignore_errors=True)
    workspace = Workspace.open(
        Path(spec["agent"]["repositories"]),
        repository.url,
        repository.ref,
        files,
        git=git,
        allow_local=spec["agent"]["localRepositories"],
        hosts=spec["agent"]["repositoryHosts"],
        on_progress=lambda text: send("log", text=f"longshore: {text}"),
    )
    # Last: without this file the workspace counts as incomplete.
    record_file.write_text(json.dumps({**request, "commit": workspace.commit}))
    return workspace


def _recorded_commit(record_file: Path, request: Mapping[str, Any]) -> str | None:
    """Returns the commit that an earlier attempt checked out, if it was for the same request."""
    try:
        record = json.loads(record_file.read_text())
    except (OSError, ValueError):
        return None
    commit = record.get("commit")
    return str(commit) if record == {**request, "commit": commit} else None
