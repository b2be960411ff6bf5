"""Local mirrors of repositories, so that an attempt fetches only new objects.

All attempts of a tenant on a machine share the mirrors: one folder and one lock per address. Git
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
from longshore.execution.runners.agent.git import Git, GitFailed, UnknownRef, replace_file

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
        with self._locked() as locked:
            return locked._fetch_commit(ref, own)

    def delete(self) -> None:
        """Delete the mirror; the next attempt creates a new one."""
        with self._locked():
            shutil.rmtree(self._directory, ignore_errors=True)

    def _fetch_commit(self, ref: str, own: Path) -> FetchedCommit:
        self._remove_leftovers()
        request = _ref_request(ref)
        if not self._directory.is_dir():
            self._clone(request)
        elif not (is_commit(ref) and self._resolve(request)):
            self.on_progress(f"fetching {self.url}")
            self._fetch(self._directory, request)
        commit = self._resolve(request) or self._fetch_unreferenced(ref)
        refs = self._refs()
        objects = own / "objects"
        shutil.copytree(self._directory / "objects", objects, copy_function=_link_or_copy)
        self._repack()
        return FetchedCommit(commit=commit, refs=refs)

    @contextmanager
    def _locked(self) -> Iterator[Mirror]:
        """Hold the lock; yields the mirror with a git that holds it too, and may fetch."""
        lock_fd = self._acquire_lock()
        try:
            settings = None
            if self.transport == "file":
                settings = self._directory.with_suffix(".config")
                replace_file(settings, _LOCAL_CONFIG)
            git = replace(
                self.git,
                transport=self.transport,
                config_file=settings,
                inherited_fds=(lock_fd,),
            )
            yield replace(self, git=git)
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
            replace_file(self._directory / "config", _CONFIG)

    def _run(
        self, operation: str, *arguments: str, directory: Path | None = None, stdin: bytes = b""
    ) -> bytes:
        return self.git.run(
            *arguments,
            operation=f"{operation} {self.url}",
            repository=directory or self._directory,
            stdin=stdin,
        )

    def _clone(self, request: _RefRequest) -> None:
        self.on_progress(f"cloning {self.url}")
        self._draft.mkdir(mode=_FOLDER_MODE)
        try:
            init = ("init", "--quiet", "--bare", "--template=", "--object-format=sha1")
            self._run("cloning", *init, directory=self._draft)
            self._fetch(self._draft, request)
            self._run("cloning", "pack-refs", "--all", directory=self._draft)
            os.rename(self._draft, self._directory)
        finally:
            shutil.rmtree(self._draft, ignore_errors=True)

    def _fetch(self, directory: Path, request: _RefRequest) -> None:
        self._run(
            "fetching",
            *("fetch", "--quiet", "--force", "--prune", "--no-tags", "--no-write-fetch-head"),
            *("--no-recurse-submodules", "--no-auto-maintenance", "--", self.url),
            *_REFSPECS,
            *request.extra_refspecs,
            directory=directory,
        )

    def _resolve(self, request: _RefRequest) -> str | None:
        """Returns the commit of the first candidate that exists; None if none does."""
        names = "".join(f"{name}^{{commit}}\n" for name in request.candidates)
        listing = ("cat-file", "--batch-check=%(objectname) %(objecttype)")
        output = self._run("looking into", *listing, stdin=names.encode())
        rows = (line.split() for line in output.decode(errors="replace").splitlines())
        return next((row[0] for row in rows if row[1:] == ["commit"]), None)

    def _fetch_unreferenced(self, ref: str) -> str:
        """Fetch a commit that no branch or tag contains, if the server allows it; returns it."""
        if is_commit(ref):
            request = _RefRequest((ref,), (f"+{ref}:{_PRIVATE_REFS}/{ref}",))
            with suppress(UnknownRef):
                self._fetch(self._directory, request)
            if self._resolve(request):
                return ref
        message = f"{self.url} at {ref!r}: {UnknownRef.remedy}"
        raise UnknownRef(message, ErrorCategory.VALIDATION)

    def _refs(self) -> tuple[tuple[str, str], ...]:
        listing = ("for-each-ref", "--format=%(objectname) %(refname)", *_FETCHED_REFS)
        output = self._run("looking into", *listing)
        pairs = (line.partition(" ") for line in os.fsdecode(output).split("\n") if line)
        return tuple((object_id, name) for object_id, _, name in pairs)

    def _repack(self) -> None:
        if len(list((self._directory / "objects" / "pack").glob("*.pack"))) > _MAX_PACKS:
            # Maintenance: a failure must not fail the attempt.
            with suppress(GitFailed):
                command = ("repack", "-d", "-q", "--geometric=2", "--write-midx")
                self._run("tidying the copy of", *command)


def _link_or_copy(source: str, target: str) -> None:
    """Hard-link a file; copy it if the target is on another disk."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target)
