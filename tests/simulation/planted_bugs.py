"""Typical bugs of a task runner, each planted in a copy, which the simulator must find.

``python -m tests.simulation.planted_bugs`` (``make planted``) plants one bug after the other and
runs the simulator until a run fails. A bug that is not found within its seeds is a gap in the
simulator or in the auditor.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.planted_runs import add_fault_options, print_line, run_faults
from tests.planting import plant
from tests.simulation.aws_bugs import AWS_BUGS
from tests.simulation.budget_bugs import BUDGET_BUGS
from tests.simulation.dispatcher_bugs import DISPATCHER_BUGS
from tests.simulation.operator_bugs import OPERATOR_BUGS
from tests.simulation.restore_bugs import RESTORE_BUGS
from tests.simulation.retention_bugs import RETENTION_BUGS
from tests.simulation.slot_bugs import SLOT_BUGS
from tests.simulation.task_bugs import TASK_BUGS, Bug
from tests.simulation.turn_bugs import TURN_BUGS

ROOT = Path(__file__).parents[2]
SEEDS = 1_000
BUGS = (
    *(*TASK_BUGS, *TURN_BUGS, *DISPATCHER_BUGS, *OPERATOR_BUGS, *BUDGET_BUGS),
    *(*SLOT_BUGS, *AWS_BUGS, *RETENTION_BUGS, *RESTORE_BUGS),
)


def found_at(bug: Bug, seeds: int) -> tuple[int | None, str]:
    """Returns how many runs it took to find the bug, or None, and the violation."""
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
    """In the copy: run seeds until one fails; print how many it took, and the violation."""
    from verification.simulation.campaign import run_seeds
    from verification.simulation.faults import FaultProfile

    for seed in range(seeds):
        try:
            tally = run_seeds([seed], FaultProfile(profile))
        except Exception as error:  # noqa: BLE001 - a run that cannot end has found the bug too
            print_line(str(seed + 1))
            print_line(f"the run ended with {error!r}")
            return 1
        for report in tally.failed:
            print_line(str(seed + 1))
            print_line(str(report.violations[0]))
            return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs for each bug, at most")
    add_fault_options(parser)
    parser.add_argument("--look", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--profile", default="default", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look is not None:
        return _look(options.look, options.profile)

    def detect(bug: Bug) -> str | None:
        runs, text = found_at(bug, options.seeds)
        return None if runs is None else f"after {runs} runs: {text.partition(chr(10))[0]}"

    return run_faults(BUGS, options, detect)


if __name__ == "__main__":
    raise SystemExit(main())
