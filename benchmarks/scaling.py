"""``python -m benchmarks.scaling``: how the cost of a task grows.

Each series changes one thing (finished tasks in the store, size of a job, slots, queues, worker
processes) and measures what a no-op costs: CPU of all processes, SQL statements, bytes written to
files, and syncs. The slope is part of the result: by what factor a cost grows if the changed
thing grows tenfold.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.charts import number
from benchmarks.peers.launcher import Launcher, MeasurementFailed
from benchmarks.peers.measurements import drain
from benchmarks.peers.report import table
from benchmarks.peers.session import ROOT, Session

COSTS = {
    "cpu_ms": "CPU ms",
    "statements": "statements",
    "bytes": "bytes written",
    "syncs": "syncs",
    "tasks_per_s": "tasks/s",
}
SERIES = {
    "finished": "finished tasks in the store",
    "job_size": "tasks of a job",
    "slots": "slots of a worker",
    "queues": "queues",
    "processes": "worker processes",
}
_PEER = next(peer for peer in PEERS if peer.name == "longshore-pool-1x2")
_FILE_CALLS = "fsync,fdatasync,pwrite64,pwritev,pwritev2"
_CALL = re.compile(r"\d+\.\d+ (\w+)\(.* = (\d+)$", re.MULTILINE)
_BATCH = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers that make a run long or short."""

    tasks: int  # that are measured at each point
    finished: tuple[int, ...]
    job_sizes: tuple[int, ...]
    slots: tuple[int, ...]
    queues: tuple[int, ...]
    processes: tuple[int, ...]
    limit_s: float  # for one point
    fill_limit_s: float  # for all finished tasks


FULL = Sizes(
    tasks=2_000,
    finished=(1_000, 10_000, 100_000, 1_000_000),
    job_sizes=(1, 10, 100, 1_000, 10_000),
    slots=(1, 4, 16, 64),
    queues=(1, 10, 100),
    processes=(1, 2, 4),
    limit_s=300.0,
    fill_limit_s=1_800.0,
)
QUICK = Sizes(
    tasks=200,
    finished=(200, 2_000),
    job_sizes=(1, 200),
    slots=(1, 8),
    queues=(1, 10),
    processes=(1, 2),
    limit_s=60.0,
    fill_limit_s=60.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a task costs at one value of what a series changes."""

    series: str
    value: int
    costs: dict[str, float | None]


class Store:
    """A data folder with workers; every task has a number of its own."""

    def __init__(self, launcher: Launcher, folder: Path, sizes: Sizes) -> None:
        self._session = Session(
            _PEER,
            launcher=launcher,
            folder=folder,
            programs=Path(sys.executable).parent,
            server=None,
        )
        self._sizes = sizes
        self._next = 0

    def fill(self, count: int, limit_s: float) -> bool:
        """Have so many tasks run; whether they did in time."""
        deadline = time.monotonic() + limit_s
        while count:
            batch = min(count, _BATCH)
            self._submit(batch)
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or drain(self._session, batch, remaining_s, slots=8)["missing"]:
                return False
            count -= batch
        return True

    def costs(
        self, *, size: int = 1, slots: int = 2, queues: int = 1, processes: int = 1
    ) -> dict[str, float | None]:
        """Run tasks twice: once for CPU and rate, once to count statements, bytes and syncs."""
        count = max(self._sizes.tasks, size)
        served = [f"queue-{item}" for item in range(queues)] if queues > 1 else ["default"]
        options = [part for queue in served for part in ("--queue", queue)]
        command = (*_PEER.command, *options)
        self._session.peer = replace(_PEER, command=command)
        self._submit(count, size=size, queues=queues)
        timed = drain(self._session, count, self._sizes.limit_s, processes=processes, slots=slots)

        counted = ("{bin}/python", "-m", "benchmarks.counted_program", "statements-{process}")
        self._session.peer = replace(_PEER, command=(*counted, *command))
        self._submit(count, size=size, queues=queues)
        with self._session.workers(
            processes=processes, slots=slots, trace="files", calls=_FILE_CALLS
        ):
            self._session.wait_for(count, self._sizes.limit_s)
        if timed["missing"] or self._session.recorded() < count:
            raise self._session.failure("tasks did not run in time")
        return {
            "cpu_ms": timed["cpu_ms"],
            "tasks_per_s": timed["tasks_per_s"],
            **{name: value / count for name, value in self._counts().items()},
        }

    def _submit(self, count: int, **options: Any) -> None:
        self._session.forget_records()
        self._session.call("submit_bulk", count=count, first=self._next, **options)
        self._next += count

    def _counts(self) -> dict[str, int]:
        """What the workers did since the last call."""
        counts = {"statements": 0, "bytes": 0, "syncs": 0}
        for file in self._session.folder.glob("statements-*"):
            counts["statements"] += int(file.read_text())
            file.unlink()
        for file in self._session.folder.glob("files-*"):
            for name, result in _CALL.findall(file.read_text(errors="replace")):
                kind = "bytes" if name.startswith("pwrite") else "syncs"
                counts[kind] += int(result) if kind == "bytes" else 1
            file.unlink()
        return counts


def measure(
    launcher: Launcher, parent: Path, sizes: Sizes, names: Sequence[str]
) -> Iterator[Point]:
    """All points of the chosen series."""
    others: dict[str, tuple[str, tuple[int, ...]]] = {
        "job_size": ("size", sizes.job_sizes),
        "slots": ("slots", sizes.slots),
        "queues": ("queues", sizes.queues),
        "processes": ("processes", sizes.processes),
    }
    for name in names:
        if name == "finished":
            yield from _finished(Store(launcher, parent / name, sizes), sizes)
            continue
        option, values = others[name]
        for value in values:
            print(f"{name} {value:,}", file=sys.stderr, flush=True)
            store = Store(launcher, parent / f"{name}-{value}", sizes)
            yield Point(series=name, value=value, costs=store.costs(**{option: value}))


def _finished(store: Store, sizes: Sizes) -> Iterator[Point]:
    finished, began = 0, time.monotonic()
    for value in sizes.finished:
        print(f"finished {value:,}", file=sys.stderr, flush=True)
        remaining_s = sizes.fill_limit_s - (time.monotonic() - began)
        if not store.fill(value - finished, remaining_s):
            yield Point(series="finished", value=value, costs={})
            return
        yield Point(series="finished", value=value, costs=store.costs())
        finished = value + 2 * sizes.tasks


def growth(points: Iterable[Point], cost: str) -> float | None:
    """By what factor a cost grows if the value grows tenfold, by least squares of logarithms."""
    pairs = [
        (math.log10(point.value), math.log10(amount))
        for point in points
        if (amount := point.costs.get(cost))
    ]
    if len(pairs) < 2:
        return None
    mean_x, mean_y = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread
    return float(10**slope)


def markdown(facts: dict[str, Any], points: Sequence[Point]) -> str:
    """The page with a table per series."""
    parts = [
        "# Scale\n",
        "What a no-op in `isolation: pool` costs, measured by `make bench-scale`. A series changes"
        " one thing. The last row is the factor by which the cost grows if that thing grows"
        " tenfold: 1.00 is no growth. [What it means](../docs/explain/capacity.md).\n",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
    ]
    for series, title in SERIES.items():
        selected = [point for point in points if point.series == series]
        if selected:
            rows = [_row(point) for point in selected]
            factors = [growth(selected, cost) for cost in COSTS]
            cells = ["–" if factor is None else f"× {factor:.2f}" for factor in factors]
            rows.append(["tenfold", *cells])
            parts += [f"## By {title}\n", table((title, *COSTS.values()), rows)]
    return "\n".join(parts).rstrip() + "\n"


def _row(point: Point) -> list[str]:
    if not point.costs:
        return [f"{point.value:,}: not reached in time", *["–"] * len(COSTS)]
    costs = [point.costs.get(name) for name in COSTS]
    return [f"{point.value:,}", *("–" if cost is None else number(cost) for cost in costs)]


def read_points(lines: Iterable[str]) -> tuple[dict[str, Any], list[Point]]:
    """The machine and the points of recorded JSON lines."""
    rows = [json.loads(line) for line in lines]
    facts: dict[str, Any] = next((row["machine"] for row in rows if "machine" in row), {})
    return facts, [Point(**row) for row in rows if "series" in row]


def main() -> None:
    """Measure, or only write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", default=",".join(SERIES), help="series, separated by commas")
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks",
        help="folder of SCALE.md and of results/, with JSON lines",
    )
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(SERIES):
        parser.error(f"unknown series: {', '.join(sorted(unknown))}")
    page, lines = options.out / "SCALE.md", options.out / "results" / "scale.jsonl"
    if not options.report:
        _run(lines, QUICK if options.quick else FULL, names)
    facts, points = read_points(lines.read_text(encoding="utf-8").splitlines())
    page.write_text(markdown(facts, points), encoding="utf-8")
    print(f"wrote {page}")


def _run(lines: Path, sizes: Sizes, names: Sequence[str]) -> None:
    lines.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        Launcher() as launcher,
        lines.open("w", encoding="utf-8") as file,
    ):
        file.write(json.dumps({"machine": machine()}) + "\n")
        try:
            for point in measure(launcher, Path(folder), sizes, names):
                file.write(json.dumps(dataclasses.asdict(point)) + "\n")
                file.flush()
        except MeasurementFailed as error:
            sys.exit(str(error))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
