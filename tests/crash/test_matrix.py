"""Real processes are killed at each failpoint: nothing is lost, and planted faults are found."""

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
def test_a_kill_at_any_failpoint_loses_nothing_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    ended = run_matrix(tmp_path, "--bounded", str(BOUND_S))

    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = ended.stdout.splitlines()[-1]
    print(summary)  # noqa: T201 - figures
    hit, total = re.match(r"(\d+) of (\d+) failpoints hit", summary).groups()
    assert hit == total
    assert "; 0 violations" in summary


@pytest.mark.parametrize(
    ("fault", "kills", "seen"),
    [
        (
            "step_confirmed_early",
            ["worker@planted.step_confirmed"],
            "step 'one' ran again although its result was saved",
        ),
        ("events_in_own_transaction", ["client@create.rows_written#1"], "VIOLATION: invariant 5: "),
        (
            "blob_row_before_file",
            ["worker@blob.draft_written"],
            "is missing or incomplete",
        ),
        (
            "answer_before_commit",
            ["client@ledger.create_jobs:before#2"],
            "accepted twice as new",
        ),
    ],
)
@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_a_planted_fault_is_found(fault: str, kills: list[str], seen: str, tmp_path: Path) -> None:
    options = [part for kill in kills for part in ("--kill", kill)]

    ended = run_matrix(tmp_path, "--with", f"tests.crash.planted.{fault}", *options)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert seen in ended.stdout
    assert f"repeat: python -m verification.crash {' '.join(options)}" in ended.stdout
