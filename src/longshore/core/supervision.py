"""Supervision: when a worker process is started, recycled, hurried, killed or given up.

A place is one of the processes that shall run; workers come and go in it, each with a serial number
of its own. Whoever acts reports what happened and carries out what ``decide`` says. Everything
comes in as an argument, so that any history of deaths can be played through without a process.

- A worker that ended by itself is followed by another after a delay, so that a fault that is there
  at each start does not eat the machine. Too many in a row that lived only shortly: it will not get
  better by itself, and everything ends, with a word on why.
- Recycling is draining: the old worker takes no more work, and the next one begins at that moment,
  while the old one may finish what it has. One place at a time, and only while every other is
  served: never more than one worker too many, and never two too few.
- A worker that outgrows its memory soon after each start is no better than one that dies then: it
  counts as such, or it would be recycled without end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from enum import IntEnum, StrEnum

_ZERO, _DAY = timedelta(0), timedelta(days=1)


class Reason(StrEnum):
    """Why a worker is asked to end."""

    STOP = "stop"  # all of them are
    MEMORY = "memory"  # it has grown too large
    DAILY = "daily"  # the time of day has come
    ASKED = "asked"  # somebody wants fresh ones


class _Haste(IntEnum):
    """How urgently everything is to end, by how often that was asked for."""

    NONE = 0
    DRAIN = 1
    AT_ONCE = 2
    KILL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionPolicy:
    """What worker processes are held to."""

    processes: int = 1
    restart_delay: timedelta = timedelta(seconds=5)
    restart_limit: int = 10  # so many short lives of restarted workers in a row are the last
    short_life: timedelta = timedelta(seconds=10)  # a life shorter than this is a short one
    memory_ceiling_bytes: int = 2**30  # 0: none
    recycle_at: time | None = None  # local time of day; None: never
    kill_after: timedelta = timedelta(seconds=45)  # from asking; longer than a drain may take
    hurry: timedelta = timedelta(seconds=5)  # the same, once nothing is waited for any more
    until_done: bool = False  # a worker that ends well has nothing left to do, and stays ended

    def __post_init__(self) -> None:
        for name in ("processes", "restart_limit"):
            if (count := getattr(self, name)) < 1:
                message = f"{name} must be at least 1, not {count!r}"
                raise ValueError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a worker for a place; it is known by its serial number from now on."""

    place: int
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Ask a worker to take no more work and to end when it has finished."""

    serial: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Hurry:
    """Ask a worker a second time: it gives back what it runs, and ends."""

    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Kill a worker: it was asked, and has not ended in time."""

    serial: int


Decision = Start | Drain | Hurry | Kill


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Why there is no point in going on."""

    place: int
    restarts: int
    serial: int  # of the last worker
    code: int | None  # what it ended with; None: it has not ended yet
    memory: bool  # whether it was its memory and not its end


@dataclass(slots=True, kw_only=True)
class _Place:
    number: int
    due: timedelta | None  # when to start a worker; None: one is there, or none is wanted
    starts: int = 0
    short_lives: int = 0  # of restarted workers, in a row
    done: bool = False


@dataclass(slots=True, kw_only=True)
class _Worker:
    serial: int
    place: _Place
    started_at: timedelta
    restarted: bool
    serving: bool = False
    asked: Reason | None = None
    asked_at: timedelta = _ZERO
    hurried_at: timedelta | None = None
    killed: bool = False
    followed: bool = False  # what comes after it in its place has been decided


class Supervision:
    """The places, the workers in them, and what to do next. Moments are times elapsed."""

    def __init__(self, policy: SupervisionPolicy, *, now: timedelta, local: datetime) -> None:
        self._policy = policy
        self._places = [_Place(number=n + 1, due=now) for n in range(policy.processes)]
        self._workers: dict[int, _Worker] = {}
        self._unwanted: dict[int, Reason] = {}  # serials of those to be recycled, the first first
        self._recycled_until = local.replace(tzinfo=None)
        self._serial = 0
        self._haste = _Haste.NONE
        self.given_up: GivenUp | None = None

    @property
    def stopping(self) -> bool:
        """Whether everything is to end."""
        return self._haste > _Haste.NONE

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to wait for."""
        return not self._workers and (self.stopping or all(p.done for p in self._places))

    def serving(self, serial: int) -> None:
        """A worker says that it takes work."""
        self._workers[serial].serving = True

    def draining(self, serial: int, *, now: timedelta) -> None:
        """A worker says that it takes no more work."""
        worker = self._workers[serial]
        # One that somebody else has asked to end is followed when it has ended, like any other.
        if worker.asked is not None and not worker.followed:
            self._follow(worker, None, now)

    def ended(self, serial: int, code: int, *, now: timedelta) -> None:
        """A worker's process is there no more."""
        worker = self._workers.pop(serial)
        self._unwanted.pop(serial, None)
        if not worker.followed:
            self._follow(worker, code, now)

    def measured(self, serial: int, memory_bytes: int) -> None:
        """A worker's process has so much memory now."""
        if 0 < self._policy.memory_ceiling_bytes < memory_bytes:
            self._unwanted[serial] = Reason.MEMORY

    def recycle(self, reason: Reason = Reason.ASKED) -> None:
        """All workers that there are now are to be replaced, one after the other."""
        for serial in self._workers:
            self._unwanted.setdefault(serial, reason)

    def stop(self) -> None:
        """Everything is to end: by draining; asked again, at once; a third time, by killing."""
        self._haste = _Haste(min(self._haste + 1, _Haste.KILL))

    def decide(self, *, now: timedelta, local: datetime) -> list[Decision]:
        """What is to be done now. Each thing is said once; the caller does it.

        Args:
            local: The same moment as the clock on the wall shows it.
        """
        if self._daily_due(local.replace(tzinfo=None)):
            self.recycle(Reason.DAILY)
        if self.stopping:
            ways = (self._drains(now), self._hurries(now))
        else:
            ways = (self._starts(now), self._recycling(now))
        return [*(decision for way in ways for decision in way), *self._kills(now)]

    def due_in(self, now: timedelta) -> timedelta | None:
        """Time until ``decide`` will have something to say if nothing happens; None: no idea.

        The time of day is not looked at: whoever reads the clock on the wall looks now and then.
        """
        moments = [self._killed_at(w) for w in self._workers.values() if w.asked and not w.killed]
        if not self.stopping:
            moments += [place.due for place in self._places if place.due is not None]
            if self._unwanted:
                moments += [
                    worker.started_at + self._policy.short_life
                    for worker in self._workers.values()
                    if not self._steady(worker, now)
                ]
        return max(min(moments) - now, _ZERO) if moments else None

    def _follow(self, worker: _Worker, code: int | None, now: timedelta) -> None:
        """Decide what comes after a worker that has ended or takes no more work."""
        worker.followed = True
        if self.stopping:
            return
        by_itself, place = worker.asked is None, worker.place
        if by_itself and code == 0 and self._policy.until_done:
            place.done = True
            return
        lived = (now if by_itself else worker.asked_at) - worker.started_at
        short = lived < self._policy.short_life
        fault = by_itself or worker.asked is Reason.MEMORY
        if not short:
            place.short_lives = 0
        elif fault and worker.restarted:
            place.short_lives += 1
        if fault and place.short_lives >= self._policy.restart_limit:
            self._give_up(worker, code)
            return
        place.due = now + (self._policy.restart_delay if by_itself or (fault and short) else _ZERO)

    def _give_up(self, worker: _Worker, code: int | None) -> None:
        self.given_up = GivenUp(
            place=worker.place.number,
            restarts=worker.place.short_lives,
            serial=worker.serial,
            code=code,
            memory=worker.asked is Reason.MEMORY,
        )
        self.stop()

    def _daily_due(self, local: datetime) -> bool:
        """Whether the time of day has come since it last had, also if nobody looked then.

        By the date: an hour that the clock on the wall shows twice, or never, makes no difference.
        """
        if self._policy.recycle_at is None:
            return False
        latest = datetime.combine(local.date(), self._policy.recycle_at)
        if latest > local:
            latest -= _DAY
        due = latest > self._recycled_until
        self._recycled_until = max(latest, self._recycled_until)
        return due

    def _starts(self, now: timedelta) -> Iterator[Decision]:
        for place in self._places:
            if place.due is not None and place.due <= now:
                self._serial += 1
                self._workers[self._serial] = _Worker(
                    serial=self._serial, place=place, started_at=now, restarted=place.starts > 0
                )
                place.due = None
                place.starts += 1
                yield Start(place=place.number, serial=self._serial)

    def _recycling(self, now: timedelta) -> Iterator[Decision]:
        # Nobody is asked twice: the one that was asked before has ended by then.
        at_rest = not any(place.due is not None for place in self._places) and all(
            worker.asked is None and self._steady(worker, now) for worker in self._workers.values()
        )
        if at_rest and self._unwanted:
            serial = next(iter(self._unwanted))
            yield self._asked(self._workers[serial], self._unwanted.pop(serial), now)

    def _steady(self, worker: _Worker, now: timedelta) -> bool:
        """Whether it does its work. One that has been there for long need not say so."""
        return worker.serving or now - worker.started_at >= self._policy.short_life

    def _asked(self, worker: _Worker, reason: Reason, now: timedelta) -> Drain:
        worker.asked, worker.asked_at = reason, now
        return Drain(serial=worker.serial, reason=reason)

    def _drains(self, now: timedelta) -> Iterator[Decision]:
        # Not those that drain already: to be asked twice means to give up at once.
        for worker in self._workers.values():
            if worker.asked is None:
                yield self._asked(worker, Reason.STOP, now)

    def _hurries(self, now: timedelta) -> Iterator[Decision]:
        for worker in self._workers.values():
            if self._haste >= _Haste.AT_ONCE and worker.hurried_at is None:
                worker.hurried_at = now
                yield Hurry(serial=worker.serial)

    def _kills(self, now: timedelta) -> Iterator[Decision]:
        for worker in self._workers.values():
            overdue = self._haste is _Haste.KILL or now >= self._killed_at(worker)
            if worker.asked is not None and not worker.killed and overdue:
                worker.killed = True
                yield Kill(serial=worker.serial)

    def _killed_at(self, worker: _Worker) -> timedelta:
        """When a worker that was asked is killed if it has not ended by then."""
        latest = worker.asked_at + self._policy.kill_after
        if worker.hurried_at is None:
            return latest
        return min(latest, worker.hurried_at + self._policy.hurry)
