"""Plant each fault of the catalogue, one at a time, and see that its test goes red.

Ends with 1 if a fault survived, if its anchor leads nowhere, or if its test did not run.
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
from tests.planting import NotPlanted


def main() -> int:
    """Try the chosen faults and tell how it went."""
    chosen = _parser().parse_args()
    faults = [
        fault
        for fault in FAULTS
        if chosen.part in (None, fault.part) and chosen.only in (None, fault.name)
    ]
    with ExitStack() as stack:
        copies = [stack.enter_context(copied_sources()) for _ in range(chosen.jobs)]
        problem = _problem_of(faults, copies[0])
        if problem is not None:
            _say(problem)
            return 1
        return _try_all(faults, copies, why=chosen.why)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=[part.value for part in Part], help="only its faults")
    parser.add_argument("--only", metavar="NAME", help="only this fault")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many at a time")
    parser.add_argument("--why", action="store_true", help="tell what each test saw")
    return parser


def _problem_of(faults: Sequence[Fault], copy: Copy) -> str | None:
    """Why there is no use in trying them, if so."""
    if not faults:
        return "no such fault"
    for fault in faults:
        try:
            fault.change.applied(fault.change.file().read_text(), fault=fault.name)
        except NotPlanted as error:
            return str(error)
    return copy.problem_without_faults(sorted({fault.caught_by for fault in faults}))


def _try_all(faults: Sequence[Fault], copies: Sequence[Copy], *, why: bool) -> int:
    started = monotonic()
    verdicts: Counter[TrialResult] = Counter()
    for outcome in _outcomes(faults, copies):
        verdicts[outcome.verdict] += 1
        _say(_line(outcome, why=why))
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in TrialResult)
    _say(f"{len(faults)} faults: {counts}, in {monotonic() - started:.0f} s")
    return 0 if verdicts[TrialResult.KILLED] == len(faults) else 1


def _outcomes(faults: Sequence[Fault], copies: Sequence[Copy]) -> Iterator[Outcome]:
    """Try as many at a time as there are copies; told in the order of the catalogue."""
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
    line = f"{outcome.verdict:9} {fault.part:12} {fault.name:45} {outcome.seconds:5.1f} s"
    if outcome.verdict is TrialResult.BROKEN:
        return f"{line}\n{outcome.output}"
    if outcome.verdict is TrialResult.SURVIVED:
        return f"{line}  not seen by {fault.caught_by}"
    return f"{line}  {outcome.reason}" if why else line


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
