"""One run: a seed, what people do, what goes wrong, and what must be true in the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import Random

from longshore.core.lease import LeasePolicy
from longshore.core.states import JobState, TaskState
from longshore.errors import LongshoreError
from longshore.settings import Settings
from longshore.settings.health import AlertsSettings, HealthSettings
from longshore.settings.sections import RetrySettings, WorkerSettings
from longshore.testing.auditing.audit import audit
from longshore.testing.auditing.from_memory import evidence_of
from longshore.testing.simulation import witness
from longshore.testing.simulation.acts import QUEUES, Act, drawn
from longshore.testing.simulation.deeds import Deed
from longshore.testing.simulation.faults import Fault, Weather
from longshore.testing.simulation.functions import Functions
from longshore.testing.simulation.loop import VirtualLoop
from longshore.testing.simulation.processes import Fleet, Machine, Process
from longshore.testing.simulation.workload import People
from longshore.testing.simulation.world import TENANT, Breach, Entry, World

# Longer than every backoff, delay, lease and late answer together.
_PATIENCE = 3_600.0
_AFTERWARDS = 35.0
_LOOK_EVERY = 5.0
# After the last fault: for calls that are slow, answers that are late, and processes to start.
_ECHO = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Which run: the seed, and what of it is left out."""

    seed: int
    acts: tuple[int, ...] | None = None  # places in what was drawn; None: all
    without: frozenset[Fault] = frozenset()
    weather: Weather = Weather.ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a run."""

    scenario: Scenario
    breaches: tuple[Breach, ...]
    happened: Counter[Fault]
    done: Counter[Deed]
    acts: int  # how many were carried out
    tasks: int
    attempts: int
    virtual_seconds: float
    task_seconds: float  # for how long tasks were under way, all together
    cpu_seconds: float
    digest: str
    trace: tuple[Entry, ...]


def run(scenario: Scenario, *, keep_trace: bool = False) -> Report:
    """Carry out a run. The same scenario gives the same report, but for the time it took.

    Args:
        keep_trace: Whether to report all that happened; of a run that failed it always is.
    """
    began = time.process_time()
    loop = VirtualLoop()
    # Nothing may depend on when memory is collected; and it need not be, in so short a time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with _only_errors_logged() as broken:
            asyncio.set_event_loop(loop)
            report = loop.run_until_complete(
                _carried_out(scenario, broken, began, keep_trace=keep_trace)
            )
    except Exception as error:
        # Whoever makes many runs sees by this which of them it was.
        error.add_note(f"in the run of seed {scenario.seed}")
        raise
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        if collecting:
            gc.enable()
    return report


async def _carried_out(
    scenario: Scenario, broken: list[str], began: float, *, keep_trace: bool
) -> Report:
    return await _Run(scenario, broken).go(began, keep_trace=keep_trace)


@contextmanager
def _only_errors_logged() -> Iterator[list[str]]:
    """What services log as errors that nobody raises on purpose."""
    broken: list[str] = []
    logger = logging.getLogger("longshore")
    handler = _Broken(broken)
    before = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield broken
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class _Broken(logging.Handler):
    def __init__(self, broken: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._broken = broken

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, LongshoreError):
            self._broken.append(f"{record.getMessage()}: {error!r}")


class _Run:
    def __init__(self, scenario: Scenario, broken: list[str]) -> None:
        self._scenario = scenario
        self._broken = broken
        rng = Random(f"{scenario.seed}/shape")
        aws = scenario.weather is Weather.AWS
        one_machine = rng.random() < 0.4 and not aws
        self._length = rng.choice((30.0, 60.0, 120.0))
        self._world = World(
            scenario.seed,
            _settings(rng),
            atomic=one_machine or rng.random() < 0.3,
            without=scenario.without,
            weather=scenario.weather,
        )
        self._machines = [
            Machine(self._world, f"machine-{number}") for number in range(1 if one_machine else 3)
        ]
        workers = 1 + rng.randrange(5)
        watchers = 1 + self._world.chance("watchers").randrange(2)
        self._fleet = Fleet(self._world, self._machines, workers=workers, watchers=watchers)
        self._functions = Functions(self._world, self._fleet) if aws else None
        self._operator: Process | None = None
        self._people = People(
            self._world, lambda name: self._fleet.process(self._machines[-1], name)
        )
        acts = drawn(self._world.chance, self._length)
        wanted = range(len(acts)) if scenario.acts is None else scenario.acts
        self._acts: Sequence[Act] = [acts[place] for place in wanted]

    async def go(self, began: float, *, keep_trace: bool) -> Report:
        world = self._world
        await self._people.begin()
        self._fleet.start()
        if self._functions is not None:
            self._functions.start()
        acting = self._people.all_of(self._acts)
        self._schedule()
        await asyncio.sleep(self._length)
        world.faults.end()
        world.note("world", "faults end")
        still = max(machine.paused_until for machine in self._machines)
        world.calm_from = max(world.time(), still) + _ECHO
        await asyncio.wait(acting, timeout=_PATIENCE) if acting else None
        settled = await self._settled()
        await self._judge(settled=settled, acting=acting)
        report = await self._report(began, keep_trace=keep_trace)
        await self._leave()
        return report

    def _schedule(self) -> None:
        """What goes wrong by the clock."""
        world, rng = self._world, self._world.chance("schedule")
        by_the_clock: dict[Fault, Callable[[Random], None]] = {
            Fault.CRASH: self._crash,
            Fault.DRAIN: lambda rng: self._stop(rng, at_once=False),
            Fault.STOP_AT_ONCE: lambda rng: self._stop(rng, at_once=True),
            Fault.PAUSE: self._pause,
            Fault.OUTAGE: self._cut_off,
            Fault.CLOCK_SET: self._set_clock,
            Fault.POISON: self._people.poison,
            Fault.WORN_OUT: self._people.wear_out,
            Fault.HOT_PARTITION: self._refuse_rows,
        }
        for fault, act in by_the_clock.items():
            for number in range(world.faults.times(fault)):
                own = world.chance(f"{fault.name} {number}")
                world.at(rng.random() * self._length, partial(act, own))

    def _crash(self, rng: Random) -> None:
        if living := self._fleet.living:
            self._world.faults.count(Fault.CRASH)
            rng.choice(living).die()

    def _stop(self, rng: Random, *, at_once: bool) -> None:
        if living := self._fleet.living:
            self._world.faults.count(Fault.STOP_AT_ONCE if at_once else Fault.DRAIN)
            rng.choice(living).stop(at_once=at_once)

    def _pause(self, rng: Random) -> None:
        self._world.faults.count(Fault.PAUSE)
        rng.choice(self._machines).pause(rng.random() * 60.0)

    def _cut_off(self, rng: Random) -> None:
        if living := self._fleet.living:
            self._world.faults.count(Fault.OUTAGE)
            process = rng.choice(living)
            seconds = rng.random() * 60.0
            process.cut_off_until = self._world.time() + seconds
            self._world.note(process.name, "is cut off", f"{seconds:.1f} s")

    def _refuse_rows(self, rng: Random) -> None:
        self._world.faults.count(Fault.HOT_PARTITION)
        seconds = rng.random() * 20.0
        self._world.rows_refused_until = self._world.time() + seconds
        self._world.note("world", "rows cannot be written", f"{seconds:.1f} s")

    def _set_clock(self, rng: Random) -> None:
        self._world.faults.count(Fault.CLOCK_SET)
        rng.choice(self._machines).set_clock()

    async def _settled(self) -> bool:
        """Whether everything came to rest, and stayed so."""
        for machine in self._machines:
            await machine.runs()
        end = self._world.time() + _PATIENCE
        while self._world.time() < end:
            await self._serve_all_queues()
            if await self._at_rest():
                await asyncio.sleep(_AFTERWARDS)
                return await self._at_rest()
            await asyncio.sleep(_LOOK_EVERY)
        return False

    async def _serve_all_queues(self) -> None:
        if any(one.until is None for one in await self._world.backend.queues.paused()):
            operator = self._operator or self._fleet.process(self._machines[0], "operator")
            self._operator = operator
            await self._people.end_pauses(operator)

    async def _at_rest(self) -> bool:
        ledger = self._world.backend.ledger
        if self._functions is not None and not self._functions.at_rest:
            return False
        failed = await ledger.list_tasks(TENANT, state=TaskState.FAILED, limit=1)
        if self._world.ears.unaware(dead_letters=bool(failed.items)):
            return False
        for state in (TaskState.PENDING, TaskState.PROCESSING):
            if (await ledger.list_tasks(TENANT, state=state, limit=1)).items:
                return False
        running = await ledger.list_jobs(TENANT, state=JobState.RUNNING, limit=1_000)
        for job in running.items:
            states = (await ledger.task_states(job.id)).values()
            if not {TaskState.IN_REVIEW, TaskState.PARKED} & {*states}:
                return False
        now = self._world.clock.now() + timedelta(days=1)
        return not (
            await ledger.open_intents(limit=1)
            or await ledger.untold_ends(limit=1)
            or await ledger.untold_parents(limit=1)
            or await ledger.unrecorded_ends(ended_by=now, limit=1)
        )

    async def _judge(self, *, settled: bool, acting: Sequence[asyncio.Task[None]]) -> None:
        world = self._world
        if not settled:
            world.breach(1, "the run", "did not come to rest, although nothing goes wrong any more")
        if not all(task.done() for task in acting):
            world.breach(1, "people", "still wait for an answer")
        for text in self._broken:
            world.breach(0, "a service", text)
        order = self._functions.order_of if self._functions is not None else None
        for found in audit(evidence_of(world.backend, settled=settled, order=order)):
            world.breach(found.invariant, found.subject, found.text)
        failed = await world.backend.ledger.list_tasks(TENANT, state=TaskState.FAILED, limit=1)
        for whom in world.ears.unaware(dead_letters=bool(failed.items)):
            world.breach(0, "the health check", f"has not told the {whom}")
        await witness.judge(world, self._people.answers)

    async def _report(self, began: float, *, keep_trace: bool) -> Report:
        world = self._world
        lives = world.lives.all
        return Report(
            scenario=self._scenario,
            breaches=tuple(world.breaches),
            happened=world.faults.happened,
            done=world.done,
            acts=len(self._acts),
            tasks=len({life.task_id for life in lives}),
            attempts=len(lives),
            virtual_seconds=world.time(),
            task_seconds=await witness.task_seconds(world),
            cpu_seconds=time.process_time() - began,
            digest=world.digest(),
            trace=tuple(world.trace) if world.breaches or keep_trace else (),
        )

    async def _leave(self) -> None:
        """Let everybody go. All is judged: what still happens now is of no interest."""
        self._world.over = True
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=1.0)


def _settings(rng: Random) -> Settings:
    quick = {
        "renew_every": timedelta(seconds=4),
        "extend_by": timedelta(seconds=6),
        "kill_grace": timedelta(seconds=1),
        "skew_margin": timedelta(seconds=1),
    }
    lease = LeasePolicy(**(quick if rng.random() < 0.7 else {}))
    worker = WorkerSettings(
        renew_every=lease.renew_every,
        extend_by=lease.extend_by,
        kill_grace=lease.kill_grace,
        skew_margin=lease.skew_margin,
        concurrency=rng.choice((1, 2, 3)),
        queues=QUEUES,
        poll_wait=timedelta(seconds=rng.choice((5, 20, 20))),
        sweep_every=timedelta(seconds=rng.choice((15, 30, 30))),
        look_every=timedelta(seconds=rng.choice((0.5, 3.0, 3.0, 3.0))),
        drain_grace=timedelta(seconds=rng.choice((1, 10))),
        task_timeout=timedelta(seconds=40),
    )
    return Settings(
        backend="memory",
        tenant=TENANT,
        worker=worker,
        retry=RetrySettings(base=timedelta(seconds=1), cap=timedelta(seconds=10)),
        health=_health_settings(rng),
        alerts=AlertsSettings(timeout=timedelta(seconds=5)),
    )


def _health_settings(rng: Random) -> HealthSettings:
    """Strict ones: much must be told in so short a time."""
    return HealthSettings(
        every=timedelta(seconds=rng.choice((5, 10))),
        longest_run=timedelta(seconds=rng.choice((8, 15))),
        healthy_within=timedelta(seconds=3),
        warning_within=timedelta(seconds=6),
        cool_down=timedelta(seconds=rng.choice((20, 60, 3600))),
    )
