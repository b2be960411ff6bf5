"""A folder, and the command line in it."""

from pathlib import Path

import pytest

from tests.interfaces.doors import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)
