"""Which of the ready tasks a worker gets: lanes have shares, tenants and queues take turns.

``choose`` is pure. What must be remembered between two claims is a ``ClaimPosition``, which the
source keeps for all its workers together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from longshore.core.queues import lane_order
from longshore.core.tasks.rows import TaskRow
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
class Candidate:
    """A task that is ready: pending, due, and of a queue that is neither paused nor held."""

    task_id: str
    queue: str
    lane: Priority
    line: str  # tasks of one line are taken in order, and lines take turns: the tenant
    due_at: datetime
    definition: DefinitionVersion


def candidate_of(row: TaskRow) -> Candidate:
    """Returns a pending task as a candidate."""
    spec = row.spec
    return Candidate(
        task_id=spec.id,
        queue=spec.queue,
        lane=spec.priority,
        line=spec.tenant,
        due_at=row.due_at or row.updated_at,
        definition=(spec.tenant, spec.definition, spec.definition_version),
    )


@dataclass(frozen=True, slots=True)
class ClaimPosition:
    """Where the last claim ended."""

    taken: int = 0  # how many tasks were ever taken: decides which lane is next
    queues: Mapping[Priority, str] = field(default_factory=dict)  # taken from last, by lane
    lines: Mapping[tuple[Priority, str], str] = field(default_factory=dict)  # by lane and queue


ClaimLines = Mapping[tuple[Priority, str, str], Iterable[Candidate]]
"""The candidates by lane, queue and line, in the order in which they should begin.

They are read one by one and only as far as needed, so that a claim costs as much as it takes,
however much waits.
"""


def lines_of(candidates: Iterable[Candidate]) -> ClaimLines:
    """Returns candidates, in the order in which they should begin, by their lines."""
    lines: dict[tuple[Priority, str, str], list[Candidate]] = {}
    for candidate in candidates:
        key = (candidate.lane, candidate.queue, candidate.line)
        lines.setdefault(key, []).append(candidate)
    return lines


def choose(
    lines: ClaimLines, room: Room, position: ClaimPosition
) -> tuple[list[Candidate], ClaimPosition]:
    """Choose tasks, in the order in which they should begin.

    Of eight tasks, six are from the most urgent lane, one from each other; a lane that is empty
    leaves its share to the others. Within a lane, queues take turns. Within a queue and lane,
    tenants take turns, each with an equal part of the batch.

    Args:
        lines: Those that have a candidate.
    """
    lanes = _Lanes(lines, room, position)
    chosen: list[Candidate] = []
    slots, ahead = room.slots, dict(room.ahead)
    taken = position.taken
    while len(chosen) < room.total:
        only = None if slots else {name for name, left in ahead.items() if left > 0}
        candidate = lanes.take(lane_order(taken), only)
        if candidate is None:
            break
        if slots:
            slots -= 1
        else:
            ahead[candidate.definition] -= 1
        chosen.append(candidate)
        taken += 1
    return chosen, ClaimPosition(taken, lanes.last_queues, lanes.last_lines)


class _Lanes:
    """The lines by lane and queue, in the order of their turns."""

    def __init__(self, lines: ClaimLines, room: Room, position: ClaimPosition) -> None:
        self.last_queues = dict(position.queues)
        self.last_lines = dict(position.lines)
        groups: dict[Priority, dict[str, dict[str, Iterator[Candidate]]]] = {}
        for (lane, queue, line), candidates in lines.items():
            groups.setdefault(lane, {}).setdefault(queue, {})[line] = iter(candidates)
        self._queues = {
            lane: deque(
                (queue, _Turns(by_queue[queue], room.total, position.lines.get((lane, queue))))
                for queue in _rotated(sorted(by_queue), position.queues.get(lane))
            )
            for lane, by_queue in groups.items()
        }

    def take(
        self, lanes: Sequence[Priority], only: set[DefinitionVersion] | None
    ) -> Candidate | None:
        """Remove and return the next candidate; with ``only``, of one of these definitions."""
        for lane in lanes:
            queues = self._queues.get(lane, deque())
            for _ in range(len(queues)):
                queue, turns = queues[0]
                queues.rotate(-1)
                if (candidate := turns.take(only)) is not None:
                    self.last_queues[lane] = queue
                    self.last_lines[lane, queue] = candidate.line
                    return candidate
        return None


class _Turns:
    """The lines of one queue and lane: each gives up to ``quantum`` tasks before the next."""

    def __init__(
        self, by_line: Mapping[str, Iterator[Candidate]], batch: int, last: str | None
    ) -> None:
        self._order = deque(by_line[line] for line in _rotated(sorted(by_line), last))
        self._quantum = max(-(-batch // len(by_line)), 1)
        self._left = self._quantum

    def take(self, only: set[DefinitionVersion] | None) -> Candidate | None:
        for _ in range(len(self._order)):
            if self._left and (candidate := _take(self._order[0], only)) is not None:
                self._left -= 1
                return candidate
            self._order.rotate(-1)
            self._left = self._quantum
        return _take(self._order[0], only)


def _take(line: Iterator[Candidate], only: set[DefinitionVersion] | None) -> Candidate | None:
    """The next candidate of a line. ``only`` never grows, so none is looked at twice."""
    return next((item for item in line if only is None or item.definition in only), None)


def _rotated(names: Sequence[str], last: str | None) -> list[str]:
    """Returns the sorted names, beginning after ``last``."""
    if last is None:
        return list(names)
    return [name for name in names if name > last] + [name for name in names if name <= last]
