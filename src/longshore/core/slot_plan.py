"""Which child slot runs which task, and how many tasks a worker claims ahead of need.

``SlotPlanner`` learns what has happened and decides what to do next. It does nothing itself, so
that every sequence of events can be tested.

A worker has a number of *units*: what it runs at once. A child slot uses one while it has a task. A
pool slot may be given more tasks than one: those behind the first are claimed *ahead*, at most as
many as take ``AHEAD_NS`` by the smoothed duration of their definition, and can be taken back. The
first tasks of a definition, whose duration is not known, are given one by one. A pool slot serves
one tenant; its child is replaced before it serves another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from longshore.core.claims import DefinitionVersion
from longshore.core.definitions.definition import Isolation

AHEAD_NS = 5_000_000
"""The work that may wait in a child behind a running task."""
MAX_AHEAD = 64
STALLED_AFTER_NS = 50_000_000
"""A child without an outcome for this long does not begin what waits behind its task soon."""
OFFER_EVERY_NS = 200_000_000
"""A unit that had short tasks for so long is offered to any task: a backlog of short tasks must not
keep long ones, or those of other tenants, from beginning."""

_OVERHEAD_NS = 20_000  # of the child, for each task
_WEIGHT = 5  # a new duration counts as one of so many


class SlotTaskPlan(NamedTuple):
    """A claimed task that runs in a child slot."""

    number: int
    tenant: str
    definition: DefinitionVersion
    isolation: Isolation


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """Open another slot."""

    isolation: Isolation


class GiveTask(NamedTuple):
    """Give a task to a slot."""

    slot: int
    number: int


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Take back what a slot has not begun."""

    slot: int


@dataclass(frozen=True, slots=True)
class ReplaceChild:
    """End the child of an idle slot, so that it can serve another tenant."""

    slot: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Release a task that waits: no unit becomes free soon."""

    number: int


SlotAction = OpenSlot | GiveTask | TakeBack | ReplaceChild | GiveUp


@dataclass(slots=True)
class _SlotState:
    isolation: Isolation
    tenant: str | None = None  # that its child has served; None: it has served none
    tasks: dict[int, SlotTaskPlan] = field(default_factory=dict)  # given, in order
    costs_ns: dict[int, int] = field(default_factory=dict)  # their expected durations
    load_ns: int = 0  # the sum of these
    running_since_ns: int = 0  # about when the first of them began
    offered_ns: int = 0  # when a claim could last use its unit for any task
    ending: bool = False  # its child ends: nothing can be given

    def add(self, task: SlotTaskPlan, cost_ns: int, now_ns: int) -> None:
        if task.isolation is Isolation.POOL:
            self.tenant = task.tenant
        if not self.tasks:
            self.running_since_ns = now_ns
        self.tasks[task.number] = task
        self.costs_ns[task.number] = cost_ns
        self.load_ns += cost_ns

    def remove(self, number: int) -> SlotTaskPlan:
        self.load_ns -= self.costs_ns.pop(number)
        return self.tasks.pop(number)

    def accepts(self, tenant: str) -> bool:
        return not self.ending and self.tenant in (None, tenant)

    def is_stalled(self, now_ns: int) -> bool:
        return bool(self.tasks) and now_ns - self.running_since_ns >= STALLED_AFTER_NS


class SlotPlanner:
    """Decides for the child slots of one worker.

    Args:
        units: How many tasks the worker runs at once.
    """

    def __init__(self, units: int) -> None:
        self._units = units
        self._slots: dict[int, _SlotState] = {}
        self._opening: dict[Isolation, int] = {Isolation.POOL: 0, Isolation.FORK: 0}
        self._waiting: dict[int, SlotTaskPlan] = {}  # claimed, and not yet given to a slot
        self._durations_ns: dict[DefinitionVersion, int] = {}  # smoothed
        self._waits_for_unit = False  # a task waits that has a slot, or could have one

    # What has happened --------------------------------------------------------------------------

    def claimed(self, task: SlotTaskPlan) -> None:
        """A task was claimed, or taken back, and waits for a slot."""
        self._waiting[task.number] = task

    def slot_opened(self, slot: int, isolation: Isolation) -> None:
        """A slot was opened."""
        self._opening[isolation] -= 1
        self._slots[slot] = _SlotState(isolation)

    def slot_not_opened(self, isolation: Isolation) -> None:
        """No slot can be opened now."""
        self._opening[isolation] -= 1

    def not_given(self, slot: int, number: int) -> None:
        """A slot has not accepted a task: its child ends (an event follows), or it is full."""
        # It keeps its place before the tasks that still wait.
        self._waiting = {number: self._slots[slot].remove(number), **self._waiting}
        self._slots[slot].ending = not self._slots[slot].tasks

    def finished(self, slot: int, number: int, duration_ns: int | None, now_ns: int) -> None:
        """A task ended, or was too late to begin (without a duration)."""
        state = self._slots[slot]
        task = state.remove(number)
        state.running_since_ns = now_ns
        if state.isolation is Isolation.FORK:
            state.ending = False  # the next task gets a new child
        if duration_ns is not None:
            before = self._durations_ns.get(task.definition, duration_ns)
            smoothed = before + (duration_ns - before) // _WEIGHT
            self._durations_ns[task.definition] = smoothed

    def taken_back(self, slot: int, numbers: Iterable[int]) -> list[SlotTaskPlan]:
        """A slot has returned tasks that had not begun. Returns them."""
        return [self._slots[slot].remove(number) for number in numbers]

    def _cost_ns(self, definition: DefinitionVersion) -> int:
        """The time that a task is expected to take; one of unknown duration takes all of it."""
        return self._durations_ns.get(definition, AHEAD_NS) + _OVERHEAD_NS

    def child_ending(self, slot: int) -> None:
        """The child of a slot is being killed or replaced."""
        self._slots[slot].ending = True

    def child_ended(self, slot: int, *, closed: bool) -> list[SlotTaskPlan]:
        """The child of a slot ended. Returns the tasks that it held."""
        state = self._slots[slot]
        tasks = list(state.tasks.values())
        self._slots[slot] = _SlotState(state.isolation)
        if closed:
            del self._slots[slot]
        return tasks

    def forget(self, number: int) -> None:
        """A task that waits for a slot was released."""
        self._waiting.pop(number, None)

    # What to do ---------------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """The units in use: slots with a task, and tasks that wait for one."""
        using = sum(bool(slot.tasks) for slot in self._slots.values())
        return min(using + len(self._waiting), self._units) if self._waiting else using

    @property
    def waiting(self) -> list[int]:
        """The tasks that wait for a slot."""
        return list(self._waiting)

    def has_slots(self, isolation: Isolation) -> bool:
        """Whether there is a slot of this kind."""
        return any(slot.isolation is isolation for slot in self._slots.values())

    def busy_slots(self) -> list[int]:
        """The slots that have a task."""
        return [number for number, slot in self._slots.items() if slot.tasks]

    def numbers_in(self, slot: int) -> list[int]:
        """The tasks of a slot, in order."""
        return list(self._slots[slot].tasks)

    def first_in(self, slot: int) -> int:
        """The task of a busy slot that has begun, or begins next."""
        return next(iter(self._slots[slot].tasks))

    def running(self) -> list[tuple[int, int]]:
        """The first task of each busy slot, and about when it began."""
        return [
            (next(iter(slot.tasks)), slot.running_since_ns)
            for slot in self._slots.values()
            if slot.tasks
        ]

    def ahead(self, now_ns: int, free: int) -> Mapping[DefinitionVersion, int]:
        """How many tasks of each short definition a claim for the free units may add to them."""
        ahead: dict[DefinitionVersion, int] = {}
        if self._waiting:
            return ahead
        for slot in self._slots.values():
            if free and not slot.tasks:
                slot.offered_ns = now_ns
        pools = [
            slot
            for slot in self._slots.values()
            if slot.isolation is Isolation.POOL
            and not slot.is_stalled(now_ns)
            and now_ns - slot.offered_ns < OFFER_EVERY_NS
        ]
        for definition in self._durations_ns:
            usable = [slot for slot in pools if slot.accepts(definition[0])]
            room = sum(self._room(slot, definition) for slot in usable if slot.tasks)
            idle = [slot for slot in usable if not slot.tasks][:free]
            # The first task of an idle slot uses a unit.
            room += sum(self._room(slot, definition) - 1 for slot in idle)
            if room > 0:
                ahead[definition] = room
        return ahead

    def _room(self, slot: _SlotState, definition: DefinitionVersion) -> int:
        """How many more tasks of a definition a pool slot may have."""
        cost_ns = self._cost_ns(definition)
        by_time = max(AHEAD_NS - slot.load_ns, 0) // cost_ns
        more = min(by_time, MAX_AHEAD - len(slot.tasks))
        return max(more, 0) if slot.tasks else max(more, 1)

    def has_enough(self) -> bool:
        """Whether every busy slot has enough tasks left for outcomes to gather meanwhile."""
        busy = [slot for slot in self._slots.values() if slot.tasks]
        return bool(busy) and all(
            slot.isolation is Isolation.POOL
            and len(slot.tasks) > 1
            and (2 * slot.load_ns >= AHEAD_NS or 2 * len(slot.tasks) >= MAX_AHEAD)
            for slot in busy
        )

    def decide(self, now_ns: int, *, taken: int = 0) -> list[SlotAction]:
        """Decide what to do now, and plan on with that: the caller reports what it cannot do.

        Args:
            taken: The units that are in use elsewhere.
        """
        actions: list[SlotAction] = []
        free = self._units - taken - sum(bool(slot.tasks) for slot in self._slots.values())
        usable = [
            (number, slot)
            for number, slot in self._slots.items()
            if not slot.ending and not slot.is_stalled(now_ns)
        ]
        for task in list(self._waiting.values()):
            cost_ns = self._cost_ns(task.definition)
            number = _slot_for(task, cost_ns, usable, free)
            if number is not None:
                del self._waiting[task.number]
                free -= not self._slots[number].tasks
                self._slots[number].add(task, cost_ns, now_ns)
                actions.append(GiveTask(number, task.number))
        self._waits_for_unit = bool(self._waiting) and free <= 0
        if not self._waits_for_unit:
            actions += self._make_room(free)
        elif all(slot.is_stalled(now_ns) for slot in self._slots.values() if slot.tasks):
            self._waits_for_unit = False
            actions += [GiveUp(number) for number in self._waiting]
            self._waiting.clear()
        actions += [
            TakeBack(number)
            for number, slot in self._slots.items()
            if len(slot.tasks) > 1 and slot.is_stalled(now_ns)
        ]
        return actions

    def _make_room(self, free: int) -> list[SlotAction]:
        """Open slots, or replace idle children of other tenants, for tasks without a slot."""
        actions: list[SlotAction] = []
        if not self._waiting:
            return actions
        for isolation in (Isolation.POOL, Isolation.FORK):
            waiting = sum(task.isolation is isolation for task in self._waiting.values())
            own = sum(slot.isolation is isolation for slot in self._slots.values())
            missing = self._units - own - self._opening[isolation]
            for _ in range(min(missing, waiting, free)):
                self._opening[isolation] += 1
                actions.append(OpenSlot(isolation))
        if not actions and not any(self._opening.values()):
            tenants = {task.tenant for task in self._waiting.values()}
            for number, slot in self._slots.items():
                idle = not slot.tasks and not slot.ending
                if idle and slot.tenant is not None and slot.tenant not in tenants:
                    slot.ending = True
                    actions.append(ReplaceChild(number))
        return actions

    def next_check_ns(self, now_ns: int) -> int | None:
        """Returns the time until a child may have stalled for which others wait; None: none."""
        waits = [
            slot.running_since_ns + STALLED_AFTER_NS - now_ns
            for slot in self._slots.values()
            if len(slot.tasks) > 1 or (slot.tasks and self._waits_for_unit)
        ]
        waits = [wait for wait in waits if wait > 0 or not self._waits_for_unit]
        return max(min(waits), 0) if waits else None


def _slot_for(
    task: SlotTaskPlan, cost_ns: int, usable: Iterable[tuple[int, _SlotState]], free: int
) -> int | None:
    """Returns the slot with the least to do that may have the task."""
    best, least_ns = None, 0
    for number, slot in usable:
        if (
            slot.isolation is task.isolation
            and (best is None or slot.load_ns < least_ns)
            and _may_have(slot, task, cost_ns, free)
        ):
            best, least_ns = number, slot.load_ns
    return best


def _may_have(slot: _SlotState, task: SlotTaskPlan, cost_ns: int, free: int) -> bool:
    if slot.tenant not in (None, task.tenant):
        return False
    if not slot.tasks:
        return free > 0
    return (
        task.isolation is Isolation.POOL
        and len(slot.tasks) < MAX_AHEAD
        and slot.load_ns + cost_ns <= AHEAD_NS
    )
