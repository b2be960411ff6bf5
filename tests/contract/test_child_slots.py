"""Child slots held to their contract: real processes, and simulated ones."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.ports.child_slots import SlotTask
from longshore.ports.output import Stream
from longshore.ports.runner import ProgressReport
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.child_slots import (
    ChildSlotsContract,
    SlotRecorder,
    SlotsHarness,
)
from longshore.testing.simulated_slots import ChildCrash, SimulatedSlots, SimulatedTask, TaskError
from tests.execution.slots import a_task, harness

FOREVER = timedelta(days=1)
TURNS = 10


class _Slots(ChildSlotsContract):
    def make_task(self, function: str, *args: Any, number: int = 1, **fields: Any) -> SlotTask:
        return a_task(function, *args, number=number, **fields)


class TestProcessSlots(_Slots):
    @asynccontextmanager
    async def open_slots(self, tmp_path: Path) -> AsyncIterator[SlotsHarness]:
        async with harness(tmp_path) as here:
            yield here


class _FakeTimeHarness(SlotsHarness):
    """Time passes while something is awaited."""

    clock: FakeClock

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if not condition() and (deadline := self.clock.next_deadline) is not None:
                self.clock.advance(deadline - self.clock.elapsed())


class TestSimulatedSlots(_Slots):
    @asynccontextmanager
    async def open_slots(self, tmp_path: Path) -> AsyncIterator[SlotsHarness]:
        clock, recorder = FakeClock(), SlotRecorder()
        slots = SimulatedSlots(recorder, clock, _behave)
        recorder.slots = slots
        here = _FakeTimeHarness(
            slots,
            recorder,
            now_ns=lambda: clock.elapsed() // timedelta(microseconds=1) * 1000,
            begun=lambda: slots.begun,
        )
        here.clock = clock
        yield here
        await slots.close()


async def _behave(task: SimulatedTask) -> str:
    """The functions that the contract names."""
    call = json.loads(task.spec.input)
    _, _, function = call["function"].partition(":")
    args = call["args"]
    match function:
        case "echo":
            await task.sleep(timedelta(microseconds=100))
            return json.dumps(args[0] if args else None)
        case "waits" | "ignores_sigterm":
            task.ignores_sigterm = function == "ignores_sigterm"
            await task.print(b"ready\n")
            await task.sleep(FOREVER)
        case "stops_when_asked":
            task.ignores_sigterm = True
            await task.print(b"ready\n")
            await task.sleep(timedelta(seconds=1))
        case "steps":
            for name in args:
                await task.save_step(name, name.upper())
            return json.dumps([name.upper() for name in args])
        case "reports":
            task.report(ProgressReport(1, 2, "halves"))
            await task.print(b"a line\n", Stream.LOG)
        case "exits":
            raise ChildCrash
        case _:
            failure = Failure(category=ErrorCategory.VALIDATION, message=args[0])
            raise TaskError(failure)
    return "null"
