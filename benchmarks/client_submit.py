"""What a submit of the Python client costs: ``python -m benchmarks.client_submit``.

Prints for ``longshore.Client`` the CPU of the client process (all threads), statements,
transactions and, with ``strace``, system calls and syncs: of one submit after the other, of
``submit_many``, and of one job of many tasks. The floor is one insert and commit by ``apsw`` with
the same durability, in turns with ours. Times are medians of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import apsw

import longshore
from benchmarks.compare_versions import read_call_counts
from benchmarks.probes import TimingProbe
from benchmarks.sqlite_work import StatementCounter

_PAYLOAD = b"x" * 200
_KINDS = ("floor", "single", "many", "one job")

Work = Callable[[int], None]


@longshore.task(isolation="pool")
def noop(number: int) -> int:
    """The task that is submitted."""
    return number


@contextlib.contextmanager
def workloads(folder: Path) -> Iterator[dict[str, Work]]:
    """What is measured, by name; the number is how often, or how many tasks."""
    floor = apsw.Connection(str(folder / "floor.db"))
    floor.execute("PRAGMA journal_mode=WAL").fetchall()
    floor.execute("PRAGMA synchronous=FULL")
    floor.execute("CREATE TABLE rows (no INTEGER PRIMARY KEY, body BLOB)")

    def insert(count: int) -> None:
        for _ in range(count):
            with floor:
                floor.execute("INSERT INTO rows (body) VALUES (?)", (_PAYLOAD,))

    with longshore.Client(folder / "data") as client:

        def single(count: int) -> None:
            for number in range(count):
                client.submit(noop.of(number))

        yield {
            "floor": insert,
            "single": single,
            "many": lambda count: client.submit_many([noop.of(n) for n in range(count)]) and None,
            "one job": lambda count: client.submit([noop.of(n) for n in range(count)]) and None,
        }
    floor.close()


def measure(rounds: int, count: int) -> dict[str, dict[str, float]]:
    """Median figures of each kind for one job, row or task."""
    counter, timing = StatementCounter(), TimingProbe()
    figures: dict[str, list[dict[str, float]]] = {kind: [] for kind in _KINDS}
    with (
        tempfile.TemporaryDirectory() as folder,
        counter.watching(),
        timing.watching(),
        workloads(Path(folder)) as works,
    ):
        for work in works.values():
            work(min(count, 50))
        for _ in range(rounds):
            for kind, work in works.items():
                counter.statements = 0
                # Counted in a run of its own: the trace costs time.
                with counter:
                    work(count)
                before = time.process_time()
                with timing:
                    work(count)
                figures[kind].append(
                    {
                        "cpu us": (time.process_time() - before) / count * 1e6,
                        "per second": count / timing.seconds,
                        "statements": counter.statements / count,
                        "commits": timing.commits / count,
                    }
                )
    return {
        kind: {name: median(item[name] for item in items) for name in items[0]}
        for kind, items in figures.items()
    }


def system_calls(kind: str, count: int) -> str:
    """System calls and syncs of one job, row or task: two runs, without what both have."""
    if shutil.which("strace") is None:
        return "no strace"
    totals = []
    for runs in (count, 2 * count):
        with tempfile.NamedTemporaryFile() as file:
            argv = ["strace", "-f", "-c", "-U", "calls,name", "-o", file.name, sys.executable]
            argv += ["-m", __spec__.name, "--only", kind, "--count", str(runs)]
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
            calls = read_call_counts(Path(file.name))
            syncs = calls.get("fdatasync", 0) + calls.get("fsync", 0)
            totals.append((sum(calls.values()), syncs))
    (few, few_syncs), (many, many_syncs) = totals
    return f"{(many - few) / count:.1f} calls, {(many_syncs - few_syncs) / count:.3f} syncs"


def main() -> None:
    """Print the table, or carry out one kind for ``strace``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--only", choices=_KINDS, help="run one kind and print nothing")
    options = parser.parse_args()
    if options.only:
        with tempfile.TemporaryDirectory() as folder, workloads(Path(folder)) as works:
            works[options.only](options.count)
        return
    figures = measure(options.rounds, options.count)
    floor = figures["floor"]["cpu us"]
    for kind, values in figures.items():
        shown = ", ".join(f"{value:.1f} {name}" for name, value in values.items())
        ratio = values["cpu us"] / floor
        print(f"{kind:8} {shown}; {ratio:.1f} x floor; {system_calls(kind, options.count)}")


if __name__ == "__main__":
    main()
