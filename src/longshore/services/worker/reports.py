"""What an attempt has told of itself so far: output, what it does, what it has used, a summary."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from longshore.core.events.types import Activity, Usage
from longshore.core.tasks.rows import TaskRow
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import (
    ActivityReport,
    OutputReport,
    ProgressReport,
    SummaryReport,
    UsageReport,
)
from longshore.services.artifacts import Artifacts, has_artifacts
from longshore.services.errors_boundary import log_and_continue
from longshore.services.race import race
from longshore.services.retry import pauses_within, retry_unavailable
from longshore.services.worker.context import WorkerContext
from longshore.services.worker.output import OutputPump

logger = logging.getLogger(__name__)


class AttemptFiles:
    """Those of one attempt, with the lines in which it summed itself up."""

    def __init__(self, context: WorkerContext, row: TaskRow, summaries: Sequence[str]) -> None:
        self._context = context
        self._row = row
        self._summaries = summaries

    async def store(self, folder: Path | None, deadline_near: asyncio.Event) -> str | None:
        """Store them until there is no time left; what is missing, in words, or None."""
        if not has_artifacts(folder) and not self._summaries:
            return None
        note: str | None = "files that are not kept: all, the worker had no time left"
        if deadline_near.is_set():
            return note
        async with race(self._store(folder), deadline_near.wait()) as (storing, _):
            if storing.done():
                note = await storing
        return note

    async def _store(self, folder: Path | None) -> str | None:
        context, task_id = self._context, self._row.id
        clock = context.backend.clock
        # The outcome matters more: storing files must not delay it beyond the lease.
        timeout = context.lease.duration / 3
        with log_and_continue(logger, "artifacts.store_failed", task_id=task_id):
            return await Artifacts(context.backend.blobs, context.artifacts).store(
                task_id,
                self._row.attempt,
                folder,
                summaries=self._summaries,
                retry=lambda put: retry_unavailable(
                    clock, put, pauses_within(clock, timeout), task_id=task_id
                ),
            )
        return "files that are not kept: some, or all, the worker could not store them"


_SUMMARY_LINES = 1_000
_ACTIVITY_CHARACTERS = 200


class AttemptReports:
    """Takes reports; progress and summaries are lines of output and what heartbeats tell, too."""

    def __init__(self, pump: OutputPump, clock: Clock) -> None:
        self._pump = pump
        self._clock = clock
        self.activity = Activity()
        self.usage = Usage()
        self.summaries: list[str] = []

    async def record(
        self, report: OutputReport | ActivityReport | UsageReport | ProgressReport | SummaryReport
    ) -> None:
        """Remember one report, or bring it to the output."""
        match report:
            case OutputReport(stream, data):
                await self._pump.add(stream, data)
            case ActivityReport(activity):
                self.activity = activity
            case UsageReport(usage):
                self.usage = usage
            case ProgressReport():
                await self._log_line("progress", str(report))
            case SummaryReport(text):
                if len(self.summaries) < _SUMMARY_LINES:
                    self.summaries.append(text)
                await self._log_line("summary", text)

    async def _log_line(self, kind: str, text: str) -> None:
        shown = text[:_ACTIVITY_CHARACTERS]
        self.activity = Activity(type=kind, step_name=shown, timestamp=self._clock.now())
        await self._pump.add(Stream.LOG, f"{kind}: {text}\n".encode(errors="replace"))
