"""Definition files: brings what a folder says into the store, and follows it while it changes.

The store belongs to the API and the command line as much as to the folder, so a folder speaks only
when it has something new to say: what it says of a name is stored if it differs from the version
that this folder stored last. That version is written down beside the definitions, so a restart says
nothing again, and whoever stored another one meanwhile is not overruled by a file that did not
change. Two processes that follow one folder end with what it says, whoever is late.

A definition that leaves the folder stays: jobs name it that others submit, and a folder that is
being moved, or is between two commits, has lost its files only for a moment.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, NamedTuple, NoReturn

from longshore.core.definition import Definition
from longshore.errors import BackendUnavailable, NotFound
from longshore.ports.backend import Backend
from longshore.services.edges import stepped_over

logger = logging.getLogger(__name__)

MARKS: Final = "definitions/"
"""What all keys begin with under which is kept what folders have stored."""

_FOLDER_CHARACTERS = 16
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FromFile:
    """A definition, and the file that it stands in."""

    definition: Definition
    file: str  # from the folder on: "definitions/feed.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """Something that is wrong with a file; as text, a whole sentence for a person."""

    file: str
    message: str
    path: str = ""  # inside the file: "definitions.feed.timeout"
    line: int | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        path = f"{self.path}: " if self.path else ""
        return f"{self.file}{line}: {path}{self.message}"


class Reading(NamedTuple):
    """What a folder says. Nothing of a file that has a problem is among the documents."""

    documents: tuple[FromFile, ...]
    problems: tuple[FileProblem, ...]


@dataclass(slots=True)
class Applied:
    """What came of bringing definitions into the store, each as it is there now."""

    new: list[Definition] = field(default_factory=list)
    changed: list[Definition] = field(default_factory=list)
    same: list[Definition] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """Names of which somebody stored another version, or deleted it, since the folder spoke."""


class _Known(NamedTuple):
    tenant: str
    folder: str
    name: str

    @property
    def key(self) -> str:
        return f"{_prefix(self.tenant, self.folder)}{self.name}.json"


class DefinitionSync:
    """Brings definitions of files into the store."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # What this process found or put there as the folder's; it is written down as well.
        self._said: dict[_Known, Definition] = {}
        self._listed: set[tuple[str, str]] = set()  # of whom all marks are known
        self._marked: set[_Known] = set()

    async def apply(self, tenant: str, definitions: Iterable[Definition]) -> Applied:
        """Store each that is not as its newest version, as somebody asks who means it now."""
        applied = Applied()
        for definition in definitions:
            await self._put(tenant, definition, applied)
        return applied

    async def follow(self, tenant: str, folder: str, documents: Iterable[FromFile]) -> Applied:
        """Store what the folder says otherwise than when it last spoke.

        One that cannot be stored is told and stepped over.

        Raises:
            BackendUnavailable: the store is out of reach; what is missing is stored next time.
        """
        applied = Applied()
        for one in documents:
            name = one.definition.name
            with stepped_over(logger, "definition.not_applied", definition=name, file=one.file):
                await self._follow(_Known(tenant, folder, name), one, applied)
        return applied

    async def watch(
        self,
        tenant: str,
        folder: str,
        look: Callable[[], Awaitable[Reading]],
        *,
        every: timedelta,
        told: Collection[FileProblem] = (),
    ) -> NoReturn:
        """Follow the folder until cancelled; ``look`` says what is in it now.

        Problems are told once, and those that were ``told`` before not at all.
        """
        while True:
            await self._backend.clock.sleep(every)
            try:
                reading = await look()
                _tell(reading.problems, told)
                told = frozenset(reading.problems)
                await self.follow(tenant, folder, reading.documents)
                if not reading.problems:
                    names = {one.definition.name for one in reading.documents}
                    await self._leave(tenant, folder, names)
            except BackendUnavailable as error:
                logger.warning("definitions.unavailable", extra={"error": str(error)})
            except Exception:  # the edge: a folder that nobody follows looks like one at rest
                logger.exception("definitions.broken", extra={"folder": folder})

    async def _follow(self, known: _Known, one: FromFile, applied: Applied) -> None:
        said = self._said.get(known)
        if said is not None and _alike(said, one.definition):
            applied.same.append(said)
            return
        marked = await self._marked_version(known)
        if marked is not None and _alike(marked, one.definition):
            newest = await self._backend.definitions.get(known.tenant, known.name)
            # Stored by another process; if this one then stored something older, it does so again.
            if said is None or newest != said:
                self._said[known] = marked
                if newest == marked:
                    applied.same.append(marked)
                else:
                    applied.elsewhere.append(known.name)
                return
        stored = await self._put(known.tenant, one.definition, applied)
        # Written down after it is stored: what is stored twice is one version, and what was only
        # written down would be missing for ever.
        await self._mark(known, stored.version)
        self._said[known] = stored
        extra = {"definition": stored.name, "version": stored.version, "file": one.file}
        logger.info("definition.applied", extra=extra)

    async def _put(self, tenant: str, definition: Definition, applied: Applied) -> Definition:
        before = await self._backend.definitions.get(tenant, definition.name)
        stored = await self._backend.definitions.put(tenant, definition)
        if before is None:
            applied.new.append(stored)
        else:
            (applied.same if stored == before else applied.changed).append(stored)
        return stored

    async def _leave(self, tenant: str, folder: str, names: Collection[str]) -> None:
        """Say of what is no longer in the folder that it stays, and forget that it was there."""
        if (tenant, folder) not in self._listed:
            self._marked |= await self._marks(tenant, folder)
            self._listed.add((tenant, folder))
        for known in sorted(self._marked):
            if known[:2] == (tenant, folder) and known.name not in names:
                await self._backend.blobs.delete(known.key)
                self._marked.discard(known)
                self._said.pop(known, None)
                extra = {"definition": known.name, "folder": folder}
                logger.info("definition.left_as_it_is", extra=extra)

    async def _marked_version(self, known: _Known) -> Definition | None:
        """What the folder last stored under the name, if that can be told."""
        try:
            mark = json.loads(await self._backend.blobs.get(known.key))
            version = int(mark["version"])
        except NotFound:
            return None
        except (KeyError, TypeError, ValueError):
            logger.warning("definition.mark_unreadable", extra={"definition": known.name})
            return None
        self._marked.add(known)
        return await self._backend.definitions.get(known.tenant, known.name, version=version)

    async def _mark(self, known: _Known, version: int) -> None:
        mark = {"folder": known.folder, "version": version}
        await self._backend.blobs.put(known.key, json.dumps(mark).encode())
        self._marked.add(known)

    async def _marks(self, tenant: str, folder: str) -> set[_Known]:
        prefix, after = _prefix(tenant, folder), ""
        found: set[_Known] = set()
        while keys := await self._backend.blobs.keys(prefix, after=after, limit=_AT_ONCE):
            names = (key.removeprefix(prefix).removesuffix(".json") for key in keys)
            found |= {_Known(tenant, folder, name) for name in names}
            after = keys[-1]
        return found


def _prefix(tenant: str, folder: str) -> str:
    digest = hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()
    return f"{MARKS}{tenant}/{digest[:_FOLDER_CHARACTERS]}/"


def _alike(one: Definition, other: Definition) -> bool:
    return replace(one, version=0) == replace(other, version=0)


def _tell(problems: Sequence[FileProblem], told: Collection[FileProblem]) -> None:
    for one in problems:
        if one not in told:
            extra = {"file": one.file, "line": one.line, "path": one.path, "problem": one.message}
            logger.warning("definition_file.broken", extra=extra)
    still_broken = {one.file for one in problems}
    for file in sorted({one.file for one in told} - still_broken):
        logger.info("definition_file.mended", extra={"file": file})
