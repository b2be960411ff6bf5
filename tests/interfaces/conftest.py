"""The command line in a folder: on the data folder itself, or through a server."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longshore.interfaces.cli.main import main
from tests.interfaces.command_line import Cli, CommandResult
from tests.interfaces.server_thread import run_server

At = Callable[[Path], tuple[str, ...]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def inside(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., CommandResult]]:
    """The command line in the process of the test: faster for many commands on one store."""
    monkeypatch.setenv("HOME", str(tmp_path))
    root = logging.getLogger()
    handlers, level = root.handlers, root.level

    def run(*arguments: str) -> CommandResult:
        code = main(arguments)
        shown = capfd.readouterr()
        return CommandResult(code=code, out=shown.out, err=shown.err)

    yield run
    root.handlers, root.level = handlers, level


@pytest.fixture(params=["folder", "server"])
def at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[At]:
    """The options of a command that uses a data folder, directly or through a server."""
    with contextlib.ExitStack() as stack:
        servers: dict[Path, str] = {}

        def options(folder: Path) -> tuple[str, ...]:
            if request.param == "folder":
                return ("--data-dir", str(folder))
            if folder not in servers:
                served = stack.enter_context(run_server(folder))
                monkeypatch.setenv("LONGSHORE_API_KEY", served.key)
                servers[folder] = served.url
            return ("--server", servers[folder])

        yield options
