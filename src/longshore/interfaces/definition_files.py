"""Definition files: ``longshore.yaml`` and ``definitions/*.yaml`` of a folder, read and polled.

Editors, ``git`` and users write files while they are read, and half of a file may be valid YAML. A
changed file is therefore read only when it is unchanged from one poll to the next. Problems are
reported with their location and affect only their file. The number and the size of files are
limited.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from longshore.core.definitions.definition import Definition
from longshore.core.definitions.reader import DEFINITIONS, read_file_document
from longshore.core.document_reader import MAX_PROBLEMS
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
    errno.EISDIR: "it is not a regular file; rename it, or move it out of the folder",
    errno.ELOOP: "its symbolic links form a cycle; replace the link by the file",
    errno.ENOENT: "it is a broken symbolic link; fix or remove the link",
    errno.EACCES: "this user may not read it; check its permissions",
}

Signature = tuple[int, ...]
"""Changes whenever the file changes: size, times and inode, or the error of reading them."""


class FileChangedWhileRead(UnreadableDocument):
    """A file changed while it was read."""

    def __init__(self) -> None:
        super().__init__("it changed while it was read; it is read again at the next poll")


@dataclass(frozen=True, slots=True)
class _FileContent:
    """The content of one file."""

    definitions: tuple[Definition, ...] = ()
    problems: tuple[FileProblem, ...] = ()
    signature: Signature | None = None  # None: it may be incomplete, and is read again


def read_paths(paths: Iterable[Path]) -> FolderContents:
    """Returns the definitions of these files and folders, and their problems.

    A folder may also be a folder of definition files, such as ``definitions/``.
    """
    files: dict[str, _FileContent] = {}
    problems: list[FileProblem] = []
    for path in paths:
        if not path.is_dir():
            files[str(path)] = _read_file(path, str(path))
            continue
        project = any(os.path.lexists(path / name) for name in (LONGSHORE_YAML, DEFINITIONS))
        signatures, folder_problems = _list_files(path, DEFINITIONS if project else "")
        problems += folder_problems
        files |= {
            str(path / file): _read_file(path / file, str(path / file)) for file in signatures
        }
    return _combine(files, problems)


class FolderWatch:
    """A folder that is polled; a poll reads only the files that changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._previous: dict[str, Signature] = {}
        self._files: dict[str, _FileContent] = {}

    def read(self) -> FolderContents:
        """Read all files; a file that changes meanwhile is read again by a later poll."""
        signatures, problems = _list_files(self._folder, DEFINITIONS)
        self._files = {file: _read_file(self._folder / file, file) for file in signatures}
        return _combine(self._files, problems)

    def poll(self) -> FolderContents:
        """Read the files that changed before the last poll and not since.

        Other files count as they were when they were last read.
        """
        signatures, problems = _list_files(self._folder, DEFINITIONS)
        for file, signature in signatures.items():
            content = self._files.get(file)
            changed = content is None or content.signature != signature
            if changed and self._previous.get(file) == signature:
                read = _read_file(self._folder / file, file, signature)
                if read.signature is not None:
                    self._files[file] = read
        if not problems:
            # Some editors remove a file for a moment when they save it.
            recent = signatures.keys() | self._previous.keys()
            self._files = {file: item for file, item in self._files.items() if file in recent}
        self._previous = signatures
        return _combine(self._files, problems)


def _list_files(folder: Path, subfolder: str) -> tuple[dict[str, Signature], list[FileProblem]]:
    """Returns the definition files of a folder, and the problems of the folder itself."""
    own = _signatures(folder, [LONGSHORE_YAML])
    below = f"{subfolder}/" if subfolder else ""
    listed: dict[str, Signature] = {}
    try:
        listed = _signatures(
            folder, (f"{below}{name}" for name in _definition_file_names(folder / subfolder))
        )
        problem = _size_problem(listed) if folder.is_dir() else "the folder does not exist"
    except OSError as error:
        problem = _read_error_text(error)
    if problem is None:
        return {**own, **listed}, []
    shown = below if below and folder.is_dir() else str(folder)
    return own, [FileProblem(file=shown, message=problem)]


def _read_file(path: Path, file: str, signature: Signature | None = None) -> _FileContent:
    """Returns the content of a file; ``file`` is its name in problems."""
    try:
        text = _read_text(path)
        is_json = path.suffix.lower() == ".json"
        value, lines = (parse_json(text), {}) if is_json else parse_yaml(text)
    except UnreadableDocument as error:
        problem = FileProblem(file=file, message=str(error), line=error.line)
        complete = not isinstance(error, FileChangedWhileRead)
        return _FileContent(problems=(problem,), signature=signature if complete else None)
    allow_single = path.name != LONGSHORE_YAML
    if value is None and not allow_single:
        return _FileContent(signature=signature)
    definitions, all_problems = read_file_document(value, allow_single=allow_single)
    problems = [_locate_problem(file, problem, lines) for problem in all_problems[:PROBLEM_LIMIT]]
    if (more := len(all_problems) - len(problems)) > 0:
        least = "at least " if len(all_problems) > MAX_PROBLEMS else ""
        problems.append(FileProblem(file=file, message=f"and {least}{more:,} more problems"))
    return _FileContent(tuple(definitions), tuple(problems), signature)


def _combine(
    files: Mapping[str, _FileContent], folder_problems: Iterable[FileProblem]
) -> FolderContents:
    problems = list(folder_problems)
    for content in files.values():
        problems += content.problems
    problems += _duplicate_problems(files)
    invalid = {item.file for item in problems}
    documents = (
        FileDefinition(definition=definition, file=file)
        for file, content in files.items()
        for definition in content.definitions
        if file not in invalid
    )
    return FolderContents(tuple(documents), tuple(problems))


def _duplicate_problems(files: Mapping[str, _FileContent]) -> Iterator[FileProblem]:
    users: dict[str, list[str]] = defaultdict(list)
    for file, content in files.items():
        for name in sorted({definition.name for definition in content.definitions}):
            users[name].append(file)
    for name, sources in users.items():
        for file in sources if len(sources) > 1 else ():
            others = ", ".join(other for other in sources if other != file)
            message = f"{name!r} is also defined in {others}, so none is stored; keep one"
            yield FileProblem(file=file, message=message)


def _definition_file_names(folder: Path) -> list[str]:
    """Returns the names of definition files in a folder, at most one more than allowed."""
    try:
        with os.scandir(folder) as entries:
            # Editors store their own files beside these, with a dot before the name.
            names = (
                entry.name
                for entry in entries
                if entry.name.lower().endswith(_SUFFIXES) and not entry.name.startswith(".")
            )
            return sorted(itertools.islice(names, FILE_LIMIT + 1))
    except FileNotFoundError:
        if os.path.lexists(folder):
            raise
        return []


def _signatures(folder: Path, files: Iterable[str]) -> dict[str, Signature]:
    signatures: dict[str, Signature] = {}
    for file in files:
        try:
            signatures[file] = _signature((folder / file).stat())
        except OSError as error:
            if os.path.lexists(folder / file):
                signatures[file] = (error.errno or 0,)
    return signatures


def _signature(status: os.stat_result) -> Signature:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def _size_problem(files: Mapping[str, Signature]) -> str | None:
    if len(files) > FILE_LIMIT:
        return (
            f"it has more than {FILE_LIMIT:,} files, so none is read;"
            " put several definitions into one file"
        )
    # A file that is too large is not read.
    sizes = (size for size, *_ in files.values() if size <= FILE_LIMIT_BYTES)
    if (total := sum(sizes)) > FOLDER_LIMIT_BYTES:
        return (
            f"its files have {total:,} bytes, more than {FOLDER_LIMIT_BYTES:,}, so none is"
            " read; keep only definitions there"
        )
    return None


def _read_error_text(error: OSError) -> str:
    return _READ_ERRORS.get(error.errno or 0) or f"it cannot be read: {error.strerror}"


def _read_text(path: Path) -> str:
    # Opening a pipe must not wait for its writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            data = _read_bytes(file)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and not os.path.lexists(path)
        message = "the file does not exist" if missing else _read_error_text(error)
        raise UnreadableDocument(message) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"it is not UTF-8 text (a byte is {data[error.start]:#x}); save it as UTF-8"
        raise UnreadableDocument(message, line) from error


def _read_bytes(file: BinaryIO) -> bytes:
    before = os.fstat(file.fileno())
    if not stat.S_ISREG(before.st_mode):
        raise UnreadableDocument(_READ_ERRORS[errno.EISDIR])
    if before.st_size > FILE_LIMIT_BYTES:
        raise UnreadableDocument(
            f"it has {before.st_size:,} bytes, more than {FILE_LIMIT_BYTES:,}; divide it, or"
            " move it out of the folder"
        )
    data = file.read(FILE_LIMIT_BYTES + 1)
    if _signature(os.fstat(file.fileno())) != _signature(before) or len(data) != before.st_size:
        raise FileChangedWhileRead
    return data


def _locate_problem(file: str, problem: Problem, lines: Mapping[str, int]) -> FileProblem:
    """Returns the problem with its line, or the line of the nearest enclosing value."""
    path = problem.path
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return FileProblem(file=file, message=problem.message, path=problem.path, line=lines.get(path))
