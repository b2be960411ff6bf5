"""Stores the definitions of a folder, and follows the folder when it changes.

Definitions are also stored through the API and the command line. A file's definition is therefore
stored only if it differs from the version that this folder stored last. That version is recorded
beside the definitions, so that a restart stores nothing again, and an unchanged file does not
overrule a definition that was stored in another way. Two processes that follow one folder end with
its content, in either order.

A definition whose file disappears stays stored: submitted jobs may name it, and the files of a
folder that is being moved, or is between two commits, are missing only for a moment.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple, NoReturn

from longshore.core.definitions.definition import Definition, unlisted_secrets
from longshore.errors import NotFound
from longshore.ports.backend import Backend
from longshore.ports.clock import sleep_until_multiple
from longshore.services.reads import iter_pages
from longshore.services.resilience import log_and_continue

logger = logging.getLogger(__name__)

SYNC_RECORDS_PREFIX: Final = "definitions/"
"""Prefix of the blob keys under which the versions that folders stored are recorded."""

_FOLDER_CHARACTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDefinition:
    """A definition and its file."""

    definition: Definition
    file: str  # relative to the folder: "definitions/feed.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """A problem of a file; as text, a sentence for people."""

    file: str
    message: str
    path: str = ""  # inside the file: "definitions.feed.timeout"
    line: int | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        path = f"{self.path}: " if self.path else ""
        return f"{self.file}{line}: {path}{self.message}"


class FolderContents(NamedTuple):
    """The content of a folder. A file with a problem contributes no definition."""

    definitions: tuple[FileDefinition, ...]
    problems: tuple[FileProblem, ...]

    def with_secrets_checked(self, listed: Collection[str] | None) -> FolderContents:
        """Returns the content without the files that name other secrets; None: any may be named."""
        problems = [
            FileProblem(
                file=item.file,
                message=problem.message,
                path=f"definitions.{item.definition.name}.{problem.path}",
            )
            for item in (() if listed is None else self.definitions)
            for problem in unlisted_secrets(item.definition, listed or ())
        ]
        invalid = {problem.file for problem in problems}
        valid = [item for item in self.definitions if item.file not in invalid]
        return FolderContents(tuple(valid), (*self.problems, *problems))


@dataclass(slots=True)
class ApplyResult:
    """What a synchronisation has stored."""

    new: list[Definition] = field(default_factory=list)
    changed: list[Definition] = field(default_factory=list)
    overridden: list[str] = field(default_factory=list)
    """Names whose definition was replaced or deleted in another way since it was synchronised."""


@dataclass(slots=True)
class DefinitionSync:
    """Stores the definitions of the files of one folder, for one tenant."""

    backend: Backend
    tenant: str
    folder: str
    # By name. What this process read or stored as the folder's version; it is recorded in the store
    # too.
    _last_synced: dict[str, Definition] = field(default_factory=dict)
    _recorded: set[str] = field(default_factory=set)  # names that are known to have a record
    _listed: bool = False  # all records were listed

    async def sync(self, definitions: Iterable[FileDefinition]) -> ApplyResult:
        """Store what has changed in the folder since the last synchronisation.

        A definition that cannot be stored is logged and skipped.

        Raises:
            BackendUnavailable: the store cannot be reached; the rest is stored next time.
        """
        applied = ApplyResult()
        for item in definitions:
            name = item.definition.name
            with log_and_continue(logger, "definition.rejected", definition=name, file=item.file):
                await self._sync_file(item, applied)
        return applied

    async def watch(
        self,
        read_folder: Callable[[], Awaitable[FolderContents]],
        *,
        every: timedelta,
        reported: Collection[FileProblem] = (),
    ) -> NoReturn:
        """Follow the folder until cancelled; ``read_folder`` returns its current content.

        Each problem is logged once, and those in ``reported`` are not logged.
        """
        while True:
            await sleep_until_multiple(self.backend.clock, every)
            # No error may end the loop: the folder would seem unchanged.
            with log_and_continue(
                logger,
                "definitions.sync_failed",
                unavailable="definitions.unavailable",
                folder=self.folder,
            ):
                reading = await read_folder()
                _log_problems(reading.problems, reported)
                reported = frozenset(reading.problems)
                await self.sync(reading.definitions)
                if not reading.problems:
                    await self._forget_removed(item.definition.name for item in reading.definitions)

    async def _sync_file(self, file: FileDefinition, applied: ApplyResult) -> None:
        definition, name, store = file.definition, file.definition.name, self.backend.definitions
        synced = self._last_synced.get(name)
        if synced is not None and synced.content == definition.content:
            return
        recorded = await self._recorded_version(name)
        if recorded is not None and recorded.content == definition.content:
            newest = await store.get(self.tenant, name)
            # Stored by another process; if this one stored an older version since, it stores again.
            if synced is None or newest != synced:
                self._last_synced[name] = recorded
                if newest != recorded:
                    applied.overridden.append(name)
                return
        before = await store.get(self.tenant, name)
        stored = await store.put(self.tenant, definition)
        if stored != before:
            (applied.new if before is None else applied.changed).append(stored)
        # Recorded after it is stored: storing twice makes one version, and a version that was only
        # recorded would never be stored.
        await self._record(name, stored.version)
        self._last_synced[name] = stored
        extra = {"definition": name, "version": stored.version, "file": file.file}
        logger.info("definition.applied", extra=extra)

    async def _forget_removed(self, present: Iterable[str]) -> None:
        """Log that definitions without a file stay stored, and delete their records."""
        if not self._listed:
            prefix = _prefix(self.tenant, self.folder)
            async for keys in iter_pages(partial(self.backend.blobs.list_keys, prefix)):
                self._recorded |= {key.removeprefix(prefix).removesuffix(".json") for key in keys}
            self._listed = True
        for name in sorted(self._recorded.difference(present)):
            await self.backend.blobs.delete(self._key(name))
            self._recorded.discard(name)
            self._last_synced.pop(name, None)
            extra = {"definition": name, "folder": self.folder}
            logger.info("definition.file_removed", extra=extra)

    async def _recorded_version(self, name: str) -> Definition | None:
        """Returns what the folder last stored under the name, if that can be read."""
        try:
            record = json.loads(await self.backend.blobs.get(self._key(name)))
            version = int(record["version"])
        except NotFound:
            return None
        except (KeyError, TypeError, ValueError):
            logger.warning("definition.sync_record_rejected", extra={"definition": name})
            return None
        self._recorded.add(name)
        return await self.backend.definitions.get(self.tenant, name, version=version)

    async def _record(self, name: str, version: int) -> None:
        record = {"folder": self.folder, "version": version}
        await self.backend.blobs.put(self._key(name), json.dumps(record).encode())
        self._recorded.add(name)

    def _key(self, name: str) -> str:
        return f"{_prefix(self.tenant, self.folder)}{name}.json"


def _prefix(tenant: str, folder: str) -> str:
    digest = hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()
    return f"{SYNC_RECORDS_PREFIX}{tenant}/{digest[:_FOLDER_CHARACTERS]}/"


def _log_problems(problems: Sequence[FileProblem], reported: Collection[FileProblem]) -> None:
    for item in problems:
        if item not in reported:
            extra = {
                "file": item.file,
                "line": item.line,
                "path": item.path,
                "problem": item.message,
            }
            logger.warning("definition_file.broken", extra=extra)
    still_broken = {item.file for item in problems}
    for file in sorted({item.file for item in reported} - still_broken):
        logger.info("definition_file.fixed", extra={"file": file})
