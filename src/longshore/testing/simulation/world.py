"""What everybody in a run shares: time, the store, the faults, and a record of what happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from math import inf
from random import Random
from typing import Any

from longshore.adapters.memory.backend import memory_backend
from longshore.settings import Settings
from longshore.testing.simulation.chronicle import Chronicle
from longshore.testing.simulation.deeds import Deed
from longshore.testing.simulation.ears import Ears
from longshore.testing.simulation.faults import Fault, Faults, Weather
from longshore.testing.simulation.lives import Lives
from longshore.testing.simulation.pauses import Pauses
from longshore.testing.simulation.spending import Spending
from longshore.testing.simulation.streamed import streamed_backend

START = datetime(2030, 1, 7, 12, tzinfo=UTC)
TENANT = "acme"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened."""

    at: float
    who: str
    what: str
    about: str = ""

    def __str__(self) -> str:
        return f"{self.at:10.3f}  {self.who:<12} {self.what:<24} {self.about}".rstrip()


@dataclass(frozen=True, slots=True, order=True)
class Breach:
    """Something that must not be: the number of an invariant, or 0 if a service broke."""

    invariant: int
    subject: str
    text: str

    def __str__(self) -> str:
        what = f"invariant {self.invariant}" if self.invariant else "a service broke"
        return f"{what}: {self.subject}: {self.text}"


class WorldClock:
    """True time, as the store and the queue have it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now(self) -> datetime:
        return START + timedelta(seconds=self._loop.time())

    def elapsed(self) -> timedelta:
        return timedelta(seconds=self._loop.time())

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(max(duration.total_seconds(), 0.0))


class World:
    """Everything of one run."""

    def __init__(
        self,
        seed: int,
        settings: Settings,
        *,
        atomic: bool,
        without: Collection[Fault] = (),
        weather: Weather = Weather.ANY,
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.weather = weather
        self.faults = Faults(self.chance("faults"), without, weather)
        self.clock = WorldClock()
        self.rows_refused_until = 0.0
        if weather is Weather.AWS:
            self.backend = streamed_backend(self.clock, self.faults, self.chance("bus"))
        else:
            self.backend = memory_backend(self.clock, atomic=atomic)
        self.trace: list[Entry] = []
        self.breaches: list[Breach] = []
        self.lives = Lives()
        self.spending = Spending()
        self.chronicle = Chronicle(self)
        self.pauses = Pauses(self)
        self.ears = Ears(self)
        self.done: Counter[Deed] = Counter()
        self.calm_from = inf  # nothing that went wrong before has an effect any more
        self.alive: dict[str, None] = {}  # names of the processes that run
        self.over = False
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def chance(self, purpose: str) -> Random:
        """Numbers of its own for each purpose: more or fewer of one do not change another's."""
        return Random(f"{self.seed}/{purpose}")

    def time(self) -> float:
        """Seconds since the run began."""
        return self._loop.time()

    def note(self, who: str, what: str, about: str = "") -> None:
        """Add to the record."""
        self.trace.append(Entry(self.time(), who, what, about))

    def did(self, who: str, deed: Deed, about: str) -> None:
        """Somebody did something, and was told that it is done."""
        self.done[deed] += 1
        self.note(who, deed.name.lower().replace("_", " "), about)

    def breach(self, invariant: int, subject: str, text: str) -> None:
        """Something happened that must not."""
        self.note("WRONG", f"invariant {invariant}", f"{subject}: {text}")
        self.breaches.append(Breach(invariant, subject, text))

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start something beside; nobody has to wait for it."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def at(self, moment: float, act: Callable[[], object]) -> None:
        """Do something at a moment of the run."""
        self._loop.call_at(moment, act)

    def digest(self) -> str:
        """The same for two runs in which the same happened in the same order."""
        hashed = blake2b(digest_size=16)
        for entry in self.trace:
            hashed.update(f"{entry.at!r} {entry.who} {entry.what} {entry.about}\n".encode())
        return hashed.hexdigest()
