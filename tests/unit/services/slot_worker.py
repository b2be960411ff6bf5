"""A worker whose tasks run in simulated child slots."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from longshore.core.definitions.definition import Definition, Isolation, RunnerKind
from longshore.errors import LongshoreError
from longshore.ports.child_slots import SlotListener
from longshore.services.worker.worker import Worker
from longshore.testing.simulated_slots import Behaviour, SimulatedSlots, SimulatedTask
from tests.unit.services.harness import NO_WAIT, TENANT, ServiceHarness

MILLISECOND = timedelta(milliseconds=1)
FOREVER = timedelta(days=1)
POOL, FORK = Isolation.POOL, Isolation.FORK


def lasts(duration: timedelta, *, deaf: bool = False) -> Behaviour:
    """A task that takes so long; ``deaf``: it ignores SIGTERM."""

    async def behave(task: SimulatedTask) -> str:
        task.ignores_sigterm = deaf
        await task.sleep(duration)
        return '"late"'

    return behave


def prints(text: str, duration: timedelta = NO_WAIT) -> Behaviour:
    """A task that prints something, then takes so long."""

    async def behave(task: SimulatedTask) -> str:
        await task.print(text.encode())
        await task.sleep(duration)
        return '"printed"'

    return behave


HANGS = lasts(FOREVER)


class SlotWorker:
    """What the children of a worker do, by the key of the task, and what they have done."""

    def __init__(self, harness: ServiceHarness) -> None:
        self.harness = harness
        self.behaviours: dict[str, Behaviour] = {}
        self.open_errors: list[LongshoreError] = []  # of the next calls
        self.begun: list[str] = []  # keys
        self.running: list[str] = []
        self.listeners: list[SlotListener] = []
        self.slots: SimulatedSlots

    def make_slots(self, listener: SlotListener) -> SimulatedSlots:
        self.slots = SimulatedSlots(
            listener, self.harness.clock, self._behave, before_open=self._before_open
        )
        return self.slots

    async def _before_open(self) -> None:
        if self.open_errors:
            raise self.open_errors.pop(0)

    async def _behave(self, task: SimulatedTask) -> str:
        key = task.spec.task_id.rpartition("_")[2]
        self.begun.append(key)
        self.running.append(key)
        try:
            return await self.behaviours.get(key, lasts(MILLISECOND))(task)
        finally:
            self.running.remove(key)

    @asynccontextmanager
    async def at_work(self, **options: Any) -> AsyncIterator[Worker]:
        """The worker runs; what it still runs at the end is given back."""
        context = {"make_slots": self.make_slots}
        async with self.harness.running_worker(context=context, **options) as worker:
            yield worker


async def put_definitions(harness: ServiceHarness, **changes: Any) -> None:
    """Two definitions of functions, ``pooled`` and ``forked``."""
    for tenant in (TENANT, "other"):
        for name, isolation in (("pooled", POOL), ("forked", FORK)):
            fields = {"overridable": ("function",), **changes}
            definition = Definition(
                name=name, runner=RunnerKind.PYTHON, isolation=isolation, **fields
            )
            await harness.backend.definitions.put(tenant, definition)


def call(key: str, *parents: str, name: str = "pooled", **fields: Any) -> dict[str, Any]:
    """A task that calls a function."""
    function = {"function": "module:function"}
    task = {"taskId": key, "name": name, "input": function, "dependsOn": list(parents), **fields}
    return task if parents else {**task, "dependsOn": []}
