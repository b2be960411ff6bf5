"""What is to be seen at one moment of the demo: each task, who runs it, and its last words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.core.rows import JobRow, TaskRow
from longshore.core.sanitise import safe_excerpt
from longshore.core.states import JobState, TaskState
from longshore.ports.backend import Backend
from longshore.ports.output import Place

_LONGEST = 60
_JOB_PAGE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One task."""

    key: str
    depth: int  # how many tasks are before it, on the longest way
    state: TaskState
    attempt: int
    worker: str  # the one that runs it, or ran it last
    took: timedelta | None
    last_words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that the audience must not miss."""

    text: str
    good: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The whole stage."""

    job_id: str
    state: JobState
    elapsed: timedelta
    lines: tuple[Line, ...]
    notes: tuple[Note, ...]
    workers: tuple[tuple[str, int, bool], ...]  # name, process id, alive

    @property
    def completed(self) -> int:
        """How many tasks are done."""
        return sum(line.state is TaskState.COMPLETED for line in self.lines)


class Stage:
    """Looks at the rows and the output of one job, again and again."""

    def __init__(self, backend: Backend, job: JobRow, depths: Mapping[str, int]) -> None:
        self._backend = backend
        self._job_id = job.id
        self._tenant = job.spec.tenant
        self._began = job.spec.created_at
        self._depths = depths
        self._names: dict[str, str] = {}
        self._ran_by: dict[str, str] = {}
        self._words: dict[str, tuple[Place, str]] = {}

    def introduce(self, worker_id: str, name: str) -> None:
        """From now on a worker is shown under this name."""
        self._names[worker_id] = name

    async def rows(self) -> Sequence[TaskRow]:
        """The tasks as they are now."""
        page = await self._backend.ledger.list_tasks(
            self._tenant, job_id=self._job_id, limit=_JOB_PAGE
        )
        return page.items

    async def look(self, notes: Sequence[Note], workers: Sequence[tuple[str, int, bool]]) -> Scene:
        """The stage at this moment."""
        now = self._backend.clock.now()
        job = await self._backend.ledger.job(self._job_id)
        rows = await self.rows()
        return Scene(
            job_id=self._job_id,
            state=job.state if job else JobState.FAILED,
            elapsed=now - self._began,
            lines=tuple([await self._line(row, now) for row in rows]),
            notes=tuple(notes),
            workers=tuple(workers),
        )

    async def _line(self, row: TaskRow, now: datetime) -> Line:
        took = row.ran_for
        if row.lease is not None:
            self._ran_by[row.id] = self._names.get(row.lease.worker_id, row.lease.worker_id)
            took = now - row.lease.acquired_at
        return Line(
            key=row.spec.key,
            depth=self._depths[row.spec.key],
            state=row.state,
            attempt=row.attempt,
            worker=self._ran_by.get(row.id, ""),
            took=took,
            last_words=await self.last_words(row.id),
        )

    async def last_words(self, task_id: str) -> str:
        """The last line that a task printed."""
        place, last = self._words.get(task_id, (Place(), ""))
        while batch := await self._backend.output.read(task_id, after=place):
            place = Place(batch[-1].attempt, batch[-1].end)
            printed = b"".join(entry.data for entry in batch).decode(errors="replace")
            last = next((line for line in reversed(printed.splitlines()) if line.strip()), last)
        self._words[task_id] = (place, last)
        return safe_excerpt(last, limit=_LONGEST)
