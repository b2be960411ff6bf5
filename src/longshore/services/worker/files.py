"""The files that an attempt leaves: stored before its outcome is told, unless there is no time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from longshore.core.rows import TaskRow
from longshore.services.artifacts import Artifacts, anything_in
from longshore.services.edges import stepped_over
from longshore.services.worker.patience import insistently
from longshore.services.worker.tools import Tools

logger = logging.getLogger(__name__)


class Files:
    """Those of one attempt, with the lines in which it summed itself up."""

    def __init__(self, tools: Tools, row: TaskRow, summaries: Sequence[str]) -> None:
        self._tools = tools
        self._row = row
        self._summaries = summaries

    async def keep(self, folder: Path | None, hurry: asyncio.Event) -> str | None:
        """Store them until there is no time left; what is missing, in words, or None."""
        if not anything_in(folder) and not self._summaries:
            return None
        note: str | None = "files that are not kept: all, the worker had no time left"
        if hurry.is_set():
            return note
        keeping = asyncio.ensure_future(self._kept(folder))
        hurried = asyncio.ensure_future(hurry.wait())
        try:
            await asyncio.wait((keeping, hurried), return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                note = await keeping
        finally:
            keeping.cancel()
            hurried.cancel()
            await asyncio.gather(keeping, hurried, return_exceptions=True)
        return note

    async def _kept(self, folder: Path | None) -> str | None:
        tools, task_id = self._tools, self._row.id
        # The outcome matters more: it must not come too late for the sake of these.
        patience = tools.lease.lasts / 3
        with stepped_over(logger, "artifacts.broken", task_id=task_id):
            return await Artifacts(tools.backend.blobs, tools.artifacts).keep(
                task_id,
                self._row.attempt,
                folder,
                summaries=self._summaries,
                insistently=lambda put: insistently(tools, task_id, put, patience=patience),
            )
        return "files that are not kept: some, or all, the worker could not store them"
