"""No-ops in child slots without any store: tasks per second, CPU per task, system calls per task.

``python -m benchmarks.child_slots`` prints a table. CPU time is that of all processes: the worker's
side in this process, the fork server, the reapers and the children. System calls are counted in a
further run below ``strace``, if there is one; the time of that run is not printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from benchmarks.processes import tree_cpu_s
from benchmarks.worker_process import ROOT, clean_environment
from longshore.adapters.system import SystemClock
from longshore.core.definitions.definition import Definition, Isolation, RunnerKind
from longshore.execution.host.folder_cleaner import FolderCleaner
from longshore.execution.host.forkserver_client import ForkServerClient
from longshore.execution.host.slots import ProcessSlots
from longshore.execution.slot_page import clock_ns
from longshore.ports.child_slots import ChildEnding, SlotOutcome, SlotTask
from longshore.ports.output import Stream
from longshore.ports.runner import ChildReport

TARGETS_US = {Isolation.POOL: 25, Isolation.FORK: 2200}
_AHEAD = 64  # tasks that a slot of a pool has at a time
_WARMUP = {Isolation.POOL: 2_000, Isolation.FORK: 50}
_TOTALS = {Isolation.POOL: 50_000, Isolation.FORK: 1_000}
_ONE_HOUR_NS = 3_600 * 10**9


class _Load:
    """Gives tasks to all slots until each of them had its outcome."""

    def __init__(self, isolation: Isolation, *, printing: bool) -> None:
        options = {"function": "builtins:print" if printing else "gc:enable"}
        self.definition = Definition(
            name="noop", runner=RunnerKind.PYTHON, isolation=isolation, options=options
        )
        self.input = '{"args":["a line of output"]}' if printing else "{}"
        self.ahead = _AHEAD if isolation is Isolation.POOL else 1
        self.slots: ProcessSlots
        self.next_number = 1
        self.output_bytes = 0
        self._again: deque[int] = deque()
        self._left = self._to_give = 0
        self._done = asyncio.Event()

    async def run(self, slots: list[int], total: int) -> None:
        self._left = self._to_give = total
        self._done.clear()
        for slot in slots:
            for _ in range(self.ahead):
                self._give(slot)
        await self._done.wait()

    def _give(self, slot: int) -> None:
        number = self._again.popleft() if self._again else self.next_number
        if number == self.next_number:
            if not self._to_give:
                return
            self._to_give -= 1
            self.next_number += 1
        task = SlotTask(
            number=number,
            fence=number,
            tenant="default",
            task_id=f"job-bench_{number}",
            job_id="job-bench",
            attempt=1,
            definition=self.definition,
            input=self.input,
        )
        if not self.slots.give(slot, task):
            self._again.append(number)

    def outcome(self, slot: int, outcome: SlotOutcome) -> None:
        assert outcome.failure is None, outcome
        if outcome.folder is not None:
            self.slots.release_folder(outcome.folder)
        self._left -= 1
        if not self._left:
            self._done.set()
        self._give(slot)

    def too_late(self, slot: int, number: int) -> None:
        raise AssertionError(number)

    def output(self, slot: int, number: int, stream: Stream, data: bytes) -> None:
        self.output_bytes += len(data)

    def report(self, slot: int, number: int, report: ChildReport) -> None:
        raise AssertionError(report)

    def child_ended(self, slot: int, ending: ChildEnding) -> None:
        assert ending.begun is None, ending
        self._again.extend(ending.not_begun)
        for _ in range(self.ahead):
            self._give(slot)


async def measure_slots(
    isolation: Isolation, total: int, *, printing: bool, concurrency: int
) -> tuple[float, float]:
    """Returns tasks per second and microseconds of CPU per task."""
    load = _Load(isolation, printing=printing)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        forkserver = ForkServerClient(clean_environment())
        cleaner = FolderCleaner(keep=False)
        load.slots = ProcessSlots(
            forkserver,
            load,
            SystemClock(),
            folder=folder / "work",
            page_path=folder / "bench.begun",
            cleaner=cleaner,
        )
        slots = [await load.slots.open_slot(isolation) for _ in range(concurrency)]
        for slot in slots:
            load.slots.trust_until(slot, clock_ns() + _ONE_HOUR_NS)
        await load.run(slots, _WARMUP[isolation])
        cpu_s, began = _cpu_s(), time.perf_counter()
        await load.run(slots, total)
        seconds, cpu_s = time.perf_counter() - began, _cpu_s() - cpu_s
        assert load.output_bytes == printing * 17 * (total + _WARMUP[isolation])
        await load.slots.close()
        await forkserver.close()
        await cleaner.close()
    return total / seconds, 1e6 * cpu_s / total


def _cpu_s() -> float:
    return tree_cpu_s(os.getpid())


def _count_calls(isolation: Isolation, *, printing: bool) -> str:
    """Returns the system calls per task of all processes, the most frequent ones by name."""
    if shutil.which("strace") is None:
        return "no strace"
    counts: list[dict[str, int]] = []
    totals = (1_000, 6_000) if isolation is Isolation.POOL else (50, 250)
    for total in totals:
        with tempfile.NamedTemporaryFile("r") as file:
            argv = ["strace", "-f", "-c", "-o", file.name, sys.executable, "-m", __spec__.name]
            argv += ["--only", isolation.value, "--total", str(total), "--concurrency", "1"]
            argv += ["--print"] if printing else []
            subprocess.run(argv, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            rows = re.findall(
                r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", file.read(), re.M
            )
        counts.append({call: int(count) for count, call in rows})
    few, many = counts
    difference = {call: (many[call] - few.get(call, 0)) / (totals[1] - totals[0]) for call in many}
    difference.pop("total", None)
    frequent = sorted(difference.items(), key=lambda item: -item[1])[:8]
    names = ", ".join(f"{call} {count:.2f}" for call, count in frequent if count >= 0.05)
    return f"{sum(difference.values()):.1f}: {names}"


def main() -> None:
    """Print the table, or carry out one run for ``strace``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=Isolation)
    parser.add_argument("--total", type=int)
    parser.add_argument("--print", action="store_true", dest="printing")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.only is not None and options.total is not None:
        asyncio.run(
            measure_slots(
                options.only,
                options.total,
                printing=options.printing,
                concurrency=options.concurrency,
            )
        )
        return
    for isolation in TARGETS_US:
        for printing in (False, True):
            runs = [
                asyncio.run(
                    measure_slots(
                        isolation,
                        options.total or _TOTALS[isolation],
                        printing=printing,
                        concurrency=options.concurrency,
                    )
                )
                for _ in range(options.rounds)
            ]
            rates, costs = zip(*runs, strict=True)
            print(
                f"{isolation.value:5}{'with a line' if printing else 'no output':>12}"
                f"{max(rates):9,.0f}/s  {min(costs):7.1f}-{max(costs):.1f} us CPU"
                f" (target {TARGETS_US[isolation]})"
            )
            with contextlib.suppress(subprocess.CalledProcessError):
                print(f"      calls {_count_calls(isolation, printing=printing)}")


if __name__ == "__main__":
    main()
