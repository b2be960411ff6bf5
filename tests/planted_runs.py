"""Run planted faults one after the other: choose them, print the progress, and sum up."""

import argparse
import sys
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol, TypeVar

from verification.shard import add_shard_option


class Named(Protocol):
    @property
    def name(self) -> str: ...


FaultT = TypeVar("FaultT", bound=Named)


def add_fault_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose faults."""
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this in their name")
    add_shard_option(parser)


def chosen_faults(faults: Sequence[FaultT], options: argparse.Namespace) -> list[FaultT]:
    """The faults whose name contains the text of ``--only``, and of these the shard."""
    return list(options.shard.select([fault for fault in faults if options.only in fault.name]))


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_faults(
    faults: Sequence[FaultT], options: argparse.Namespace, detect: Callable[[FaultT], str | None]
) -> int:
    """Try each chosen fault. Returns 1 if one was not detected, or if none was chosen.

    Args:
        detect: Returns what was seen of the fault, or None if nothing was.
    """
    chosen = chosen_faults(faults, options)
    started_at, missed = monotonic(), []
    for number, fault in enumerate(chosen, start=1):
        fault_started_at = monotonic()
        seen = detect(fault)
        if seen is None:
            missed.append(fault.name)
        seconds = monotonic() - fault_started_at
        print_line(
            f"{number:3}/{len(chosen)} {seconds:6.1f} s  {fault.name}: {seen or 'NOT FOUND'}"
        )
    print_line(
        f"{len(chosen) - len(missed)} of {len(chosen)} planted faults were found"
        f" ({options.shard}, {len(faults)} faults in all) in {monotonic() - started_at:.0f} s"
        + "".join(f"; NOT FOUND: {name}" for name in missed)
    )
    return int(bool(missed) or not chosen)
