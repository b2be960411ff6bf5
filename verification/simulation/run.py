"""One run: the actions of clients, the faults, and the checks at the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from random import Random

from longshore.audit.audit import audit
from longshore.audit.memory_reader import read_snapshot
from longshore.core.events.types import MessageRejected
from longshore.core.tasks.lease import LeasePolicy
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import LongshoreError
from longshore.settings.model import (
    AlertsSettings,
    HealthSettings,
    RetentionSettings,
    RetrySettings,
    Settings,
    WorkerSettings,
)
from longshore.wiring.services import Intervals
from verification.simulation import oracle
from verification.simulation.clients import Clients
from verification.simulation.faults import Fault, FaultProfile
from verification.simulation.functions import LambdaFunctions
from verification.simulation.loop import VirtualLoop
from verification.simulation.processes import Fleet, Machine, Process
from verification.simulation.restores import SimulatedBackup
from verification.simulation.simulation import TENANT, Simulation, TraceEntry, Violation
from verification.simulation.stream_backend import StreamRetention
from verification.simulation.workload import QUEUES, Action, ActionKind, draw_actions

# Longer than every backoff, delay, lease and late answer together.
_SETTLE_TIMEOUT_S = 3_600.0
_STILL_SETTLED_AFTER_S = 35.0
_POLL_INTERVAL_S = 5.0
# After the last fault: for calls that are slow, answers that are late, and processes to start.
_FAULT_ECHO_S = 30.0
_RETENTION_CHANCE = 0.25
_BACKUP_CHANCE = 0.4  # of a store on one machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run: its seed, and what is left out."""

    seed: int
    actions: tuple[int, ...] | None = None  # indexes of the drawn actions; None: all
    without: frozenset[Fault] = frozenset()
    profile: FaultProfile = FaultProfile.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The result of a run."""

    scenario: Scenario
    violations: tuple[Violation, ...]
    fault_counts: Counter[Fault]
    action_counts: Counter[ActionKind]
    actions_run: int  # number of actions
    tasks: int
    attempts: int
    virtual_seconds: float
    task_seconds: float  # total duration of all tasks
    cpu_seconds: float
    digest: str
    trace: tuple[TraceEntry, ...]


def run(scenario: Scenario, *, keep_trace: bool = False) -> RunReport:
    """Carry out a run. The same scenario gives the same report, apart from the CPU time.

    Args:
        keep_trace: Whether to report the trace; a run that failed always has it.
    """
    started_at = time.process_time()
    loop = VirtualLoop()
    # A run must not depend on garbage collection, and is too short to need it.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with _captured_errors() as errors:
            asyncio.set_event_loop(loop)
            report = loop.run_until_complete(
                _execute(scenario, errors, started_at, keep_trace=keep_trace)
            )
    except Exception as error:
        # Names the run among many.
        error.add_note(f"in the run of seed {scenario.seed}")
        raise
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        if was_enabled:
            gc.enable()
    return report


async def _execute(
    scenario: Scenario, errors: list[str], started_at: float, *, keep_trace: bool
) -> RunReport:
    return await _Run(scenario, errors).execute(started_at, keep_trace=keep_trace)


@contextmanager
def _captured_errors() -> Iterator[list[str]]:
    """Collect unexpected errors that services log."""
    errors: list[str] = []
    logger = logging.getLogger("longshore")
    handler = _ErrorHandler(errors)
    before = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield errors
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class _ErrorHandler(logging.Handler):
    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, LongshoreError):
            self._errors.append(f"{record.getMessage()}: {error!r}")


class _Run:
    def __init__(self, scenario: Scenario, service_errors: list[str]) -> None:
        self._scenario = scenario
        self._service_errors = service_errors
        rng = Random(f"{scenario.seed}/shape")
        aws = scenario.profile is FaultProfile.AWS
        one_machine = rng.random() < 0.4 and not aws
        self._length = rng.choice((30.0, 60.0, 120.0))
        settings, intervals = _settings(rng)
        retention_rng = Random(f"{scenario.seed}/retention")
        if retention_rng.random() < _RETENTION_CHANCE:
            keep_for = timedelta(seconds=retention_rng.choice((2, 10, 40)))
            settings = replace(settings, retention=RetentionSettings(jobs=keep_for))
        self._simulation = Simulation(
            scenario.seed,
            settings,
            atomic=one_machine or rng.random() < 0.3,
            without=scenario.without,
            profile=scenario.profile,
            intervals=intervals,
        )
        self._machines = [
            Machine(self._simulation, f"machine-{number}")
            for number in range(1 if one_machine else 3)
        ]
        workers = 1 + rng.randrange(5)
        watchers = 1 + self._simulation.random_for("watchers").randrange(2)
        self._fleet = Fleet(self._simulation, self._machines, workers=workers, watchers=watchers)
        self._functions = LambdaFunctions(self._simulation, self._fleet) if aws else None
        self._operator: Process | None = None
        self._backup = SimulatedBackup(self._simulation)
        self._is_restored = False  # the store of the run is a restored one, without a health check
        self._clients = Clients(
            self._simulation, lambda name: self._fleet.new_process(self._machines[-1], name)
        )
        actions = draw_actions(
            self._simulation.random_for,
            self._length,
            with_bursts=self._simulation.uses_slots,
            repeats_late=bool(settings.retention.jobs),
        )
        indexes = range(len(actions)) if scenario.actions is None else scenario.actions
        self._actions: Sequence[Action] = [actions[index] for index in indexes]

    async def execute(self, started_at: float, *, keep_trace: bool) -> RunReport:
        simulation = self._simulation
        await self._clients.store_definitions()
        self._fleet.start()
        if self._functions is not None:
            self._functions.start()
        client_tasks = self._clients.start(self._actions)
        self._schedule()
        await asyncio.sleep(self._length)
        simulation.faults.end()
        simulation.record("run", "faults end")
        paused_until = max(machine.paused_until for machine in self._machines)
        frozen_until = max([process.frozen_until for process in self._fleet.running], default=0.0)
        paused_until = max(paused_until, frozen_until)
        simulation.calm_from = max(simulation.time(), paused_until) + _FAULT_ECHO_S
        await asyncio.wait(client_tasks, timeout=_SETTLE_TIMEOUT_S) if client_tasks else None
        settled = await self._wait_until_settled()
        await self._check(settled=settled, client_tasks=client_tasks)
        await self._check_restore()
        report = await self._report(started_at, keep_trace=keep_trace)
        await self._cancel_all()
        return report

    def _schedule(self) -> None:
        """Schedule the faults with random times."""
        simulation, rng = self._simulation, self._simulation.random_for("schedule")
        backup_rng = simulation.random_for("backups")
        if simulation.backend.source is not None and backup_rng.random() < _BACKUP_CHANCE:
            simulation.call_at(backup_rng.random() * self._length, self._backup.begin)
        timed_faults: dict[Fault, Callable[[Random], None]] = {
            Fault.CRASH: self._crash,
            Fault.DRAIN: lambda rng: self._stop(rng, at_once=False),
            Fault.STOP_AT_ONCE: lambda rng: self._stop(rng, at_once=True),
            Fault.PAUSE: self._pause,
            Fault.OUTAGE: self._disconnect,
            Fault.CLOCK_SET: self._set_clock,
            Fault.POISON: self._clients.send_poison,
            Fault.MESSAGE_EXHAUSTED: self._clients.exhaust_message,
            Fault.HOT_PARTITION: self._refuse_writes,
            Fault.SLOT_LOST: self._lose_slot,
            Fault.FREEZE: self._freeze,
        }
        for fault, start_fault in timed_faults.items():
            for number in range(simulation.faults.times(fault)):
                fault_rng = simulation.random_for(f"{fault.name} {number}")
                simulation.call_at(rng.random() * self._length, partial(start_fault, fault_rng))

    def _crash(self, rng: Random) -> None:
        if running := self._fleet.running:
            self._simulation.faults.count(Fault.CRASH)
            rng.choice(running).die()

    def _lose_slot(self, rng: Random) -> None:
        if running := self._fleet.running:
            process = rng.choice(running)
            if process.slot_children.lose_slot(rng):
                self._simulation.faults.count(Fault.SLOT_LOST)
                self._simulation.record(process.name, "loses a slot")

    def _stop(self, rng: Random, *, at_once: bool) -> None:
        if running := self._fleet.running:
            self._simulation.faults.count(Fault.STOP_AT_ONCE if at_once else Fault.DRAIN)
            rng.choice(running).stop(at_once=at_once)

    def _pause(self, rng: Random) -> None:
        self._simulation.faults.count(Fault.PAUSE)
        rng.choice(self._machines).pause(rng.random() * 60.0)

    def _freeze(self, rng: Random) -> None:
        if running := self._fleet.running:
            self._simulation.faults.count(Fault.FREEZE)
            rng.choice(running).freeze(rng.random() * 60.0)

    def _disconnect(self, rng: Random) -> None:
        if running := self._fleet.running:
            self._simulation.faults.count(Fault.OUTAGE)
            process = rng.choice(running)
            seconds = rng.random() * 60.0
            process.disconnected_until = self._simulation.time() + seconds
            self._simulation.record(process.name, "is disconnected", f"{seconds:.1f} s")

    def _refuse_writes(self, rng: Random) -> None:
        self._simulation.faults.count(Fault.HOT_PARTITION)
        seconds = rng.random() * 20.0
        self._simulation.writes_refused_until = self._simulation.time() + seconds
        self._simulation.record("run", "rows cannot be written", f"{seconds:.1f} s")

    def _set_clock(self, rng: Random) -> None:
        self._simulation.faults.count(Fault.CLOCK_SET)
        rng.choice(self._machines).set_clock()

    async def _wait_until_settled(self) -> bool:
        """Wait until all work is done. Returns whether it stays so."""
        for machine in self._machines:
            await machine.wait_until_resumed()
        end = self._simulation.time() + _SETTLE_TIMEOUT_S
        while self._simulation.time() < end:
            await self._resume_all_queues()
            if await self._is_settled():
                await asyncio.sleep(_STILL_SETTLED_AFTER_S)
                return await self._is_settled()
            await asyncio.sleep(_POLL_INTERVAL_S)
        return False

    async def _resume_all_queues(self) -> None:
        if any(
            pause.until is None
            for pause in await self._simulation.backend.queue_controls.list_pauses()
        ):
            operator = self._operator or self._fleet.new_process(self._machines[0], "operator")
            self._operator = operator
            await self._clients.resume_queues(operator)

    async def _is_settled(self) -> bool:
        ledger = self._simulation.backend.ledger
        if self._functions is not None and not self._functions.idle:
            return False
        if not self._is_restored and await self._uninformed_channels():
            return False
        for state in (TaskState.PENDING, TaskState.PROCESSING):
            if (await ledger.list_tasks(TENANT, state=state, limit=1)).items:
                return False
        running = await ledger.list_jobs(TENANT, state=JobState.RUNNING, limit=1_000)
        for job in running.items:
            states = (await ledger.task_states(job.id)).values()
            if not {TaskState.IN_REVIEW, TaskState.PARKED} & {*states}:
                return False
        now, retention = (
            self._simulation.clock.now() + timedelta(days=1),
            self._simulation.backend.retention,
        )
        if retention is not None and await retention.ended_jobs(ended_by=now, limit=1):
            return False
        if isinstance(retention, StreamRetention) and retention.unfinished:
            return False
        return not (
            await ledger.open_intents(limit=1)
            or await ledger.unreported_ends(limit=1)
            or await ledger.unnotified_dependents(limit=1)
            or await ledger.unrecorded_ends(ended_by=now, limit=1)
        )

    async def _uninformed_channels(self) -> list[str]:
        backend = self._simulation.backend
        failed = await backend.ledger.list_tasks(TENANT, state=TaskState.FAILED, limit=1)
        rejected = await backend.events.query(TENANT, event_type=MessageRejected.TYPE, limit=1_000)
        return self._simulation.alert_monitor.uninformed_channels(
            dead_letters=bool(failed.items), rejections=rejected.items
        )

    async def _check(self, *, settled: bool, client_tasks: Sequence[asyncio.Task[None]]) -> None:
        simulation = self._simulation
        if not settled:
            simulation.report_violation(
                1, "the run", "did not settle although the faults have ended"
            )
        if not all(task.done() for task in client_tasks):
            simulation.report_violation(1, "clients", "still wait for an answer")
        for text in self._service_errors:
            simulation.report_violation(0, "a service", text)
        commit_position = self._functions.commit_position if self._functions is not None else None
        for violation in audit(
            read_snapshot(simulation.backend, settled=settled, commit_position=commit_position)
        ):
            simulation.report_violation(violation.invariant, violation.subject, violation.text)
        for channel in await self._uninformed_channels():
            simulation.report_violation(0, "the health check", f"has not alerted {channel}")
        await oracle.check_run(simulation, self._clients.answers)

    async def _check_restore(self) -> None:
        """Restore the backup, if one was made, and check what becomes of it."""
        simulation = self._simulation
        if simulation.violations or (opened := await self._backup.restore()) is None:
            return
        restored, self._fleet, machine = opened
        self._simulation, self._machines, self._operator = restored, [machine], None
        self._is_restored = True
        try:
            # Before retention removes what is incomplete, and afterwards.
            violations = audit(read_snapshot(restored.backend, settled=False))
            settled = await self._wait_until_settled()
            violations += audit(read_snapshot(restored.backend, settled=settled))
            repeated = self._backup.repeated_fences(restored)
        finally:
            restored.ended = True
            self._simulation = simulation
        if not settled:
            simulation.report_violation(1, "the restored store", "did not settle")
        for violation in violations:
            text = f"in the restored store: {violation.text}"
            simulation.report_violation(violation.invariant, violation.subject, text)
        for task_id in repeated:
            simulation.report_violation(2, task_id, "a fence was issued before the restore, too")

    async def _report(self, started_at: float, *, keep_trace: bool) -> RunReport:
        simulation = self._simulation
        records = simulation.attempt_records.all
        return RunReport(
            scenario=self._scenario,
            violations=tuple(simulation.violations),
            fault_counts=simulation.faults.counts,
            action_counts=simulation.action_counts,
            actions_run=len(self._actions),
            tasks=len({record.task_id for record in records}),
            attempts=len(records),
            virtual_seconds=simulation.time(),
            task_seconds=await oracle.task_seconds(simulation),
            cpu_seconds=time.process_time() - started_at,
            digest=simulation.digest(),
            trace=tuple(simulation.trace) if simulation.violations or keep_trace else (),
        )

    async def _cancel_all(self) -> None:
        """Cancel all tasks. The checks are done, so what happens now does not matter."""
        self._simulation.ended = True
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=1.0)


def _settings(rng: Random) -> tuple[Settings, Intervals]:
    quick = {
        "renew_every": timedelta(seconds=4),
        "extend_by": timedelta(seconds=6),
        "kill_grace": timedelta(seconds=1),
        "skew_margin": timedelta(seconds=1),
    }
    lease = LeasePolicy(**(quick if rng.random() < 0.7 else {}))
    concurrency = rng.choice((1, 2, 3))
    poll_wait = timedelta(seconds=rng.choice((5, 20, 20)))
    intervals = Intervals(
        sweep=timedelta(seconds=rng.choice((15, 30, 30))),
        dead_worker_check=timedelta(seconds=rng.choice((0.5, 3.0, 3.0, 3.0))),
    )
    worker = WorkerSettings(
        renew_every=lease.renew_every,
        extend_by=lease.extend_by,
        kill_grace=lease.kill_grace,
        skew_margin=lease.skew_margin,
        concurrency=concurrency,
        queues=QUEUES,
        poll_wait=poll_wait,
        drain_grace=timedelta(seconds=rng.choice((1, 10))),
        task_timeout=timedelta(seconds=40),
    )
    settings = Settings(
        tenant=TENANT,
        worker=worker,
        retry=RetrySettings(base=timedelta(seconds=1), cap=timedelta(seconds=10)),
        health=_health_settings(rng),
        alerts=AlertsSettings(timeout=timedelta(seconds=5)),
        retention=RetentionSettings(jobs=timedelta(0)),
    )
    return settings, intervals


def _health_settings(rng: Random) -> HealthSettings:
    """Strict thresholds, so that a short run has alerts."""
    return HealthSettings(
        every=timedelta(seconds=rng.choice((5, 10))),
        longest_run=timedelta(seconds=rng.choice((8, 15))),
        healthy_within=timedelta(seconds=3),
        warning_within=timedelta(seconds=6),
        cool_down=timedelta(seconds=rng.choice((20, 60, 3600))),
    )
