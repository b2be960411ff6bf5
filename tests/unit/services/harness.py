"""The services on a backend whose clock is stopped, with scripted children.

Several stages on one backend are several processes: each has its own services, ids and presence of
mind, and they share only what is stored.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.core.budgets import NO_BUDGET, Budget
from longshore.core.events.event import Event
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.queues import message_body
from longshore.core.tasks import commands as c
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.lease import LeasePolicy
from longshore.core.tasks.rows import Intent, IntentKind, JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from longshore.ports.task_source import (
    Answer,
    ClaimedTask,
    LeaseCommand,
    TaskSource,
    WorkerInstance,
)
from longshore.services.budgets import BudgetOperations, BudgetReservations
from longshore.services.dead_letters import DeadLetters
from longshore.services.dispatcher import Dispatcher
from longshore.services.message_source import MessageTaskSource
from longshore.services.operator_commands import OperatorCommands
from longshore.services.retention import JobRetention
from longshore.services.spill import DocumentStore
from longshore.services.submit import AcceptedTasks, Producer
from longshore.services.sweeper import Sweeper
from longshore.services.transitions import Transitions
from longshore.services.worker.attempts import Attempts
from longshore.services.worker.context import OutputPolicy, WorkerContext
from longshore.services.worker.worker import Worker
from longshore.testing.clock import FakeClock
from longshore.testing.fake_runner import FakeRunner
from longshore.testing.memory.backend import memory_backend
from longshore.testing.worker_registry import FakeWorkerRegistry
from tests.unit.services import virtual_time

TENANT = "acme"
APP = "shop"
REQUEST = "request-1"
NO_WAIT = timedelta(0)
SECOND = timedelta(seconds=1)
LIMIT_S = 60
TASK_LIMIT = 10_000
INPUT_LIMIT_BYTES = 100_000
RESULT_LIMIT_BYTES = 50_000
LEASE = LeasePolicy()
ResultT = TypeVar("ResultT")
_ids = count(1)


def scenario(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine; one that hangs fails."""

    @wraps(function)
    def test(**arguments: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LIMIT_S):
                await function(**arguments)

        virtual_time.run(bounded())

    return test


BACKENDS = ["memory", "atomic memory", "sqlite"]
IN_MEMORY = BACKENDS[:2]
WITH_QUEUE = ["memory"]
"""Those whose worker receives messages; the others lease tasks by themselves."""
DIRECT = ["atomic memory", "sqlite"]


@asynccontextmanager
async def open_backend(kind: str, tmp_path: Path) -> AsyncIterator[Backend]:
    clock = FakeClock()
    if kind == "sqlite":
        with virtual_time.tracked_databases():
            async with sqlite_backend(tmp_path, clock) as backend:
                yield backend
    elif kind == "aws":
        # Only here: it takes long to import, and few tests need it.
        from tests.aws.full_backend import full_aws_backend

        async with full_aws_backend(tmp_path, clock) as backend:
            yield backend
    else:
        yield memory_backend(clock, atomic=kind == "atomic memory")


class ServiceHarness:
    """One process's services."""

    def __init__(
        self,
        backend: Backend,
        *,
        worker_registry: FakeWorkerRegistry | None = None,
        task_limit: int = TASK_LIMIT,
        retry: RetryPolicy | None = None,
        day_budget: Budget = NO_BUDGET,
    ) -> None:
        self.day_budget = day_budget
        self.backend = backend
        self.clock: FakeClock = backend.clock
        self.worker_registry = worker_registry or FakeWorkerRegistry()
        self.runner = FakeRunner(self.clock)
        self.documents = DocumentStore(backend.blobs)
        self.transitions = Transitions(
            backend=backend,
            documents=self.documents,
            new_id=lambda: f"change-{next(_ids)}",
        )
        self.source: TaskSource = backend.source or MessageTaskSource(
            backend=backend, transitions=self.transitions, lease=LEASE, tenant=TENANT, app=APP
        )
        parts = {"transitions": self.transitions, "documents": self.documents}
        self.dispatcher = Dispatcher(
            backend=backend,
            transitions=self.transitions,
            documents=self.documents,
            worker_registry=self.worker_registry,
            wait=timedelta(seconds=20),
        )
        self.producer = Producer(
            backend=backend,
            dispatcher=self.dispatcher,
            retry=retry or RetryPolicy(),
            task_limit=task_limit,
            input_limit_bytes=INPUT_LIMIT_BYTES,
            app=APP,
            **parts,
        )
        self.reservations = BudgetReservations(backend, self.transitions)
        self.budget_operations = BudgetOperations(
            backend=backend,
            transitions=self.transitions,
            reservations=self.reservations,
            day_budget=day_budget,
            app=APP,
        )
        self.operator_commands = OperatorCommands(
            backend=backend, dispatcher=self.dispatcher, finish_intent=self.finish_intent, **parts
        )
        self.dead_letters = DeadLetters(
            backend=backend,
            transitions=self.transitions,
            operator_commands=self.operator_commands,
            app=APP,
            skew_margin=LEASE.skew_margin,
        )
        self.sweeper = self.build_sweeper()

    async def finish_intent(self, job: JobRow, intent: Intent) -> bool:
        finishers = {
            IntentKind.CREATE: self.producer.finish_creation,
            IntentKind.ADD: self.producer.finish_creation,
            IntentKind.CANCEL: self.operator_commands.finish_cancel,
            IntentKind.RESUME: self.operator_commands.finish_resume,
            IntentKind.UNPARK: self.budget_operations.finish_unpark,
        }
        return await finishers[intent.kind](job, intent)

    def build_sweeper(self, **fields: Any) -> Sweeper:
        options: dict[str, Any] = {
            "backend": self.backend,
            "source": self.source,
            "transitions": self.transitions,
            "dispatcher": self.dispatcher,
            "dead_letters": self.dead_letters,
            "budget_operations": self.budget_operations,
            "finish_intent": self.finish_intent,
            "retention": JobRetention(backend=self.backend, keep_for=timedelta(0)),
            "worker_registry": self.worker_registry,
            "tenant": TENANT,
            "app": "tests",
            **fields,
        }
        return Sweeper(**options)

    def with_ports(self, **ports: Any) -> "ServiceHarness":
        """The same process, but for some of its ports."""
        harness = ServiceHarness(
            replace(self.backend, **ports),
            worker_registry=self.worker_registry,
            day_budget=self.day_budget,
        )
        harness.runner = self.runner
        return harness

    def worker_context(self, worker_id: str = "worker-1", **fields: Any) -> WorkerContext:
        options: dict[str, Any] = {
            "worker_id": worker_id,
            "backend": self.backend,
            "source": self.source,
            "transitions": self.transitions,
            "documents": self.documents,
            "reservations": self.reservations,
            "day_budget": self.day_budget,
            "runner": self.runner,
            "worker_registry": self.worker_registry,
            "lease": LEASE,
            "output": OutputPolicy(),
            "timeout": timedelta(minutes=5),
            "result_limit_bytes": RESULT_LIMIT_BYTES,
            "process_id": 1,
            "jitter": lambda: 0.5,
            **fields,
        }
        return WorkerContext(**options)

    def worker(
        self, worker_id: str = "worker-1", *, context: dict[str, Any] | None = None, **policy: Any
    ) -> Worker:
        return Worker(self.worker_context(worker_id, **(context or {}), **policy))

    @asynccontextmanager
    async def running_worker(
        self, worker_id: str = "worker-1", **options: Any
    ) -> AsyncIterator[Worker]:
        """A worker at work; stopped at the end, and what it still runs is given back."""
        worker = self.worker(worker_id, **options)
        running = asyncio.ensure_future(worker.run())
        await self.advance(NO_WAIT)
        try:
            yield worker
        finally:
            worker.stop()
            worker.release_all()
            await self.advance(NO_WAIT)
            for _ in range(100):
                if running.done():
                    break
                await self.advance(SECOND)
            assert running.done(), "the worker does not stop"
            await running

    async def send(self, command: LeaseCommand) -> Answer:
        """The answer to a command of an attempt that runs outside a worker."""
        worker = await self.source.join(
            WorkerInstance(
                worker_id="worker-1",
                queues=("default",),
                process_id=1,
                lease_duration=LEASE.duration,
            )
        )
        turn = await self.source.turn(worker, [command], turn_id="turn-1")
        await self.source.leave(worker)
        return turn.answers[0]

    async def attempt(self, row: TaskRow) -> None:
        """Run an attempt of a claimed task outside a worker."""

        def post(command: LeaseCommand, on_answer: Callable[[Answer], None]) -> None:
            sending = asyncio.ensure_future(self.send(command))
            sending.add_done_callback(lambda sent: on_answer(sent.result()))

        context = self.worker_context()
        attempts = Attempts(
            context, units=1, post=post, on_change=lambda: None, on_broken=lambda error: None
        )
        attempts.add(ClaimedTask(row, row.updated_at), self.clock.elapsed())
        await attempts.wait_until_empty()

    async def advance(self, duration: timedelta) -> None:
        """Time passes, and everybody does what is to be done meanwhile."""
        await virtual_time.advance(self.clock, duration)

    async def advance_until_done(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What comes of something that waits on the clock."""
        doing = asyncio.ensure_future(work)
        end = self.clock.elapsed() + timedelta(minutes=10)
        while not doing.done():
            assert self.clock.elapsed() < end, "it takes too long"
            await self.advance(timedelta(milliseconds=50))
        return await doing

    async def submit(self, *tasks: dict[str, Any], request_id: str = REQUEST) -> AcceptedTasks:
        return await self.producer.submit(TENANT, request_id, {"tasks": list(tasks)})

    async def add_tasks(
        self, *tasks: dict[str, Any], request_id: str = "addition-1"
    ) -> AcceptedTasks:
        return await self.producer.add_tasks(TENANT, job_id(), request_id, {"tasks": list(tasks)})

    async def dispatch(self) -> int:
        """Deal with every event there is; how many deliveries that were."""
        deliveries = 0
        while await self.dispatcher.step(NO_WAIT):
            deliveries += 1
        return deliveries

    async def finish(self, *, limit: int = 100) -> None:
        """Run everything that can be run, and dispatch, until nothing is left to do."""
        for _ in range(limit):
            page = await self.backend.ledger.list_tasks(
                TENANT, state=TaskState.PENDING, limit=10_000
            )
            for row in page.items:
                await self.complete(row.id)
            if not await self.dispatch() and not page.items:
                return

    async def _pending(self) -> list[TaskRow]:
        page = await self.backend.ledger.list_tasks(TENANT, state=TaskState.PENDING, limit=10_000)
        return list(reversed(page.items))

    async def complete(self, id_: str, result: Any = None) -> TaskRow:
        """One attempt of a pending task, with a result."""
        claimed = await self.claim(id_)
        document = await self.documents.store(result, f"results/{id_}")
        done = c.Complete(fence=claimed.fence, result=document, duration=SECOND)
        return await self.transitions.apply_to_task(id_, done, row=claimed)

    async def fail(self, id_: str, category: ErrorCategory = ErrorCategory.VALIDATION) -> TaskRow:
        """One attempt of a pending task that fails."""
        claimed = await self.claim(id_)
        failure = Failure(category=category, message="broke")
        failed = c.AttemptFailed(fence=claimed.fence, failure=failure, jitter=0.0, duration=SECOND)
        return await self.transitions.apply_to_task(id_, failed, row=claimed)

    async def claim(self, id_: str, worker_id: str = "worker-1") -> TaskRow:
        claim = c.Claim(worker_id=worker_id, process_id=1, lease_duration=LEASE.duration)
        return await self.transitions.apply_to_task(id_, claim)

    async def end_lease(self, key: str) -> TaskRow:
        """The lease of a task ends, as if its holder were gone; the holder is not notified."""
        claimed = await self.task(key)
        ended = c.LeaseEnded(fence=claimed.fence, margin=LEASE.skew_margin, holder_dead=True)
        return await self.transitions.apply_to_task(claimed.id, ended)

    async def task(self, key: str, request_id: str = REQUEST) -> TaskRow:
        row = await self.backend.ledger.get_task(task_id(key, request_id))
        assert row is not None, key
        return row

    async def job(self, request_id: str = REQUEST) -> JobRow:
        row = await self.backend.ledger.get_job(job_id(request_id))
        assert row is not None
        return row

    async def states(self, request_id: str = REQUEST) -> dict[str, TaskState]:
        return await self.backend.ledger.task_states(job_id(request_id))

    async def history(self, key: str, request_id: str = REQUEST) -> list[Event]:
        entity = f"TASK#{task_id(key, request_id)}"
        events = await self.backend.events.history(TENANT, entity)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        return events

    async def event_types(self, key: str, request_id: str = REQUEST) -> list[str]:
        """Names of the task's events, in order."""
        return [event.type for event in await self.history(key, request_id)]

    async def job_event_types(self, request_id: str = REQUEST) -> list[str]:
        """Names of the job's own events, in order."""
        events = await self.backend.events.history(TENANT, f"JOB#{job_id(request_id)}")
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        return [event.type for event in events]

    async def messages(self, queue: str = "default") -> list[str]:
        """Bodies of the messages that could be received now; they stay where they are.

        Where there are no messages: those that the tasks which can be claimed now would have.
        """
        if self.backend.queue is None:
            return [
                message_body(row.id)
                for row in (await self._pending())
                if row.spec.queue == queue and row.due_at and row.due_at <= self.clock.now()
            ]
        result = await self.backend.queue.receive(
            [queue], limit=10_000, hidden_for=SECOND, wait=NO_WAIT
        )
        for message in result:
            await self.backend.queue.delay(message.receipt, until=self.clock.now())
        return [message.body for message in result]


def job_id(request_id: str = REQUEST) -> str:
    return job_id_of(TENANT, request_id)


def task_id(key: str, request_id: str = REQUEST) -> str:
    return task_id_of(job_id(request_id), key)


def make_task(key: str = "a", *parents: str, **fields: Any) -> dict[str, Any]:
    task = {"taskId": key, "name": "command", "input": {"argv": ["true"]}, **fields}
    return {**task, "dependsOn": list(parents)} if parents else task
