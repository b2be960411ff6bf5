"""A folder, and the command line in it."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longshore.interfaces.cli.main import main
from tests.interfaces.doors import Answer, Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def inside(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Answer]]:
    """The same command line without a process of its own: for many questions to one store."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level

    def run(*arguments: str) -> Answer:
        code = main(arguments)
        shown = capfd.readouterr()
        return Answer(code=code, out=shown.out, err=shown.err)

    yield run
    root.handlers, root.level = handlers, level
