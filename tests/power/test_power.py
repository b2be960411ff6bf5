"""Whenever the power goes: what was promised is there, no fence comes twice, and the file opens."""

from random import Random

import pytest

from longshore.testing.power.__main__ import main
from longshore.testing.power.campaign import (
    Failure,
    Recording,
    Tally,
    cut_all,
    drawn_cuts,
    record,
)
from longshore.testing.power.operations import Made, Synced
from longshore.testing.power.witness import Note

CUTS = 50


@pytest.fixture(scope="module")
def first() -> Recording:
    return record(0)


def told(failures: list[Failure]) -> str:
    return "\n".join(f"{one.command}\n  {one.breaches[0]}" for one in failures)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_whatever_was_promised_is_there_after_a_power_loss(seed: int) -> None:
    recording, tally = record(seed), Tally()

    cut_all(recording, drawn_cuts(recording, CUTS), tally)

    assert not tally.failures, told(tally.failures)
    assert tally.counts["promises looked for"] > CUTS
    assert tally.counts["claims made afterwards"]
    assert tally.counts["writes torn"]


def test_a_store_whose_birth_is_cut_short_opens_and_is_as_good_as_any(first: Recording) -> None:
    tally = Tally()
    birth = first.witness.answers[0]
    rng = Random(0)

    # Most of it is the schema's pages; what is peculiar is at the beginning.
    places = [*range(30), *rng.sample(range(30, birth), 20)]
    cut_all(first, [(cut, fate) for cut in places for fate in range(2)], tally)

    assert not tally.failures, told(tally.failures)


def test_a_new_data_folder_is_there_once_anything_was_promised(first: Recording) -> None:
    folder = next(one for one in first.log if isinstance(one, Made))
    synced = first.log.index(Synced(folder.folder))

    assert synced < first.witness.answers[0]


def test_every_other_cut_is_right_after_a_promise(first: Recording) -> None:
    cuts = [cut for cut, _ in drawn_cuts(first, 40)]

    assert set(cuts[1::2]) <= set(first.witness.answers)
    assert len({*cuts} - {*first.witness.answers}) > 10


def test_what_is_missing_is_told_with_the_command_that_repeats_it(first: Recording, capsys) -> None:
    tally = Tally()
    cut = first.witness.answers[0]
    early = Note(("key", "nobody's"), "a value", begun=0, answered=cut)
    first.witness.values.append(early)

    cut_all(first, [(cut, 7)], tally)

    first.witness.values.remove(early)
    (failure,) = tally.failures
    assert failure.breaches == ("key \"nobody's\" is None, not 'a value'",)
    assert failure.command.endswith(f"--seed 0 --cut {cut} --fate 7")
    assert main(["--seed", "0", "--cut", str(cut), "--fate", "7"]) == 0
    assert "power cuts: 1" in capsys.readouterr().out
