"""After a power loss at any moment, promises are kept, fences are new, and the file opens."""

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

CUTS = 160  # each seed has some that tear a write


@pytest.fixture(scope="module")
def first_recording() -> Recording:
    return record_workload(0)


def failure_text(failures: list[CutFailure]) -> str:
    return "\n".join(f"{failure.command}\n  {failure.violations[0]}" for failure in failures)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_everything_promised_is_stored_after_a_power_loss(seed: int) -> None:
    recording, tally = record_workload(seed), Tally()

    run_cuts(recording, draw_cuts(recording, CUTS), tally)

    assert not tally.failures, failure_text(tally.failures)
    assert tally.counts["promises checked"] > CUTS
    assert tally.counts["claims made afterwards"]
    assert tally.counts["writes torn"]


def test_a_store_whose_creation_was_interrupted_opens_and_works(
    first_recording: Recording,
) -> None:
    tally = Tally()
    created = first_recording.oracle.answers[0]
    rng = Random(0)

    # Most operations write the schema's pages; the special cases are at the beginning.
    cuts = [*range(30), *rng.sample(range(30, created), 20)]
    run_cuts(first_recording, [(cut, loss_seed) for cut in cuts for loss_seed in range(2)], tally)

    assert not tally.failures, failure_text(tally.failures)


def test_a_new_data_folder_is_synced_before_the_first_promise(first_recording: Recording) -> None:
    folder = next(operation for operation in first_recording.log if isinstance(operation, Created))
    synced = first_recording.log.index(Synced(folder.folder))

    assert synced < first_recording.oracle.answers[0]


def test_every_other_cut_is_right_after_a_promise(first_recording: Recording) -> None:
    cuts = [cut for cut, _ in draw_cuts(first_recording, 40)]

    assert set(cuts[1::2]) <= set(first_recording.oracle.answers)
    assert len({*cuts} - {*first_recording.oracle.answers}) > 10


def test_a_violation_is_printed_with_the_command_that_repeats_it(
    first_recording: Recording, capsys
) -> None:
    tally = Tally()
    cut = first_recording.oracle.answers[0]
    early = RecordedWrite(("key", "lost"), "a value", started=0, answered=cut)
    first_recording.oracle.values.append(early)

    run_cuts(first_recording, [(cut, 7)], tally)

    first_recording.oracle.values.remove(early)
    (failure,) = tally.failures
    assert failure.violations == ("key 'lost' is None, not 'a value'",)
    assert failure.command.endswith(f"--seed 0 --cut {cut} --loss-seed 7")
    assert main(["--seed", "0", "--cut", str(cut), "--loss-seed", "7"]) == 0
    assert "power cuts: 1" in capsys.readouterr().out
