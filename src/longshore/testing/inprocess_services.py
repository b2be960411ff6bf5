"""The services of one process on the memory backend, with a clock that leaps over every wait.

Time passes only while nothing runs, and then at once to the next timer
for, so a job that would take a day of backoff takes as long as its functions do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

from longshore.core.definitions.definition import Definition
from longshore.core.definitions.reader import split_job_file
from longshore.core.events.event import Event
from longshore.core.ids import task_id_of
from longshore.core.jobs.graph import Graph
from longshore.core.maximums import MAX_TASKS_PER_JOB
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.lease import LeasePolicy
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import LongshoreError, NotFound
from longshore.ports.output import OutputPosition
from longshore.services.budgets import BudgetReservations
from longshore.services.dispatcher import Dispatcher
from longshore.services.message_source import MessageTaskSource
from longshore.services.spill import DocumentStore
from longshore.services.submit import Producer, Submission
from longshore.services.transitions import Transitions
from longshore.services.worker.context import OutputPolicy, WorkerContext
from longshore.services.worker.worker import Worker
from longshore.testing.clock import FakeClock
from longshore.testing.inprocess import InProcessRunner
from longshore.testing.memory.backend import memory_backend
from longshore.testing.worker_registry import FakeWorkerRegistry

_TENANT, _APP, _REQUEST = "default", "longshore", "test"
_PAGE = 500
# Longer than any delay: nothing but the job itself is to happen on the clock.
_FOREVER = timedelta(days=1000)
_LEASE = LeasePolicy(renew_every=_FOREVER, extend_by=2 * _FOREVER)
_LIMIT_BYTES = 1_000_000_000
_OPEN = frozenset({TaskState.PENDING, TaskState.PROCESSING})


class InProcessServices:
    """All that one job needs; made and used on one event loop."""

    def __init__(self, make_runner: Callable[[FakeClock], InProcessRunner]) -> None:
        self.clock = FakeClock()
        self.runner = make_runner(self.clock)
        self._backend = memory_backend(self.clock, atomic=True)
        self._documents = DocumentStore(self._backend.blobs)
        self._worker_registry = FakeWorkerRegistry()
        ids = count(1)
        self._transitions = Transitions(
            backend=self._backend,
            documents=self._documents,
            new_id=lambda: f"change-{next(ids)}",
        )
        self._source = self._backend.source or MessageTaskSource(
            backend=self._backend,
            transitions=self._transitions,
            lease=_LEASE,
            tenant=_TENANT,
            app=_APP,
        )
        self._dispatcher = Dispatcher(
            backend=self._backend,
            transitions=self._transitions,
            documents=self._documents,
            worker_registry=self._worker_registry,
            wait=_FOREVER,
        )
        self._aborted = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def abort(self) -> None:
        """End the run as it is; from any thread."""
        self._loop.call_soon_threadsafe(self._aborted.set)

    async def submit(self, document: Any, definitions: Sequence[Definition]) -> str:
        """Accept the job; its id."""
        producer = Producer(
            backend=self._backend,
            transitions=self._transitions,
            documents=self._documents,
            dispatcher=self._dispatcher,
            retry=RetryPolicy(),
            task_limit=MAX_TASKS_PER_JOB,
            input_limit_bytes=_LIMIT_BYTES,
            app=_APP,
        )
        own, job, problems = split_job_file(document)
        submission = Submission(job, _REQUEST, [*definitions, *own], problems)
        (answer,) = await producer.submit_many(_TENANT, [submission])
        if isinstance(answer, LongshoreError):
            raise answer
        return answer.job.id

    async def run_to_end(self, job_id: str) -> None:
        """Work until nothing of the job runs or will run by itself."""
        worker = self._worker(await self.tasks(job_id))
        parts = [asyncio.ensure_future(worker.run()), asyncio.ensure_future(self._dispatcher.run())]
        try:
            while not self._aborted.is_set():
                await self._run_ready_callbacks()
                for part in parts:
                    if part.done():
                        await part
                if self.runner.busy:
                    await self._wait_until_idle()
                elif await self._is_settled(job_id):
                    return
                else:
                    self._advance_to_next_deadline()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    def _worker(self, tasks: Sequence[TaskRow]) -> Worker:
        context = WorkerContext(
            worker_id="in-process",
            backend=self._backend,
            source=self._source,
            transitions=self._transitions,
            documents=self._documents,
            reservations=BudgetReservations(self._backend, self._transitions),
            runner=self.runner,
            worker_registry=self._worker_registry,
            lease=_LEASE,
            output=OutputPolicy(),
            timeout=_FOREVER,
            result_limit_bytes=_LIMIT_BYTES,
            process_id=os.getpid(),
            queues=tuple(dict.fromkeys(task.spec.queue for task in tasks)),
            concurrency=1,
            poll_wait=_FOREVER,
            # In the middle of the window, each time: the same test waits equally long.
            jitter=lambda: 0.5,
        )
        return Worker(context)

    async def _run_ready_callbacks(self) -> None:
        """Return when nothing on the event loop can run without the clock or a thread.

        The clock may be moved on only then: earlier, it could skip the wait that a callback is
        about to begin. asyncio has no public way to ask, and counting turns is a guess.
        """
        ready = self._loop._ready  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        while ready:  # noqa: ASYNC110 - what another callback does is the event
            await asyncio.sleep(0)

    async def _wait_until_idle(self) -> None:
        waits = [
            asyncio.ensure_future(self.runner.wait_until_idle()),
            asyncio.ensure_future(self._aborted.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for waiting in waits:
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting

    async def _is_settled(self, job_id: str) -> bool:
        states = await self._backend.ledger.task_states(job_id)
        return not _OPEN.intersection(states.values())

    def _advance_to_next_deadline(self) -> None:
        deadline = self.clock.next_deadline
        if deadline is None:
            message = "tasks are open, and nothing waits for a timer"
            raise RuntimeError(message)
        self.clock.advance(deadline - self.clock.elapsed())

    async def job(self, job_id: str) -> JobRow:
        """The job as it is now."""
        job = await self._backend.ledger.get_job(job_id)
        if job is None:
            raise NotFound("job", job_id)
        return job

    async def graph(self, job_id: str) -> Graph:
        """Who depends on whom."""
        return await self._documents.load_graph(await self.job(job_id))

    async def tasks(self, job_id: str) -> list[TaskRow]:
        """The job's tasks as they are now."""
        keys = (await self.graph(job_id)).keys
        return await self._backend.ledger.get_tasks([task_id_of(job_id, key) for key in keys])

    async def result_of(self, task: TaskRow) -> Any:
        """The result of a task that completed, as JSON."""
        return await self._documents.load(task.result)

    async def events(self, job_id: str) -> list[Event]:
        """The events of the job and its tasks."""
        collected: list[Event] = []
        cursor: str | None = None
        while True:
            page = await self._backend.events.query(
                _TENANT, job_id=job_id, limit=_PAGE, cursor=cursor
            )
            collected += page.items
            cursor = page.cursor
            if cursor is None:
                return collected

    async def output(self, task: TaskRow) -> str:
        """All that a task printed."""
        pieces, position = [], OutputPosition()
        while batch := await self._backend.output.read(task.id, after=position):
            pieces += [entry.data for entry in batch]
            position = OutputPosition(batch[-1].attempt, batch[-1].end)
        return b"".join(pieces).decode(errors="replace")
