"""Two thousand runs, all clean; and all faults happen in them."""

import pytest

from longshore.testing.simulation.campaign import Tally, campaign
from longshore.testing.simulation.shrinking import repeat_command

RUNS, PARTS = 2_000, 8
SIZE = RUNS // PARTS
# Once failed, with the workload of that day: two cancellations while a resume was being carried
# out, and a resume whose answer was lost.
FOUND = (13_324, 19_578, 1_494)


@pytest.mark.parametrize("part", range(PARTS))
def test_runs_are_clean(part: int) -> None:
    tally = campaign(range(part * SIZE, (part + 1) * SIZE))

    assert not tally.failed, told(tally)
    assert tally.unequal == []
    assert tally.never == []


def test_what_was_found_once_stays_mended() -> None:
    tally = campaign(FOUND)

    assert not tally.failed, told(tally)


def told(tally: Tally) -> str:
    """What failed, and how to see it again."""
    lines = [f"{repeat_command(report.scenario)}: {report.breaches[0]}" for report in tally.failed]
    return "\n".join(lines)
