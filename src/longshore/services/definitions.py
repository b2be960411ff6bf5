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

from longshore.core.definitions.definition import Definition
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


@dataclass(slots=True)
class ApplyResult:
    """The result of a synchronisation: each definition as it is stored now."""

    new: list[Definition] = field(default_factory=list)
    changed: list[Definition] = field(default_factory=list)
    unchanged: list[Definition] = field(default_factory=list)
    overridden: list[str] = field(default_factory=list)
    """Names whose definition was replaced or deleted in another way since it was synchronised."""


class _SyncKey(NamedTuple):
    tenant: str
    folder: str
    name: str

    @property
    def key(self) -> str:
        return f"{_prefix(self.tenant, self.folder)}{self.name}.json"


@dataclass(slots=True)
class DefinitionSync:
    """Stores the definitions of files."""

    backend: Backend
    # What this process read or stored as the folder's version; it is recorded in the store too.
    _last_synced: dict[_SyncKey, Definition] = field(default_factory=dict)
    _listed_folders: set[tuple[str, str]] = field(default_factory=set)  # their records were listed
    _recorded: set[_SyncKey] = field(default_factory=set)

    async def sync_folder(
        self, tenant: str, folder: str, definitions: Iterable[FileDefinition]
    ) -> ApplyResult:
        """Store what has changed in the folder since the last synchronisation.

        A definition that cannot be stored is logged and skipped.

        Raises:
            BackendUnavailable: the store cannot be reached; the rest is stored next time.
        """
        applied = ApplyResult()
        for item in definitions:
            name = item.definition.name
            with log_and_continue(logger, "definition.rejected", definition=name, file=item.file):
                await self._sync_file(_SyncKey(tenant, folder, name), item, applied)
        return applied

    async def watch_folder(
        self,
        tenant: str,
        folder: str,
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
                folder=folder,
            ):
                reading = await read_folder()
                _log_problems(reading.problems, reported)
                reported = frozenset(reading.problems)
                await self.sync_folder(tenant, folder, reading.definitions)
                if not reading.problems:
                    names = {item.definition.name for item in reading.definitions}
                    await self._forget_removed(tenant, folder, names)

    async def _sync_file(self, key: _SyncKey, file: FileDefinition, applied: ApplyResult) -> None:
        synced = self._last_synced.get(key)
        if synced is not None and synced.content == file.definition.content:
            applied.unchanged.append(synced)
            return
        recorded = await self._recorded_version(key)
        if recorded is not None and recorded.content == file.definition.content:
            newest = await self.backend.definitions.get(key.tenant, key.name)
            # Stored by another process; if this one stored an older version since, it stores again.
            if synced is None or newest != synced:
                self._last_synced[key] = recorded
                if newest == recorded:
                    applied.unchanged.append(recorded)
                else:
                    applied.overridden.append(key.name)
                return
        stored = await self._put(key.tenant, file.definition, applied)
        # Recorded after it is stored: storing twice makes one version, and a version that was only
        # recorded would never be stored.
        await self._record(key, stored.version)
        self._last_synced[key] = stored
        extra = {"definition": stored.name, "version": stored.version, "file": file.file}
        logger.info("definition.applied", extra=extra)

    async def _put(self, tenant: str, definition: Definition, applied: ApplyResult) -> Definition:
        before = await self.backend.definitions.get(tenant, definition.name)
        stored = await self.backend.definitions.put(tenant, definition)
        if before is None:
            applied.new.append(stored)
        else:
            (applied.unchanged if stored == before else applied.changed).append(stored)
        return stored

    async def _forget_removed(self, tenant: str, folder: str, names: Collection[str]) -> None:
        """Log that definitions without a file stay stored, and delete their records."""
        if (tenant, folder) not in self._listed_folders:
            self._recorded |= await self._list_records(tenant, folder)
            self._listed_folders.add((tenant, folder))
        for record in sorted(self._recorded):
            if record[:2] == (tenant, folder) and record.name not in names:
                await self.backend.blobs.delete(record.key)
                self._recorded.discard(record)
                self._last_synced.pop(record, None)
                extra = {"definition": record.name, "folder": folder}
                logger.info("definition.file_removed", extra=extra)

    async def _recorded_version(self, key: _SyncKey) -> Definition | None:
        """Returns what the folder last stored under the name, if that can be read."""
        try:
            record = json.loads(await self.backend.blobs.get(key.key))
            version = int(record["version"])
        except NotFound:
            return None
        except (KeyError, TypeError, ValueError):
            logger.warning("definition.sync_record_rejected", extra={"definition": key.name})
            return None
        self._recorded.add(key)
        return await self.backend.definitions.get(key.tenant, key.name, version=version)

    async def _record(self, key: _SyncKey, version: int) -> None:
        record = {"folder": key.folder, "version": version}
        await self.backend.blobs.put(key.key, json.dumps(record).encode())
        self._recorded.add(key)

    async def _list_records(self, tenant: str, folder: str) -> set[_SyncKey]:
        prefix = _prefix(tenant, folder)
        return {
            _SyncKey(tenant, folder, key.removeprefix(prefix).removesuffix(".json"))
            async for keys in iter_pages(partial(self.backend.blobs.list_keys, prefix))
            for key in keys
        }


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
