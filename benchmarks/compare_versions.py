"""Compare what a task costs in two versions of Longshore.

``python -m benchmarks.compare_versions BEFORE AFTER`` takes two checkouts, each with its ``.venv``.
In every round both run the same jobs, one after the other: CPU time, SQL statements, fsyncs and
system calls per task, and the ratio of the medians. Wall-clock time is printed, not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_TASKS = 200
_JOBS = 20
_SYNCS = frozenset({"fsync", "fdatasync"})
# Runs the command line in this process, and counts the statements of its connections.
_COUNTED = """\
import atexit, sys, apsw
count = 0
def trace(event):
    global count
    count += 1
def hook(connection):
    connection.trace_v2(apsw.SQLITE_TRACE_STMT, trace)
apsw.connection_hooks.append(hook)
file = sys.argv.pop(1)
atexit.register(lambda: open(file, "w").write(str(count)))
from longshore.interfaces.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def _job_file(folder: Path) -> Path:
    """A job of one task, then many in parallel, then one."""
    command = {"name": "command", "input": {"argv": ["true"]}}
    middle = [
        {"taskId": f"middle-{number}", "dependsOn": ["first"], **command}
        for number in range(_TASKS - 2)
    ]
    last = {"taskId": "last", "dependsOn": [task["taskId"] for task in middle], **command}
    file = folder / "wide.json"
    file.write_text(json.dumps({"tasks": [{"taskId": "first", **command}, *middle, last]}))
    return file


def _single_file(folder: Path) -> Path:
    file = folder / "single.json"
    task = {"taskId": "only", "name": "command", "input": {"argv": ["true"]}}
    file.write_text(json.dumps({"tasks": [task]}))
    return file


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Version:
    """A checkout, and what its runs used."""

    def __init__(self, checkout: Path) -> None:
        self._bin = checkout / ".venv" / "bin"
        self.figures: dict[str, list[float]] = {}

    def measure(self) -> None:
        """One round: the jobs once for CPU, once for statements, once for system calls."""
        for kind in ("cpu", "statements", "calls"):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                self._submit(folder, kind)
                self._work(folder, kind)

    def _submit(self, folder: Path, kind: str) -> None:
        single, wide = _single_file(folder), _job_file(folder)
        self._run("submit", str(single), folder=folder)
        before = _cpu()
        for _ in range(_JOBS - 1):
            self._run("submit", str(single), folder=folder)
        if kind == "cpu":
            self._add("submit: CPU ms", 1000 * (_cpu() - before) / (_JOBS - 1))
        before = _cpu()
        self._run("submit", str(wide), folder=folder)
        if kind == "cpu":
            self._add(f"submit of {_TASKS} tasks: CPU ms", 1000 * (_cpu() - before))

    def _work(self, folder: Path, kind: str) -> None:
        arguments = ["worker", "--burst", "--concurrency", "8"]
        tasks = _JOBS + _TASKS
        match kind:
            case "cpu":
                cpu, start = _cpu(), time.monotonic()
                self._run(*arguments, folder=folder)
                self._add("task: CPU ms", 1000 * (_cpu() - cpu) / tasks)
                self._add("task: wall-clock ms", 1000 * (time.monotonic() - start) / tasks)
            case "statements":
                count = folder / "statements"
                launcher = [str(self._bin / "python"), "-c", _COUNTED, str(count)]
                self._run(*arguments, folder=folder, launcher=launcher)
                self._add("task: statements", int(count.read_text()) / tasks)
            case "calls":
                summary = folder / "calls"
                longshore = str(self._bin / "longshore")
                launcher = ["strace", "-f", "-c", "-U", "calls,name", "-o", str(summary), longshore]
                self._run(*arguments, folder=folder, launcher=launcher)
                calls = read_call_counts(summary)
                syncs = sum(calls.get(name, 0) for name in _SYNCS)
                self._add("task: fsyncs", syncs / tasks)
                self._add("task: system calls", calls["total"] / tasks)

    def _run(self, *arguments: str, folder: Path, launcher: Sequence[str] = ()) -> None:
        command = [*(launcher or [str(self._bin / "longshore")]), *arguments]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("LONGSHORE_")
        }
        subprocess.run(
            [*command, "--data-dir", str(folder / "data")],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=300,
        )

    def _add(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)


def read_call_counts(summary: Path) -> dict[str, int]:
    """Calls by name, from the table that ``strace -c`` writes."""
    counts: dict[str, int] = {}
    for line in summary.read_text().splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdigit():
            counts[words[1]] = int(words[0])
    return counts


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="checkout of the older version")
    parser.add_argument("after", type=Path, help="checkout of the newer version")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of both (default: 5)")
    options = parser.parse_args()
    versions = [Version(options.before.resolve()), Version(options.after.resolve())]
    for number in range(options.rounds):
        for version in versions:
            version.measure()
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    before, after = versions
    print(f"{'figure':32} {'before':>10} {'after':>10} {'ratio':>7}")
    for name, values in before.figures.items():
        first, second = statistics.median(values), statistics.median(after.figures[name])
        print(f"{name:32} {first:10.2f} {second:10.2f} {second / first:7.2f}")


if __name__ == "__main__":
    main()
