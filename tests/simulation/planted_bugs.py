"""Bugs that a system of this kind has had somewhere, each planted in a copy and to be found.

``python -m tests.simulation.planted_bugs`` (``make planted``) plants one after the other and lets
the simulator look for it. One that it does not find within its seeds is a hole in the simulator or
in the auditor.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.planting import plant
from tests.simulation.aws_bugs import AWS_BUGS
from tests.simulation.budget_bugs import BUDGET_BUGS
from tests.simulation.dispatcher_bugs import DISPATCHER_BUGS
from tests.simulation.operator_bugs import OPERATOR_BUGS
from tests.simulation.task_bugs import TASK_BUGS, Bug

ROOT = Path(__file__).parents[2]
SEEDS = 1_000
BUGS = (
    *(*TASK_BUGS, *DISPATCHER_BUGS, *OPERATOR_BUGS, *BUDGET_BUGS),
    *AWS_BUGS,
)


def found_at(bug: Bug, seeds: int) -> tuple[int | None, str]:
    """How many runs it took to find the bug, and what was seen; None: it was not found."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        source = Path(folder) / "longshore"
        for package in (ROOT / "src" / "longshore", ROOT / "verification"):
            target = Path(folder) / package.name
            shutil.copytree(package, target, ignore=shutil.ignore_patterns("*.pyc"))
        plant((bug.change,), source, fault=bug.name)
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "tests.simulation.planted_bugs", "--look", str(seeds)),
                *("--profile", bug.profile),
            ],
            # Python looks in the current folder first, so the copy must be there.
            cwd=folder,
            env={"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )
    first, _, rest = ended.stdout.strip().partition("\n")
    if ended.returncode == 1 and first.isdigit():
        return int(first), rest
    return None, rest or ended.stderr


def _look(seeds: int, profile: str) -> int:
    """In the copy: run seeds until one fails; print how many it took, and what was wrong."""
    from verification.simulation.campaign import run_seeds
    from verification.simulation.faults import FaultProfile

    for seed in range(seeds):
        tally = run_seeds([seed], FaultProfile(profile))
        for report in tally.failed:
            _say(str(seed + 1))
            _say(str(report.violations[0]))
            return 1
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", default="", help="part of a bug's name")
    parser.add_argument("--look", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--profile", default="default", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.look is not None:
        return _look(asked.look, asked.profile)
    chosen = [bug for bug in BUGS if asked.only in bug.name]
    missed = 0
    for bug in chosen:
        began = time.monotonic()
        runs, what = found_at(bug, asked.seeds)
        missed += runs is None
        after = f"after {runs:4} runs" if runs else "NOT FOUND      "
        took = f"{time.monotonic() - began:6.1f} s"
        _say(f"{after}  {took}  {bug.name}: {what.splitlines()[0] if what else ''}")
    _say(f"{len(chosen) - missed} of {len(chosen)} planted bugs were found")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
