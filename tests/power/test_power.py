"""Whenever the power goes: what was promised is there, no fence comes twice, and the file opens."""

from random import Random

import pytest

from verification.power.__main__ import main
from verification.power.campaign import (
    CutFailure,
    Recording,
    Tally,
    draw_cuts,
    record_workload,
    run_cuts,
)
from verification.power.operations import Created, Synced
from verification.power.oracle import RecordedWrite

CUTS = 50


@pytest.fixture(scope="module")
def first_recording() -> Recording:
    return record_workload(0)


def failure_text(failures: list[CutFailure]) -> str:
    return "\n".join(f"{one.command}\n  {one.violations[0]}" for one in failures)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_whatever_was_promised_is_there_after_a_power_loss(seed: int) -> None:
    recording, tally = record_workload(seed), Tally()

    run_cuts(recording, draw_cuts(recording, CUTS), tally)

    assert not tally.failures, failure_text(tally.failures)
    assert tally.counts["promises looked for"] > CUTS
    assert tally.counts["claims made afterwards"]
    assert tally.counts["writes torn"]


def test_a_store_whose_birth_is_cut_short_opens_and_is_as_good_as_any(
    first_recording: Recording,
) -> None:
    tally = Tally()
    birth = first_recording.oracle.answers[0]
    rng = Random(0)

    # Most of it is the schema's pages; what is peculiar is at the beginning.
    places = [*range(30), *rng.sample(range(30, birth), 20)]
    run_cuts(first_recording, [(cut, fate) for cut in places for fate in range(2)], tally)

    assert not tally.failures, failure_text(tally.failures)


def test_a_new_data_folder_is_there_once_anything_was_promised(first_recording: Recording) -> None:
    folder = next(one for one in first_recording.log if isinstance(one, Created))
    synced = first_recording.log.index(Synced(folder.folder))

    assert synced < first_recording.oracle.answers[0]


def test_every_other_cut_is_right_after_a_promise(first_recording: Recording) -> None:
    cuts = [cut for cut, _ in draw_cuts(first_recording, 40)]

    assert set(cuts[1::2]) <= set(first_recording.oracle.answers)
    assert len({*cuts} - {*first_recording.oracle.answers}) > 10


def test_what_is_missing_is_told_with_the_command_that_repeats_it(
    first_recording: Recording, capsys
) -> None:
    tally = Tally()
    cut = first_recording.oracle.answers[0]
    early = RecordedWrite(("key", "nobody's"), "a value", started=0, answered=cut)
    first_recording.oracle.values.append(early)

    run_cuts(first_recording, [(cut, 7)], tally)

    first_recording.oracle.values.remove(early)
    (failure,) = tally.failures
    assert failure.violations == ("key \"nobody's\" is None, not 'a value'",)
    assert failure.command.endswith(f"--seed 0 --cut {cut} --loss-seed 7")
    assert main(["--seed", "0", "--cut", str(cut), "--loss-seed", "7"]) == 0
    assert "power cuts: 1" in capsys.readouterr().out
