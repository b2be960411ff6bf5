"""The dispatcher: when a task has ended, its dependents may become ready and its job may end.

Events only say where to look. Decisions are made from rows, read in this order: the job, then its
tasks. A resume changes the job's row first, so a decision made from a stale task conflicts on the
job. Dependents are notified before the end is recorded in the job: a job that is recorded as
complete has nothing left to dispatch. All of it can be done twice without harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from longshore.core.documents import Document
from longshore.core.events.codec import EVENT_TYPES
from longshore.core.events.event import Event
from longshore.core.events.types import EVENT_TO_STATE
from longshore.core.ids import split_task_id
from longshore.core.jobs import job as jobs
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NO_NUMBERS
from longshore.core.jobs.settle import (
    ended_tasks,
    job_statuses,
    name_dependents,
    needs_graph,
    parents_completed,
)
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.commands import ParentsCompleted
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendUnavailable, NotFound
from longshore.ports.backend import Backend
from longshore.ports.task_source import TaskSource
from longshore.ports.worker_registry import WorkerRegistry
from longshore.services.reads import iter_pages
from longshore.services.resilience import log_and_continue
from longshore.services.spill import DocumentStore
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

CONSUMER = "dispatcher"
ENDING_EVENTS = tuple(
    name for name in EVENT_TYPES if name in EVENT_TO_STATE and EVENT_TO_STATE[name].terminal
)
_AT_ONCE = 256
_NOTIFIED_AT_ONCE = 32  # as many writes of AWS
_MAX_READS = 20
_ANY_SEQUENCE = -1  # no event: any version of the row will do
_GRAPH_CACHE_SIZE = 4
_ANY_CLOCK = timedelta(days=1)  # a row may have been written by a clock that is ahead


@dataclass(kw_only=True)
class Dispatcher:
    """Notifies dependents of ended tasks and ends jobs."""

    backend: Backend
    transitions: Transitions
    documents: DocumentStore
    worker_registry: WorkerRegistry
    wait: timedelta
    poll_interval: timedelta = timedelta(milliseconds=500)
    # The graphs that were used last, by blob key. Without it, ten thousand failing tasks of a job
    # would each read a graph of ten thousand tasks. A stored graph never changes: a job with more
    # tasks gets a graph under another key.
    _graphs: dict[str, Graph] = field(default_factory=dict, init=False)
    _seen_ends: int = field(default=0, init=False)  # of a backend without a bus
    _settled: bool = field(default=False, init=False)  # all ends that were seen

    async def run(self) -> None:
        """Follow the events until cancelled.

        The process with the role does this. Others handle a delivery now and then, in case the
        process with the role hangs.
        """
        while True:
            # No error may end the loop: without it no job continues.
            with log_and_continue(logger, "dispatch.failed", unavailable="dispatch.unavailable"):
                await self._run_once()
                continue
            await self.backend.clock.sleep(self.poll_interval)

    async def _run_once(self) -> None:
        if self.worker_registry.acquire_role(CONSUMER):
            await self.step(self.wait)
            return
        for _ in range(_MAX_READS):
            await self.backend.clock.sleep(self.poll_interval)
            if self.worker_registry.acquire_role(CONSUMER):
                return
        await self.step(timedelta(0))

    async def step(self, wait: timedelta) -> bool:
        """Settle the ends that are known by now. Returns whether there were any."""
        if self.backend.source is not None:
            return await self._settle_unrecorded(self.backend.source, wait)
        bus = self.backend.require_bus()
        delivery = await bus.receive(CONSUMER, types=ENDING_EVENTS, limit=_AT_ONCE, wait=wait)
        if delivery is None:
            return False
        sequences = _latest_sequences(delivery.events)
        with log_and_continue(logger, "dispatch.skipped", tasks=list(sequences)):
            _count((await self._settle_jobs(sequences)).values())
        await bus.acknowledge(CONSUMER, delivery.receipt)
        return True

    async def _settle_unrecorded(self, source: TaskSource, wait: timedelta) -> bool:
        """Settle the ends that the source has not settled with their outcome.

        An end that cannot be settled is tried again after the next end, or after ``wait``.
        """
        if not self._settled:
            wait = timedelta(0)  # ends of an earlier process, and of one that failed
        self._seen_ends = await source.wait_for_ends(self._seen_ends, timeout=wait)
        self._settled = False
        settled = 0
        ended_by = self.backend.clock.now() + _ANY_CLOCK
        pages = iter_pages(partial(self.backend.ledger.unrecorded_ends, ended_by=ended_by))
        async for page in pages:
            results = (await self._settle_jobs(dict.fromkeys(page, _ANY_SEQUENCE))).values()
            settled += any(isinstance(result, int) and result for result in results)
            with log_and_continue(logger, "dispatch.skipped", tasks=page):
                _count(results)
        self._settled = True
        return settled > 0

    async def handle(self, events: Sequence[Event]) -> list[Event]:
        """Handle events that the caller received. Returns those to deliver again.

        Events that end no task are ignored.
        """
        ends = [event for event in events if event.type in ENDING_EVENTS]
        stuck: set[str] = set()
        for job_id, result in (await self._settle_jobs(_latest_sequences(ends))).items():
            with log_and_continue(
                logger, "job.settle_failed", unavailable="job.settle_failed", job_id=job_id
            ):
                if isinstance(result, BaseException):
                    stuck.add(job_id)
                    raise result
        return [event for event in ends if split_task_id(event.entity_id)[0] in stuck]

    async def settle(self, task_ids: Sequence[str]) -> int:
        """Settle the ends of these tasks, as far as they have ended.

        Returns how many ends were not yet recorded in their jobs.
        """
        ends = dict.fromkeys(task_ids, _ANY_SEQUENCE)
        return _count((await self._settle_jobs(ends)).values())

    async def notify_waiting(self, task_ids: Sequence[str]) -> int:
        """Notify waiting tasks of the parents that their jobs record as completed.

        For tasks that did not exist when their parents completed. Returns how many changed.
        """
        notified = 0
        for job_id in dict.fromkeys(split_task_id(task_id)[0] for task_id in task_ids):
            of_job = [task_id for task_id in task_ids if split_task_id(task_id)[0] == job_id]
            with log_and_continue(logger, "job.settle_failed", job_id=job_id):
                job = await self.backend.ledger.get_job(job_id)
                # A completed task stays completed, so an old row of the job is good enough.
                done = ParentsCompleted(numbers=job.completed if job is not None else NO_NUMBERS)
                rows = await self.backend.ledger.get_tasks(of_job)
                notified += await self._notify({row.id: done for row in rows})
        return notified

    async def emit_job_end(self, job_id: str) -> bool:
        """Emit the job's final event if it is missing. Returns whether it was emitted."""
        return await self._settle_job(job_id, {}) is not None

    async def _settle_jobs(
        self, sequences: Mapping[str, int]
    ) -> dict[str, int | BaseException | None]:
        """Settle tasks whose rows must be at least as new as these sequences.

        Returns the result of ``_settle_job`` by job, or its error.
        """
        by_job: dict[str, dict[str, int]] = {}
        for task_id, sequence in sequences.items():
            by_job.setdefault(split_task_id(task_id)[0], {})[task_id] = sequence
        # Concurrently, so that their commits share an fsync; an error stops none of the others.
        results = await asyncio.gather(
            *(self._settle_job(job_id, ended) for job_id, ended in by_job.items()),
            return_exceptions=True,
        )
        return dict(zip(by_job, results, strict=True))

    async def _settle_job(self, job_id: str, sequences: Mapping[str, int]) -> int | None:
        """Settle the dependents of ended tasks, then record the ends in the job's row.

        Returns how many ends were not yet recorded; None if there was nothing to record, or a row
        or document is missing.
        """
        change_id = self.transitions.new_id()
        notified: tuple[list[str], int] | None = None
        try:
            while True:
                job = await self.transitions.get_job(None, job_id)
                now = self.backend.clock.now()
                ended = [row for row in await self._read_rows(sequences) if row.state.terminal]
                completed = [row for row in ended if row.state is TaskState.COMPLETED]
                # The row of a job changes with each end, so this is often decided again. Then
                # dependents have been notified, except those of tasks that were added meanwhile.
                ends = ([row.id for row in completed], job.total)
                if ends != notified:
                    await self._notify_dependents(job, completed)
                    notified = ends
                decision = await self._record_ends(job, ended, now, change_id)
                if isinstance(decision, Refusal):
                    logger.debug("job.unchanged", extra={"job_id": job_id})
                    return None
                if await self.transitions.try_commit_job(decision):
                    return len(decision.row.ended - job.ended)
        except NotFound:
            logger.exception("job.missing", extra={"job_id": job_id})
            return None

    async def _read_rows(self, sequences: Mapping[str, int]) -> list[TaskRow]:
        """Returns the rows; waits for a row that is older than its event."""
        for _ in range(_MAX_READS):
            rows = await self.backend.ledger.get_tasks(list(sequences))
            current = {row.id: row.last_sequence for row in rows}
            if all(
                current.get(task_id, _ANY_SEQUENCE) >= sequences[task_id] for task_id in sequences
            ):
                return rows
            await self.backend.clock.sleep(self.poll_interval)
        logger.error("row.outdated", extra={"tasks": list(sequences)})
        return rows

    async def _notify_dependents(self, job: JobRow, completed: list[TaskRow]) -> None:
        graph = await self._graph(job) if needs_graph(job, completed) else None
        keys_by_task = {
            row.id: await self._load_keys(name_dependents(job, row, graph)) for row in completed
        }
        await self._notify(parents_completed(completed, keys_by_task))

    async def _load_keys(self, keys: Sequence[str] | Document) -> Sequence[str]:
        return await self.documents.load(keys) if isinstance(keys, Document) else keys

    async def _notify(self, commands: Mapping[str, ParentsCompleted]) -> int:
        """Notify dependents, many at a time: their commits share an fsync too."""
        notified, ids = 0, list(commands)
        for start in range(0, len(ids), _NOTIFIED_AT_ONCE):
            some = ids[start : start + _NOTIFIED_AT_ONCE]
            calls = [self._notify_task(task_id, commands[task_id]) for task_id in some]
            notified += _count(await asyncio.gather(*calls, return_exceptions=True))
        return notified

    async def _notify_task(self, task_id: str, done: ParentsCompleted) -> int:
        notified = await self.transitions.try_command(task_id, done)
        if isinstance(notified, Refusal):
            # A task that is not found is being added: that process checks its parents at the end.
            extra = {"task_id": task_id, "reason": notified.detail}
            logger.debug("dependent.not_notified", extra=extra)
        return isinstance(notified, TaskRow)

    async def _record_ends(
        self, job: JobRow, rows: list[TaskRow], now: datetime, change_id: str
    ) -> jobs.JobDecision:
        graph = await self._graph(job) if needs_graph(job, rows) else None
        ended = ended_tasks(rows, graph)
        statuses: dict[str, str | None] = {}
        if jobs.needs_statuses(job, ended):
            statuses = job_statuses(await self.backend.ledger.task_states(job.id))
        command = jobs.TasksEnded(tasks=ended, statuses=statuses)
        return jobs.apply(job, command, now=now, change_id=change_id)

    async def _graph(self, job: JobRow) -> Graph:
        key = job.graph.key
        if key is None:  # a small graph, stored in the row
            return await self.documents.load_graph(job)
        graph = self._graphs.pop(key, None) or await self.documents.load_graph(job)
        self._graphs[key] = graph  # the last used at the end
        while len(self._graphs) > _GRAPH_CACHE_SIZE:
            del self._graphs[next(iter(self._graphs))]
        return graph


def _latest_sequences(events: Sequence[Event]) -> dict[str, int]:
    """Returns the tasks of these events, and how new their rows must be."""
    sequences: dict[str, int] = {}
    for event in events:
        sequences[event.entity_id] = max(event.sequence, sequences.get(event.entity_id, 0))
    return sequences


def _count(results: Collection[int | BaseException | None]) -> int:
    """Returns the sum of results; raises the most severe of their errors and logs the others.

    ``BackendUnavailable`` comes first: then everything is delivered again.
    """
    errors = [result for result in results if isinstance(result, BaseException)]
    errors.sort(key=lambda error: not isinstance(error, BackendUnavailable))
    for error in errors[1:]:
        logger.error("job.settle_failed", exc_info=error)
    if errors:
        raise errors[0]
    return sum(result for result in results if isinstance(result, int))
