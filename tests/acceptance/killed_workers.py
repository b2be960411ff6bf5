"""Workers that share a data folder are killed at random moments, until a job has ended.

A test does a little of it; ``python -m tests.acceptance.killed_workers 20`` does it with 20 seeds.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from longshore.audit.audit import audit
from longshore.audit.sqlite_reader import read_snapshot
from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, Isolation
from longshore.core.tasks.states import JobState, TaskState
from longshore.settings import load_settings
from longshore.wiring.services import Services, open_services
from tests.acceptance.conftest import WorkerProcess, wait_until
from tests.acceptance.history_checks import read_checked_history, starts

ROOT = Path(__file__).parents[2]
WORKERS = 3
TASKS = 90
LONGEST_S = 0.5  # of a task, so that kills meet tasks that run
NOTES = "notes"
# What runs a task: a command, a child for each task, or a child for many of them.
KINDS = ("command", Isolation.FORK, Isolation.POOL)


class KilledWorkers:
    """One job, and the workers that are killed while they run its tasks."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = Random(seed)
        self._data_dir = str(folder / "data")
        self._workers: list[WorkerProcess] = []
        self.kills = 0
        self.begun = 0  # attempts whose own code has begun

    async def run(self, kills: int) -> None:
        """Kill so many workers, then let the job end, and check everything that is stored."""
        settings = load_settings({"data_dir": self._data_dir})
        async with open_services(settings) as services:
            job = await self._submit(services)
            try:
                for _ in range(WORKERS):
                    self._start()
                await self._kill(services, job, kills)
                await wait_until(lambda: _has_ended(services, job))
            finally:
                for worker in self._workers:
                    worker.stop()
            await self._check(services, job)
        assert [
            str(item) for item in audit(read_snapshot(Path(self._data_dir), settled=True))
        ] == []

    async def _submit(self, services: Services) -> str:
        for isolation in (Isolation.FORK, Isolation.POOL):
            definition = replace(
                BUILTIN_DEFINITIONS["python"],
                name=isolation.value,
                isolation=isolation,
                options={"path": [str(ROOT)]},
            )
            await services.backend.definitions.put("default", definition)
        tasks = [self._task(number) for number in range(TASKS)]
        return (await services.producer.submit("default", "r", {"tasks": tasks})).job.id

    def _task(self, number: int) -> dict[str, Any]:
        kind, notes = self._chance.choice(KINDS), str(self._folder / NOTES)
        parents = self._chance.sample(range(number), min(number, self._chance.randrange(3)))
        function = "tests.acceptance.attempt_tasks:notes_its_attempt"
        seconds = self._chance.random() * LONGEST_S
        script = f'echo "t{number} $LONGSHORE_ATTEMPT" >> {notes}; sleep {seconds}'
        return {
            "taskId": f"t{number}",
            "name": str(kind),
            "dependsOn": [f"t{parent}" for parent in parents],
            "input": {"argv": ["sh", "-c", script]}
            if kind == "command"
            else {"function": function, "args": [notes, f"t{number}", seconds]},
            "maxAttempts": 100,
        }

    def _start(self) -> None:
        self._workers.append(WorkerProcess({"data_dir": self._data_dir, "worker.concurrency": 2}))

    async def _kill(self, services: Services, job: str, kills: int) -> None:
        """Kill a worker each time that some more attempts have begun."""
        most = 2 * TASKS // kills

        async def is_due(expected: int) -> bool:
            return len(self._notes()) >= expected or await _has_ended(services, job)

        while self.kills < kills:
            expected = len(self._notes()) + self._chance.randrange(most)
            await wait_until(lambda expected=expected: is_due(expected))
            victim = await self._choose_victim(services)
            self._workers.remove(victim)
            victim.kill()
            victim.stop()
            self.kills += 1
            self._start()

    async def _choose_victim(self, services: Services) -> WorkerProcess:
        """Mostly one that has a task."""
        leased = await services.backend.ledger.leased_tasks(limit=TASKS)
        holders = {lease.worker_id for _, lease in leased}
        busy = [worker for worker in self._workers if worker.id in holders]
        any_of = busy if busy and self._chance.random() < 0.75 else self._workers
        return self._chance.choice(any_of)

    def _notes(self) -> list[tuple[str, int]]:
        """The keys and attempts that have begun, in this order."""
        path = self._folder / NOTES
        lines = path.read_text().splitlines() if path.exists() else []
        return [(key, int(attempt)) for key, attempt in map(str.split, lines)]

    async def _check(self, services: Services, job: str) -> None:
        row = await services.backend.ledger.get_job(job)
        assert row is not None
        assert row.state is JobState.COMPLETED
        notes = self._notes()
        self.begun = len(notes)
        # No attempt's code begins twice.
        assert [note for note, count in Counter(notes).items() if count > 1] == []
        for number in range(TASKS):
            task, history = await read_checked_history(services.backend, f"{job}_t{number}")
            begun = [attempt for key, attempt in notes if key == f"t{number}"]
            assert task.state is TaskState.COMPLETED
            assert begun == sorted(begun)
            assert begun[-1] == task.attempt == len(starts(history))
            # A kill uses an attempt only if the task had begun; a command that is being started
            # counts as begun.
            assert task.attempts_used <= len(starts(history)) - 1


async def _has_ended(services: Services, job: str) -> bool:
    row = await services.backend.ledger.get_job(job)
    return row is not None and row.state.terminal


def main() -> None:
    for seed in range(int(sys.argv[1])):
        began = monotonic()
        with tempfile.TemporaryDirectory() as folder:
            workers = KilledWorkers(Path(folder), seed)
            asyncio.run(workers.run(30))
        sys.stdout.write(
            f"seed {seed}: {workers.kills} kills, {workers.begun} attempts of {TASKS} tasks,"
            f" {monotonic() - began:.0f} s\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
