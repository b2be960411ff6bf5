"""An installation for the tests of a module; functions start cold in each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aws.functions.installation import FunctionInstallation, open_installation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("installation")


@pytest.fixture
def installation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FunctionInstallation]:
    with open_installation(folder, monkeypatch) as installation:
        installation.reset()
        yield installation
