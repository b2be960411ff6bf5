"""``RESULTS.md`` and its charts from recorded JSON lines."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import charts
from benchmarks.peers.catalogue import PEERS

_STORES = {peer.name: peer.store for peer in PEERS}
_NOTES = {peer.name: peer.note for peer in PEERS}
_NAMES = [peer.name for peer in PEERS]
_POOL, _FORK = "longshore-pool-1x2", "longshore-fork"
_SQLITE = [name for name in _NAMES if _STORES[name] == "sqlite" and "longshore" not in name]
# A cell of a table that holds a figure, or says that there is none.
_FIGURE = re.compile(r"[–×-]? ?\d|–$")
INTRODUCTION = Path(__file__).with_name("introduction.md")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of Longshore and the peers that it is compared with."""

    title: str
    measurement: str
    figure: str
    theirs: Callable[[Results], Iterable[str]]
    more_is_better: bool = False
    ours: str = _POOL
    their_measurement: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of all peers."""

    measurement: str
    figure: str
    title: str
    more_is_better: bool = False

    @property
    def file(self) -> str:
        return f"{self.measurement}-{self.figure}.svg".replace("_", "-")


class Results:
    """The lines of a run: figures of all rounds, what failed, what was not run."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.run: dict[str, Any] = {}
        self.not_run: dict[str, str] = {}
        self.failed: list[dict[str, Any]] = []
        self.others: list[float] = []
        self._values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for line in filter(str.strip, lines):
            self._add(json.loads(line))

    def _add(self, row: Mapping[str, Any]) -> None:
        match row["kind"]:
            case "run":
                self.run = dict(row)
            case "not_run":
                self.not_run[row["peer"]] = row["reason"]
            case "failed":
                self.failed.append(dict(row))
            case "figures":
                self.others.append(row["others"])
                for name, value in row["figures"].items():
                    if value is not None:
                        self._values[row["peer"], row["measurement"], name].append(value)

    @property
    def peers(self) -> list[str]:
        """Peers with any figure, in the sequence of the catalogue."""
        measured = {peer for peer, _, _ in self._values}
        return [name for name in _NAMES if name in measured]

    def values(self, peer: str, measurement: str, figure: str) -> Sequence[float]:
        """One value per round."""
        return self._values.get((peer, measurement, figure), ())

    def median(self, peer: str, measurement: str, figure: str) -> float | None:
        values = self.values(peer, measurement, figure)
        return median(values) if values else None

    def durable_peers(self) -> list[str]:
        """Peers other than Longshore whose submits were synced before they returned."""
        return [peer for peer in _all(self) if self.is_durable(peer)]

    def is_durable(self, peer: str) -> bool:
        return bool(self.median(peer, "durability", "durable"))

    def best(
        self, peers: Iterable[str], measurement: str, figure: str, *, more_is_better: bool
    ) -> tuple[str, float] | None:
        """The peer with the best median, and that median."""
        medians = [(peer, self.median(peer, measurement, figure)) for peer in peers]
        measured = [(peer, value) for peer, value in medians if value is not None]
        choose = max if more_is_better else min
        return choose(measured, key=lambda item: item[1]) if measured else None


def _names(*names: str) -> Callable[[Results], Iterable[str]]:
    return lambda _results: names


def _durable(results: Results) -> Iterable[str]:
    return results.durable_peers()


def _all(results: Results) -> Iterable[str]:
    return (peer for peer in results.peers if not peer.startswith("longshore"))


COMPARISONS = (
    Comparison(
        "No-ops per second", "throughput", "tasks_per_s", _names("pgqueuer"), more_is_better=True
    ),
    Comparison(
        "No-ops per second", "throughput", "tasks_per_s", _names(*_SQLITE), more_is_better=True
    ),
    Comparison("CPU per no-op, ms", "throughput", "cpu_ms", _all),
    Comparison(
        "Forks per second",
        "throughput",
        "tasks_per_s",
        _names("rq-fork"),
        more_is_better=True,
        ours=_FORK,
    ),
    Comparison("CPU per forked task, ms", "throughput", "cpu_ms", _names("rq-fork"), ours=_FORK),
    Comparison("Submits per second", "throughput", "submit_per_s", _durable, more_is_better=True),
    Comparison("Client CPU per submit, µs", "throughput", "submit_cpu_us", _durable),
    Comparison(
        "Bulk in one job, tasks/s", "bulk", "per_s", _names("pgqueuer"), more_is_better=True
    ),
    Comparison(
        "Bulk as separate jobs, jobs/s",
        "jobs",
        "per_s",
        _names("pgqueuer"),
        more_is_better=True,
        their_measurement="bulk",
    ),
    Comparison("Idle latency p50, ms", "latency", "p50_ms", _durable),
    Comparison("Idle latency p99, ms", "latency", "p99_ms", _durable),
    Comparison("Fan-out and fan-in, s", "fan_out", "seconds", _all),
    Comparison("Tasks that print, CPU ms", "print", "cpu_ms", _all),
    Comparison("Tasks retried once, CPU ms", "retries", "cpu_ms", _all),
    Comparison("DAG, CPU ms per task", "dag", "cpu_ms", _all),
    Comparison("Two tenants, CPU ms per task", "two_tenants", "cpu_ms", _all),
    Comparison("High task in a backlog, p50 ms", "priority", "p50_ms", _all),
    Comparison("High task in a backlog, p99 ms", "priority", "p99_ms", _all),
    Comparison("No-ops among tasks of 1 s, p99 ms", "mixed", "p99_ms", _durable),
    Comparison(
        "Tasks of 200 ms, share of ideal", "slots", "share_of_ideal", _all, more_is_better=True
    ),
    Comparison("Released un-begun, share", "slots", "released_share", _all),
    Comparison("10 tasks against a backlog, s", "fairness", "last_start_s", _all),
    Comparison("Bodies run again per kill -9", "kill", "run_again_per_kill", _durable),
    Comparison("Tasks not run in time per kill -9", "kill", "missing_per_kill", _durable),
    Comparison("Idle CPU, % of a core", "idle", "cpu_percent", _all),
    Comparison("Idle system calls per second", "idle", "calls_per_s", _all),
    Comparison("Memory (PSS), MiB", "idle", "pss_mib", _all),
    Comparison("Bytes on disk per no-op", "throughput", "disk_bytes", _all),
)
CHARTS = (
    Chart("throughput", "tasks_per_s", "No-op tasks per second", more_is_better=True),
    Chart("throughput", "cpu_ms", "CPU per no-op task, ms: workers and servers"),
    Chart("throughput", "submit_per_s", "Submits per second, one by one", more_is_better=True),
    Chart("latency", "p50_ms", "Idle latency p50, ms: from the submit to the task"),
)
# Tables: title, measurement, and its figures with their headings.
TABLES: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "No-ops: submit one by one, then start the workers",
        "throughput",
        {
            "submit_per_s": "submits/s",
            "submit_cpu_us": "client CPU µs",
            "tasks_per_s": "tasks/s",
            "cpu_ms": "CPU ms/task",
            "disk_bytes": "bytes on disk/task",
            "missing": "missing",
        },
    ),
    ("Bulk submit", "bulk", {"per_s": "tasks/s", "cpu_us": "client CPU µs/task"}),
    ("Bulk submit as separate jobs", "jobs", {"per_s": "jobs/s", "cpu_us": "client CPU µs/job"}),
    ("Idle latency", "latency", {"p50_ms": "p50 ms", "p99_ms": "p99 ms", "missing": "missing"}),
    ("Fan-out and fan-in", "fan_out", {"seconds": "seconds"}),
    (
        "Tasks that print a line",
        "print",
        {"tasks_per_s": "tasks/s", "cpu_ms": "CPU ms/task", "missing": "missing"},
    ),
    (
        "Tasks whose first attempt fails",
        "retries",
        {"tasks_per_s": "tasks/s", "cpu_ms": "CPU ms/task", "missing": "missing"},
    ),
    (
        "A DAG in layers of 100",
        "dag",
        {
            "submit_s": "submit s",
            "tasks_per_s": "tasks/s",
            "cpu_ms": "CPU ms/task",
            "missing": "missing",
        },
    ),
    ("Two tenants", "two_tenants", {"tasks_per_s": "tasks/s", "cpu_ms": "CPU ms/task"}),
    ("High tasks in a backlog of low ones", "priority", {"p50_ms": "p50 ms", "p99_ms": "p99 ms"}),
    (
        "No-ops while a task in ten takes a second",
        "mixed",
        {"p99_ms": "p99 ms", "missing": "missing"},
    ),
    (
        "Tasks of 200 ms on two workers with two slots",
        "slots",
        {
            "share_of_ideal": "share of ideal",
            "released_share": "released un-begun",
            "missing": "missing",
        },
    ),
    ("Ten tasks of a tenant against a backlog", "fairness", {"last_start_s": "last start s"}),
    (
        "kill -9 of a worker",
        "kill",
        {
            "run_again_per_kill": "bodies run again",
            "may_run_again_per_kill": "finished in 5 ms + under way",
            "missing_per_kill": "tasks not run in time",
        },
    ),
    (
        "Idle",
        "idle",
        {"cpu_percent": "CPU % of a core", "calls_per_s": "system calls/s", "pss_mib": "PSS MiB"},
    ),
)


def write_report(results: Results, page: Path, folder: Path) -> None:
    """Write the page, and the charts into a folder beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for chart in CHARTS:
        (folder / chart.file).write_text(chart_of(results, chart), encoding="utf-8")
    page.write_text(markdown(results, folder.name), encoding="utf-8")


def markdown(results: Results, folder: str) -> str:
    """The whole page; the charts are in ``folder``."""
    images = [f"![{chart.title}]({folder}/{chart.file})\n" for chart in CHARTS]
    tables = (_table_of(results, *table) for table in TABLES)
    parts = [
        INTRODUCTION.read_text(encoding="utf-8"),
        _machine(results),
        "## Longshore and the best of the others\n",
        "The ratio is Longshore's median divided by that of the best peer of the comparison.\n",
        _comparisons(results),
        "## Charts\n",
        *images,
        "## Peers\n",
        _peers(results),
        "## All figures\n",
        "Each figure is the median of the rounds, with the least and the most in brackets if they"
        " differ.\n",
        *(table for table in tables if table),
        _gaps(results),
    ]
    return "\n".join(parts).rstrip() + "\n"


def chart_of(results: Results, chart: Chart) -> str:
    """A chart with the peers that have the figure, the best first."""
    durable = {peer for peer in results.peers if results.is_durable(peer)}
    rows = []
    for peer in results.peers:
        value = results.median(peer, chart.measurement, chart.figure)
        if value is not None:
            ours = peer.startswith("longshore")
            label = f"{peer} *" if peer in durable else peer
            rows.append(charts.Bar(label=label, value=value, ours=ours))
    rows.sort(key=lambda row: row.value, reverse=chart.more_is_better)
    better = "more" if chart.more_is_better else "less"
    note = f"{better} is better; * a submit is on disk when it returns"
    return charts.bar_chart(chart.title, note, rows)


def ratio(results: Results, comparison: Comparison) -> tuple[float, str, float] | None:
    """Longshore's median, the best peer and its median; None if either is missing."""
    ours = results.median(comparison.ours, comparison.measurement, comparison.figure)
    best = results.best(
        comparison.theirs(results),
        comparison.their_measurement or comparison.measurement,
        comparison.figure,
        more_is_better=comparison.more_is_better,
    )
    return None if ours is None or best is None else (ours, *best)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; columns of figures are aligned to the right."""
    body = [list(row) for row in rows]
    columns = list(zip(*body, strict=True))[1:]
    rule = ["---", *("---:" if all(map(_FIGURE.match, cells)) else "---" for cells in columns)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, rule, *body))


def _comparisons(results: Results) -> str:
    rows = []
    for item in COMPARISONS:
        ours = results.median(item.ours, item.measurement, item.figure)
        if ours is None:
            continue
        compared = ratio(results, item)
        name, theirs = compared[1:] if compared else ("–", None)
        quotient = f"{ours / theirs:.2f}" if theirs else "–"
        better = "more" if item.more_is_better else "less"
        cells = (charts.number(ours), name, "–" if theirs is None else charts.number(theirs))
        rows.append((item.title, better, *cells, quotient))
    return table(("figure", "better", "Longshore", "best peer", "its figure", "ratio"), rows)


def _peers(results: Results) -> str:
    rows = []
    versions = results.run.get("versions", {})
    for peer in results.peers:
        durable = results.median(peer, "durability", "durable")
        syncs = results.median(peer, "durability", "syncs_per_submit")
        cells = (
            "–" if durable is None else "yes" if durable else "no",
            "–" if syncs is None else charts.number(syncs),
        )
        rows.append((peer, versions.get(peer, "–"), _STORES[peer], *cells, _NOTES[peer]))
    return table(("peer", "version", "store", "disk-durable", "syncs/submit", "note"), rows)


def _table_of(results: Results, title: str, measurement: str, figures: dict[str, str]) -> str:
    rows = []
    for peer in results.peers:
        cells = [_cell(results.values(peer, measurement, name)) for name in figures]
        if any(cell != "–" for cell in cells):
            rows.append((peer, *cells))
    return f"### {title}\n\n{table(('peer', *figures.values()), rows)}" if rows else ""


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    least, most, middle = (
        charts.number(item) for item in (min(values), max(values), median(values))
    )
    return middle if least == most else f"{middle} ({least}–{most})"


def _machine(results: Results) -> str:
    facts = {**results.run.get("machine", {}), **results.run.get("servers", {})}
    rounds = results.run.get("rounds", 0)
    others = f"up to {100 * max(results.others, default=0.0):.0f} % of the CPU"
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    lines += [f"- rounds: {rounds}", f"- other programs used {others} during a measurement"]
    if results.run.get("quick"):
        lines.append("- **quick run: sizes are too small for conclusions**")
    return "\n".join(lines) + "\n"


def _gaps(results: Results) -> str:
    missing = [f"- {peer}: {reason}" for peer, reason in sorted(results.not_run.items())]
    failed = [
        f"- {row['peer']}, {row['measurement']}, round {row['round']}: {row['error']}"
        for row in results.failed
    ]
    parts = ["## Not run\n", *missing] if missing else []
    if failed:
        parts += ["\n## Failed\n", *failed]
    return "\n".join(parts)
