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

from longshore.core.definitions.definition import Definition
from longshore.core.definitions.reader import read_file_document
from longshore.core.definitions.schema import DEFINITIONS
from longshore.errors import Problem
from longshore.interfaces.document_files import UnreadableDocument, parse_json, parse_yaml
from longshore.services.definitions import FileDefinition, FileProblem, FolderContents

LONGSHORE_YAML: Final = "longshore.yaml"
FILE_LIMIT: Final = 1_000
FILE_LIMIT_BYTES: Final = 256 * 1024
FOLDER_LIMIT_BYTES: Final = 1024 * 1024  # YAML is read at about 100 KB a second
PROBLEM_LIMIT: Final = 20

_SUFFIXES = (".yaml", ".yml", ".json")
_READ_ERRORS = {
    errno.ELOOP: "its symbolic links lead in a circle; put the file itself there",
    errno.ENOENT: "it is a symbolic link to nothing; mend it or remove it",
    errno.EACCES: "it may not be read by this user; see its permissions",
}

Signature = tuple[int, ...]
"""Changes whenever a file does: times, inode and size, or the error that there is instead."""


class FileChangedWhileRead(UnreadableDocument):
    """A file changed while it was read."""

    def __init__(self) -> None:
        super().__init__("it is being written just now; it is read again at the next look")


@dataclass(frozen=True, slots=True)
class _FileContent:
    """What one file says."""

    definitions: tuple[Definition, ...] = ()
    problems: tuple[FileProblem, ...] = ()
    signature: Signature | None = None  # None: it may have been half written, and is read again


def read_folder(folder: Path) -> FolderContents:
    """What a folder says now: its definitions, and what is wrong with its files."""
    return FolderWatch(folder).read()


def read_paths(paths: Iterable[Path]) -> FolderContents:
    """Likewise of files and folders that somebody names, all together.

    A folder may also be one like ``definitions/``, which has the files in it.
    """
    files: dict[str, _FileContent] = {}
    problems: list[FileProblem] = []
    for path in paths:
        if not path.is_dir():
            files[str(path)] = _read_file(path, str(path))
            continue
        whole = any(os.path.lexists(path / name) for name in (LONGSHORE_YAML, DEFINITIONS))
        found, wrong = _list_files(path, DEFINITIONS if whole else "")
        problems += wrong
        files |= {str(path / one): _read_file(path / one, str(path / one)) for one in found}
    return _combine(files, problems)


class FolderWatch:
    """A folder that is looked at again and again; a look asks each file only whether it changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._previous: dict[str, Signature] = {}
        self._files: dict[str, _FileContent] = {}

    def read(self) -> FolderContents:
        """Everything as it is now; what was being written is read again by the looks."""
        signatures, problems = _list_files(self._folder, DEFINITIONS)
        self._files = {file: _read_file(self._folder / file, file) for file in signatures}
        return _combine(self._files, problems)

    def poll(self) -> FolderContents:
        """Likewise, but a file that changes counts as it was until it stands still."""
        signatures, problems = _list_files(self._folder, DEFINITIONS)
        for file, signature in signatures.items():
            known = self._files.get(file)
            changed = known is None or known.signature != signature
            if changed and self._previous.get(file) == signature:
                with contextlib.suppress(FileChangedWhileRead):
                    self._files[file] = _parse_file(self._folder / file, file, signature)
        if not problems:
            # Gone for a moment is how some editors save.
            there = signatures.keys() | self._previous.keys()
            self._files = {file: one for file, one in self._files.items() if file in there}
        self._previous = signatures
        return _combine(self._files, problems)


def _list_files(folder: Path, subfolder: str) -> tuple[dict[str, Signature], list[FileProblem]]:
    """Every file that counts, and what is wrong with the folder as a whole."""
    own = _signatures(folder, [LONGSHORE_YAML])
    below = f"{subfolder}/" if subfolder else ""
    found: dict[str, Signature] = {}
    try:
        found = _signatures(
            folder, (f"{below}{name}" for name in _definition_file_names(folder / subfolder))
        )
        problem = _size_problem(found) if folder.is_dir() else "there is no such folder"
    except OSError as error:
        problem = _read_error_text(error)
    if problem is None:
        return {**own, **found}, []
    place = below if below and folder.is_dir() else str(folder)
    return own, [FileProblem(file=place, message=problem)]


def _read_file(path: Path, file: str) -> _FileContent:
    try:
        return _parse_file(path, file, None)
    except FileChangedWhileRead as error:
        return _unreadable_content(file, error, None)


def _parse_file(path: Path, file: str, signature: Signature | None) -> _FileContent:
    """What a file says, which is told of as ``file``."""
    try:
        text = _read_text(path)
        is_json = path.suffix.lower() == ".json"
        value, lines = (parse_json(text), {}) if is_json else parse_yaml(text)
    except FileChangedWhileRead:
        raise
    except UnreadableDocument as error:
        return _unreadable_content(file, error, signature)
    alone = path.name != LONGSHORE_YAML
    if value is None and not alone:
        return _FileContent(signature=signature)
    definitions, found = read_file_document(value, allow_single=alone)
    problems = [_locate_problem(file, one, lines) for one in found[:PROBLEM_LIMIT]]
    if (more := len(found) - len(problems)) > 0:
        problems.append(FileProblem(file=file, message=f"and {more:,} more of such problems"))
    return _FileContent(tuple(definitions), tuple(problems), signature)


def _combine(
    files: Mapping[str, _FileContent], folder_problems: Iterable[FileProblem]
) -> FolderContents:
    problems = [*folder_problems, *(one for read in files.values() for one in read.problems)]
    problems += _duplicate_problems(files)
    broken = {one.file for one in problems}
    documents = (
        FileDefinition(definition=definition, file=file)
        for file, read in files.items()
        for definition in read.definitions
        if file not in broken
    )
    return FolderContents(tuple(documents), tuple(problems))


def _duplicate_problems(files: Mapping[str, _FileContent]) -> Iterator[FileProblem]:
    users: dict[str, list[str]] = defaultdict(list)
    for file, read in files.items():
        for name in sorted({definition.name for definition in read.definitions}):
            users[name].append(file)
    for name, those in users.items():
        for file in those if len(those) > 1 else ():
            others = ", ".join(other for other in those if other != file)
            message = f"{name!r} is defined in {others} too, and none of them counts; keep one"
            yield FileProblem(file=file, message=message)


def _definition_file_names(folder: Path) -> list[str]:
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


def _size_problem(files: Mapping[str, Signature]) -> str | None:
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


def _read_error_text(error: OSError) -> str:
    known = _READ_ERRORS.get(error.errno or 0)
    return known or f"it cannot be read: {error.strerror}"


def _read_text(path: Path) -> str:
    try:
        # A pipe must not make us wait for somebody who writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        if not os.path.lexists(path):
            message = "there is no such file"
            raise UnreadableDocument(message) from error
        raise UnreadableDocument(_read_error_text(error)) from error
    except OSError as error:
        raise UnreadableDocument(_read_error_text(error)) from error
    try:
        data = _read_bytes(descriptor)
    except OSError as error:
        raise UnreadableDocument(_read_error_text(error)) from error
    finally:
        os.close(descriptor)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"it is not UTF-8 text (a byte is {data[error.start]:#x}); save it as UTF-8"
        raise UnreadableDocument(message, line) from error


def _read_bytes(descriptor: int) -> bytes:
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):
        message = "it is not a file; call it otherwise, or move it out of the folder"
        raise UnreadableDocument(message)
    if before.st_size > FILE_LIMIT_BYTES:
        message = (
            f"it has {before.st_size:,} bytes, more than {FILE_LIMIT_BYTES:,}; divide it, or"
            " move it out of the folder"
        )
        raise UnreadableDocument(message)
    data = b""
    while piece := os.read(descriptor, FILE_LIMIT_BYTES + 1 - len(data)):
        data += piece
    if _signature(os.fstat(descriptor)) != _signature(before) or len(data) != before.st_size:
        raise FileChangedWhileRead
    return data


def _unreadable_content(
    file: str, error: UnreadableDocument, signature: Signature | None
) -> _FileContent:
    problem = FileProblem(file=file, message=str(error), line=error.line)
    return _FileContent(problems=(problem,), signature=signature)


def _locate_problem(file: str, problem: Problem, lines: Mapping[str, int]) -> FileProblem:
    """The problem with the line of what it speaks of, or of the nearest around it."""
    path = problem.path
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return FileProblem(file=file, message=problem.message, path=problem.path, line=lines.get(path))
