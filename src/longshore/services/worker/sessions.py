"""Conversations with models: kept in parts while they go on, put together for the next attempt.

A part is written before anything is told that came after it, so an attempt that takes over finds
at least what its predecessor's outcome speaks of. Parts of one attempt never replace another's:
their names begin with its number.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from longshore.core.agents.transcripts import merged
from longshore.core.blob_keys import session_part
from longshore.core.rows import TaskRow
from longshore.ports.blobs import BlobStore
from longshore.ports.runner import Conversed, Session
from longshore.services.documents import Documents
from longshore.services.edges import stepped_over
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

_AT_ONCE = 1000


class Sessions:
    """What one attempt adds to its task's conversations."""

    def __init__(self, documents: Documents, transitions: Transitions, row: TaskRow) -> None:
        self._documents = documents
        self._transitions = transitions
        self._row = row
        self._parts = 0

    async def add(self, conversed: Conversed) -> None:
        """Keep a part; one that cannot be kept may have to be paid for again, and no more."""
        spec = self._row.spec
        self._parts += 1
        key = session_part(spec.job_id, spec.key, attempt=self._row.attempt, number=self._parts)
        part = {
            "session": conversed.session,
            "revision": self._row.revision,
            "entries": conversed.entries,
        }
        with stepped_over(logger, "session.not_kept", task_id=self._row.id):
            await self._transitions.persistently(lambda: self._documents.keep_key(key, part))


async def sessions_of(
    row: TaskRow, *, blobs: BlobStore, documents: Documents
) -> Mapping[str, Session]:
    """The conversations of a task, each entry once, by their ids."""
    prefix = session_part(row.spec.job_id, row.spec.key)
    before: dict[str, list[list[Any]]] = defaultdict(list)
    entries: dict[str, list[list[Any]]] = defaultdict(list)
    after = ""
    while keys := await blobs.keys(prefix, after=after, limit=_AT_ONCE):
        after = keys[-1]
        for key in keys:
            part = await documents.load_key(key)
            into = entries if part["revision"] == row.revision else before
            into[part["session"]].append(part["entries"])
    return {
        name: Session(before=merged(before[name]), entries=merged(entries[name]))
        for name in (*before, *(entries.keys() - before.keys()))
    }
