"""Children that play: each attempt's life is drawn from the seed, the task and the attempt alone.

So it does not depend on who runs it or when. What really happened to them is kept, for the checks
that only somebody who sees all machines at once can make.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from longshore.core.agents.plan import ONLY_STEP
from longshore.core.definition import RunnerKind
from longshore.core.events.types import Usage
from longshore.core.failures import ErrorCategory, Failure
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.output import Stream
from longshore.ports.runner import Asked, Ending, Printed, Report, StepDone, Used, WorkOrder
from longshore.testing.simulation.faults import Fault
from longshore.testing.simulation.lives import Life
from longshore.testing.simulation.spending import CHEAP, DEAR

if TYPE_CHECKING:
    from longshore.testing.simulation.processes import Process

LARGE = "x" * 3_000
_STEP = "step-{}"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What an attempt will do."""

    steps: int
    prints: int
    pause: float  # before each thing it does
    ending: str
    stubborn: bool
    large: bool


class Children:
    """See ``ports.runner.Runner``: the children of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._running: dict[Child, None] = {}
        self._rng = self._world.chance(f"children of {process.name}")

    async def open(self) -> None:
        """Nothing to get ready."""

    async def close(self) -> None:
        """All of them end."""
        self.kill_all()

    async def start(self, order: WorkOrder) -> Child:
        await self._process.awake()
        if self._world.faults.happens(Fault.NO_CHILD, self._rng):
            message = "no process to be had"
            raise BackendUnavailable(message)
        if order.input == "impossible":
            message = "nobody can do this"
            raise UsageError(message)
        row = await self._world.backend.ledger.task(order.task_id)
        if row is None or row.fence != order.fence:
            text = f"a child of attempt {order.attempt} is started after another took over"
            self._world.breach(10, order.task_id, text)
        elif row.feedback != order.feedback:
            self._world.breach(1, order.task_id, "starts without what the reviewer has said")
        child = Child(self._process, order, self._plan(order))
        self._running[child] = None
        child.begin(lambda: self._running.pop(child, None))
        return child

    def _plan(self, order: WorkOrder) -> _Plan:
        rng = self._world.chance(f"{order.task_id}/{order.attempt}")
        dies = self._world.faults.happens(Fault.CHILD_DIES, rng)
        stubborn = self._world.faults.happens(Fault.CHILD_STUBBORN, rng)
        return _Plan(
            steps=rng.choice((0, 0, 1, 2, 3)),
            prints=rng.choice((0, 1, 2, 5)),
            pause=rng.choice((0.0, 0.1, 1.0, 1.0, 6.0)),
            ending="dies" if dies else _ending(rng, order),
            stubborn=stubborn,
            large=rng.random() < 0.2,
        )

    @property
    def alive(self) -> list[Child]:
        """Those that have not ended."""
        return list(self._running)

    def kill_all(self) -> None:
        """SIGKILL to everything."""
        for child in list(self._running):
            child.kill(signal.SIGKILL)


def _ending(rng: Random, order: WorkOrder) -> str:
    wanted = order.input if isinstance(order.input, str) else None
    if wanted == "fails":
        return "final"
    # There are few agents, and only theirs holds a queue.
    limited = 40 if order.definition.runner is RunnerKind.AGENT else 6
    return rng.choices(
        ("result", "retryable", "final", "rate limit", "hangs"), (70, 14, 4, limited, 4), k=1
    )[0]


class Child:
    """See ``ports.runner.RunningAttempt``."""

    def __init__(self, process: Process, order: WorkOrder, plan: _Plan) -> None:
        self.order = order
        self.folder: Path | None = None
        self.process_id = 1
        self._process = process
        self._world = process.world
        self._plan = plan
        self._signal: signal.Signals | None = None
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue()
        self._heard: asyncio.Queue[str] = asyncio.Queue()
        self._spent = Usage()
        self._answers: asyncio.Queue[tuple[int, str | None]] = asyncio.Queue()
        self._over = asyncio.Event()
        self._asked = asyncio.Event()
        self._ending = Ending()
        self.life = Life(
            process.name, order.task_id, order.attempt, order.fence, self._world.time()
        )
        self._tell_end: Any = None
        self._playing: asyncio.Task[None] | None = None

    def begin(self, tell_end: Any) -> None:
        """Come to life."""
        self._world.lives.all.append(self.life)
        about = f"{self.order.task_id}/{self.order.attempt} fence {self.order.fence}"
        self._world.note(self._process.name, "child starts", about)
        self._look_at_order()
        self._tell_end = tell_end
        self._playing = self._world.begin(self._play())

    def _look_at_order(self) -> None:
        for key, value in self.order.dependency_outputs.items():
            if not isinstance(value, dict) or value.get("key") != key:
                text = f"starts without the result of its parent {key!r}"
                self._world.breach(6, self.order.task_id, text)
        seen = self.order.previous_output
        if self.order.feedback is not None and not (
            isinstance(seen, dict) and seen["attempt"] < self.order.attempt
        ):
            self._world.breach(1, self.order.task_id, "starts without what the reviewer has seen")

    async def _play(self) -> None:
        plan, order = self._plan, self.order
        try:
            await self._lives_on()
            if order.definition.runner is RunnerKind.AGENT and not await self._spends():
                failure = Failure(category=ErrorCategory.VALIDATION, message="nothing is left")
                self._end(Ending(failure=failure, exit_code=1))
                return
            for number in range(plan.steps):
                await self._step(_STEP.format(number))
            for number in range(plan.prints):
                await self._pass(plan.pause)
                self._reports.put_nowait(Printed(Stream.STDOUT, f"line {number}\n".encode()))
            self._reports.put_nowait(Used(replace(self._spent, input_tokens=order.attempt)))
            await self._pass(plan.pause)
            if plan.ending == "hangs":
                await self._asked.wait()
        except asyncio.CancelledError:
            return
        self._end(self._natural_end())

    async def _spends(self) -> bool:
        """Ask a model some questions, each only if it may; whether all were answered."""
        order, rng = self.order, self._world.chance(f"{self.order.task_id}/{self.order.attempt} $")
        for number in range(1, 1 + rng.randrange(4)):
            await self._pass(self._plan.pause)
            wanted = Usage(cost_usd=rng.choice((CHEAP, 1.0)))
            if order.budgeted:
                self._reports.put_nowait(Asked(number, ONLY_STEP, self._spent, wanted))
                asked, stop = await self._answers.get()
                if asked != number:
                    self._world.breach(11, order.task_id, "is answered what it has not asked")
                if stop is not None:
                    return False
            await self._pass(self._plan.pause)
            cost = rng.choice((CHEAP, 1.0, DEAR))
            self._world.spending.pay(order.task_id, order.attempt, cost)
            self._spent += Usage(turns=1, cost_usd=cost)
            self._reports.put_nowait(Used(self._spent, number))
        return True

    async def _step(self, name: str) -> None:
        if name in self.order.checkpoints:
            return
        which = (self.order.task_id, self.order.feedback, name)
        await self._pass(self._plan.pause)
        if which in self._world.lives.steps_kept:
            self._world.lives.done_again.append((self.life, name))
        self._reports.put_nowait(StepDone(name, {"step": name, "attempt": self.order.attempt}))
        while await self._heard.get() != name:
            pass
        self._world.lives.steps_kept[which] = None

    async def _pass(self, seconds: float) -> None:
        """Time passes; when asked to end it does, unless it is stubborn."""
        if seconds:
            await asyncio.sleep(seconds)
        await self._lives_on()
        if self._asked.is_set() and not self._plan.stubborn:
            raise asyncio.CancelledError

    async def _lives_on(self) -> None:
        """It stands still while its machine does."""
        await self._process.machine.runs()

    def _natural_end(self) -> Ending:
        order = self.order
        match self._plan.ending:
            case "result":
                self.life.succeeded = True
                more = {"more": LARGE} if self._plan.large else {}
                return Ending(
                    result={"key": order.key, "attempt": order.attempt, **more}, exit_code=0
                )
            case "retryable":
                failure = Failure(category=ErrorCategory.NETWORK, message="the line is dead")
            case "rate limit":
                failure = Failure(
                    category=ErrorCategory.RATE_LIMIT,
                    message="slower",
                    retry_after=timedelta(seconds=8),
                )
            case "dies" | "hangs":
                failure = Failure(category=ErrorCategory.CRASH, message="died without a word")
            case _:
                failure = Failure(category=ErrorCategory.VALIDATION, message="this is wrong")
        return Ending(failure=failure, exit_code=1)

    def _end(self, ending: Ending) -> None:
        if self._over.is_set():
            return
        self.life.ended = now = self._world.time()
        lease = self._world.settings.worker.lease.total_seconds()
        self.life.machine_stood_still = self._process.machine.stood_still(
            self.life.began - lease, now
        )
        about = f"{self.order.task_id}/{self.order.attempt}"
        self._world.note(self._process.name, "child ends", about)
        self._ending = ending
        self._over.set()
        self._reports.put_nowait(None)
        self._tell_end()

    def kill(self, number: signal.Signals) -> None:
        """End now."""
        if not self._over.is_set():
            self._signal = number
            self.life.succeeded = False
            if self._playing is not None:
                self._playing.cancel()
            failure = Failure(category=ErrorCategory.CRASH, message=f"killed by {number.name}")
            self._end(Ending(failure=failure, signal=number.name))

    async def reports(self) -> AsyncIterator[Report]:
        while (report := await self._reports.get()) is not None:
            await self._process.awake()
            yield report
        await self._process.awake()

    async def step_kept(self, name: str) -> None:
        await self._process.awake()
        self._heard.put_nowait(name)

    async def answer(self, number: int, *, stop: str | None) -> None:
        await self._process.awake()
        self._answers.put_nowait((number, stop))

    async def ending(self) -> Ending:
        await self._over.wait()
        await self._process.awake()
        return self._ending

    async def stop(self, *, grace: timedelta) -> str:
        await self._process.awake()
        if not self._over.is_set():
            self._asked.set()
            if not self._plan.stubborn or not grace:
                self.kill(signal.SIGTERM if grace else signal.SIGKILL)
            else:
                with_grace = asyncio.ensure_future(self._over.wait())
                await asyncio.wait((with_grace,), timeout=grace.total_seconds())
                with_grace.cancel()
                await self._process.awake()
                self.kill(signal.SIGKILL)
        return (self._signal or signal.SIGTERM).name

    def rss_bytes(self) -> int:
        return 0

    async def close(self) -> None:
        """It has no folder."""
