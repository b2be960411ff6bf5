"""The evidence of a real history, gathered once from each backend."""

from pathlib import Path
from typing import NamedTuple

import pytest

from longshore.ports.backend import Backend
from longshore.testing.auditing import from_memory, from_sqlite
from longshore.testing.auditing.evidence import Evidence
from tests.auditing.workload import be_at_work, come_to_rest
from tests.unit.services.stage import BACKENDS, Stage, opened, scenario


class Histories(NamedTuple):
    """The same folder or backend, at two moments."""

    at_rest: Evidence
    at_work: Evidence
    kind: str
    backend: Backend | None  # in memory only
    folder: Path


def gathered(kind: str, backend: Backend, folder: Path, *, settled: bool) -> Evidence:
    if kind != "sqlite":
        return from_memory.evidence_of(backend, settled=settled)
    now_us = int(backend.clock.now().timestamp() * 1_000_000)
    return from_sqlite.evidence_of(folder, settled=settled, taken_at_us=now_us)


@pytest.fixture(scope="session", params=BACKENDS)
def histories(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Histories:
    return played(request.param, tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    return played("atomic memory", tmp_path_factory.mktemp("memory"))


@pytest.fixture(scope="session")
def in_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    return played("sqlite", tmp_path_factory.mktemp("sqlite"))


def played(kind: str, folder: Path) -> Histories:
    found: list[Histories] = []

    @scenario
    async def play() -> None:
        async with opened(kind, folder) as backend:
            stage = Stage(backend)
            await come_to_rest(stage)
            at_rest = gathered(kind, backend, folder, settled=True)
            await be_at_work(stage)
            at_work = gathered(kind, backend, folder, settled=False)
            found.append(Histories(at_rest, at_work, kind, backend, folder))

    play()
    return found[0]
