"""Which of the ready tasks a worker gets: lanes have shares, tenants and queues take turns.

``choose`` is pure. What must be remembered between two claims is a ``ClaimPosition``, which the
source keeps for all its workers together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from longshore.core.queues import lane_order
from longshore.core.tasks.states import Priority

DefinitionVersion = tuple[str, str, int]
"""The tenant, name and version of a definition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many tasks a worker can take.

    ``slots`` are for tasks of any kind, which begin at once. ``ahead`` are further tasks of known
    short definitions, which wait in a child behind a running task.
    """

    slots: int
    ahead: Mapping[DefinitionVersion, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The largest number of tasks that fit."""
        return self.slots + sum(self.ahead.values())


@dataclass(frozen=True, slots=True)
class ClaimPosition:
    """Where the last claim ended."""

    taken: int = 0  # how many tasks were ever taken: decides which lane is next
    queues: Mapping[Priority, str] = field(default_factory=dict)  # taken from last, by lane
    lines: Mapping[tuple[Priority, str], str] = field(default_factory=dict)  # by lane and queue


TaskT = TypeVar("TaskT")

ClaimLines = Mapping[tuple[Priority, str, str], Iterable[TaskT]]
"""The tasks that are ready, by lane, queue and line, in the order in which they should begin.

A task is ready if it is pending, due, and of a queue that is neither paused nor held. Tasks of a
line are taken in order, and lines take turns: a line is a tenant. Tasks are read one by one and
only as far as needed, so that a claim costs as much as it takes, however much waits.
"""


def choose(
    lines: ClaimLines[TaskT],
    room: Room,
    position: ClaimPosition,
    definition_of: Callable[[TaskT], DefinitionVersion],
) -> tuple[list[TaskT], ClaimPosition]:
    """Choose tasks, in the order in which they should begin.

    Of eight tasks, six are from the most urgent lane, one from each other; a lane that is empty
    leaves its share to the others. Within a lane, queues take turns. Within a queue and lane,
    tenants take turns, each with an equal part of the batch.

    Args:
        lines: Those that have a task.
    """
    slots, ahead = room.slots, dict(room.ahead)

    def fits(task: TaskT) -> bool:
        return slots > 0 or ahead.get(definition_of(task), 0) > 0

    lanes = _Lanes(lines, room, position, fits)
    chosen: list[TaskT] = []
    taken = position.taken
    while len(chosen) < room.total and (task := lanes.take(lane_order(taken))) is not None:
        if slots:
            slots -= 1
        else:
            ahead[definition_of(task)] -= 1
        chosen.append(task)
        taken += 1
    return chosen, ClaimPosition(taken, lanes.last_queues, lanes.last_lines)


class _Lanes(Generic[TaskT]):
    """The lines by lane and queue, in the order of their turns."""

    def __init__(
        self,
        lines: ClaimLines[TaskT],
        room: Room,
        position: ClaimPosition,
        fits: Callable[[TaskT], bool],
    ) -> None:
        self.last_queues = dict(position.queues)
        self.last_lines = dict(position.lines)
        groups: dict[Priority, dict[str, dict[str, Iterator[TaskT]]]] = {}
        for (lane, queue, line), tasks in lines.items():
            # What fits never grows, so no task is looked at twice.
            groups.setdefault(lane, {}).setdefault(queue, {})[line] = filter(fits, tasks)
        self._queues = {
            lane: deque(
                (queue, _Turns(by_queue[queue], room.total, position.lines.get((lane, queue))))
                for queue in _rotated(sorted(by_queue), position.queues.get(lane))
            )
            for lane, by_queue in groups.items()
        }

    def take(self, lanes: Sequence[Priority]) -> TaskT | None:
        """Remove and return the next task that fits."""
        for lane in lanes:
            queues = self._queues.get(lane, deque())
            for _ in range(len(queues)):
                queue, turns = queues[0]
                queues.rotate(-1)
                if (task := turns.take()) is not None:
                    self.last_queues[lane] = queue
                    self.last_lines[lane, queue] = turns.last
                    return task
        return None


class _Turns(Generic[TaskT]):
    """The lines of one queue and lane: each gives up to ``quantum`` tasks before the next."""

    def __init__(self, lines: Mapping[str, Iterator[TaskT]], batch: int, last: str | None) -> None:
        self._order = deque((line, lines[line]) for line in _rotated(sorted(lines), last))
        self._quantum = max(-(-batch // len(lines)), 1)
        self._left = self._quantum
        self.last = ""  # the line that gave the last task

    def take(self) -> TaskT | None:
        for _ in range(len(self._order) + 1):
            self.last, tasks = self._order[0]
            if self._left and (task := next(tasks, None)) is not None:
                self._left -= 1
                return task
            self._order.rotate(-1)
            self._left = self._quantum
        return None


def _rotated(names: Sequence[str], last: str | None) -> list[str]:
    """Returns the sorted names, beginning after ``last``."""
    if last is None:
        return list(names)
    return [name for name in names if name > last] + [name for name in names if name <= last]
