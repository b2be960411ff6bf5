"""``python -m verification.simulation``: one run or many, shown to people and to programs."""

import json

import pytest

from verification.simulation.__main__ import main


def test_one_run_tells_what_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "digest" in shown
    assert "virtual time" in shown


def test_a_trace_shows_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    assert "child starts" in capsys.readouterr().out


def test_many_runs_are_counted_with_their_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "20", "--jobs", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["runs"], told["failedSeeds"]) == (True, 20, [])
    assert sum(told["faults"].values()) > 20
    assert told["taskHoursPerCpuSecond"] > 0


def test_a_run_that_fails_is_made_smaller_and_can_be_repeated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Taken over while its holder may still be at work.
    monkeypatch.setattr("longshore.core.queues.is_over", lambda *_, **__: True)
    monkeypatch.setattr("longshore.core.tasks.attempts.is_over", lambda *_, **__: True)

    assert main(["--seeds", "1", "--jobs", "1"]) == 1
    shown = capsys.readouterr().out
    (command, *_) = [line for line in shown.splitlines() if line.startswith("repeat: ")]
    words = command.removeprefix("repeat: python -m verification.simulation ").split()
    assert "--actions" in words

    assert main(words) == 1
    again = capsys.readouterr().out
    assert again.splitlines()[-1] in shown


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (["--without", "rain", "--seed", "1"], "message-dropped"),
        (["--actions", "one", "--seed", "1"], "numbers like 0,2"),
        (["--actions", "99", "--seed", "1"], "has fewer acts"),
        (["--actions", "0"], "--seed"),
        (["--trace"], "--seed"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_does(
    given: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err
