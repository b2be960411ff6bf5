"""The evidence of a real history, gathered once from each backend."""

from pathlib import Path
from typing import NamedTuple

import pytest

from longshore.audit import memory_reader, sqlite_reader
from longshore.audit.store_snapshot import StoreSnapshot
from longshore.ports.backend import Backend
from tests.audit.workload import run_open_jobs, run_settled_jobs
from tests.unit.services.harness import BACKENDS, ServiceHarness, open_backend, scenario


class SnapshotPair(NamedTuple):
    """The same folder or backend, at two moments."""

    settled: StoreSnapshot
    unsettled: StoreSnapshot
    kind: str
    backend: Backend | None  # in memory only
    folder: Path


def read_snapshot(kind: str, backend: Backend, folder: Path, *, settled: bool) -> StoreSnapshot:
    if kind != "sqlite":
        return memory_reader.read_snapshot(backend, settled=settled)
    now_us = int(backend.clock.now().timestamp() * 1_000_000)
    return sqlite_reader.read_snapshot(folder, settled=settled, taken_at_us=now_us)


@pytest.fixture(scope="session", params=BACKENDS)
def snapshots(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SnapshotPair:
    return record_workload(request.param, tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def memory_snapshots(tmp_path_factory: pytest.TempPathFactory) -> SnapshotPair:
    return record_workload("atomic memory", tmp_path_factory.mktemp("memory"))


@pytest.fixture(scope="session")
def sqlite_snapshots(tmp_path_factory: pytest.TempPathFactory) -> SnapshotPair:
    return record_workload("sqlite", tmp_path_factory.mktemp("sqlite"))


def record_workload(kind: str, folder: Path) -> SnapshotPair:
    pairs: list[SnapshotPair] = []

    @scenario
    async def run_workload() -> None:
        async with open_backend(kind, folder) as backend:
            harness = ServiceHarness(backend)
            await run_settled_jobs(harness)
            at_rest = read_snapshot(kind, backend, folder, settled=True)
            await run_open_jobs(harness)
            at_work = read_snapshot(kind, backend, folder, settled=False)
            pairs.append(SnapshotPair(at_rest, at_work, kind, backend, folder))

    run_workload()
    return pairs[0]
