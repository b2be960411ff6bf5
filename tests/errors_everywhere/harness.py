"""A worker and its people on virtual time; all that they ask of ports goes over a wire."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from longshore.core.budgets import Budget
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.lease import LeasePolicy
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import Conflict, NotFound
from longshore.services.worker.group import WorkerGroup
from longshore.testing.fake_runner import FakeRunner
from longshore.testing.memory.backend import memory_backend
from longshore.testing.worker_registry import FakeWorkerRegistry
from tests.errors_everywhere.injection import FaultInjector, InjectedFault, PortProxy
from tests.unit.services.harness import TENANT, ServiceHarness, job_id, task_id
from verification.simulation.simulation import SimulationClock

ResultT = TypeVar("ResultT")

LEASE = LeasePolicy(
    renew_every=timedelta(seconds=4),
    extend_by=timedelta(seconds=6),
    kill_grace=timedelta(seconds=1),
    skew_margin=timedelta(seconds=1),
)
RETRY = RetryPolicy(base=timedelta(seconds=1), cap=timedelta(seconds=2))
STORED = Definition(name="stored", runner=RunnerKind.PYTHON)
SHORT_TIMEOUT = Definition(
    name="short-timeout",
    runner=RunnerKind.PYTHON,
    timeout=timedelta(seconds=3),
    retry_on_timeout=True,
    retry=RETRY,
)
TALKATIVE = Definition(name="talkative", runner=RunnerKind.AGENT, options={"prompt": "Talk."})
ELSEWHERE = Definition(name="elsewhere", runner=RunnerKind.PYTHON, queue="other")
CANARY = "canary"
DAY = Budget(usd=100.0)
LARGE = "x" * 3_000
_POLL_INTERVAL_S = 0.5
_MAX_POLLS = 600
_TRIES = 3
_REPEATED_ERROR = "callers get the same error again and again"


class Stuck(Exception):
    """Something that had to happen did not."""


class ErrorHarness:
    """One run: its store, its callers, its machine and its workers."""

    def __init__(
        self, folder: Path, *, atomic: bool, fault: InjectedFault | None, leading: bool = True
    ) -> None:
        self.injector = injector = FaultInjector(fault)
        self.raw = memory_backend(SimulationClock(), atomic=atomic, direct=False)
        self.worker_registry = FakeWorkerRegistry(leading=leading)
        self.children = FakeRunner(self.raw.clock, folder=folder)
        # What others did and do: nothing ever goes wrong for them.
        self.clean = ServiceHarness(
            self.raw, worker_registry=self.worker_registry, retry=RETRY, day_budget=DAY
        )
        presence: Any = PortProxy(injector, "worker_registry", self.worker_registry)
        self.faulty = ServiceHarness(
            injector.wrap(self.raw), worker_registry=presence, retry=RETRY, day_budget=DAY
        )
        self.faulty.runner = PortProxy(injector, "runner", self.children)
        self.worker_errors: list[BaseException] = []  # what ended a worker
        self.caller_errors: list[BaseException] = []  # errors that callers got
        self.expected_errors: list[BaseException] = []  # errors that are part of the scenario
        self._workers_started = 0

    async def prepare(self) -> None:
        """Store the definitions that every scenario needs."""
        for definition in (STORED, SHORT_TIMEOUT, ELSEWHERE, TALKATIVE):
            await self.raw.definitions.put(TENANT, definition)

    def _build_group(self) -> WorkerGroup:
        self._workers_started += 1
        worker = self.faulty.worker(
            f"worker-{self._workers_started}",
            context={"lease": LEASE},
            concurrency=4,
            queues=("default", "other"),
            poll_wait=timedelta(seconds=5),
            drain_grace=timedelta(seconds=2),
        )
        return WorkerGroup(
            worker=worker,
            dispatcher=self.faulty.dispatcher,
            sweeper=self.faulty.build_sweeper(
                every=timedelta(seconds=10),
                dead_worker_check_every=timedelta(seconds=1),
                skew_margin=LEASE.skew_margin,
                reenqueue_after=timedelta(seconds=10),
                settle_after=timedelta(seconds=5),
            ),
        )

    def start_worker(self) -> asyncio.Future[None]:
        """Run a worker until it is stopped; a worker that breaks is replaced."""
        self.group = self._build_group()
        self._stopping = False
        self.worker_task = asyncio.ensure_future(self._keep_working())
        return self.worker_task

    async def _keep_working(self) -> None:
        for _ in range(_TRIES):
            try:
                async with self.group:
                    await self.group.wait()
            except Exception as error:  # noqa: BLE001 - any error is checked later
                if error not in self.expected_errors:
                    self.worker_errors.append(error)
                if self._stopping:
                    return
                self.group = self._build_group()
            else:
                return

    async def stop_worker(self) -> None:
        """Stop the worker, and wait until it has stopped."""
        self.request_stop()
        await self.worker_task

    def request_stop(self, *, now: bool = False) -> None:
        """Ask the worker to stop."""
        self._stopping = True
        if now:
            self.group.stop_now()
        else:
            self.group.stop()

    async def call_with_retry(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT | None:
        """Repeat a call that failed, as callers do; None: the first call had been carried out."""
        notices = False
        for _ in range(_TRIES):
            try:
                return await call()
            except Exception as error:
                if error is self.injector.raised:
                    self.caller_errors.append(error)
                    notices = True
                elif notices and isinstance(error, Conflict | NotFound):
                    return None
                else:
                    raise
        raise Stuck(_REPEATED_ERROR)

    async def call_until_answered(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """As ``call_with_retry``, of a call that gives its answer also to those who ask again."""
        for _ in range(_TRIES):
            try:
                return await call()
            except Exception as error:
                if error is not self.injector.raised:
                    raise
                self.caller_errors.append(error)
        raise Stuck(_REPEATED_ERROR)

    async def submit(self, request: str, *tasks: dict[str, Any]) -> None:
        """Have a job submitted."""
        await self.call_with_retry(lambda: self.faulty.submit(*tasks, request_id=request))

    async def state_of(self, request: str, key: str) -> TaskState:
        """The state of a task now, as it is stored."""
        return (await self.clean.task(key, request)).state

    async def wait_until(self, condition: Callable[[], Awaitable[object]], what: str) -> None:
        """Wait for something to be so."""
        for _ in range(_MAX_POLLS):
            if await condition():
                return
            await asyncio.sleep(_POLL_INTERVAL_S)
        raise Stuck(what)

    async def wait_for_task(self, request: str, key: str, *states: TaskState) -> None:
        """Wait until a task is in one of these states, or has ended."""

        async def there() -> bool:
            row = await self.raw.ledger.get_task(task_id(key, request))
            return row is not None and (row.state in states or row.state.terminal)

        await self.wait_until(there, f"{request}/{key} is not {' or '.join(states)}")

    async def wait_for_child(self, request: str, key: str) -> None:
        """Wait until a task has a child at work, or has ended."""

        async def there() -> bool:
            row = await self.raw.ledger.get_task(task_id(key, request))
            return key in self.children.alive or (row is not None and row.state.terminal)

        await self.wait_until(there, f"{request}/{key} has no child")

    async def wait_for_jobs(self, *requests: str) -> None:
        """Wait until these jobs have ended."""
        for request in requests:

            async def ended(request: str = request) -> bool:
                row = await self.raw.ledger.get_job(job_id(request))
                return row is not None and row.state.terminal

            await self.wait_until(ended, f"{request} does not end")

    async def wait_until_idle(self) -> None:
        """Wait until every service is idle, and nothing is left behind."""
        await self.wait_until(self._is_idle, "the services do not become idle")

    async def _is_idle(self) -> bool:
        ledger = self.raw.ledger
        for state in (TaskState.PENDING, TaskState.PROCESSING):
            if (await ledger.list_tasks(TENANT, state=state, limit=1)).items:
                return False
        if (await ledger.list_jobs(TENANT, state=JobState.RUNNING, limit=1)).items:
            return False
        later = self.raw.clock.now() + timedelta(days=1)
        depth = await self.raw.queue.depth("default")
        return not (
            depth.ready
            or depth.hidden
            or self.worker_registry.dead_workers()
            or await ledger.open_intents(limit=1)
            or await ledger.unreported_ends(limit=1)
            or await ledger.unnotified_dependents(limit=1)
            or await ledger.unrecorded_ends(ended_by=later, limit=1)
        )

    async def close(self) -> None:
        """Let everybody go: all is judged."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait(others, timeout=1.0)
