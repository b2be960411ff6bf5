"""Two thousand runs, all clean; and all faults happen in them."""

import pytest

from longshore.testing.simulation.campaign import Tally, campaign
from longshore.testing.simulation.shrinking import repeat_command

RUNS, PARTS = 2_000, 8
SIZE = RUNS // PARTS


@pytest.mark.parametrize("part", range(PARTS))
def test_runs_are_clean(part: int) -> None:
    tally = campaign(range(part * SIZE, (part + 1) * SIZE))

    assert not tally.failed, told(tally)
    assert tally.unequal == []
    assert tally.never == []


def told(tally: Tally) -> str:
    """What failed, and how to see it again."""
    lines = [f"{repeat_command(report.scenario)}: {report.breaches[0]}" for report in tally.failed]
    return "\n".join(lines)
