"""Whether a store stays as small as what it keeps: ``python -m benchmarks.retention``.

Submits, claims and completes jobs in bulk through a store whose sweeper keeps so many of them. Jobs
are ten minutes apart on a clock of the benchmark. Prints the size of the file against that of a
store that had only the jobs that are kept; the goal is 1.3.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.store_file import FILE_NAME
from longshore.core.claims import Room
from longshore.core.documents import Document
from longshore.core.tasks import commands as c
from longshore.ports.task_source import Applied, LeaseCommand, WorkerInstance
from longshore.services.submit import Submission
from longshore.settings import Settings
from longshore.settings.model import RetentionSettings
from longshore.testing.clock import FakeClock
from longshore.testing.worker_registry import FakeWorkerRegistry
from longshore.wiring.services import Services

GOAL = 1.3
_TENANT = "default"
_BATCH = 250
_APART = timedelta(minutes=10)
_NO_TIME = timedelta(0)
_RESULT = Document(text='{"rows":3}', size=10)
_JOB = {"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["true", "x" * 200]}}]}


async def run_jobs(folder: Path, total: int, keep: int) -> int:
    """Run so many jobs through a store that keeps ``keep``. Returns the size of its file."""
    clock = FakeClock()
    async with sqlite_backend(folder, clock) as backend:
        settings = Settings(retention=RetentionSettings(jobs=keep * _APART))
        registry = FakeWorkerRegistry()
        services = Services(settings=settings, backend=backend, worker_registry=registry)
        worker = await services.source.join(
            WorkerInstance(
                worker_id="worker",
                queues=("default",),
                process_id=1,
                lease_duration=timedelta(days=100),
            )
        )
        for first in range(0, total, _BATCH):
            numbers = range(first, min(first + _BATCH, total))
            jobs = [Submission(_JOB, f"request-{number}") for number in numbers]
            await services.producer.submit_many(_TENANT, jobs)
            claimed = await services.source.claim(
                worker, Room(slots=len(numbers)), turn_id=f"{first:09d}a", wait=_NO_TIME
            )
            commands = []
            for task in claimed:
                done = c.Complete(fence=task.row.fence, result=_RESULT, duration=_NO_TIME)
                commands.append(LeaseCommand(task.row.id, done, f"end of {task.row.id}"))
            turn = await services.source.turn(worker, commands, turn_id=f"{first:09d}b")
            if not all(isinstance(answer, Applied) for answer in turn.answers):
                message = "a job was not completed"
                raise RuntimeError(message)
            clock.advance(len(numbers) * _APART)
            await services.retention.remove_expired()
    return (folder / FILE_NAME).stat().st_size


def main() -> int:
    """Print the sizes. Returns 1 if the store is larger than the goal."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.retention")
    parser.add_argument("--jobs", type=int, default=200_000, help="jobs in all [200000]")
    parser.add_argument("--keep", type=int, default=10_000, help="jobs that are kept [10000]")
    options = parser.parse_args()
    sizes = []
    for total in (options.keep, options.jobs):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            sizes.append(asyncio.run(run_jobs(Path(folder), total, options.keep)))
            took = time.perf_counter() - began
        print(f"{total:>9,} jobs: {sizes[-1]:>12,} bytes, {took:.1f} s")
    ratio = sizes[1] / sizes[0]
    print(f"{options.keep:,} jobs kept: {ratio:.2f} times the size; the goal is {GOAL}")
    return ratio > GOAL


if __name__ == "__main__":
    sys.exit(main())
