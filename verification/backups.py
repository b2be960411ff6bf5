"""Backs up a busy store again and again, restores each backup, and audits what was restored.

``python -m verification.backups --count 50`` (``make backup-proof``). Another process submits, runs
and soon removes jobs with large inputs and results meanwhile, so that rows and files come and go.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import apsw

from longshore.adapters.sqlite.store_file import FILE_NAME
from longshore.audit.audit import audit
from longshore.audit.sqlite_reader import read_snapshot
from longshore.core.inspection import BackupFacts
from longshore.settings import Settings, load_settings
from longshore.testing.fake_runner import FakeRunner, Script, succeeds
from longshore.wiring.services import Intervals, Services, back_up, open_services, restore

ROOT = Path(__file__).parents[1]
_TENANT = "default"
_LARGE = "x" * 100_000  # a file of its own
_RETENTION = timedelta(milliseconds=200)
_INTERVALS = Intervals(sweep=timedelta(milliseconds=50))
_CLIENTS = 8
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Round:
    """One backup and its restore: what was found wrong, if anything."""

    backup: BackupFacts
    problems: tuple[str, ...]
    positions: int  # of the busy store


def settings_of(data_dir: Path) -> Settings:
    """The settings of a store whose jobs are removed soon."""
    own = {"data_dir": str(data_dir), "keys_dir": str(data_dir.parent / "keys")}
    settings = load_settings(own, environ={}, cwd=data_dir.parent)
    return replace(settings, retention=replace(settings.retention, jobs=_RETENTION))


async def run_load(data_dir: Path) -> None:
    """Submit, run and remove jobs until this process is killed."""
    async with open_services(settings_of(data_dir), intervals=_INTERVALS) as services:
        runner = FakeRunner(services.backend.clock, default=Script(ending=succeeds(_LARGE)))
        worker = services.worker_with_runner(runner, "load", process_id=1, roll=lambda: 0.5)
        services.__dict__["worker"] = lambda queues=None: worker
        async with services.worker_group():
            await asyncio.gather(*(_submit_forever(services, n) for n in range(_CLIENTS)))


async def _submit_forever(services: Services, client: int) -> None:
    tasks = [
        {"taskId": "a", "name": "python", "input": {"function": "a:b", "args": [_LARGE]}},
        {"taskId": "b", "name": "python", "input": {"function": "a:b"}, "dependsOn": ["a"]},
    ]
    for number in count():
        await services.producer.submit(_TENANT, f"{client}-{number}", {"tasks": tasks})
        await asyncio.sleep(_PAUSE_S)


@contextlib.contextmanager
def running_load(data_dir: Path) -> Iterator[None]:
    """Another process that uses the store; it has stored and removed something already."""
    arguments = [sys.executable, "-m", "verification.backups", "--load", str(data_dir)]
    process = subprocess.Popen(arguments, cwd=ROOT)
    try:
        while not _has_removed_jobs(data_dir):
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            raise RuntimeError(f"the load ended with {process.returncode}")
        yield
        if process.poll() is not None:
            raise RuntimeError(f"the load ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


def prove(folder: Path, *, rounds: int) -> Iterator[Round]:
    """Back up and restore a busy store so often."""
    data_dir = folder / "data"
    with running_load(data_dir):
        for number in range(rounds):
            target = folder / (f"backup-{number}" + (".tar.zst" if number % 2 else ""))
            facts = back_up(settings_of(data_dir), target, lambda done, total: None)
            restored = folder / f"restored-{number}"
            asyncio.run(restore(settings_of(restored), target, lambda done, total: None))
            violations = audit(read_snapshot(restored))
            problems = [str(violation) for violation in violations]
            if facts.missing_blobs:
                problems.append(f"{facts.missing_blobs} files of blobs are missing")
            yield Round(facts, tuple(problems), _select(data_dir, "SELECT max(position) FROM feed"))


def _has_removed_jobs(data_dir: Path) -> bool:
    with contextlib.suppress(apsw.Error):
        return bool(_select(data_dir, "SELECT count(*) FROM removed_jobs"))
    return False


def _select(data_dir: Path, sql: str) -> int:
    flags = apsw.SQLITE_OPEN_READONLY
    with contextlib.closing(apsw.Connection(str(data_dir / FILE_NAME), flags=flags)) as connection:
        connection.set_busy_timeout(10_000)
        return int(str(connection.execute(sql).fetchall()[0][0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load is not None:
        asyncio.run(run_load(options.load))
    logging.disable(logging.WARNING)  # each restore ends leases
    failed = 0
    with tempfile.TemporaryDirectory(prefix="longshore-backups-") as folder:
        for number, result in enumerate(prove(Path(folder), rounds=options.count)):
            facts = result.backup
            failed += bool(result.problems)
            sys.stdout.write(
                f"backup {number}: {facts.jobs} jobs, {facts.blobs} files, {facts.size_bytes:,}"
                f" bytes, position {result.positions}: {'; '.join(result.problems) or 'whole'}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"{options.count} backups, {failed} with problems\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
