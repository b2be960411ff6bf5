"""The agent's own list: items that go from pending to in progress to completed, and for how long.

Agents keep such a list in one of two ways: item by item, each with an id, or as a whole that is
written anew each time. Both end up here. An agent may change its mind, so an item can also go back
or be dropped; the time in each state is the sum of all times that it was there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from longshore.core.agents.happenings import TodoKnown, TodoMoved, TodosListed, TodoState
from longshore.core.agents.trace_forms import line, milliseconds, moment

TODOS_KEPT = 100
SUBJECT_CHARACTERS = 200


@dataclass(slots=True)
class Todo:
    """One item, as it stands."""

    id: str
    subject: str
    state: TodoState
    created_at: datetime
    since: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    spent: dict[TodoState, timedelta] = field(default_factory=dict)

    def move(self, state: TodoState, at: datetime) -> bool:
        """Go to a state; whether that was a change."""
        if state is self.state:
            return False
        self.spent[self.state] = self.time_in(self.state, at)
        self.state, self.since = state, at
        self.note(at)
        return True

    def note(self, at: datetime) -> None:
        """Remember when the state that it is in was reached."""
        if self.state is TodoState.IN_PROGRESS:
            self.started_at = self.started_at or at
        self.completed_at = at if self.state is TodoState.COMPLETED else None

    def time_in(self, state: TodoState, now: datetime) -> timedelta:
        """For how long it has been in a state, all times together."""
        before = self.spent.get(state, timedelta())
        return before + max(now - self.since, timedelta()) if state is self.state else before


class Todos:
    """All items of a step."""

    def __init__(self) -> None:
        self._items: dict[str, Todo] = {}
        self.left_out = 0

    def __iter__(self) -> Iterator[Todo]:
        return iter(self._items.values())

    def get(self, todo_id: str) -> Todo | None:
        """An item by its id."""
        return self._items.get(todo_id)

    @property
    def progress(self) -> tuple[int, int]:
        """How many are completed, of how many that were not dropped."""
        states = Counter(item.state for item in self)
        return states[TodoState.COMPLETED], states.total() - states[TodoState.DELETED]

    def know(self, told: TodoKnown) -> bool:
        """Take in that an item exists; whether that is new."""
        if (item := self._items.get(told.todo_id)) is None:
            return self._add(told.todo_id, told.subject, told.state, told.at)
        item.subject = item.subject or _subject(told.subject)
        return False

    def move(self, told: TodoMoved) -> bool:
        """Take in that an item was moved on; whether its state changed."""
        state = told.state
        if (item := self._items.get(told.todo_id)) is None:
            return self._add(told.todo_id, told.subject, state or TodoState.PENDING, told.at)
        item.subject = _subject(told.subject) or item.subject
        return state is not None and item.move(state, told.at)

    def replace(self, told: TodosListed) -> bool:
        """Take in a whole list; whether anything in it is new or was moved."""
        news = False
        listed: Counter[str] = Counter()
        named: set[str] = set()
        for content, state in told.items:
            # The same words twice are two items.
            listed[content] += 1
            todo_id = f"{content}#{listed[content]}"
            named.add(todo_id)
            item = self._items.get(todo_id)
            moved = (
                item.move(state, told.at) if item else self._add(todo_id, content, state, told.at)
            )
            news = news or moved
        for item in self:
            if item.id not in named:
                news = item.move(TodoState.DELETED, told.at) or news
        return news

    def _add(self, todo_id: str, subject: str, state: TodoState, at: datetime) -> bool:
        if len(self._items) >= TODOS_KEPT:
            self.left_out += 1
            return False
        item = Todo(todo_id, _subject(subject), state, at, at)
        item.note(at)
        self._items[todo_id] = item
        return True

    def document(self, now: datetime) -> list[dict[str, Any]]:
        """All items, in the order in which they came."""
        return [
            {
                "number": number,
                "subject": item.subject,
                "state": item.state.value,
                "createdAt": moment(item.created_at),
                "startedAt": moment(item.started_at),
                "completedAt": moment(item.completed_at),
                "pendingMs": milliseconds(item.time_in(TodoState.PENDING, now)),
                "inProgressMs": milliseconds(item.time_in(TodoState.IN_PROGRESS, now)),
            }
            for number, item in enumerate(self, 1)
        ]


def _subject(text: str) -> str:
    return line(text, limit=SUBJECT_CHARACTERS)
