"""Machines with wrong clocks, and processes that crash with their children."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import count

from longshore.errors import UsageError
from longshore.services.worker.group import WorkerGroup
from longshore.wiring.services import Services
from verification.simulation.alerts import make_health_check
from verification.simulation.children import SimulatedRunner
from verification.simulation.faults import Fault
from verification.simulation.faulty_port import StaleReads, faulty_backend
from verification.simulation.simulation import START, Simulation
from verification.simulation.slot_children import SlotChildren

# Between the end of a worker and the end of the last of its children.
_MAX_KILL_DELAY_S = 0.5
_MAX_RESTART_DELAY_S = 20.0


class Machine:
    """A machine: its processes share its clock and its pauses, and see each other's end."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.name = name
        self.paused_until = 0.0
        self.pauses: list[tuple[float, float]] = []
        self.workers: dict[str, Process] = {}  # registered and not deregistered
        self.queues_by_worker: dict[str, tuple[str, ...]] = {}  # by worker
        self.roles: dict[str, Process] = {}
        self.clock_offset = timedelta(0)
        self._simulation = simulation
        self._rng = simulation.random_for(f"machine {name}")
        if simulation.faults.occurs(Fault.SKEW, self._rng):
            self.set_clock()

    def set_clock(self) -> None:
        """Set the clock to a wrong time; two clocks differ by the skew margin at most."""
        margin = self._simulation.settings.worker.skew_margin
        self.clock_offset = (self._rng.random() - 0.5) * margin
        self._simulation.record(self.name, "clock is off by", str(self.clock_offset))

    def pause(self, seconds: float) -> None:
        """Pause all processes of the machine."""
        now = self._simulation.time()
        self.paused_until = max(self.paused_until, now + seconds)
        self.pauses.append((now, self.paused_until))
        self._simulation.record(self.name, "pause", f"{seconds:.1f} s")

    async def wait_until_resumed(self) -> None:
        """Return when the machine is not paused."""
        while True:
            left = self.paused_until - self._simulation.time()
            if left <= 0:
                return
            await asyncio.sleep(left)

    def was_paused(self, since: float, until: float) -> bool:
        """Whether the machine was paused in that time."""
        return any(begin < until and since < end for begin, end in self.pauses)


class MachineClock:
    """See ``ports.clock.Clock``; the machine's clock as a process reads it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._simulation = process.simulation

    def now(self) -> datetime:
        return (
            START + timedelta(seconds=self._simulation.time()) + self._process.machine.clock_offset
        )

    def elapsed(self) -> timedelta:
        return timedelta(seconds=self._simulation.time())

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(max(duration.total_seconds(), 0.0))
        await self._process.wait_until_running()


class MachineWorkerRegistry:
    """See ``ports.worker_registry.WorkerRegistry``; as one process uses it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._machine = process.machine

    def register(self, worker_id: str, queues: Sequence[str]) -> None:
        if worker_id in self._machine.workers:
            message = f"a worker called {worker_id!r} exists already"
            raise UsageError(message)
        self._machine.workers[worker_id] = self._process
        self._machine.queues_by_worker[worker_id] = tuple(queues)

    def deregister(self, worker_id: str) -> None:
        if not self._process.dead:
            self._machine.workers.pop(worker_id, None)

    def lock_descriptors(self, worker_id: str) -> tuple[int, ...]:
        return ()

    def record_child(self, worker_id: str, process_id: int) -> None:
        """Does nothing: the simulated machine knows its processes."""

    def forget_child(self, worker_id: str, process_id: int) -> None:
        """Does nothing: the simulated machine knows its processes."""

    def is_dead(self, worker_id: str) -> bool:
        process = self._machine.workers.get(worker_id)
        return process is not None and process.dead and not process.has_children

    def reap(self, worker_id: str) -> None:
        process = self._machine.workers.get(worker_id)
        if process is not None and not self._process.dead:
            process.children.kill_all()
            if process.dead:  # otherwise its slots end their children
                process.slot_children.kill_all()

    def begun_tasks(self, worker_id: str) -> set[tuple[int, int]] | None:
        process = self._machine.workers.get(worker_id)
        return None if process is None else process.slot_children.begun

    def acquire_role(self, role: str) -> bool:
        holder = self._machine.roles.get(role)
        if holder is None or holder.dead or holder.ended:
            self._machine.roles[role] = holder = self._process
        return holder is self._process

    def dead_workers(self) -> list[str]:
        return [worker_id for worker_id in self._machine.workers if self.is_dead(worker_id)]

    def live_workers(self) -> dict[str, tuple[str, ...]]:
        workers = self._machine.workers.items()
        return {
            name: self._machine.queues_by_worker[name]
            for name, process in workers
            if not process.dead
        }


class Process:
    """A process: its services, its faulty backend, its children."""

    def __init__(
        self, simulation: Simulation, machine: Machine, name: str, stale_reads: StaleReads
    ) -> None:
        self.simulation = simulation
        self.machine = machine
        self.name = name
        self.dead = False
        self.ended = False  # normally
        self.finished = asyncio.Event()  # dead or ended
        simulation.running_processes[name] = None
        self.disconnected_until = 0.0
        self.frozen_until = 0.0
        self.children = SimulatedRunner(self)
        self.slot_children = SlotChildren(self)
        clock = MachineClock(self)
        ids = count(1)
        self.services: Services = Services(
            settings=simulation.settings,
            backend=faulty_backend(self, simulation, clock, stale_reads),
            worker_registry=MachineWorkerRegistry(self),
            new_id=lambda: f"{name}.{next(ids)}",
            intervals=simulation.intervals,
        )
        self._forever: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._worker_group: WorkerGroup | None = None
        self._health_check: asyncio.Future[None] | None = None

    @property
    def has_children(self) -> bool:
        """Whether a child is alive."""
        return bool(self.children.alive) or self.slot_children.alive

    def kill_children(self) -> None:
        """Kill all children with SIGKILL."""
        self.children.kill_all()
        self.slot_children.kill_all()

    @property
    def disconnected(self) -> bool:
        return self.simulation.time() < self.disconnected_until

    def was_paused(self, since: float) -> bool:
        return self.frozen_until > since or self.machine.was_paused(since, self.simulation.time())

    def freeze(self, seconds: float) -> None:
        """Send SIGSTOP, and SIGCONT later."""
        self.frozen_until = max(self.frozen_until, self.simulation.time() + seconds)
        self.simulation.record(self.name, "freezes", f"{seconds:.1f} s")

    async def wait_until_running(self) -> None:
        while max(self.machine.paused_until, self.frozen_until) > self.simulation.time():
            await self.machine.wait_until_resumed()
            await asyncio.sleep(max(self.frozen_until - self.simulation.time(), 0.0))
        if self.simulation.ended:
            raise asyncio.CancelledError
        if self.dead:
            # A waiting task may be cancelled by the rest of the process; the others keep waiting.
            await asyncio.shield(self._forever)

    async def wait_until_dead(self) -> None:
        await self.finished.wait()
        if not self.dead:
            await asyncio.shield(self._forever)

    def die(self) -> None:
        if self.dead or self.ended:
            return
        self.dead = True
        self._set_finished()
        self.simulation.record(self.name, "dies")
        self.slot_children.abandon()
        rng = self.simulation.random_for(f"end of {self.name}")
        self.simulation.call_at(
            self.simulation.time() + rng.random() * _MAX_KILL_DELAY_S, self.kill_children
        )

    async def run_worker(self) -> None:
        """Run a worker; an end other than by a stop is a violation."""
        rng = self.simulation.random_for(f"rolls of {self.name}")
        worker = self.services.worker_with_runner(
            self.children,
            self.name,
            process_id=1,
            roll=rng.random,
            make_slots=self.slot_children.make_slots if self.simulation.uses_slots else None,
        )
        self._worker_group = worker_group = WorkerGroup(
            worker=worker,
            dispatcher=self.services.dispatcher,
            sweeper=self.services.sweeper,
        )
        try:
            async with worker_group:
                await worker_group.wait()
        except Exception as error:  # noqa: BLE001 - no error may end a worker
            if not self.dead:
                self.simulation.report_violation(0, self.name, f"the worker ended with {error!r}")
                self.die()
            return
        if not self.dead:
            self.end()
            self.simulation.record(self.name, "has stopped")
            if self.has_children:
                self.simulation.report_violation(
                    10, self.name, "the worker has ended, but its children have not"
                )

    async def run_health_check(self) -> None:
        """Run the health check; an end other than by a stop is a violation."""
        self._health_check = health_check = asyncio.ensure_future(make_health_check(self).run())
        await asyncio.wait((health_check,))
        if self.dead or self.simulation.ended:
            return
        if not health_check.cancelled():
            text = f"the health check ended with {health_check.exception()!r}"
            self.simulation.report_violation(0, self.name, text)
        self.end()
        self.simulation.record(self.name, "has stopped")

    def end(self) -> None:
        """End normally."""
        self.ended = True
        self._set_finished()

    def _set_finished(self) -> None:
        self.finished.set()
        self.simulation.running_processes.pop(self.name, None)

    def stop_at_once(self) -> None:
        """Send SIGTERM twice."""
        self.stop(at_once=True)

    def stop(self, *, at_once: bool = False) -> None:
        """Send SIGTERM; twice if ``at_once``."""
        if self.dead or self.ended:
            return
        self.simulation.record(self.name, "stops at once" if at_once else "stops")
        if self._health_check is not None:
            self._health_check.cancel()
        if self._worker_group is not None and at_once:
            self._worker_group.stop_now()
        elif self._worker_group is not None:
            self._worker_group.stop()


class Fleet:
    """The processes of a run; each is restarted when it ends."""

    def __init__(
        self, simulation: Simulation, machines: list[Machine], *, workers: int, watchers: int
    ) -> None:
        self.stale_reads = StaleReads(simulation.random_for("stale reads"))
        self._started: list[Process] = []
        self._simulation = simulation
        self._machines = machines
        self._names = count(1)
        self._workers = workers
        self._watchers = watchers
        self._rng = simulation.random_for("fleet")

    def start(self) -> None:
        machines = self._machines
        for index in range(self._workers):
            self._simulation.start_task(
                self._keep_running(machines[index % len(machines)], watches=False)
            )
        for _ in range(self._watchers):
            # On one machine, which elects one of them; machines do not share an election.
            self._simulation.start_task(self._keep_running(machines[0], watches=True))

    async def _keep_running(self, machine: Machine, *, watches: bool) -> None:
        """Run a worker or a health check, and restart it when it ends."""
        kind = "watcher" if watches else "worker"
        while True:
            process = self.new_process(machine, f"{kind}-{next(self._names)}")
            self._simulation.record(process.name, "starts", machine.name)
            self._started.append(process)
            self._simulation.start_task(
                process.run_health_check() if watches else process.run_worker()
            )
            await process.finished.wait()
            if not self._simulation.faults.ended:
                await asyncio.sleep(self._rng.random() * _MAX_RESTART_DELAY_S)

    def new_process(self, machine: Machine, name: str) -> Process:
        return Process(self._simulation, machine, name, self.stale_reads)

    @property
    def running(self) -> list[Process]:
        """Running workers and health checks."""
        return [process for process in self._started if not (process.dead or process.ended)]
