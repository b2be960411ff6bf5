"""Real processes are killed at each failpoint: nothing is lost, and planted faults show."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOUND_S = 25
PATIENCE_S = 400


def crashing(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "longshore.testing.crashing", "--in", str(place), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.timeout(PATIENCE_S)
def test_whoever_is_killed_at_whichever_failpoint_nothing_is_lost_or_done_twice(
    tmp_path: Path,
) -> None:
    ran = crashing(tmp_path, "--bounded", str(BOUND_S))

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
            "step_told_early",
            ["worker@attempt.step_answered"],
            "step 'one' was run again although it was kept",
        ),
        # The first is a claim. Of a later one it might be the end of a task: the dispatcher would
        # never hear of it, and the sweeper mends that only after half a minute.
        ("events_apart", ["worker@write.rows_written#1"], "VIOLATION: invariant 5: "),
        (
            "named_before_it_is_there",
            ["worker@blob.draft_written"],
            "is missing or not whole",
        ),
        (
            "answered_before_it_is_written",
            ["client@ledger.commit:before#2"],
            "accepted twice as new",
        ),
    ],
)
@pytest.mark.timeout(PATIENCE_S)
def test_a_planted_fault_is_seen(fault: str, kills: list[str], seen: str, tmp_path: Path) -> None:
    options = [part for kill in kills for part in ("--kill", kill)]

    ran = crashing(tmp_path, "--with", f"tests.crash.planted.{fault}", *options)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert seen in ran.stdout
    assert f"once more: python -m longshore.testing.crashing {' '.join(options)}" in ran.stdout
