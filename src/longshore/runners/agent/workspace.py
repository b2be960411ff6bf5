"""The folder in which an agent works on a repository, and what came of its work.

There are two repositories behind it. The one inside, ``.git``, is the agent's: it may do with it
what it likes, and we never run git with it again, because its settings may name programs. Ours
stands beside the folder; what it tells of the files depends on nothing that the agent wrote. Both
have all objects and lend none of them: when the attempt's folder is deleted, all is gone, and
nothing anywhere else has to know.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from longshore.core.agents.repositories import (
    DEFAULT_REF,
    Address,
    checked_ref,
    read_address,
)
from longshore.core.error_categories import ErrorCategory
from longshore.runners.agent.git import Access, Git, TooMuch
from longshore.runners.agent.git_troubles import Damaged, GitFailed
from longshore.runners.agent.mirror import Mirror, Taken

PATCH_NAME: Final = "changes.patch"
PATCH_LIMIT_BYTES: Final = 32 * 1024 * 1024
_FOLDER_MODE = 0o700
# Repositories that the agent made inside; more are left out.
_MOST_NESTED = 50
_NO_OBJECT = "0" * 40
_NEXT_FILE = b"\ndiff --git "

_OUR_SETTINGS = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfilemode = true\n"
# The files are the bytes that were committed, and the patch the bytes that the agent wrote.
_OUR_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"
_AGENTS_SETTINGS = """\
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
class Rules:
    """What an installation allows of repositories, and how it reaches them."""

    local: bool = False
    hosts: Collection[str] | None = None
    credential_helper: str | None = None  # as git's setting of that name

    def access(self, address: Address) -> Access:
        """How git may reach this address."""
        return Access(
            transport=address.transport,
            credential_helper=self.credential_helper,
            # A host that is on the list may lead to one that is not.
            redirects=self.hosts is None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What an agent did to the files of its workspace."""

    patch: Path | None  # None: not even one file's changes fit
    left_out: tuple[str, ...]  # files whose changes are not in it

    @property
    def whole(self) -> bool:
        """Whether the patch says everything."""
        return not self.left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A commit's files in a folder."""

    folder: Path
    commit: str
    git: Git

    @classmethod
    def open(
        cls,
        cache: Path,
        url: str,
        ref: str | None,
        into: Path,
        *,
        git: Git,
        rules: Rules | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> Workspace:
        """Put the files of a commit into a new folder.

        Beside it, under its name with ``.git`` behind, comes a folder of ours; both belong to the
        attempt and end with it.

        Args:
            cache: The machine's copies of repositories, which all attempts share.
            ref: None: what the repository itself offers first.
            git: With the time that there is for all of it.
            tell: Gets a line when something begins that may take long.

        Raises:
            ValueError: address or ref are not allowed, or the folder is not new.
            GitFailed: the repository or the commit cannot be had.
            TimeoutError: the time was not enough.
        """
        rules = rules or Rules()
        address = read_address(url, local=rules.local, hosts=rules.hosts)
        wanted = DEFAULT_REF if ref is None else checked_ref(ref)
        into = into.absolute()
        mirror = Mirror(cache, address, git, rules.access(address), tell)
        try:
            return cls._made(mirror, wanted, into, git, url)
        except Damaged:
            tell(f"the copy of {url} is damaged: making a new one")
            mirror.forget()
            shutil.rmtree(into)
            shutil.rmtree(_own(into))
            return cls._made(mirror, wanted, into, git, url)

    @classmethod
    def _made(cls, mirror: Mirror, ref: str, into: Path, git: Git, url: str) -> Workspace:
        for folder in (into, _own(into)):
            folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            if any(folder.iterdir()):
                message = f"{folder} is not empty: a workspace is made in a folder of its own"
                raise ValueError(message)
        taken = mirror.take(ref, _own(into))
        made = cls(folder=into, commit=taken.commit, git=git)
        made._check_out()
        made._settle(taken, url)
        return made

    def until(self, deadline: float) -> Workspace:
        """The same, for what is still to be done when there is other time for it."""
        return replace(self, git=replace(self.git, deadline=deadline))

    def changes(self, artifacts: Path, *, limit: int = PATCH_LIMIT_BYTES) -> Changes | None:
        """Write what is different from the commit as ``changes.patch``; None if nothing is.

        Binary files and new ones are in it, what the repository ignores is not. It is never
        longer than ``limit``: the largest files are left out first. Call it as often as you
        like; the last one stands.

        Raises:
            ValueError: ``artifacts`` leads elsewhere.
        """
        if artifacts.is_symlink():
            message = f"{artifacts} leads elsewhere: nothing is written there"
            raise ValueError(message)
        artifacts.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        self._renew()
        draft = self._ours / f"{PATCH_NAME}.making"
        left_out = [*self._take_note(limit), *self._write(draft, limit)]
        if draft.stat().st_size:
            os.replace(draft, artifacts / PATCH_NAME)
            return Changes(patch=artifacts / PATCH_NAME, left_out=tuple(left_out))
        draft.unlink()
        with suppress(FileNotFoundError):
            (artifacts / PATCH_NAME).unlink()
        return Changes(patch=None, left_out=tuple(left_out)) if left_out else None

    def apply(self, patch: bytes) -> None:
        """Do again what an earlier attempt had done, all of it or nothing.

        Raises:
            GitFailed: the patch was not made of this commit.
        """
        self._renew()
        try:
            self._run("apply", "--index", "--binary", "--whitespace=nowarn", given=patch)
        except GitFailed as error:
            unfit = isinstance(error, Damaged) or not error.category.retryable
            if not unfit:
                raise
            message = (
                f"what an earlier attempt had changed does not fit commit {self.commit}: open the"
                f" commit that the patch was made of, or begin without it ({error})"
            )
            raise GitFailed(message, ErrorCategory.VALIDATION) from error

    @property
    def _ours(self) -> Path:
        return _own(self.folder)

    def _run(
        self, *arguments: str, given: bytes = b"", below: bytes = b"", index: Path | None = None
    ) -> bytes:
        return self.git.run(
            *arguments,
            doing=f"git {arguments[0]} in the workspace",
            repository=self._ours,
            tree=self.folder / os.fsdecode(below),
            index=index,
            given=given,
        )

    def _renew(self) -> None:
        """Say again what git has to know here, whoever may have said something else.

        An attempt that was killed may have left its lock; nobody else works here now.
        """
        (self._ours / "index.lock").unlink(missing_ok=True)
        (self._ours / "info").mkdir(mode=_FOLDER_MODE, exist_ok=True)
        for name, text in (
            ("HEAD", f"{self.commit}\n"),
            ("config", _OUR_SETTINGS),
            ("info/attributes", _OUR_ATTRIBUTES),
        ):
            file = self._ours / name
            file.unlink(missing_ok=True)
            file.write_text(text)

    def _check_out(self) -> None:
        (self._ours / "refs").mkdir(mode=_FOLDER_MODE)
        self._renew()
        self._run("read-tree", "--reset", "-u", self.commit)

    def _settle(self, taken: Taken, url: str) -> None:
        """Give the agent a repository of its own, as a clone would have made it."""
        place = self.folder / ".git"
        for folder in ("objects/info", "objects/pack", "refs/heads", "info"):
            (place / folder).mkdir(mode=_FOLDER_MODE, parents=True)
        heads, remotes = "refs/heads/", "refs/remotes/origin/"
        names = sorted(
            (os.fsencode(name.replace(heads, remotes, 1)), at) for at, name in taken.refs
        )
        packed = b"".join(at.encode() + b" " + name + b"\n" for name, at in names)
        (place / "packed-refs").write_bytes(b"# pack-refs with: sorted \n" + packed)
        (place / "objects/info/alternates").write_text(f"{self._ours / 'objects'}\n")
        quoted = url.replace("\\", "\\\\").replace('"', '\\"')
        (place / "config").write_text(_AGENTS_SETTINGS.format(url=quoted))
        shutil.copy2(self._ours / "index", place / "index")
        # Last: without it, it is no repository.
        (place / "HEAD").write_text(f"{self.commit}\n")

    def _take_note(self, limit: int) -> Iterator[str]:
        """Make our list of files what is in the folder; the names of those that do not fit."""
        altered = _names(self._run("diff-files", "-z", "--name-only", "--ignore-submodules=all"))
        sizes = {name: self._size(name) for name in (*altered, *self._new_files())}
        gone = [name for name in altered if sizes[name] is None]
        there = sorted((size, name) for name, size in sizes.items() if size is not None)
        fitting: list[bytes] = []
        for size, name in there:
            limit -= size
            if limit >= 0 and self._readable(name):
                fitting.append(name)
            else:
                yield os.fsdecode(name)
        # What is gone first: a file may stand where there was a folder.
        if gone:
            lines = b"".join(b"0 %b\t%b\0" % (_NO_OBJECT.encode(), name) for name in gone)
            self._run("update-index", "-z", "--index-info", given=lines)
        if fitting:
            given = b"".join(name + b"\0" for name in fitting)
            self._run("update-index", "-z", "--add", "--remove", "--stdin", given=given)

    def _new_files(self) -> Iterator[bytes]:
        """Files that the commit does not have and does not ignore.

        A repository inside is a folder like others: agents make them, and mean the files.
        """
        below, seen = [b""], 0
        while below and seen <= _MOST_NESTED:
            folder = below.pop()
            # For git, all files of a repository inside are new.
            index = self._ours / "no-index" if folder else None
            listing = ("ls-files", "-z", "--others", "--exclude-standard")
            for name in _names(self._run(*listing, below=folder, index=index)):
                if name.endswith(b"/"):
                    below.append(folder + name)
                else:
                    yield folder + name
            seen += 1

    def _path(self, name: bytes) -> str:
        return os.path.join(self.folder, os.fsdecode(name))

    def _readable(self, name: bytes) -> bool:
        path = self._path(name)
        return os.path.islink(path) or os.access(path, os.R_OK)

    def _size(self, name: bytes) -> int | None:
        """Of a file or a link that is in the folder itself, not behind a link; None: it is gone."""
        path = self._path(name)
        below = os.path.dirname(os.fsdecode(name))
        folder = os.path.normpath(os.path.join(os.path.realpath(self.folder), below))
        if os.path.realpath(folder) != folder:
            return None
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        known = stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
        return found.st_size if known else None

    def _write(self, draft: Path, limit: int) -> Sequence[str]:
        """Write the patch; the names of files that did not fit."""
        compared = ("diff-index", "--cached", "--no-renames", "--ignore-submodules=all")
        shown = ("-p", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv")
        with open(draft, "w+b") as file:
            try:
                self.git.run(
                    *(*compared, *shown, self.commit),
                    doing="writing what the agent changed",
                    repository=self._ours,
                    tree=self.folder,
                    into=file,
                    limit=limit,
                )
            except TooMuch:
                file.seek(0)
                text = file.read()
                # Between two files it is still a patch.
                kept = text[: text.rfind(_NEXT_FILE) + 1]
                file.truncate(len(kept))
                names = _names(self._run(*compared, "-z", "--name-only", self.commit))
                written = (b"\n" + kept).count(_NEXT_FILE)
                return [os.fsdecode(name) for name in names[written:]]
        return ()


def _own(into: Path) -> Path:
    return into.with_name(f"{into.name}.git")


def _names(listed: bytes) -> list[bytes]:
    return [name for name in listed.split(b"\0") if name]
