"""How soon a task continues when its worker is killed: from the kill to the next attempt's start.

Two workers; the one that has the task is killed while the task's own code runs, and
the other one has to notice by itself. Then a new worker takes the place of the dead one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import worker_process
from benchmarks.figures import Figure, percentile, under
from benchmarks.harness import run
from benchmarks.probes import Probe
from benchmarks.scale import Scale
from benchmarks.system import TENANT, open_system
from longshore.core.events.types import TaskProcessingStarted
from longshore.core.ids import task_id_of
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.wiring.services import Services

TARGET_MS = 1000.0
WORKERS = 2

_BATCH = 50
_POLL_S = 0.005
_NS_PER_MS = 1_000_000
# Says when each attempt begins, and ends with the one line that lies ready: a second attempt that
# came through would wait for ever.
_WORK = 'echo "$LONGSHORE_ATTEMPT $(date +%s%N)" >> "$1"; read line < "$2"; echo end >> "$1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """One kill, and what came of it."""

    task_id: str
    killed: int  # the worker's process id
    started_ms: float  # from the kill to *Task Processing Started*
    first_line_ms: float  # from the kill to the first line of the new attempt's own code
    lines: tuple[str, ...]  # output of the attempts: their numbers at the start, and "end"


class _Workers:
    """Worker processes that come and go."""

    def __init__(self, services: Services, folder: Path) -> None:
        self._services = services
        self._folder = folder
        self._started: dict[int, contextlib.AbstractContextManager[int]] = {}

    async def fill_up(self) -> None:
        """As many as there should be, all of them ready."""
        while len(self._started) < WORKERS:
            starting = worker_process.run_worker_process(self._folder)
            self._started[await asyncio.to_thread(starting.__enter__)] = starting
        await _until(self._wait_until_registered)

    async def _wait_until_registered(self) -> bool:
        return len(self._services.worker_registry.live_workers()) == WORKERS

    async def kill(self, process_id: int) -> int:
        """No last words; gives the moment of it, in nanoseconds."""
        killed = self._started.pop(process_id)
        moment = time.time_ns()
        os.kill(process_id, signal.SIGKILL)
        await asyncio.to_thread(killed.__exit__, None, None, None)
        return moment

    async def stop(self) -> None:
        while self._started:
            _, worker = self._started.popitem()
            await asyncio.to_thread(worker.__exit__, None, None, None)


@contextlib.asynccontextmanager
async def _working(services: Services, folder: Path) -> AsyncIterator[_Workers]:
    workers = _Workers(services, folder)
    try:
        yield workers
    finally:
        await workers.stop()


async def _until(look: Callable[[], Awaitable[bool]]) -> None:
    # Other processes wake no waiter of this process.
    while not await look():  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)


class _Task:
    """A task that can be watched, and let go."""

    def __init__(self, services: Services, folder: Path, number: int) -> None:
        self._services = services
        self._name = f"takeover-{number}"
        self._lines = folder / f"{self._name}.lines"
        self._gate = folder / f"{self._name}.gate"
        self.id = ""

    async def submit(self) -> None:
        os.mkfifo(self._gate)
        argv = ["sh", "-c", _WORK, "sh", str(self._lines), str(self._gate)]
        task = {"taskId": "t0", "name": "command", "input": {"argv": argv}}
        accepted = await self._services.producer.submit(TENANT, self._name, {"tasks": [task]})
        self.id = task_id_of(accepted.job.id, "t0")

    async def row(self) -> TaskRow:
        row = await self._services.backend.ledger.get_task(self.id)
        assert row is not None
        return row

    def lines(self) -> list[list[str]]:
        text = self._lines.read_text() if self._lines.exists() else ""
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]

    async def begun(self, attempt: int) -> None:
        """Return when the attempt's own code runs."""

        async def look() -> bool:
            return any(line[0] == str(attempt) for line in self.lines())

        await _until(look)

    async def finish(self) -> None:
        """Let one attempt come to its end, and see that it does."""

        async def look() -> bool:
            return (await self.row()).state.terminal

        # Open both ways, or this would wait for a reader.
        gate = os.open(self._gate, os.O_RDWR)
        try:
            os.write(gate, b"go\n")
            await _until(look)
        finally:
            os.close(gate)

    async def worker(self) -> int:
        """The process that has the task."""
        history = await self._services.backend.events.history(TENANT, f"TASK#{self.id}")
        bodies = [event.body for event in history]
        started = [body for body in bodies if isinstance(body, TaskProcessingStarted)]
        return started[-1].process_id


async def _takeover(workers: _Workers, task: _Task) -> Takeover:
    await workers.fill_up()
    await task.submit()
    await task.begun(1)
    process_id = await task.worker()
    killed_ns = await workers.kill(process_id)
    await task.begun(2)
    row = await task.row()
    assert row.started_at is not None
    started_ms = row.started_at.timestamp() * 1000 - killed_ns / _NS_PER_MS
    await task.finish()
    assert (await task.row()).state is TaskState.COMPLETED
    lines = task.lines()
    return Takeover(
        task_id=task.id,
        killed=process_id,
        started_ms=started_ms,
        first_line_ms=(int(lines[1][1]) - killed_ns) / _NS_PER_MS,
        lines=tuple(line[0] for line in lines),
    )


async def takeovers(folder: Path, count: int) -> list[Takeover]:
    """So many kills in a row, each of the worker that has the task."""
    async with open_system(folder) as services, _working(services, folder) as workers:
        return [
            await _takeover(workers, _Task(services, folder, number)) for number in range(count)
        ]


async def _scenario(folder: Path, _window: Probe, *, count: int, results: list[Takeover]) -> None:
    results += await takeovers(folder, count)


def measure(scale: Scale) -> Iterator[Figure]:
    """The median, the tail and the worst; a task that was lost or done twice stops the run."""
    result: list[Takeover] = []
    # A kill takes longer than a submit: 100 of them in a full run, in parts that end in time.
    count = max(2, scale.submits // 2)
    for done in range(0, count, _BATCH):
        part = min(_BATCH, count - done)
        run(partial(_scenario, count=part, results=result), Probe())
    for takeover in result:
        assert takeover.lines == ("1", "2", "end"), f"{takeover.task_id}: {takeover.lines}"
    yield from _figures("started", [item.started_ms for item in result], with_target=True)
    yield from _figures("first_line", [item.first_line_ms for item in result], with_target=False)


def _figures(name: str, values: list[float], *, with_target: bool) -> Iterator[Figure]:
    for text, value in distribution(values).items():
        yield Figure(
            name=f"takeover.{name}_{text}",
            unit="ms",
            value=value,
            target=under(TARGET_MS, value, "ms") if with_target else None,
            details={"kills": len(values)},
        )


def distribution(values: list[float]) -> dict[str, float]:
    """What the values are like, by name."""
    return {
        "p50": percentile(values, 0.5),
        "p99": percentile(values, 0.99),
        "most": max(values),
    }
