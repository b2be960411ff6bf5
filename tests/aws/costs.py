"""What work costs on AWS: units and requests as they are counted, and dollars by the price list.

``python -m tests.aws.costs`` prints the table that ``docs/explain/aws.md`` has.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.core.tasks.states import JobState
from longshore.services.retention import JobRetention
from longshore.testing.clock import FakeClock
from longshore.testing.fake_runner import Script
from tests.aws.event_pump import EventPump
from tests.aws.full_backend import full_aws_backend
from tests.aws.stand_in import stand_in
from tests.aws.units import CountingAws
from tests.unit.services import virtual_time
from tests.unit.services.harness import ServiceHarness, make_task

SOON = timedelta(seconds=2)
_RETENTION = timedelta(days=10)
LOAD = 40
"""The number of concurrent jobs, which share the costs of batches."""

ALONE, AT_LOAD = "a job of one, alone", f"a job of one, {LOAD} at once"
WITH_HEARTBEATS, WIDE = "a job of one, ten heartbeats", "a job of 100 (1 → 98 → 1)"

# Dollars a million, on demand, us-east-1, November 2026.
WRITE, READ, SQS, EVENT, INVOCATION, PUT = 0.625, 0.125, 0.40, 1.00, 0.20, 5.00
_QUEUE_BATCH = 10  # events that a queue's mapping hands to a function at once, received and deleted
_RELAY_BATCH = 100  # records that the stream's mapping hands to the relay


REMOVED, REMOVED_WIDE = "removal of jobs of one, 10 at once", "removal of a job of 30"
"""With its tombstone, which is removed later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of some tasks, per task."""

    tasks: int
    units: Counter[str]
    requests: Counter[str]
    reads: float

    def per_task(self, count: float) -> float:
        return count / self.tasks

    @property
    def ledger(self) -> float:
        """Write units of the ledger, with its indexes."""
        return self.per_task(sum(n for kind, n in self.units.items() if kind.startswith("ledger")))

    @property
    def history(self) -> float:
        """Write units of the event table, with its indexes."""
        return self.per_task(sum(n for kind, n in self.units.items() if kind.startswith("events")))

    @property
    def events(self) -> float:
        return self.per_task(self.requests["dynamodb.put_item"])

    @property
    def put_events(self) -> float:
        return self.per_task(self.requests["events.put_events"])

    @property
    def sqs(self) -> float:
        """Requests, with those of the mappings that feed dispatcher and history."""
        own = sum(n for kind, n in self.requests.items() if kind.startswith("sqs."))
        return self.per_task(own) + 2 * self.mapped / _QUEUE_BATCH

    @property
    def mapped(self) -> float:
        """Events that mappings hand on: all to the history, each end of a task to dispatching."""
        return self.events + 1

    @property
    def dollars(self) -> float:
        """The price of a million tasks, without the workers' machines and the functions' time."""
        invocations = self.events / _RELAY_BATCH + self.mapped / _QUEUE_BATCH
        return (
            (self.ledger + self.history) * WRITE
            + self.per_task(self.reads) * READ
            + self.sqs * SQS
            + self.events * EVENT
            + invocations * INVOCATION
            + self.per_task(self.requests["s3.put_object"] + self.requests["s3.list_objects_v2"])
            * PUT
        )


def seed_cost(cost: Cost) -> float:
    """What the same events would cost if each was published alone and written eight times."""
    sends = 3 + 2 * cost.events  # of the task's message; each event through a queue of its own
    return cost.events * (8 * WRITE + EVENT + INVOCATION) + sends * SQS


@asynccontextmanager
async def _harness(folder: Path) -> AsyncIterator[tuple[ServiceHarness, CountingAws, EventPump]]:
    clock = FakeClock()
    aws = CountingAws(stand_in().client_options, clock)
    pumps: list[EventPump] = []
    async with full_aws_backend(folder, clock, aws, pumps) as backend:
        yield ServiceHarness(backend), aws, pumps[0]


async def cost_of(
    folder: Path,
    *jobs: Sequence[dict[str, Any]],
    duration: timedelta = SOON,
    removal: bool = False,
) -> Cost:
    """Of running some jobs, submitted together, to their ends; or of removing them afterwards."""
    async with _harness(folder) as (stage, aws, pump):
        script = Script(reports=[duration - SOON]) if duration > SOON else Script()
        for task in (task for job in jobs for task in job):
            stage.runner.set_scripts(task["taskId"], script)
        async with stage.running_worker(concurrency=10):
            aws.clear()
            accepted = await asyncio.gather(
                *(stage.submit(*job, request_id=f"r{at}") for at, job in enumerate(jobs))
            )
            for _ in range(200):
                await stage.advance(duration)
                await pump.catch_up()
                await stage.dispatch()
                rows = [await stage.job(f"r{at}") for at in range(len(jobs))]
                aws.reads -= len(rows)  # which only this looks at
                if all(row.state is JobState.COMPLETED for row in rows):
                    break
            else:
                message = f"{accepted} did not come to their ends"
                raise AssertionError(message)
            await pump.catch_up()
            if removal:
                aws.clear()
                await _remove_jobs(stage)
            tasks = sum(len(job) for job in jobs)
            return Cost(
                tasks=tasks, units=aws.units.copy(), requests=aws.requests.copy(), reads=aws.reads
            )


async def _remove_jobs(stage: ServiceHarness) -> None:
    """Remove all jobs, and at last their tombstones."""
    retention = JobRetention(backend=stage.backend, keep_for=_RETENTION)
    for _ in range(2):
        stage.clock.advance(_RETENTION)
        await retention.remove_expired()


def one_task(at: int = 0) -> list[dict[str, Any]]:
    return [make_task(f"a{at}")]


def wide(count: int) -> list[dict[str, Any]]:
    """One task, all others behind it but the last, and that behind them."""
    between = [f"b{at}" for at in range(count - 2)]
    return [make_task("a"), *(make_task(key, "a") for key in between), make_task("c", *between)]


def table(costs: dict[str, Cost]) -> str:
    """One line each."""
    lines = [
        "| a task of | ledger WU | history WU | read units | SQS | PutEvents | $ / million |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, cost in costs.items():
        figures = (cost.ledger, cost.history, cost.per_task(cost.reads), cost.sqs, cost.put_events)
        shown = " | ".join(f"{figure:.2f}" for figure in figures)
        lines.append(f"| {name} | {shown} | {cost.dollars:.2f} |")
    return "\n".join(lines)


async def all_costs(folder: Path) -> dict[str, Cost]:
    """The kinds of work that have a budget, by their names in the table."""
    beats = timedelta(seconds=210)
    return {
        ALONE: await cost_of(folder / "one", one_task()),
        AT_LOAD: await cost_of(folder / "load", *(one_task(at) for at in range(LOAD))),
        WITH_HEARTBEATS: await cost_of(folder / "beats", one_task(), duration=beats),
        WIDE: await cost_of(folder / "wide", wide(100)),
    }


async def removal_costs(folder: Path) -> dict[str, Cost]:
    """What the removal of the same work costs, when it has been kept long enough."""
    return {
        REMOVED: await cost_of(folder / "load", *(one_task(at) for at in range(10)), removal=True),
        REMOVED_WIDE: await cost_of(folder / "wide", wide(30), removal=True),
    }


if __name__ == "__main__":
    for measure in (all_costs, removal_costs):
        with tempfile.TemporaryDirectory() as folder:
            print(table(virtual_time.run(measure(Path(folder)))))  # noqa: T201 - what it is for
