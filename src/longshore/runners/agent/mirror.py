"""The machine's own copies of repositories, so that an attempt fetches only what is new.

All attempts and workers of a machine share them: one folder an address, and one lock, which git
itself holds too while it writes, so that nobody meets a git whose attempt was killed. A copy gets
its name when it is whole. What an attempt needs of it is linked, not lent: a copy may be deleted at
any time, by anybody, and no attempt at work will notice.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from longshore.core.agents.repositories import DEFAULT_REF, Address, cache_name, is_commit
from longshore.core.error_categories import ErrorCategory
from longshore.runners.agent.git import Access, Git
from longshore.runners.agent.git_troubles import GitFailed, UnknownRef

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_LOOK_S = 0.02
# More packs than this make git slow.
_MOST_PACKS = 40

_NAMES = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_OURS = "refs/longshore"
# Nothing of it may run anything, whoever wrote into it before.
_SETTINGS = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
# For a server that is a program on this machine: it may read what others own.
_LOCAL_SETTINGS = "[safe]\n\tdirectory = *\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What an attempt got of a repository besides its objects."""

    commit: str
    refs: tuple[tuple[str, str], ...]  # object, name; in the order of names


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What to ask a server for, and what the answer may be called here."""

    extra: str | None
    names: tuple[str, ...]


def _wanted(ref: str) -> _Wanted:
    if ref == DEFAULT_REF:
        return _Wanted(f"+HEAD:{_OURS}/HEAD", (f"{_OURS}/HEAD",))
    if is_commit(ref) or ref.startswith(("refs/heads/", "refs/tags/")):
        return _Wanted(None, (ref,))
    if ref.startswith("refs/"):
        return _Wanted(f"+{ref}:{_OURS}/asked/{ref}", (f"{_OURS}/asked/{ref}",))
    return _Wanted(None, (f"refs/heads/{ref}", f"refs/tags/{ref}"))


class Mirror:
    """This machine's copy of one repository.

    Args:
        cache: The folder of all copies.
        tell: Gets a line when something begins that may take long.
    """

    def __init__(
        self, cache: Path, address: Address, git: Git, access: Access, tell: Callable[[str], None]
    ) -> None:
        name = cache_name(address.url)
        self._cache = cache.absolute()
        self._place = self._cache / f"{name}.git"
        self._draft = self._cache / f"{name}.making"
        self._lock = self._cache / f"{name}.lock"
        self._url = address.url
        self._git = git
        self._access = access
        self._local = address.transport == "file"
        self._tell = tell

    def take(self, ref: str, own: Path) -> Taken:
        """Make ``own`` hold all objects of the repository, and find the commit that is wanted.

        A name is looked up at the server each time, because it may have moved; a commit only if it
        is not here.

        Raises:
            UnknownRef: there is no such commit.
            GitFailed: the repository cannot be had.
            TimeoutError: the deadline came first.
        """
        asked = time.monotonic_ns()
        with self._alone() as access:
            self._tidy()
            wanted = _wanted(ref)
            if not self._place.is_dir():
                self._make(wanted, access)
            elif not (is_commit(ref) and self._find(wanted)):
                self._fetch(self._place, wanted, access, since=asked)
            commit = self._find(wanted) or self._ask_for(ref, access)
            refs = self._refs()
            _link(self._place / "objects", own / "objects")
            self._join_packs(access)
        return Taken(commit=commit, refs=refs)

    def forget(self) -> None:
        """Delete the copy; the next to need it makes a new one."""
        with self._alone():
            shutil.rmtree(self._place, ignore_errors=True)

    @contextmanager
    def _alone(self) -> Iterator[Access]:
        """Keep everybody else away; what git needs to keep them away too."""
        number = self._locked()
        try:
            settings = self._place.with_suffix(".config") if self._local else None
            if settings is not None:
                _write(settings, _LOCAL_SETTINGS)
            yield replace(self._access, held=(number,), settings_file=settings)
        finally:
            os.close(number)

    def _locked(self) -> int:
        waiting, told = Event(), False
        while True:
            number = self._lock_if_free()
            if number is not None:
                return number
            if not told:
                self._tell(f"waiting: another attempt is fetching {self._url}")
                told = True
            self._git.alive()
            if time.monotonic() > self._git.deadline:
                message = f"{self._url}: another attempt was fetching it until the time was up"
                raise TimeoutError(message)
            # The kernel wakes only those who wait without a limit.
            waiting.wait(_LOOK_S)

    def _lock_if_free(self) -> int | None:
        self._cache.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        number = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever deletes the cache deletes the file, and others would lock a new one.
            if os.path.samestat(os.fstat(number), os.stat(self._lock)):
                return number
        os.close(number)
        return None

    def _tidy(self) -> None:
        """Remove what was left by somebody who was killed: all who write hold the lock."""
        shutil.rmtree(self._draft, ignore_errors=True)
        for folder, _, names in os.walk(self._place):
            for name in names:
                if name.endswith((".lock", ".tmp")) or name.startswith("tmp_"):
                    with suppress(OSError):
                        os.unlink(os.path.join(folder, name))
        if self._place.is_dir():
            _write(self._place / "config", _SETTINGS)

    def _make(self, wanted: _Wanted, access: Access) -> None:
        self._tell(f"cloning {self._url}")
        self._draft.mkdir(mode=_FOLDER_MODE)
        doing = f"cloning {self._url}"
        try:
            init = ("init", "--quiet", "--bare", "--template=", "--object-format=sha1")
            self._git.run(*init, doing=doing, repository=self._draft)
            self._fetch(self._draft, wanted, access)
            self._git.run("pack-refs", "--all", doing=doing, repository=self._draft)
        except BaseException:
            shutil.rmtree(self._draft, ignore_errors=True)
            raise
        os.rename(self._draft, self._place)

    def _fetch(self, place: Path, wanted: _Wanted, access: Access, *, since: int = 0) -> None:
        extra = () if wanted.extra is None else (wanted.extra,)
        mark = place / f"fetched-{cache_name(' '.join(extra))[:16]}"
        if since and since <= _number_in(mark) <= time.monotonic_ns():
            # Somebody began to fetch the same after we had asked: it cannot be out of date.
            return
        if since:
            self._tell(f"fetching {self._url}")
        began = time.monotonic_ns()
        self._git.run(
            *("fetch", "--quiet", "--force", "--prune", "--no-tags", "--no-write-fetch-head"),
            *("--no-recurse-submodules", "--no-auto-maintenance", "--", self._url),
            *_NAMES,
            *extra,
            doing=f"fetching {self._url}",
            repository=place,
            access=access,
        )
        _write(mark, str(began))

    def _find(self, wanted: _Wanted) -> str | None:
        """The commit that the first of the names which is there means."""
        questions = "".join(f"{name}^{{commit}}\n" for name in wanted.names)
        said = self._git.run(
            *("cat-file", "--batch-check=%(objectname) %(objecttype)"),
            doing=f"looking into {self._url}",
            repository=self._place,
            given=questions.encode(),
        )
        answers = (line.split() for line in said.decode(errors="replace").splitlines())
        return next((words[0] for words in answers if words[1:] == ["commit"]), None)

    def _ask_for(self, ref: str, access: Access) -> str:
        """A commit that no branch and no tag leads to, if the server gives it."""
        if is_commit(ref):
            spec = f"+{ref}:{_OURS}/asked/{ref}"
            with suppress(UnknownRef):
                self._fetch(self._place, _Wanted(spec, ()), access)
            if self._find(_Wanted(None, (ref,))):
                return ref
        message = f"{self._url} at {ref!r}: {UnknownRef.remedy}"
        raise UnknownRef(message, ErrorCategory.VALIDATION)

    def _refs(self) -> tuple[tuple[str, str], ...]:
        said = self._git.run(
            *("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags"),
            doing=f"looking into {self._url}",
            repository=self._place,
        )
        pairs = (line.partition(" ") for line in os.fsdecode(said).split("\n") if line)
        return tuple((found, name) for found, _, name in pairs)

    def _join_packs(self, access: Access) -> None:
        if len(list((self._place / "objects" / "pack").glob("*.pack"))) <= _MOST_PACKS:
            return
        # Housekeeping: no attempt fails because it did not work.
        with suppress(GitFailed):
            self._git.run(
                *("repack", "-d", "-q", "--geometric=2", "--write-midx"),
                doing=f"tidying the copy of {self._url}",
                repository=self._place,
                access=replace(access, transport=Access().transport),
            )


def _link(source: Path, target: Path) -> None:
    """All files of a folder under other names, on another disk as copies."""
    for folder, _, names in os.walk(source):
        there = target / os.path.relpath(folder, source)
        there.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        for name in names:
            file = os.path.join(folder, name)
            try:
                os.link(file, there / name, follow_symlinks=False)
            except OSError:
                shutil.copyfile(file, there / name)


def _number_in(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return -1


def _write(file: Path, text: str) -> None:
    """Whole or not at all; a link of that name is replaced, not followed."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        draft.unlink()
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "w") as writing:
        writing.write(text)
    os.replace(draft, file)
