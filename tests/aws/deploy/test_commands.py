"""The commands ``aws deploy``, ``aws destroy`` and ``aws status``, as far as they need no AWS."""

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from longshore.core.inspection import CloudAccount
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.main import main
from longshore.wiring import deploy

ACCOUNT = CloudAccount(id="123456789012", region="eu-central-1")


class InterruptedDeployment:
    """A deployment that is interrupted while it deploys, and must not be destroyed."""

    async def account(self) -> CloudAccount:
        return ACCOUNT

    async def deploy(self, *_: Any) -> None:
        raise KeyboardInterrupt

    async def destroy(self, *_: Any, **__: Any) -> None:
        pytest.fail("it was destroyed")


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def open_deployment(*_: Any) -> AsyncIterator[InterruptedDeployment]:
        yield InterruptedDeployment()

    monkeypatch.setattr(deploy, "open_deployment", open_deployment)


@pytest.mark.parametrize("command", ["deploy", "destroy", "status"])
def test_a_stage_must_be_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aws", command]) == ExitCode.USAGE

    assert "--stage" in capsys.readouterr().err


def test_a_missing_config_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["aws", "deploy", "--stage", "dev", "--config", "no.yaml", "--render", "x"]

    assert main(arguments) == ExitCode.USAGE

    assert "there is no file 'no.yaml'; see --config" in capsys.readouterr().err
    assert not Path("x").exists()


@pytest.mark.parametrize(("text", "message"), [("a: [", "my.yaml: "), ("- 1", "names and values")])
def test_a_config_file_that_is_no_mapping_is_refused(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("my.yaml").write_text(text)

    arguments = ["aws", "deploy", "--stage", "dev", "--config", "my.yaml", "--render", "x"]

    assert main(arguments) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_all_problems_of_a_config_file_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("infra").mkdir()
    Path("infra/dev.yaml").write_text("queus: [a]\nschedules: maybe\n")

    assert main(["aws", "deploy", "--stage", "dev", "--render", "x"]) == ExitCode.USAGE

    errors = capsys.readouterr().err
    assert "infra/dev.yaml: unknown name 'queus'; did you mean 'queues'?" in errors
    assert "infra/dev.yaml: schedules: Input should be a valid boolean, not 'maybe'" in errors


@pytest.mark.parametrize("options", [["deploy", "--render", "x"], ["status"]])
def test_without_the_library_of_aws_the_extra_is_named(options: list[str]) -> None:
    Path("my.yaml").write_text("queues: [default]\n")
    arguments = ["aws", *options, "--stage", "dev", "--config", "my.yaml"]
    code = (
        "import sys; sys.modules['botocore'] = sys.modules['aiobotocore'] = None\n"
        f"from longshore.interfaces.cli.main import main; sys.exit(main({arguments}))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == ExitCode.USAGE, done.stderr
    assert "pip install 'longshore[aws]'" in done.stderr


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        (["LONGSHORE_BACKEND=sqlite"], "set LONGSHORE_BACKEND=aws"),
        (["LONGSHORE_BACKEND=aws", "LONGSHORE_AWS_BUCKET=b"], "pip install 'longshore[aws]'"),
    ],
)
def test_undelivered_events_without_the_library_of_aws(settings: list[str], remedy: str) -> None:
    code = (
        "import sys; sys.modules['botocore'] = sys.modules['aiobotocore'] = None\n"
        "from longshore.interfaces.cli.main import main\n"
        "sys.exit(main(['aws', 'undelivered', 'list']))"
    )
    command = ["env", *settings, sys.executable, "-c", code]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, remedy in done.stderr) == (ExitCode.USAGE, True), done.stderr


@pytest.mark.usefixtures("_interrupted")
def test_without_a_terminal_nothing_is_destroyed_without_yes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["aws", "destroy", "--stage", "dev"]) == ExitCode.USAGE

    shown = capsys.readouterr()
    assert "stage dev in account 123456789012, region eu-central-1" in shown.out
    assert "add --yes" in shown.err


@pytest.mark.usefixtures("_interrupted")
def test_an_interrupted_deployment_says_how_to_continue(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["aws", "deploy", "--stage", "dev"]) == ExitCode.INTERRUPTED

    assert "`longshore aws deploy --stage dev` waits for it" in capsys.readouterr().err
