"""``python -m verification.simulation``: one run or many, as text and as JSON."""

import json

import pytest

from verification.simulation.__main__ import main


def test_one_run_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "digest" in printed
    assert "virtual time" in printed


def test_a_trace_is_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    assert "child starts" in capsys.readouterr().out


def test_many_runs_are_counted_with_their_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "20", "--jobs", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["runs"], document["failedSeeds"]) == (True, 20, [])
    assert sum(document["faults"].values()) > 20
    assert document["taskHoursPerCpuSecond"] > 0


def test_a_run_that_fails_is_shrunk_and_can_be_repeated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tasks are taken over while the holder of their lease may still run them.
    monkeypatch.setattr("longshore.core.queues.is_over", lambda *_, **__: True)
    monkeypatch.setattr("longshore.core.tasks.task.is_over", lambda *_, **__: True)

    # A seed whose workers take over by messages.
    assert main(["--seeds", "1", "--from", "8", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    (command, *_) = [line for line in printed.splitlines() if line.startswith("repeat: ")]
    words = command.removeprefix("repeat: python -m verification.simulation ").split()
    assert "--actions" in words

    assert main(words) == 1
    again = capsys.readouterr().out
    assert again.splitlines()[-1] in printed


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--without", "rain", "--seed", "1"], "message-dropped"),
        (["--actions", "one", "--seed", "1"], "numbers like 0,2"),
        (["--actions", "99", "--seed", "1"], "has fewer actions"),
        (["--actions", "0"], "--seed"),
        (["--trace"], "--seed"),
    ],
)
def test_invalid_options_are_refused_with_a_hint(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err
