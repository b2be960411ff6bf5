"""Record a workload, cut the power at many of its operations, and look at what is left."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random

from longshore.adapters.sqlite.database import SqliteOptions
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
ACTIONS_PER_BOOT = (60, 25, 15)  # in each boot of the machine
CUTS_PER_RECORDING = 60  # of each recording
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - what is made there has a name of its own
_NEARBY_OPERATIONS = 8  # operations
_FINISH_EVERY = 3  # one cut in so many is worked to the end


@dataclass(frozen=True, slots=True)
class Recording:
    """What was asked of the machine, and what was promised meanwhile."""

    seed: int
    log: tuple[DiskOperation, ...]
    oracle: Oracle
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class CutFailure:
    """A cut after which something was wrong."""

    seed: int
    cut: int
    loss_seed: int
    violations: tuple[str, ...]

    @property
    def command(self) -> str:
        """What repeats it."""
        where = f"--seed {self.seed} --cut {self.cut} --loss-seed {self.loss_seed}"
        return f"python -m verification.power {where}"


@dataclass(slots=True)
class Tally:
    """What a campaign did and found."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[CutFailure] = field(default_factory=list)


def record_workload(seed: int) -> Recording:
    """Let a workload run on a store whose every operation is noted."""
    with _temporary_folder() as folder:
        recorder = Recorder(folder)
        witness = Oracle(lambda: recorder.position)
        clock = FakeClock()
        rng = Random(seed)
        # The name of a blob's file decides which folder is made for it.
        names = Random(seed)
        with (
            patched(secrets, "token_hex", lambda size: names.randbytes(size).hex()),
            patched(Dispatcher, "_settle", _settle_one_by_one(Dispatcher._settle)),
            record_sqlite(recorder),
            record_os_calls(recorder),
        ):
            asyncio.run(_run_boots(rng, clock, recorder, witness))
        return Recording(seed, tuple(recorder.log), witness, clock.now())


def _settle_one_by_one(settle: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
    """Jobs are settled together, and which of them come into one commit is a matter of moments."""

    async def settled(dispatcher: Dispatcher, heard: Mapping[str, int]) -> int:
        return sum([await settle(dispatcher, {one: heard[one]}) for one in heard])

    return settled


async def _run_boots(rng: Random, clock: FakeClock, recorder: Recorder, oracle: Oracle) -> None:
    workload = PowerWorkload(rng, clock)
    change_ids = count(1)
    for boot, acts in enumerate(ACTIONS_PER_BOOT):
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
                await workload.first_boot(services, acts)
            else:
                await workload.next_boot(services, acts)
        recorder.record(ShutDown())
        clock.advance(timedelta(minutes=1))


def run_cuts(recording: Recording, cuts: list[tuple[int, int]], tally: Tally) -> None:
    """Cut the power at each of these operations, with each of these fates, and look."""
    disk, done = Disk(), 0
    for cut, fate_seed in sorted(cuts):
        for operation in recording.log[done:cut]:
            disk.apply(operation)
        done = cut
        rng = Random(f"{recording.seed} {cut} {fate_seed}")
        left = disk.cut(LossProfile.draw(rng), rng)
        tally.counts["power cuts"] += 1
        tally.counts["writes torn"] += left.torn
        tally.counts["writes and names lost"] += left.lost
        tally.counts["files left"] += len(left.files)
        with _temporary_folder() as folder:
            left.write_to(folder)
            verdict = asyncio.run(
                check_after_cut(
                    folder / DATA,
                    recording.oracle,
                    cut,
                    now=recording.ended_at,
                    finish=fate_seed % _FINISH_EVERY == 0,
                )
            )
        tally.counts["promises looked for"] += verdict.promise_count
        tally.counts["claims made afterwards"] += verdict.claim_count
        if verdict.violations:
            breaches = tuple(verdict.violations)
            tally.failures.append(CutFailure(recording.seed, cut, fate_seed, breaches))


def draw_cuts(recording: Recording, number: int) -> list[tuple[int, int]]:
    """Where to cut, and a fate for each.

    Right after something was promised, or soon after a name was changed, or anywhere.
    """
    rng = Random(recording.seed)
    answers = recording.oracle.answers
    # Few are removed, and that is where most can go wrong: each kind is as likely as the others.
    names = [
        [place for place, one in enumerate(recording.log, start=1) if isinstance(one, kind)]
        for kind in (Created, Renamed, Removed)
    ]
    cuts = []
    for fate in range(number):
        cut = rng.choice(answers)
        if fate % 2 == 0:
            cut = rng.randrange(len(recording.log) + 1)
        if fate % 4 == 2:
            cut = min(
                rng.choice(rng.choice(names)) + rng.randrange(_NEARBY_OPERATIONS),
                len(recording.log),
            )
        cuts.append((cut, fate))
    return cuts


def run_campaign(cuts: int, *, seed: int = 0) -> Iterator[Tally]:
    """Recordings from this seed on, until there were so many cuts; the tally after each."""
    tally = Tally()
    while cuts > 0:
        recording = record_workload(seed)
        tally.counts["recordings"] += 1
        tally.counts["operations"] += len(recording.log)
        tally.counts["syncs"] += sum(isinstance(one, Synced) for one in recording.log)
        tally.counts["answers"] += len(recording.oracle.answers)
        number = min(CUTS_PER_RECORDING, cuts)
        run_cuts(recording, draw_cuts(recording, number), tally)
        cuts -= number
        seed += 1
        yield tally


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    # How the machine's own disk syncs is of no interest here: in memory it is quick.
    place = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="longshore-power-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
