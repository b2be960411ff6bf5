"""An installation for the tests of a module, and for each of them functions that start cold."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aws.functions.house import House, a_house


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("installation")


@pytest.fixture
def house(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with a_house(folder, monkeypatch) as made:
        made.begin_anew()
        yield made
