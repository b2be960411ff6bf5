"""Machines and processes: clocks that are wrong, workers that die, children that die with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import count

from longshore.errors import UsageError
from longshore.services.crew import Crew
from longshore.testing.simulation.channels import health_check_of
from longshore.testing.simulation.children import Children
from longshore.testing.simulation.faults import Fault
from longshore.testing.simulation.line import Rumours, over_the_line
from longshore.testing.simulation.world import START, World
from longshore.wiring import Services, services_on

# Between the end of a worker and the end of the last of its children.
_KEEPER_TICK = 0.5
_LONGEST_RESTART = 20.0


class Machine:
    """Where processes run: they share its clock and its pauses, and know of each other's end."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.paused_until = 0.0
        self.pauses: list[tuple[float, float]] = []
        self.workers: dict[str, Process] = {}  # those that appeared and did not leave
        self.served: dict[str, tuple[str, ...]] = {}  # by worker, its queues
        self.roles: dict[str, Process] = {}
        self.offset = timedelta(0)
        self._world = world
        self._rng = world.chance(f"machine {name}")
        if world.faults.happens(Fault.SKEW, self._rng):
            self.set_clock()

    def set_clock(self) -> None:
        """To another time, as wrong as a clock may be: two of them differ by the margin at most."""
        margin = self._world.settings.worker.skew_margin
        self.offset = (self._rng.random() - 0.5) * margin
        self._world.note(self.name, "clock is off by", str(self.offset))

    def pause(self, seconds: float) -> None:
        """Everything on it stands still."""
        now = self._world.time()
        self.paused_until = max(self.paused_until, now + seconds)
        self.pauses.append((now, self.paused_until))
        self._world.note(self.name, "pause", f"{seconds:.1f} s")

    async def runs(self) -> None:
        """Return when it does not stand still."""
        while True:
            left = self.paused_until - self._world.time()
            if left <= 0:
                return
            await asyncio.sleep(left)

    def stood_still(self, since: float, until: float) -> bool:
        """Whether there was a pause in that time."""
        return any(begin < until and since < end for begin, end in self.pauses)


class MachineClock:
    """See ``ports.clock.Clock``; the machine's, as one of its processes reads it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def now(self) -> datetime:
        return START + timedelta(seconds=self._world.time()) + self._process.machine.offset

    def elapsed(self) -> timedelta:
        return timedelta(seconds=self._world.time())

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(max(duration.total_seconds(), 0.0))
        await self._process.awake()


class MachinePresence:
    """See ``ports.presence.Presence``; asked by one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._machine = process.machine

    def appear(self, worker_id: str, queues: Sequence[str]) -> None:
        if worker_id in self._machine.workers:
            message = f"a worker called {worker_id!r} is here already"
            raise UsageError(message)
        self._machine.workers[worker_id] = self._process
        self._machine.served[worker_id] = tuple(queues)

    def leave(self, worker_id: str) -> None:
        if not self._process.dead:
            self._machine.workers.pop(worker_id, None)

    def held_by(self, worker_id: str) -> tuple[int, ...]:
        return ()

    def note_child(self, worker_id: str, process_id: int) -> None:
        """The machine knows its processes without being told."""

    def forget_child(self, worker_id: str, process_id: int) -> None:
        """The machine knows its processes without being told."""

    def gone(self, worker_id: str) -> bool:
        process = self._machine.workers.get(worker_id)
        return process is not None and process.dead and not process.children.alive

    def clear(self, worker_id: str) -> None:
        process = self._machine.workers.get(worker_id)
        if process is not None and not self._process.dead:
            process.children.kill_all()

    def leads(self, role: str) -> bool:
        leader = self._machine.roles.get(role)
        if leader is None or leader.dead or leader.ended:
            self._machine.roles[role] = leader = self._process
        return leader is self._process

    def absent(self) -> list[str]:
        return [worker_id for worker_id in self._machine.workers if self.gone(worker_id)]

    def present(self) -> dict[str, tuple[str, ...]]:
        workers = self._machine.workers.items()
        return {name: self._machine.served[name] for name, process in workers if not process.dead}


class Process:
    """One process: its services, its line to the backend, its children."""

    def __init__(self, world: World, machine: Machine, name: str, rumours: Rumours) -> None:
        self.world = world
        self.machine = machine
        self.name = name
        self.dead = False
        self.ended = False  # in good order
        self.over = asyncio.Event()  # one or the other
        world.alive[name] = None
        self.cut_off_until = 0.0
        self.children = Children(self)
        clock = MachineClock(self)
        ids = count(1)
        self.services: Services = services_on(
            world.settings,
            over_the_line(self, world, clock, rumours),
            MachinePresence(self),
            new_id=lambda: f"{name}.{next(ids)}",
        )
        self._never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._crew: Crew | None = None
        self._checking: asyncio.Future[None] | None = None

    @property
    def cut_off(self) -> bool:
        return self.world.time() < self.cut_off_until

    def stood_still(self, since: float) -> bool:
        return self.machine.stood_still(since, self.world.time())

    async def awake(self) -> None:
        if self.machine.paused_until > self.world.time():
            await self.machine.runs()
        if self.world.over:
            raise asyncio.CancelledError
        if self.dead:
            # Who waits here may be cancelled by what is left of the process: the others wait on.
            await asyncio.shield(self._never)

    def die(self) -> None:
        if self.dead or self.ended:
            return
        self.dead = True
        self._is_over()
        self.world.note(self.name, "dies")
        rng = self.world.chance(f"end of {self.name}")
        self.world.at(self.world.time() + rng.random() * _KEEPER_TICK, self.children.kill_all)

    async def work(self) -> None:
        """Be a worker until the end; whatever ends it but a stop is a breach."""
        rng = self.world.chance(f"rolls of {self.name}")
        worker = self.services.worker_with(self.children, self.name, process_id=1, roll=rng.random)
        self._crew = crew = Crew(
            worker=worker,
            dispatcher=self.services.dispatcher,
            sweeper=self.services.sweeper,
            presence=self.services.presence,
        )
        try:
            async with crew:
                await crew.ended()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not have ended it
            if not self.dead:
                self.world.breach(0, self.name, f"the worker ended by {error!r}")
                self.die()
            return
        if not self.dead:
            self.end()
            self.world.note(self.name, "has stopped")
            if self.children.alive:
                self.world.breach(10, self.name, "the worker has ended and its children have not")

    async def watch(self) -> None:
        """Check health until the end; whatever ends it but a stop is a breach."""
        self._checking = checking = asyncio.ensure_future(health_check_of(self).run())
        await asyncio.wait((checking,))
        if self.dead or self.world.over:
            return
        if not checking.cancelled():
            text = f"the health check ended by {checking.exception()!r}"
            self.world.breach(0, self.name, text)
        self.end()
        self.world.note(self.name, "has stopped")

    def end(self) -> None:
        """It has nothing left to do."""
        self.ended = True
        self._is_over()

    def _is_over(self) -> None:
        self.over.set()
        self.world.alive.pop(self.name, None)

    def stop(self, *, at_once: bool) -> None:
        """SIGTERM, or two of them."""
        if self.dead or self.ended:
            return
        self.world.note(self.name, "is to stop at once" if at_once else "is to stop")
        if self._checking is not None:
            self._checking.cancel()
        if self._crew is not None and at_once:
            self._crew.stop_at_once()
        elif self._crew is not None:
            self._crew.stop()


class Fleet:
    """The processes of a run, each started again when it has ended."""

    def __init__(
        self, world: World, machines: list[Machine], *, workers: int, watchers: int
    ) -> None:
        self.rumours = Rumours(world.chance("rumours"))
        self._started: list[Process] = []
        self._world = world
        self._machines = machines
        self._names = count(1)
        self._workers = workers
        self._watchers = watchers
        self._rng = world.chance("fleet")

    def start(self) -> None:
        """All of them."""
        machines = self._machines
        for place in range(self._workers):
            self._world.begin(self._keep_one(machines[place % len(machines)], watches=False))
        for _ in range(self._watchers):
            # On one machine: there one of them does it, and no two machines ask each other.
            self._world.begin(self._keep_one(machines[0], watches=True))

    async def _keep_one(self, machine: Machine, *, watches: bool) -> None:
        """A process that works or watches, and after its end another."""
        kind = "watcher" if watches else "worker"
        while True:
            process = self.process(machine, f"{kind}-{next(self._names)}")
            self._world.note(process.name, "starts", machine.name)
            self._started.append(process)
            self._world.begin(process.watch() if watches else process.work())
            await process.over.wait()
            if not self._world.faults.over:
                await asyncio.sleep(self._rng.random() * _LONGEST_RESTART)

    def process(self, machine: Machine, name: str) -> Process:
        """One more process."""
        return Process(self._world, machine, name, self.rumours)

    @property
    def living(self) -> list[Process]:
        """Workers and watchers that run now."""
        return [process for process in self._started if not (process.dead or process.ended)]
