"""Simulated children: the plan of an attempt depends on seed, task and attempt number only.

It does not depend on the worker or the time. What really happened to an attempt is recorded, for
checks that need to see all machines at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from longshore.core.agents.plan import DEFAULT_STEP
from longshore.core.definitions.definition import RunnerKind
from longshore.core.events.types import Usage
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.child_slots import SlotTask
from longshore.ports.output import Stream
from longshore.ports.runner import (
    AttemptEnding,
    AttemptSpec,
    ChildReport,
    OutputReport,
    SpendRequest,
    StepReport,
    UsageReport,
)
from verification.simulation.faults import Fault
from verification.simulation.history import AttemptRecord
from verification.simulation.spending import HIGH_COST_USD, LOW_COST_USD

if TYPE_CHECKING:
    from verification.simulation.processes import Process
    from verification.simulation.simulation import Simulation

LARGE = "x" * 3_000
STEP_NAME = "step-{}"


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """What an attempt will do."""

    steps: int
    output_chunks: int
    pause: float  # before each action, in seconds
    ending: str
    ignores_stop: bool
    large_result: bool


class SimulatedRunner:
    """See ``ports.runner.Runner``: the children of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._simulation = process.simulation
        self._running: dict[SimulatedChild, None] = {}
        self._rng = self._simulation.random_for(f"children of {process.name}")

    async def open(self) -> None:
        """Does nothing."""

    async def close(self) -> None:
        self.kill_all()

    async def start(self, spec: AttemptSpec, *, deadline_ns: int) -> SimulatedChild:
        await self._process.wait_until_running()
        if self._simulation.faults.occurs(Fault.START_FAILS, self._rng):
            message = "cannot start a process"
            raise BackendUnavailable(message)
        if spec.input == "impossible":
            message = "this input is impossible"
            raise UsageError(message)
        await check_fence(self._simulation, spec)
        child = SimulatedChild(self._process, spec, draw_plan(self._simulation, spec))
        self._running[child] = None
        child.start(lambda: self._running.pop(child, None))
        child.trust_until(deadline_ns)
        return child

    @property
    def alive(self) -> list[SimulatedChild]:
        return list(self._running)

    def kill_all(self) -> None:
        """Kill all children with SIGKILL."""
        for child in list(self._running):
            child.kill(signal.SIGKILL)


def draw_plan(simulation: Simulation, spec: AttemptSpec | SlotTask) -> AttemptPlan:
    """Draw what an attempt will do."""
    rng = simulation.random_for(f"{spec.task_id}/{spec.attempt}")
    dies = simulation.faults.occurs(Fault.CHILD_DIES, rng)
    ignores_stop = simulation.faults.occurs(Fault.CHILD_IGNORES_STOP, rng)
    return AttemptPlan(
        steps=rng.choice((0, 0, 1, 2, 3)),
        output_chunks=rng.choice((0, 1, 2, 5)),
        pause=rng.choice((0.0, 0.1, 1.0, 1.0, 6.0)),
        ending="dies" if dies else _draw_ending(rng, spec),
        ignores_stop=ignores_stop,
        large_result=rng.random() < 0.2,
    )


def _draw_ending(rng: Random, spec: AttemptSpec | SlotTask) -> str:
    if spec.input in ("fails", '"fails"'):  # a slot has it as JSON
        return "final"
    # Agents are few, and only their rate limits hold a queue.
    rate_limit_weight = 40 if spec.definition.runner is RunnerKind.AGENT else 6
    return rng.choices(
        ("result", "retryable", "final", "rate limit", "hangs"),
        (70, 14, 4, rate_limit_weight, 4),
        k=1,
    )[0]


def planned_failure(ending: str) -> Failure:
    """The failure of an attempt that ends so."""
    match ending:
        case "retryable":
            return Failure(category=ErrorCategory.NETWORK, message="connection lost")
        case "rate limit":
            return Failure(
                category=ErrorCategory.RATE_LIMIT,
                message="rate limited",
                retry_after=timedelta(seconds=8),
            )
        case "dies" | "hangs":
            return Failure(category=ErrorCategory.CRASH, message="exited without a result")
        case _:
            return Failure(category=ErrorCategory.VALIDATION, message="invalid")


def check_inputs(
    simulation: Simulation,
    spec: AttemptSpec | SlotTask,
    dependency_outputs: Mapping[str, Any],
    previous_output: Any,
) -> None:
    """Report an attempt that starts without what others have left for it."""
    for key, value in dependency_outputs.items():
        if not isinstance(value, dict) or value.get("key") != key:
            text = f"starts without the result of its parent {key!r}"
            simulation.report_violation(6, spec.task_id, text)
    reviewed = previous_output
    if spec.feedback is not None and not (
        isinstance(reviewed, dict) and reviewed["attempt"] < spec.attempt
    ):
        text = "starts without the result that was reviewed"
        simulation.report_violation(1, spec.task_id, text)


async def check_fence(simulation: Simulation, spec: AttemptSpec | SlotTask) -> None:
    """Report an attempt that starts under a lease that has ended."""
    row = await simulation.backend.ledger.get_task(spec.task_id)
    if row is None or row.fence != spec.fence:
        text = f"a child of attempt {spec.attempt} is started after another took over"
        simulation.report_violation(10, spec.task_id, text)
    elif row.feedback != spec.feedback:
        text = "starts without the reviewer's feedback"
        simulation.report_violation(1, spec.task_id, text)


def start_record(process: Process, spec: AttemptSpec | SlotTask) -> AttemptRecord:
    """Record that an attempt starts."""
    simulation = process.simulation
    record = AttemptRecord(process.name, spec.task_id, spec.attempt, spec.fence, simulation.time())
    simulation.attempt_records.all.append(record)
    subject = f"{spec.task_id}/{spec.attempt} fence {spec.fence}"
    simulation.record(process.name, "child starts", subject)
    return record


def end_record(process: Process, record: AttemptRecord) -> None:
    """Record that an attempt has ended."""
    simulation = process.simulation
    record.ended_at = now = simulation.time()
    lease = simulation.settings.worker.duration.total_seconds()
    record.machine_paused = process.machine.was_paused(record.started_at - lease, now)
    simulation.record(process.name, "child ends", f"{record.task_id}/{record.attempt}")


class SimulatedChild:
    """See ``ports.runner.RunningAttempt``."""

    def __init__(self, process: Process, spec: AttemptSpec, plan: AttemptPlan) -> None:
        self.spec = spec
        self.folder: Path | None = None
        self.process_id = 1
        self._process = process
        self._simulation = process.simulation
        self._plan = plan
        self._signal: signal.Signals | None = None
        self._reports: asyncio.Queue[ChildReport | None] = asyncio.Queue()
        self._saved_steps: asyncio.Queue[str] = asyncio.Queue()
        self._spent = Usage()
        self._answers: asyncio.Queue[tuple[int, str | None]] = asyncio.Queue()
        self._finished = asyncio.Event()
        self._stop_requested = asyncio.Event()
        self._ending = AttemptEnding()
        self.record: AttemptRecord
        self._deadline_ns = 0
        self._on_end: Any = None
        self._task: asyncio.Task[None] | None = None

    def start(self, on_end: Any) -> None:
        self.record = start_record(self._process, self.spec)
        spec = self.spec
        check_inputs(self._simulation, spec, spec.dependency_outputs, spec.previous_output)
        self._on_end = on_end
        self._task = self._simulation.start_task(self._run())

    async def _run(self) -> None:
        plan, spec = self._plan, self.spec
        try:
            await self._wait_for_machine()
            if spec.definition.runner is RunnerKind.AGENT and not await self._spend():
                failure = Failure(category=ErrorCategory.VALIDATION, message="no budget left")
                self._end(AttemptEnding(failure=failure))
                return
            for number in range(plan.steps):
                await self._step(STEP_NAME.format(number))
            for number in range(plan.output_chunks):
                await self._sleep(plan.pause)
                self._reports.put_nowait(OutputReport(Stream.STDOUT, f"line {number}\n".encode()))
            self._reports.put_nowait(UsageReport(replace(self._spent, input_tokens=spec.attempt)))
            await self._sleep(plan.pause)
            if plan.ending == "hangs":
                await self._stop_requested.wait()
        except asyncio.CancelledError:
            return
        self._end(self._planned_ending())

    async def _spend(self) -> bool:
        """Send requests to a model within the budget. Returns whether all were sent."""
        spec, rng = (
            self.spec,
            self._simulation.random_for(f"{self.spec.task_id}/{self.spec.attempt} $"),
        )
        for number in range(1, 1 + rng.randrange(4)):
            await self._sleep(self._plan.pause)
            estimate = Usage(cost_usd=rng.choice((LOW_COST_USD, 1.0)))
            if spec.has_budget:
                self._reports.put_nowait(SpendRequest(number, DEFAULT_STEP, self._spent, estimate))
                answered_number, stop = await self._answers.get()
                if answered_number != number:
                    self._simulation.report_violation(
                        11, spec.task_id, "got an answer to a request that it did not send"
                    )
                if stop is not None:
                    return False
            await self._sleep(self._plan.pause)
            cost = rng.choice((LOW_COST_USD, 1.0, HIGH_COST_USD))
            self._simulation.spending.charge(spec.task_id, spec.attempt, cost)
            self._spent += Usage(turns=1, cost_usd=cost)
            self._reports.put_nowait(UsageReport(self._spent, number))
        return True

    async def _step(self, name: str) -> None:
        if name in self.spec.checkpoints:
            return
        step_id = (self.spec.task_id, self.spec.feedback, name)
        await self._sleep(self._plan.pause)
        if step_id in self._simulation.attempt_records.saved_steps:
            self._simulation.attempt_records.repeated_steps.append((self.record, name))
        self._reports.put_nowait(StepReport(name, {"step": name, "attempt": self.spec.attempt}))
        while await self._saved_steps.get() != name:
            pass
        self._simulation.attempt_records.saved_steps[step_id] = None

    async def _sleep(self, seconds: float) -> None:
        """Sleep; end if a stop was requested, unless the plan ignores it."""
        if seconds:
            await asyncio.sleep(seconds)
        await self._wait_for_machine()
        if self._stop_requested.is_set() and not self._plan.ignores_stop:
            raise asyncio.CancelledError

    async def _wait_for_machine(self) -> None:
        """Wait while the machine is paused."""
        await self._process.machine.wait_until_resumed()

    def _planned_ending(self) -> AttemptEnding:
        spec = self.spec
        if self._plan.ending == "result":
            self.record.succeeded = True
            more = {"more": LARGE} if self._plan.large_result else {}
            return AttemptEnding(result={"key": spec.key, "attempt": spec.attempt, **more})
        return AttemptEnding(failure=planned_failure(self._plan.ending))

    def _end(self, ending: AttemptEnding) -> None:
        if self._finished.is_set():
            return
        end_record(self._process, self.record)
        self._ending = ending
        self._finished.set()
        self._reports.put_nowait(None)
        self._on_end()

    def kill(self, number: signal.Signals) -> None:
        """End at once."""
        if not self._finished.is_set():
            self._signal = number
            self.record.succeeded = False
            if self._task is not None:
                self._task.cancel()
            failure = Failure(category=ErrorCategory.CRASH, message=f"killed by {number.name}")
            self._end(AttemptEnding(failure=failure))

    async def reports(self) -> AsyncIterator[ChildReport]:
        while (report := await self._reports.get()) is not None:
            await self._process.wait_until_running()
            yield report
        await self._process.wait_until_running()

    async def confirm_step(self, name: str) -> None:
        await self._process.wait_until_running()
        self._saved_steps.put_nowait(name)

    async def answer_spend_request(self, number: int, *, refusal: str | None) -> None:
        await self._process.wait_until_running()
        self._answers.put_nowait((number, refusal))

    async def ending(self) -> AttemptEnding:
        await self._finished.wait()
        await self._process.wait_until_running()
        return self._ending

    async def stop(self, *, grace: timedelta) -> str:
        await self._process.wait_until_running()
        if not self._finished.is_set():
            self._stop_requested.set()
            if not self._plan.ignores_stop or not grace:
                self.kill(signal.SIGTERM if grace else signal.SIGKILL)
            else:
                finishing = asyncio.ensure_future(self._finished.wait())
                await asyncio.wait((finishing,), timeout=grace.total_seconds())
                finishing.cancel()
                await self._process.wait_until_running()
                self.kill(signal.SIGKILL)
        return (self._signal or signal.SIGTERM).name

    def trust_until(self, deadline_ns: int) -> None:
        self._deadline_ns = deadline_ns
        self._simulation.call_at(deadline_ns / 1e9, self._end_at_deadline)

    def _end_at_deadline(self) -> None:
        """As its reaper does if the worker has not: it is frozen."""
        now = self._simulation.time()
        if now >= self._deadline_ns / 1e9 and now < self._process.frozen_until:
            self.kill(signal.SIGKILL)

    def rss_bytes(self) -> int:
        return 0

    async def close(self) -> None:
        """Does nothing."""
