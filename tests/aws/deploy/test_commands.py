"""The command lines of deploy, destroy and status, as far as they need no AWS."""

from pathlib import Path
from typing import Any

import pytest

from longshore.core.inspection import CloudAccount
from longshore.interfaces.cli.commands.aws import deploy
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.main import main

ACCOUNT = CloudAccount(
    id="123456789012", region="eu-central-1", caller="arn:aws:iam::123456789012:root"
)


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", ["deploy", "destroy", "status"])
def test_a_stage_must_be_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aws", command]) == ExitCode.USAGE

    assert "--stage" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["aws", "deploy", "--stage", "dev", "--config", "no.yaml", "--render", "x"]

    assert main(given) == ExitCode.USAGE

    assert "there is no file 'no.yaml'; see --config" in capsys.readouterr().err
    assert not Path("x").exists()


@pytest.mark.parametrize(("text", "told"), [("a: [", "my.yaml: "), ("- 1", "names and values")])
def test_a_file_that_is_no_description_is_refused(
    text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("my.yaml").write_text(text)

    given = ["aws", "deploy", "--stage", "dev", "--config", "my.yaml", "--render", "x"]

    assert main(given) == ExitCode.USAGE
    assert told in capsys.readouterr().err


def test_all_that_is_wrong_in_a_file_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("infra").mkdir()
    Path("infra/dev.yaml").write_text("queus: [a]\nschedules: maybe\n")

    assert main(["aws", "deploy", "--stage", "dev", "--render", "x"]) == ExitCode.USAGE

    told = capsys.readouterr().err
    assert "infra/dev.yaml: nothing is called 'queus'; did you mean 'queues'?" in told
    assert "infra/dev.yaml: schedules must be true or false, not 'maybe'" in told


def test_without_a_terminal_nothing_is_destroyed_unless_it_was_agreed_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def account(*_: Any) -> CloudAccount:
        return ACCOUNT

    async def destroy(*_: Any, **__: Any) -> None:
        pytest.fail("it was destroyed")

    monkeypatch.setattr(deploy, "_account", account)
    monkeypatch.setattr(deploy, "_destroy", destroy)

    assert main(["aws", "destroy", "--stage", "dev"]) == ExitCode.USAGE

    told = capsys.readouterr()
    assert "stage dev in account 123456789012, region eu-central-1" in told.out
    assert "add --yes" in told.err


def test_whoever_interrupts_is_told_what_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(deploy, "_deploy", interrupted)

    assert main(["aws", "deploy", "--stage", "dev"]) == ExitCode.INTERRUPTED

    assert "`longshore deploy --stage dev` waits for that" in capsys.readouterr().err
