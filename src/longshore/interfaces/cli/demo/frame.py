"""What is to be seen at one moment of the demo: each task, who runs it, and its last words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.core.text.sanitise import safe_excerpt

if TYPE_CHECKING:
    from longshore.wiring.services import Services

_MAX_LINE_CHARACTERS = 60
_JOB_PAGE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """One task."""

    key: str
    depth: int  # how many tasks are before it, on the longest way
    state: TaskState
    attempt: int
    worker: str  # the one that runs it, or ran it last
    duration: timedelta | None
    last_line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoNote:
    """Something that the audience must not miss."""

    text: str
    good: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFrame:
    """The whole stage."""

    job_id: str
    state: JobState
    elapsed: timedelta
    lines: tuple[TaskLine, ...]
    notes: tuple[DemoNote, ...]
    workers: tuple[tuple[str, int, bool], ...]  # name, process id, alive

    @property
    def completed(self) -> int:
        """How many tasks are done."""
        return sum(line.state is TaskState.COMPLETED for line in self.lines)


class FrameReader:
    """Looks at the rows and the output of one job, again and again."""

    def __init__(self, services: Services, job: JobRow, depths: Mapping[str, int]) -> None:
        self._backend = services.backend
        self._operations = services.application()
        self._job_id = job.id
        self._tenant = job.spec.tenant
        self._started_at = job.spec.created_at
        self._depths = depths
        self._names: dict[str, str] = {}
        self._workers: dict[str, str] = {}
        self._last_lines: dict[str, tuple[str, str]] = {}

    def name_worker(self, worker_id: str, name: str) -> None:
        """From now on a worker is shown under this name."""
        self._names[worker_id] = name

    async def rows(self) -> Sequence[TaskRow]:
        """The tasks as they are now."""
        page = await self._backend.ledger.list_tasks(
            self._tenant, job_id=self._job_id, limit=_JOB_PAGE
        )
        return page.items

    async def read_frame(
        self, notes: Sequence[DemoNote], workers: Sequence[tuple[str, int, bool]]
    ) -> DemoFrame:
        """The stage at this moment."""
        now = self._backend.clock.now()
        job = await self._backend.ledger.get_job(self._job_id)
        rows = await self.rows()
        return DemoFrame(
            job_id=self._job_id,
            state=job.state if job else JobState.FAILED,
            elapsed=now - self._started_at,
            lines=tuple([await self._task_line(row, now) for row in rows]),
            notes=tuple(notes),
            workers=tuple(workers),
        )

    async def _task_line(self, row: TaskRow, now: datetime) -> TaskLine:
        took = row.ran_for
        if row.lease is not None:
            self._workers[row.id] = self._names.get(row.lease.worker_id, row.lease.worker_id)
            took = now - row.lease.acquired_at
        return TaskLine(
            key=row.spec.key,
            depth=self._depths[row.spec.key],
            state=row.state,
            attempt=row.attempt,
            worker=self._workers.get(row.id, ""),
            duration=took,
            last_line=await self.read_last_line(row.id),
        )

    async def read_last_line(self, task_id: str) -> str:
        """The last line that a task printed."""
        after, last = self._last_lines.get(task_id, ("0.0", ""))
        while chunks := (await self._operations.read_output(task_id, after=after)).output:
            after = chunks[-1].id
            printed = b"".join(chunk.data for chunk in chunks).decode(errors="replace")
            last = next((line for line in reversed(printed.splitlines()) if line.strip()), last)
        self._last_lines[task_id] = (after, last)
        return safe_excerpt(last, limit=_MAX_LINE_CHARACTERS)
