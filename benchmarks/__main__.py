"""``python -m benchmarks``: measure, then print one table."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks import (
    agents,
    children,
    dispatch,
    enqueue,
    footprint,
    fsyncs,
    isolation,
    listing,
    memory,
    noops,
    profiler,
    report,
    simulator,
    takeover,
    transitions,
)
from benchmarks.figures import Figure
from benchmarks.machine import Neighbours, machine
from benchmarks.scale import FULL, QUICK, Scale

ITEMS: dict[str, Callable[[Scale], Iterator[Figure]]] = {
    "transitions": transitions.measure,
    "enqueue": enqueue.measure,
    "noops": noops.measure,
    "dispatch": dispatch.measure,
    "children": children.measure,
    "isolation": isolation.measure,
    "agents": agents.measure,
    "fsyncs": fsyncs.measure,
    "takeover": takeover.measure,
    "listing": listing.measure,
    "footprint": footprint.measure,
    "memory": memory.measure,
    "simulator": simulator.measure,
}


def main() -> None:
    """Measure what was asked for; the figures are the answer, so there is no exit code."""
    # Kept out of the way: a warning here is what a loaded machine does, not what is measured.
    logging.disable(logging.WARNING)
    options = _parser().parse_args()
    scale = QUICK if options.quick else FULL
    if options.rounds:
        scale = replace(scale, rounds=options.rounds)
    if options.profile:
        profiler.profiles(options.profile, scale)
        return
    measured = report.Report(machine=machine())
    for name in options.only or ITEMS:
        print(f"{name} …", file=sys.stderr, flush=True)
        neighbours = Neighbours()
        measured.figures.extend(ITEMS[name](scale))
        measured.used_by_others[name] = neighbours.share()
    print(measured.as_json() if options.json else measured.as_table())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="just enough to see that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--only", action="append", choices=ITEMS, metavar="NAME", help=f"any of {', '.join(ITEMS)}"
    )
    parser.add_argument("--rounds", type=int, help="of floor and ours in turns")
    parser.add_argument(
        "--profile", choices=profiler.scenarios(QUICK), help="say where the CPU goes instead"
    )
    return parser


if __name__ == "__main__":
    main()
