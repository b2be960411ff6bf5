"""Stops each process of a worker in turn: no two attempts overlap, and no process is left.

``python -m verification.freeze --rounds 50`` (``make freeze``). Two workers share a data folder. In
each round one of them runs a task; its worker, fork server, reaper or child gets SIGSTOP, and
SIGCONT after twice the time that a lease lasts. While a worker is stopped, the other one must take
the task over. The task records its own times, and so does a process that it has forked.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from longshore.audit.audit import audit
from longshore.audit.sqlite_reader import read_snapshot
from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, Isolation
from longshore.core.tasks.states import TaskState
from longshore.execution.process_table import descendants, is_alive
from longshore.settings import load_settings
from longshore.wiring.services import Services, open_services

ROOT = Path(__file__).parents[1]
FROZEN_S = 12.0
_KEY = "t"
_TIMEOUT_S = 40  # less than the time between two sweeps
_POLL_S = 0.02
# A lease of 6 s; see ``LeasePolicy.duration``.
_SETTINGS = """[worker]
renew_every = "1s"
extend_by = "4s"
kill_grace = "500ms"
skew_margin = "500ms"
concurrency = 2
"""
_TENANT = "default"


class Victim(StrEnum):
    """Which process of the worker is stopped."""

    WORKER = "worker"
    FORK_SERVER = "fork server"
    REAPER = "reaper"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class Line:
    """What a process of an attempt has recorded."""

    attempt: int
    process_id: int
    is_below: bool  # it was forked by the task
    at_ns: int


class Unfrozen(AssertionError):
    """A round has found a violation."""


class FreezeRun:
    """Two workers of one data folder, and the rounds with them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data_dir = folder / "data"
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self.takeovers = 0

    async def run(self, numbers: Iterable[int]) -> None:
        """Carry out these rounds, then stop the workers and check what is stored."""
        settings = load_settings({"data_dir": str(self._data_dir)})
        async with open_services(settings) as services:
            for isolation in Isolation:
                definition = replace(
                    BUILTIN_DEFINITIONS["python"],
                    name=isolation.value,
                    isolation=isolation,
                    options={"path": [str(ROOT)]},
                )
                await services.backend.definitions.put(_TENANT, definition)
            with self._running_workers():
                for number in numbers:
                    await self._round(services, number)
                below = {pid for worker in self._workers for pid in descendants(worker)}
                for process in self._workers.values():
                    process.terminate()
                for process in self._workers.values():
                    await asyncio.to_thread(process.wait, _TIMEOUT_S)
                await _until(lambda: not any(map(is_alive, below)), "a process of a worker ends")
        violations = [str(item) for item in audit(read_snapshot(self._data_dir, settled=True))]
        _check(not violations, f"the audit: {violations}")

    @contextmanager
    def _running_workers(self) -> Iterator[None]:
        arguments = [sys.executable, "-m", "longshore", "worker", "--data-dir", str(self._data_dir)]
        (self._folder / "longshore.toml").write_text(_SETTINGS)
        try:
            for number in range(2):
                with (self._folder / f"worker-{number}.log").open("wb") as log:
                    process = subprocess.Popen([*arguments, "-v"], cwd=self._folder, stderr=log)
                self._workers[process.pid] = process
            yield
        finally:
            for process in self._workers.values():
                if process.poll() is None:
                    process.kill()
                    process.wait()

    async def _round(self, services: Services, number: int) -> None:
        victim = list(Victim)[number % len(Victim)]
        isolation = list(Isolation)[number // len(Victim) % len(Isolation)]
        folder = self._folder / f"round-{number}"
        folder.mkdir()
        task = {
            "taskId": _KEY,
            "name": isolation.value,
            "input": {
                "function": "verification.freeze_tasks:record_times",
                "args": [str(folder), _KEY],
            },
        }
        submitted = await services.producer.submit(_TENANT, f"r{number}", {"tasks": [task]})
        task_id = f"{submitted.job.id}_{_KEY}"
        await _until(lambda: len({line.is_below for line in _lines(folder)}) == 2, "it begins")
        first = next(line for line in _lines(folder) if not line.is_below)
        frozen = self._find(victim, first.process_id)
        os.kill(frozen, signal.SIGSTOP)
        try:
            await asyncio.sleep(FROZEN_S)
            if victim is Victim.WORKER:
                await _until(lambda: _lines(folder)[-1].attempt > first.attempt, "a takeover")
                self.takeovers += 1
        finally:
            os.kill(frozen, signal.SIGCONT)
        (folder / "end").touch()

        await _until_completed(services, task_id)
        lines = _lines(folder)
        _check_no_overlap(lines)
        left = {
            line.process_id for line in lines if line.is_below or isolation is not Isolation.POOL
        }
        await _until(lambda: not any(map(is_alive, left)), "its processes end")
        attempts = max(line.attempt for line in lines)
        sys.stdout.write(f"round {number}: {victim} of {isolation}, {attempts} attempts\n")
        sys.stdout.flush()

    def _find(self, victim: Victim, child: int) -> int:
        """The process id of the victim: of the worker below which the child is."""
        worker = next(item for item in self._workers if child in descendants(item))
        reaper = _parent_of(child)
        chosen = {
            Victim.WORKER: worker,
            Victim.FORK_SERVER: _parent_of(reaper),
            Victim.REAPER: reaper,
            Victim.CHILD: child,
        }
        _check(_parent_of(chosen[Victim.FORK_SERVER]) == worker, "reaper or fork server not found")
        return chosen[victim]


def _check_no_overlap(lines: list[Line]) -> None:
    for attempt in {line.attempt for line in lines}:
        begin = min(line.at_ns for line in lines if line.attempt == attempt)
        late = [line for line in lines if line.attempt < attempt and line.at_ns >= begin]
        _check(not late, f"attempt {attempt} began at {begin}; then {late[:1]}")


def _lines(folder: Path) -> list[Line]:
    """What was recorded in a round; a line that is being written is left out."""
    path = folder / _KEY
    text = path.read_text() if path.exists() else ""
    fields = [map(int, line.split()) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [Line(attempt, pid, bool(below), at) for attempt, pid, below, at in fields]


def _parent_of(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])


def _check(holds: bool, text: str) -> None:  # noqa: FBT001 - like an assertion
    if not holds:
        raise Unfrozen(text)


async def _until_completed(services: Services, task_id: str) -> None:
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            row = await services.backend.ledger.get_task(task_id)
            if row is not None and row.state is TaskState.COMPLETED:
                return
            await asyncio.sleep(_POLL_S)


async def _until(check: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            # A look at processes and at the files of others: there is nothing to be woken by.
            while not check():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise Unfrozen(f"waited in vain: {what}") from None


def main(arguments: list[str]) -> int:
    """Run the rounds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m verification.freeze", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args(arguments).rounds
    with tempfile.TemporaryDirectory() as folder:
        run = FreezeRun(Path(folder))
        asyncio.run(run.run(range(rounds)))
    sys.stdout.write(f"{rounds} rounds, {run.takeovers} takeovers: no overlap, no process left\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
