"""Plant each fault of the catalogue, one at a time, and check that its test fails.

Ends with 1 if a fault survived, if its anchor matches nothing, or if its test did not run.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from time import monotonic

from tests.mutants.catalogue import FAULTS
from tests.mutants.fault import Fault, Part
from tests.mutants.trial import Copy, Outcome, TrialResult, copied_sources
from tests.planted_runs import add_fault_options, chosen_faults, print_line
from tests.planting import NotPlanted


def main() -> int:
    """Try the chosen faults and print the results."""
    options = _parser().parse_args()
    faults = chosen_faults(
        [fault for fault in FAULTS if options.part in (None, fault.part)], options
    )
    with ExitStack() as stack:
        copies = [stack.enter_context(copied_sources()) for _ in range(options.jobs)]
        problem = _problem_of(faults, copies[0])
        if problem is not None:
            print_line(problem)
            return 1
        return _try_all(faults, copies, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=[part.value for part in Part], help="faults of this part")
    add_fault_options(parser)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="trials at a time [2]")
    parser.add_argument("--why", action="store_true", help="print how each test failed")
    return parser


def _problem_of(faults: Sequence[Fault], copy: Copy) -> str | None:
    """Returns why trials would prove nothing, or None."""
    if not faults:
        return "no fault was chosen"
    for fault in faults:
        try:
            fault.change.applied(fault.change.file().read_text(), fault=fault.name)
        except NotPlanted as error:
            return str(error)
    tests = sorted({fault.caught_by for fault in faults})
    print_line(f"{len(faults)} faults; first their {len(tests)} tests without a fault")
    return copy.problem_without_faults(tests)


def _try_all(faults: Sequence[Fault], copies: Sequence[Copy], options: argparse.Namespace) -> int:
    started_at = monotonic()
    results: Counter[TrialResult] = Counter()
    for number, outcome in enumerate(_outcomes(faults, copies), start=1):
        results[outcome.result] += 1
        print_line(f"{number:3}/{len(faults)} {_line(outcome, why=options.why)}")
    counts = ", ".join(f"{results[result]} {result}" for result in TrialResult)
    print_line(
        f"{len(faults)} faults ({options.shard}, {len(FAULTS)} faults in all): {counts},"
        f" in {monotonic() - started_at:.0f} s"
    )
    return 0 if results[TrialResult.KILLED] == len(faults) else 1


def _outcomes(faults: Sequence[Fault], copies: Sequence[Copy]) -> Iterator[Outcome]:
    """Try as many at a time as there are copies; yields in the order of the catalogue."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def try_out(fault: Fault) -> Outcome:
        copy = free.get()
        try:
            return copy.try_out(fault)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from pool.map(try_out, faults)


def _line(outcome: Outcome, *, why: bool) -> str:
    fault = outcome.fault
    line = f"{outcome.result:9} {fault.part:12} {fault.name:45} {outcome.seconds:5.1f} s"
    if outcome.result is TrialResult.BROKEN:
        return f"{line}\n{outcome.output}"
    if outcome.result is TrialResult.SURVIVED:
        return f"{line}  not caught by {fault.caught_by}"
    return f"{line}  {outcome.reason}" if why else line


if __name__ == "__main__":
    sys.exit(main())
