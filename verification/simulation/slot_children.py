"""Simulated children of slots: the same plans as other children, in ``SimulatedSlots``."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from longshore.core.definitions.definition import Isolation
from longshore.core.events.types import Usage
from longshore.core.ids import task_id_of
from longshore.errors import BackendUnavailable
from longshore.ports.child_slots import SlotListener
from longshore.ports.runner import UsageReport
from longshore.testing.simulated_slots import (
    ChildCrash,
    SimulatedSlots,
    SimulatedTask,
    TaskError,
)
from verification.simulation.children import (
    LARGE,
    STEP_NAME,
    AttemptPlan,
    check_fence,
    check_inputs,
    draw_plan,
    end_record,
    planned_failure,
    start_record,
)
from verification.simulation.faults import Fault
from verification.simulation.history import AttemptRecord

if TYPE_CHECKING:
    from verification.simulation.processes import Machine, Process

_LONG_CHANCE = 0.1
_RETIRE_CHANCE = 0.05
_FOREVER = timedelta(days=365)


class _ChildClock:
    """See ``ports.clock.Clock``: children go on when their worker is dead."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self._machine = machine
        self._clock = process.simulation.clock

    def now(self) -> datetime:
        return self._clock.now()

    def elapsed(self) -> timedelta:
        return self._clock.elapsed()

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(max(duration.total_seconds(), 0.0))
        await self._machine.wait_until_resumed()


class SlotChildren:
    """The child slots of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._simulation = process.simulation
        self._rng = self._simulation.random_for(f"slots of {process.name}")
        self._slots: SimulatedSlots | None = None
        self._running = 0

    def make_slots(self, listener: SlotListener) -> SimulatedSlots:
        """Returns the slots of the process's worker."""
        self._slots = SimulatedSlots(
            listener,
            _ChildClock(self._process.machine, self._process),
            self._behave,
            before_open=self._before_open,
            before_event=self._process.wait_until_running,
        )
        return self._slots

    @property
    def alive(self) -> bool:
        """Whether a task is running."""
        return self._running > 0

    @property
    def begun(self) -> set[tuple[int, int]] | None:
        """What was begun; None if there are no slots."""
        return None if self._slots is None else set(self._slots.begun)

    def abandon(self) -> None:
        """The process dies; its children live on until ``kill_all``."""
        if self._slots is not None:
            self._slots.abandon()

    def kill_all(self) -> None:
        """Kill all children with SIGKILL."""
        if self._slots is not None:
            self._slots.kill_all()

    def lose_slot(self, rng: Random) -> bool:
        """Kill the reaper of a slot. Returns False if there is none."""
        numbers = [] if self._slots is None else self._slots.open_slots
        if self._slots is None or not numbers:
            return False
        self._slots.lose(rng.choice(numbers))
        return True

    async def _before_open(self) -> None:
        await self._process.wait_until_running()
        if self._simulation.faults.occurs(Fault.START_FAILS, self._rng):
            message = "cannot start a process"
            raise BackendUnavailable(message)

    async def _behave(self, task: SimulatedTask) -> str:
        spec, simulation, process = task.spec, self._simulation, self._process
        record = start_record(process, spec)
        self._running += 1
        concurrency = simulation.settings.worker.concurrency
        if self._running + len(process.children.alive) > concurrency:
            text = f"{process.name} runs more than {concurrency} attempts"
            simulation.report_violation(11, spec.task_id, text)
        if simulation.faults.occurs(Fault.ENDS_WITH_SLOTS, self._rng):
            delay = self._rng.choice((0.0, 0.0, 0.01, 0.1))
            end = self._rng.choice((process.die, process.stop_at_once, process.stop))
            simulation.call_at(simulation.time() + delay, end)
        try:
            await check_fence(simulation, spec)
            outputs = json.loads(spec.dependency_outputs or "{}")
            check_inputs(simulation, spec, outputs, json.loads(spec.previous_output or "null"))
            return await self._carry_out(task, record)
        finally:
            self._running -= 1
            end_record(process, record)

    async def _carry_out(self, task: SimulatedTask, record: AttemptRecord) -> str:
        spec = task.spec
        plan = draw_plan(self._simulation, spec)
        rng = self._simulation.random_for(f"{spec.task_id}/{spec.attempt} in a slot")
        is_short = spec.definition.isolation is Isolation.POOL and rng.random() > _LONG_CHANCE
        pause = timedelta(seconds=plan.pause / (1000 if is_short else 1))
        task.ignores_sigterm = plan.ignores_stop
        task.child_retires = rng.random() < _RETIRE_CHANCE
        if spec.input == '"impossible"':
            raise TaskError(planned_failure("final"))
        saved = json.loads(spec.checkpoints or "{}")
        for number in range(plan.steps):
            await self._step(task, record, STEP_NAME.format(number), saved, pause)
        for number in range(plan.output_chunks):
            await task.sleep(pause)
            await task.print(f"line {number}\n".encode())
        if not is_short:
            task.report(UsageReport(Usage(input_tokens=spec.attempt)))
        await task.sleep(pause)
        return await self._end(task, record, plan)

    async def _step(
        self,
        task: SimulatedTask,
        record: AttemptRecord,
        name: str,
        saved: dict[str, object],
        pause: timedelta,
    ) -> None:
        if name in saved:
            return
        records = self._simulation.attempt_records
        step_id = (task.spec.task_id, task.spec.feedback, name)
        await task.sleep(pause)
        if step_id in records.saved_steps:
            records.repeated_steps.append((record, name))
        await task.save_step(name, {"step": name, "attempt": task.spec.attempt})
        records.saved_steps[step_id] = None

    async def _end(self, task: SimulatedTask, record: AttemptRecord, plan: AttemptPlan) -> str:
        spec = task.spec
        if plan.ending == "hangs":
            await task.sleep(_FOREVER)
        if plan.ending == "dies":
            raise ChildCrash
        if plan.ending != "result":
            raise TaskError(planned_failure(plan.ending))
        record.succeeded = True
        key = spec.task_id.removeprefix(task_id_of(spec.job_id, ""))
        more = {"more": LARGE} if plan.large_result else {}
        return json.dumps({"key": key, "attempt": spec.attempt, **more})
