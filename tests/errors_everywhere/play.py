"""A worker and its people on virtual time; all that they ask of ports goes over a wire."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from longshore.adapters.memory.backend import memory_backend
from longshore.core.backoff import RetryPolicy
from longshore.core.budgets import Budget
from longshore.core.definition import Definition, RunnerKind
from longshore.core.lease import LeasePolicy
from longshore.core.states import JobState, TaskState
from longshore.errors import Conflict, NotFound
from longshore.services.crew import Crew
from longshore.services.sweeper import SweeperPolicy
from longshore.testing.presence import FakePresence
from longshore.testing.runner import FakeRunner
from longshore.testing.simulation.loop import VirtualLoop
from longshore.testing.simulation.world import WorldClock
from tests.errors_everywhere.wire import Trouble, Wire, Wired
from tests.unit.services.stage import TENANT, Stage, job_id, task_id

ResultT = TypeVar("ResultT")

LEASE = LeasePolicy(
    renew_every=timedelta(seconds=4),
    extend_by=timedelta(seconds=6),
    kill_grace=timedelta(seconds=1),
    skew_margin=timedelta(seconds=1),
)
SWEEPING = SweeperPolicy(
    every=timedelta(seconds=10),
    look_for_dead_every=timedelta(seconds=1),
    skew_margin=LEASE.skew_margin,
    ring_again_after=timedelta(seconds=10),
    settle_after=timedelta(seconds=5),
)
RETRY = RetryPolicy(base=timedelta(seconds=1), cap=timedelta(seconds=2))
STORED = Definition(name="stored", runner=RunnerKind.PYTHON)
HASTY = Definition(
    name="hasty",
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
_LOOK_EVERY_S = 0.5
_LOOKS = 600
_TRIES = 3
_AGAIN_AND_AGAIN = "people are told the same error again and again"


class Loop(VirtualLoop):
    """Virtual time, without threads: what would be done in one is done at once."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        answer = self.create_future()
        try:
            answer.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            answer.set_exception(error)
        return answer


class Stuck(Exception):
    """Something that had to happen did not."""


class Play:
    """One run: its store, its people, its machine, and whoever is at work."""

    def __init__(
        self, folder: Path, *, atomic: bool, trouble: Trouble | None, leading: bool = True
    ) -> None:
        self.wire = wire = Wire(trouble)
        self.raw = memory_backend(WorldClock(), atomic=atomic)
        self.machine = FakePresence(leading=leading)
        self.children = FakeRunner(self.raw.clock, folder=folder)
        # What others did and do: nothing ever goes wrong for them.
        self.others = Stage(self.raw, presence=self.machine, retry=RETRY, day=DAY)
        presence: Any = Wired(wire, "presence", self.machine)
        self.ours = Stage(wire.before(self.raw), presence=presence, retry=RETRY, day=DAY)
        self.ours.runner = Wired(wire, "runner", self.children)
        self.broke: list[BaseException] = []  # what ended a worker
        self.heard: list[BaseException] = []  # errors that people were told
        self.meant: list[BaseException] = []  # errors that are part of the scene
        self._shifts = 0

    async def prepare(self) -> None:
        """What every scene needs."""
        for definition in (STORED, HASTY, ELSEWHERE, TALKATIVE):
            await self.raw.definitions.put(TENANT, definition)

    def _crew(self) -> Crew:
        self._shifts += 1
        worker = self.ours.worker(
            f"worker-{self._shifts}",
            tools={"lease": LEASE},
            concurrency=4,
            queues=("default", "other"),
            poll_wait=timedelta(seconds=5),
            drain_grace=timedelta(seconds=2),
        )
        return Crew(
            worker=worker,
            dispatcher=self.ours.dispatcher,
            sweeper=self.ours.a_sweeper(policy=SWEEPING),
            presence=self.ours.presence,
        )

    def begin_shift(self) -> asyncio.Future[None]:
        """Have a worker at work until it is told to stop; one that breaks is replaced."""
        self.crew = self._crew()
        self._stopping = False
        self.shift = asyncio.ensure_future(self._keep_working())
        return self.shift

    async def _keep_working(self) -> None:
        for _ in range(_TRIES):
            try:
                async with self.crew:
                    await self.crew.ended()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is judged later
                if error not in self.meant:
                    self.broke.append(error)
                if self._stopping:
                    return
                self.crew = self._crew()
            else:
                return

    async def end_shift(self) -> None:
        """Stop whoever works, and wait until it has."""
        self.stop()
        await self.shift

    def stop(self, *, at_once: bool = False) -> None:
        """Tell whoever works to stop."""
        self._stopping = True
        if at_once:
            self.crew.stop_at_once()
        else:
            self.crew.stop()

    async def insists(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT | None:
        """As people do: told of an error, they try again; None: the first time had been enough."""
        told = False
        for _ in range(_TRIES):
            try:
                return await call()
            except Exception as error:
                if error is self.wire.raised:
                    self.heard.append(error)
                    told = True
                elif told and isinstance(error, Conflict | NotFound):
                    return None
                else:
                    raise
        raise Stuck(_AGAIN_AND_AGAIN)

    async def is_answered(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """As ``insists``, but of a call that gives its answer also to those who ask again."""
        for _ in range(_TRIES):
            try:
                return await call()
            except Exception as error:
                if error is not self.wire.raised:
                    raise
                self.heard.append(error)
        raise Stuck(_AGAIN_AND_AGAIN)

    async def submitted(self, request: str, *tasks: dict[str, Any]) -> None:
        """Have a job submitted."""
        await self.insists(lambda: self.ours.submit(*tasks, request_id=request))

    async def stands(self, request: str, key: str) -> TaskState:
        """The state of a task now, as it is stored."""
        return (await self.others.task(key, request)).state

    async def until(self, condition: Callable[[], Awaitable[object]], what: str) -> None:
        """Wait for something to be so."""
        for _ in range(_LOOKS):
            if await condition():
                return
            await asyncio.sleep(_LOOK_EVERY_S)
        raise Stuck(what)

    async def until_task(self, request: str, key: str, *states: TaskState) -> None:
        """Wait until a task is in one of these states, or has ended."""

        async def there() -> bool:
            row = await self.raw.ledger.task(task_id(key, request))
            return row is not None and (row.state in states or row.state.terminal)

        await self.until(there, f"{request}/{key} is not {' or '.join(states)}")

    async def until_child(self, request: str, key: str) -> None:
        """Wait until a task has a child at work, or has ended."""

        async def there() -> bool:
            row = await self.raw.ledger.task(task_id(key, request))
            return key in self.children.alive or (row is not None and row.state.terminal)

        await self.until(there, f"{request}/{key} has no child")

    async def until_job(self, *requests: str) -> None:
        """Wait until these jobs have ended."""
        for request in requests:

            async def ended(request: str = request) -> bool:
                row = await self.raw.ledger.job(job_id(request))
                return row is not None and row.state.terminal

            await self.until(ended, f"{request} does not end")

    async def until_rest(self) -> None:
        """Wait until nobody has anything to do, and nothing is left behind."""
        await self.until(self._at_rest, "nobody comes to rest")

    async def _at_rest(self) -> bool:
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
            or self.machine.absent()
            or await ledger.open_intents(limit=1)
            or await ledger.untold_ends(limit=1)
            or await ledger.untold_parents(limit=1)
            or await ledger.unrecorded_ends(ended_by=later, limit=1)
        )

    async def leave(self) -> None:
        """Let everybody go: all is judged."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait(others, timeout=1.0)
