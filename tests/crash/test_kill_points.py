"""Where somebody is to be killed, as it is written on a command line."""

import pytest

from verification.crash.killer import KillPoint
from verification.crash.matrix import format_kills, parse_kills
from verification.crash.processes import Role


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("137", KillPoint(number=137)),
        ("write.committed", KillPoint(number=1, name="write.committed")),
        ("ledger.commit:before#3", KillPoint(number=3, name="ledger.commit:before")),
    ],
)
def test_a_place_is_a_number_or_a_name_and_which_time(text: str, place: KillPoint) -> None:
    assert KillPoint.parse(text) == place
    assert KillPoint.parse(str(place)) == place


def test_what_is_printed_to_repeat_a_run_is_read_as_the_same_kills() -> None:
    kills = {
        Role.WORKER: KillPoint(number=9),
        Role.CLIENT: KillPoint(number=2, name="notifier.opened"),
    }

    options = format_kills(kills).split()

    assert options[::2] == ["--kill", "--kill"]
    assert parse_kills(options[1::2]) == kills
