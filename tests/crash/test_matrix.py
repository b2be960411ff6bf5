"""Real processes are killed at each failpoint: nothing is lost, and planted faults show."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOUND_S = 25
RUN_TIMEOUT_S = 400


def run_matrix(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "verification.crash", "--in", str(folder), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_whoever_is_killed_at_whichever_failpoint_nothing_is_lost_or_done_twice(
    tmp_path: Path,
) -> None:
    ran = run_matrix(tmp_path, "--bounded", str(BOUND_S))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    summary = ran.stdout.splitlines()[-1]
    print(summary)  # noqa: T201 - figures
    hit, known = re.match(r"(\d+) of (\d+) failpoints hit", summary).groups()
    assert hit == known
    assert "; 0 violations" in summary


@pytest.mark.parametrize(
    ("fault", "kills", "seen"),
    [
        (
            "step_confirmed_early",
            ["worker@attempt.step_answered"],
            "step 'one' was run again although it was kept",
        ),
        # The first is a claim. Of a later one it might be the end of a task: the dispatcher would
        # never hear of it, and the sweeper mends that only after half a minute.
        ("events_in_own_transaction", ["worker@write.rows_written#1"], "VIOLATION: invariant 5: "),
        (
            "blob_row_before_file",
            ["worker@blob.draft_written"],
            "is missing or not whole",
        ),
        (
            "answer_before_commit",
            ["client@ledger.commit:before#2"],
            "accepted twice as new",
        ),
    ],
)
@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_a_planted_fault_is_seen(fault: str, kills: list[str], seen: str, tmp_path: Path) -> None:
    options = [part for kill in kills for part in ("--kill", kill)]

    ran = run_matrix(tmp_path, "--with", f"tests.crash.planted.{fault}", *options)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert seen in ran.stdout
    assert f"once more: python -m verification.crash {' '.join(options)}" in ran.stdout
