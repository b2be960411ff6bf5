"""Record a workload, cut the power at many of its operations, and check what is on disk."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random

from longshore.adapters.sqlite.database import SqliteOptions
from longshore.core.tasks.commands import ParentsCompleted
from longshore.services.dispatcher import Dispatcher
from longshore.testing.clock import FakeClock
from longshore.wiring.services import Services
from verification.power.checks import boot_services, check_after_cut
from verification.power.disk import Disk, LossProfile
from verification.power.operations import Created, DiskOperation, Removed, Renamed, ShutDown, Synced
from verification.power.oracle import Oracle
from verification.power.recorder import Recorder, patched, record_os_calls
from verification.power.vfs import record_sqlite
from verification.power.workload import PowerWorkload

DATA = "data"
ACTIONS_PER_BOOT = (60, 25, 15)
CUTS_PER_RECORDING = 60
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - folders there have random names
_NEARBY_OPERATIONS = 8
_FINISH_EVERY = 3  # after every third cut, the remaining work is finished


@dataclass(frozen=True, slots=True)
class Recording:
    """The disk operations of a workload, and what was promised meanwhile."""

    seed: int
    log: tuple[DiskOperation, ...]
    oracle: Oracle
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class CutFailure:
    """A power cut after which an invariant was violated."""

    seed: int
    cut: int
    loss_seed: int
    violations: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that repeats the cut."""
        where = f"--seed {self.seed} --cut {self.cut} --loss-seed {self.loss_seed}"
        return f"python -m verification.power {where}"


@dataclass(slots=True)
class Tally:
    """Counts and failures of a campaign."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[CutFailure] = field(default_factory=list)


def record_workload(seed: int) -> Recording:
    """Run a workload on a store and record each disk operation."""
    with _temporary_folder() as folder:
        recorder = Recorder(folder)
        oracle = Oracle(lambda: recorder.position)
        clock = FakeClock()
        rng = Random(seed)
        # A blob's folder follows from its random file name.
        names = Random(seed)
        with (
            patched(secrets, "token_hex", lambda size: names.randbytes(size).hex()),
            patched(Dispatcher, "settle", _settle_one_by_one(Dispatcher.settle)),
            patched(Dispatcher, "_notify", _notify_one_by_one(Dispatcher._notify)),
            record_sqlite(recorder),
            record_os_calls(recorder),
        ):
            asyncio.run(_run_boots(rng, clock, recorder, oracle))
        return Recording(seed, tuple(recorder.log), oracle, clock.now())


def _settle_one_by_one(settle: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
    """Settle jobs one at a time: which jobs share a commit would depend on timing."""

    async def settled(dispatcher: Dispatcher, task_ids: Sequence[str]) -> int:
        return sum([await settle(dispatcher, [task_id]) for task_id in task_ids])

    return settled


def _notify_one_by_one(notify: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
    """Notify dependents one at a time, for the same reason."""

    async def notified(dispatcher: Dispatcher, commands: Mapping[str, ParentsCompleted]) -> int:
        return sum([await notify(dispatcher, {name: commands[name]}) for name in commands])

    return notified


async def _run_boots(rng: Random, clock: FakeClock, recorder: Recorder, oracle: Oracle) -> None:
    workload = PowerWorkload(rng, clock)
    change_ids = count(1)
    for boot, actions in enumerate(ACTIONS_PER_BOOT):
        options = SqliteOptions(wal_pages=rng.choice((10, 60, 1000)))
        folder = recorder.root / DATA
        async with boot_services(folder, clock, f"boot {boot}", options) as plain:
            services = Services(
                settings=plain.settings,
                backend=oracle.observe(plain.backend),
                worker_registry=plain.worker_registry,
                new_id=lambda: f"change-{next(change_ids)}",
            )
            if boot == 0:
                await workload.first_boot(services, actions)
            else:
                await workload.next_boot(services, actions)
        recorder.record(ShutDown())
        clock.advance(timedelta(minutes=1))


def run_cuts(recording: Recording, cuts: list[tuple[int, int]], tally: Tally) -> None:
    """Cut the power at each of these operations, with each of these loss seeds, and check."""
    disk, done = Disk(), 0
    for cut, loss_seed in sorted(cuts):
        for operation in recording.log[done:cut]:
            disk.apply(operation)
        done = cut
        rng = Random(f"{recording.seed} {cut} {loss_seed}")
        left = disk.cut(LossProfile.draw(rng), rng)
        tally.counts["power cuts"] += 1
        tally.counts["writes torn"] += left.torn
        tally.counts["writes and names lost"] += left.lost
        tally.counts["files left"] += len(left.files)
        with _temporary_folder() as folder:
            left.write_to(folder)
            report = asyncio.run(
                check_after_cut(
                    folder / DATA,
                    recording.oracle,
                    cut,
                    now=recording.ended_at,
                    finish=loss_seed % _FINISH_EVERY == 0,
                )
            )
        tally.counts["promises checked"] += report.promise_count
        tally.counts["claims made afterwards"] += report.claim_count
        if report.violations:
            violations = tuple(report.violations)
            tally.failures.append(CutFailure(recording.seed, cut, loss_seed, violations))


def draw_cuts(recording: Recording, number: int) -> list[tuple[int, int]]:
    """Draw the operations to cut at, and a loss seed for each.

    A cut is right after a promise, soon after the change of a name, or anywhere.
    """
    rng = Random(recording.seed)
    answers = recording.oracle.answers
    # Removals are rare and the most error-prone, so each kind is drawn with the same probability.
    names = [
        [
            position
            for position, operation in enumerate(recording.log, start=1)
            if isinstance(operation, kind)
        ]
        for kind in (Created, Renamed, Removed)
    ]
    cuts = []
    for loss_seed in range(number):
        cut = rng.choice(answers)
        if loss_seed % 2 == 0:
            cut = rng.randrange(len(recording.log) + 1)
        if loss_seed % 4 == 2:
            cut = min(
                rng.choice(rng.choice(names)) + rng.randrange(_NEARBY_OPERATIONS),
                len(recording.log),
            )
        cuts.append((cut, loss_seed))
    return cuts


def run_campaign(cuts: int, *, seed: int = 0) -> Iterator[Tally]:
    """Record from this seed on until all cuts are made; yields the tally after each recording."""
    tally = Tally()
    while cuts > 0:
        recording = record_workload(seed)
        tally.counts["recordings"] += 1
        tally.counts["operations"] += len(recording.log)
        tally.counts["syncs"] += sum(isinstance(operation, Synced) for operation in recording.log)
        tally.counts["answers"] += len(recording.oracle.answers)
        number = min(CUTS_PER_RECORDING, cuts)
        run_cuts(recording, draw_cuts(recording, number), tally)
        cuts -= number
        seed += 1
        yield tally


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    # The test does not depend on the machine's disk, and memory is faster.
    parent = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="longshore-power-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
