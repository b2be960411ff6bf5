"""Kill points as they are written on the command line."""

import pytest

from verification.crash.killer import KillPoint
from verification.crash.matrix import format_kills, parse_kills
from verification.crash.processes import Role


@pytest.mark.parametrize(
    ("text", "kill_point"),
    [
        ("137", KillPoint(number=137)),
        ("write.committed", KillPoint(number=1, name="write.committed")),
        ("ledger.commit:before#3", KillPoint(number=3, name="ledger.commit:before")),
    ],
)
def test_a_kill_point_is_a_number_or_a_name_with_a_number(text: str, kill_point: KillPoint) -> None:
    assert KillPoint.parse(text) == kill_point
    assert KillPoint.parse(str(kill_point)) == kill_point


def test_printed_kills_are_parsed_as_the_same_kills() -> None:
    kills = {
        Role.WORKER: KillPoint(number=9),
        Role.CLIENT: KillPoint(number=2, name="notifier.opened"),
    }

    options = format_kills(kills).split()

    assert options[::2] == ["--kill", "--kill"]
    assert parse_kills(options[1::2]) == kills
