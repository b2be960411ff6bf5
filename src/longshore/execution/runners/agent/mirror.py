"""Local mirrors of repositories, so that an attempt fetches only new objects.

All attempts and workers of a machine share the mirrors: one folder and one lock per address. Git
itself holds the lock too while it writes, so that no attempt meets the git of a killed one. A
mirror gets its name when it is complete. An attempt hard-links the objects that it needs: a mirror
may be deleted at any time without an effect on running attempts.
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
from typing import NamedTuple

from longshore.core.agents.repositories import DEFAULT_REF, cache_name, is_commit
from longshore.core.tasks.failures import ErrorCategory
from longshore.execution.runners.agent.git import (
    NO_TRANSPORT,
    Git,
    GitAccess,
    GitFailed,
    UnknownRef,
)

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_LOCK_POLL_S = 0.02
# Git becomes slow with more packs.
_MAX_PACKS = 40

_FETCHED_REFS = ("refs/heads/", "refs/tags/")
_REFSPECS = tuple(f"+{prefix}*:{prefix}*" for prefix in _FETCHED_REFS)
_PRIVATE_REFS = "refs/longshore"
# Replaces the existing configuration, which might name programs to run.
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
# For a repository on this machine: git may read one that another user owns.
_LOCAL_CONFIG = "[safe]\n\tdirectory = *\n"


class FetchedCommit(NamedTuple):
    """The commit and the refs of a fetched repository."""

    commit: str
    refs: tuple[tuple[str, str], ...]  # object, name; sorted by name


class _RefRequest(NamedTuple):
    """What to fetch for a ref, and the local names under which it may be found."""

    candidates: tuple[str, ...]
    extra_refspecs: tuple[str, ...] = ()


def _ref_request(ref: str) -> _RefRequest:
    if ref == DEFAULT_REF or (ref.startswith("refs/") and not ref.startswith(_FETCHED_REFS)):
        own_name = f"{_PRIVATE_REFS}/{ref}"
        return _RefRequest((own_name,), (f"+{ref}:{own_name}",))
    if is_commit(ref) or ref.startswith(_FETCHED_REFS):
        return _RefRequest((ref,))
    return _RefRequest(tuple(prefix + ref for prefix in _FETCHED_REFS))


@dataclass(eq=False)
class Mirror:
    """The local mirror of one repository.

    Args:
        cache: The folder of all mirrors.
        on_progress: Called with a line before each operation that may take long.
    """

    cache: Path
    url: str
    transport: str
    git: Git
    on_progress: Callable[[str], None]

    def __post_init__(self) -> None:
        base = self.cache.absolute() / cache_name(self.url)
        self._directory, self._draft, self._lock = map(
            base.with_suffix, (".git", ".partial", ".lock")
        )

    def fetch_commit(self, ref: str, own: Path) -> FetchedCommit:
        """Link all objects of the repository into ``own``. Returns the requested commit.

        A branch or tag is fetched each time, because it may have moved; a commit only if it is
        missing here.

        Raises:
            UnknownRef: the repository has no such commit.
            GitFailed: the repository cannot be fetched.
            TimeoutError: the deadline has passed.
        """
        with self._exclusive() as access:
            self._remove_leftovers()
            request = _ref_request(ref)
            if not self._directory.is_dir():
                self._clone(request, access)
            elif not (is_commit(ref) and self._resolve(request)):
                self.on_progress(f"fetching {self.url}")
                self._fetch(self._directory, request, access)
            commit = self._resolve(request) or self._fetch_unreferenced(ref, access)
            refs = self._refs()
            objects = own / "objects"
            shutil.copytree(self._directory / "objects", objects, copy_function=_link_or_copy)
            self._repack(access)
        return FetchedCommit(commit=commit, refs=refs)

    def delete(self) -> None:
        """Delete the mirror; the next attempt creates a new one."""
        with self._exclusive():
            shutil.rmtree(self._directory, ignore_errors=True)

    @contextmanager
    def _exclusive(self) -> Iterator[GitAccess]:
        """Hold the lock; yields the access with which git holds it too."""
        lock_fd = self._acquire_lock()
        try:
            settings = None
            if self.transport == "file":
                settings = self._directory.with_suffix(".config")
                _write_atomically(settings, _LOCAL_CONFIG)
            yield GitAccess(
                transport=self.transport, inherited_fds=(lock_fd,), config_file=settings
            )
        finally:
            os.close(lock_fd)

    def _acquire_lock(self) -> int:
        pause, reported = Event(), False
        while (lock_fd := self._try_lock()) is None:
            if not reported:
                self.on_progress(f"waiting: another attempt is fetching {self.url}")
                reported = True
            if time.monotonic() > self.git.deadline:
                message = f"{self.url}: another attempt was fetching it until the time was up"
                raise TimeoutError(message)
            # A lock with a timeout has to be polled.
            pause.wait(_LOCK_POLL_S)
        return lock_fd

    def _try_lock(self) -> int | None:
        self._lock.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        lock_fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # If the cache was deleted, the lock file was too, and others would lock a new file.
            if os.path.samestat(os.fstat(lock_fd), os.stat(self._lock)):
                return lock_fd
        os.close(lock_fd)
        return None

    def _remove_leftovers(self) -> None:
        """Remove what a killed attempt left: every writer holds the lock."""
        shutil.rmtree(self._draft, ignore_errors=True)
        for folder, _, names in os.walk(self._directory):
            for name in names:
                if name.endswith((".lock", ".tmp")) or name.startswith("tmp_"):
                    with suppress(OSError):
                        os.unlink(os.path.join(folder, name))
        if self._directory.is_dir():
            _write_atomically(self._directory / "config", _CONFIG)

    def _clone(self, request: _RefRequest, access: GitAccess) -> None:
        self.on_progress(f"cloning {self.url}")
        self._draft.mkdir(mode=_FOLDER_MODE)
        operation = f"cloning {self.url}"
        try:
            init = ("init", "--quiet", "--bare", "--template=", "--object-format=sha1")
            self.git.run(*init, operation=operation, repository=self._draft)
            self._fetch(self._draft, request, access)
            self.git.run("pack-refs", "--all", operation=operation, repository=self._draft)
        except BaseException:
            shutil.rmtree(self._draft, ignore_errors=True)
            raise
        os.rename(self._draft, self._directory)

    def _fetch(self, directory: Path, request: _RefRequest, access: GitAccess) -> None:
        self.git.run(
            *("fetch", "--quiet", "--force", "--prune", "--no-tags", "--no-write-fetch-head"),
            *("--no-recurse-submodules", "--no-auto-maintenance", "--", self.url),
            *_REFSPECS,
            *request.extra_refspecs,
            operation=f"fetching {self.url}",
            repository=directory,
            access=access,
        )

    def _resolve(self, request: _RefRequest) -> str | None:
        """Returns the commit of the first candidate that exists; None if none does."""
        names = "".join(f"{name}^{{commit}}\n" for name in request.candidates)
        output = self.git.run(
            *("cat-file", "--batch-check=%(objectname) %(objecttype)"),
            operation=f"looking into {self.url}",
            repository=self._directory,
            stdin=names.encode(),
        )
        rows = (line.split() for line in output.decode(errors="replace").splitlines())
        return next((row[0] for row in rows if row[1:] == ["commit"]), None)

    def _fetch_unreferenced(self, ref: str, access: GitAccess) -> str:
        """Fetch a commit that no branch or tag contains, if the server allows it; returns it."""
        if is_commit(ref):
            request = _RefRequest((ref,), (f"+{ref}:{_PRIVATE_REFS}/{ref}",))
            with suppress(UnknownRef):
                self._fetch(self._directory, request, access)
            if self._resolve(request):
                return ref
        message = f"{self.url} at {ref!r}: {UnknownRef.remedy}"
        raise UnknownRef(message, ErrorCategory.VALIDATION)

    def _refs(self) -> tuple[tuple[str, str], ...]:
        output = self.git.run(
            *("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags"),
            operation=f"looking into {self.url}",
            repository=self._directory,
        )
        pairs = (line.partition(" ") for line in os.fsdecode(output).split("\n") if line)
        return tuple((object_id, name) for object_id, _, name in pairs)

    def _repack(self, access: GitAccess) -> None:
        if len(list((self._directory / "objects" / "pack").glob("*.pack"))) <= _MAX_PACKS:
            return
        # Maintenance: a failure must not fail the attempt.
        with suppress(GitFailed):
            self.git.run(
                *("repack", "-d", "-q", "--geometric=2", "--write-midx"),
                operation=f"tidying the copy of {self.url}",
                repository=self._directory,
                access=replace(access, transport=NO_TRANSPORT),
            )


def _link_or_copy(source: str, target: str) -> None:
    """Hard-link a file; copy it if the target is on another disk."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target)


def _write_atomically(file: Path, text: str) -> None:
    """Write a file atomically; a link of that name is replaced, not followed."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "w") as stream:
        stream.write(text)
    os.replace(draft, file)
