"""Where somebody is to be killed, as it is written on a command line."""

import pytest

from longshore.testing.crashing.executioner import Place
from longshore.testing.crashing.matrix import read_kills, written
from longshore.testing.crashing.processes import Role


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("137", Place(number=137)),
        ("write.committed", Place(number=1, name="write.committed")),
        ("ledger.commit:before#3", Place(number=3, name="ledger.commit:before")),
    ],
)
def test_a_place_is_a_number_or_a_name_and_which_time(text: str, place: Place) -> None:
    assert Place.of(text) == place
    assert Place.of(str(place)) == place


def test_what_is_printed_to_repeat_a_run_is_read_as_the_same_kills() -> None:
    kills = {Role.WORKER: Place(number=9), Role.CLIENT: Place(number=2, name="bell.hung")}

    options = written(kills).split()

    assert options[::2] == ["--kill", "--kill"]
    assert read_kills(options[1::2]) == kills
