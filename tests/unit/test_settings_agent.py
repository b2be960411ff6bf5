"""How many agents there is room for, by what is set and by what the machine has."""

import pytest
from pydantic import ByteSize

from longshore.settings.model import AgentSettings

MIB = 2**20


@pytest.mark.parametrize(
    ("ceiling", "machine", "at_once"),
    [
        (900 * MIB, None, 3),
        (899 * MIB, 64_000 * MIB, 2),
        (6_000 * MIB, 512 * MIB, 20),
        (0, 2_400 * MIB, 4),
        (0, 512 * MIB, 0),
        (0, None, None),
    ],
)
def test_agents_have_the_room_that_is_set_or_half_of_the_machine(
    ceiling: int, machine: int | None, at_once: int | None
) -> None:
    settings = AgentSettings(memory_per_agent=ByteSize(300 * MIB), memory_ceiling=ByteSize(ceiling))

    assert settings.max_concurrent(machine) == at_once
