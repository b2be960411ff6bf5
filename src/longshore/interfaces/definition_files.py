"""Definition files: ``longshore.yaml`` and ``definitions/*.yaml`` of a folder, read and watched.

Files are written while they are read: by editors, by ``git``, by people. So a change is believed
when it has stood still from one look to the next; half of a file may well be valid YAML. What is
wrong with a file is told with its place and costs only that file. Nothing in a folder may cost more
than a folder is worth: whatever can be counted has a limit, and so has what YAML's aliases stand
for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from longshore.core.dag import Problem
from longshore.core.definition import Definition
from longshore.interfaces.definition_documents import (
    Unreadable,
    from_json,
    from_yaml,
    read_file_document,
)
from longshore.interfaces.definition_schema import DEFINITIONS
from longshore.services.definition_sync import FileProblem, FromFile, Reading

LONGSHORE_YAML: Final = "longshore.yaml"
FILE_LIMIT: Final = 1_000
FILE_LIMIT_BYTES: Final = 256 * 1024
FOLDER_LIMIT_BYTES: Final = 1024 * 1024  # YAML is read at about 100 KB a second
PROBLEM_LIMIT: Final = 20

_SUFFIXES = (".yaml", ".yml", ".json")
_REASONS = {
    errno.ELOOP: "its symbolic links lead in a circle; put the file itself there",
    errno.ENOENT: "it is a symbolic link to nothing; mend it or remove it",
    errno.EACCES: "it may not be read by this user; see its permissions",
}

Signature = tuple[int, ...]
"""Changes whenever a file does: times, inode and size, or the error that there is instead."""


class BeingWritten(Unreadable):
    """A file changed while it was read."""

    def __init__(self) -> None:
        super().__init__("it is being written just now; it is read again at the next look")


@dataclass(frozen=True, slots=True)
class _Content:
    """What one file says."""

    definitions: tuple[Definition, ...] = ()
    problems: tuple[FileProblem, ...] = ()
    signature: Signature | None = None  # None: it may have been half written, and is read again


def read_folder(folder: Path) -> Reading:
    """What a folder says now: its definitions, and what is wrong with its files."""
    return FolderWatch(folder).read()


def read_paths(paths: Iterable[Path]) -> Reading:
    """Likewise of files and folders that somebody names, all together.

    A folder may also be one like ``definitions/``, which has the files in it.
    """
    files: dict[str, _Content] = {}
    problems: list[FileProblem] = []
    for path in paths:
        if not path.is_dir():
            files[str(path)] = _read_now(path, str(path))
            continue
        whole = any(os.path.lexists(path / name) for name in (LONGSHORE_YAML, DEFINITIONS))
        found, wrong = _listed(path, DEFINITIONS if whole else "")
        problems += wrong
        files |= {str(path / one): _read_now(path / one, str(path / one)) for one in found}
    return _together(files, problems)


class FolderWatch:
    """A folder that is looked at again and again; a look asks each file only whether it changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: dict[str, Signature] = {}
        self._files: dict[str, _Content] = {}

    def read(self) -> Reading:
        """Everything as it is now; what was being written is read again by the looks."""
        signatures, problems = _listed(self._folder, DEFINITIONS)
        self._files = {file: _read_now(self._folder / file, file) for file in signatures}
        return _together(self._files, problems)

    def look(self) -> Reading:
        """Likewise, but a file that changes counts as it was until it stands still."""
        signatures, problems = _listed(self._folder, DEFINITIONS)
        for file, signature in signatures.items():
            known = self._files.get(file)
            changed = known is None or known.signature != signature
            if changed and self._before.get(file) == signature:
                with contextlib.suppress(BeingWritten):
                    self._files[file] = _content(self._folder / file, file, signature)
        if not problems:
            # Gone for a moment is how some editors save.
            there = signatures.keys() | self._before.keys()
            self._files = {file: one for file, one in self._files.items() if file in there}
        self._before = signatures
        return _together(self._files, problems)


def _listed(folder: Path, inner: str) -> tuple[dict[str, Signature], list[FileProblem]]:
    """Every file that counts, and what is wrong with the folder as a whole."""
    own = _signatures(folder, [LONGSHORE_YAML])
    below = f"{inner}/" if inner else ""
    found: dict[str, Signature] = {}
    try:
        found = _signatures(folder, (f"{below}{name}" for name in _names_in(folder / inner)))
        problem = _too_much(found) if folder.is_dir() else "there is no such folder"
    except OSError as error:
        problem = _reason(error)
    if problem is None:
        return {**own, **found}, []
    place = below if below and folder.is_dir() else str(folder)
    return own, [FileProblem(file=place, message=problem)]


def _read_now(path: Path, file: str) -> _Content:
    try:
        return _content(path, file, None)
    except BeingWritten as error:
        return _unreadable(file, error, None)


def _content(path: Path, file: str, signature: Signature | None) -> _Content:
    """What a file says, which is told of as ``file``."""
    try:
        text = _text_of(path)
        value, lines = from_json(text) if path.suffix.lower() == ".json" else from_yaml(text)
    except BeingWritten:
        raise
    except Unreadable as error:
        return _unreadable(file, error, signature)
    alone = path.name != LONGSHORE_YAML
    if value is None and not alone:
        return _Content(signature=signature)
    definitions, found = read_file_document(value, alone=alone)
    problems = [_placed(file, one, lines) for one in found[:PROBLEM_LIMIT]]
    if (more := len(found) - len(problems)) > 0:
        problems.append(FileProblem(file=file, message=f"and {more:,} more of such problems"))
    return _Content(tuple(definitions), tuple(problems), signature)


def _together(files: Mapping[str, _Content], of_folder: Iterable[FileProblem]) -> Reading:
    problems = [*of_folder, *(one for read in files.values() for one in read.problems)]
    problems += _defined_twice(files)
    broken = {one.file for one in problems}
    documents = (
        FromFile(definition=definition, file=file)
        for file, read in files.items()
        for definition in read.definitions
        if file not in broken
    )
    return Reading(tuple(documents), tuple(problems))


def _defined_twice(files: Mapping[str, _Content]) -> Iterator[FileProblem]:
    users: dict[str, list[str]] = defaultdict(list)
    for file, read in files.items():
        for name in sorted({definition.name for definition in read.definitions}):
            users[name].append(file)
    for name, those in users.items():
        for file in those if len(those) > 1 else ():
            others = ", ".join(other for other in those if other != file)
            message = f"{name!r} is defined in {others} too, and none of them counts; keep one"
            yield FileProblem(file=file, message=message)


def _names_in(folder: Path) -> list[str]:
    """Names of the files in it that are ours to read; not many more than may be there."""
    found: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                # Editors keep their own beside them, with a dot before the name.
                if entry.name.lower().endswith(_SUFFIXES) and not entry.name.startswith("."):
                    found.append(entry.name)
                if len(found) > FILE_LIMIT:
                    break
    except FileNotFoundError:
        if os.path.lexists(folder):
            raise
    return sorted(found)


def _signatures(folder: Path, files: Iterable[str]) -> dict[str, Signature]:
    found: dict[str, Signature] = {}
    for file in files:
        path = folder / file
        try:
            now = path.stat()
        except OSError as error:
            if os.path.lexists(path):
                found[file] = (error.errno or 0,)
        else:
            found[file] = _signature(now)
    return found


def _signature(now: os.stat_result) -> Signature:
    return (now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino, now.st_dev)


def _too_much(files: Mapping[str, Signature]) -> str | None:
    if len(files) > FILE_LIMIT:
        return (
            f"it has more than {FILE_LIMIT:,} files, and none of them is read;"
            " put several definitions into one"
        )
    # What is too large by itself is not read anyway.
    sizes = (size for size, *_ in files.values() if size <= FILE_LIMIT_BYTES)
    if (total := sum(sizes)) > FOLDER_LIMIT_BYTES:
        return (
            f"its files have {total:,} bytes, more than {FOLDER_LIMIT_BYTES:,}, and none of them"
            " is read; keep only definitions there"
        )
    return None


def _reason(error: OSError) -> str:
    known = _REASONS.get(error.errno or 0)
    return known or f"it cannot be read: {error.strerror}"


def _text_of(path: Path) -> str:
    try:
        # A pipe must not make us wait for somebody who writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        if not os.path.lexists(path):
            message = "there is no such file"
            raise Unreadable(message) from error
        raise Unreadable(_reason(error)) from error
    except OSError as error:
        raise Unreadable(_reason(error)) from error
    try:
        data = _bytes_of(descriptor)
    except OSError as error:
        raise Unreadable(_reason(error)) from error
    finally:
        os.close(descriptor)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"it is not UTF-8 text (a byte is {data[error.start]:#x}); save it as UTF-8"
        raise Unreadable(message, line) from error


def _bytes_of(descriptor: int) -> bytes:
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):
        message = "it is not a file; call it otherwise, or move it out of the folder"
        raise Unreadable(message)
    if before.st_size > FILE_LIMIT_BYTES:
        message = (
            f"it has {before.st_size:,} bytes, more than {FILE_LIMIT_BYTES:,}; divide it, or"
            " move it out of the folder"
        )
        raise Unreadable(message)
    data = b""
    while piece := os.read(descriptor, FILE_LIMIT_BYTES + 1 - len(data)):
        data += piece
    if _signature(os.fstat(descriptor)) != _signature(before) or len(data) != before.st_size:
        raise BeingWritten
    return data


def _unreadable(file: str, error: Unreadable, signature: Signature | None) -> _Content:
    problem = FileProblem(file=file, message=str(error), line=error.line)
    return _Content(problems=(problem,), signature=signature)


def _placed(file: str, problem: Problem, lines: Mapping[str, int]) -> FileProblem:
    """The problem with the line of what it speaks of, or of the nearest around it."""
    path = problem.path
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return FileProblem(file=file, message=problem.message, path=problem.path, line=lines.get(path))
