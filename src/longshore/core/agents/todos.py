"""The agent's todo list: the state of each item, and the time spent in each state.

Agents maintain the list in one of two ways: item by item, each with an id, or as a whole list that
is replaced each time. Both are handled here. An item can also return to an earlier state or be
deleted; the time in a state is the sum over all visits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from longshore.core.agents.events import TodoSeen, TodosReplaced, TodoState, TodoUpdated
from longshore.core.agents.trace_format import format_time, one_line, to_milliseconds

MAX_TODOS = 100
SUBJECT_CHARACTERS = 200


@dataclass(slots=True)
class Todo:
    """One item in its current state."""

    id: str
    subject: str
    state: TodoState
    created_at: datetime
    since: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    time_by_state: dict[TodoState, timedelta] = field(default_factory=dict)

    def move(self, state: TodoState, at: datetime) -> bool:
        """Change the state. Returns whether it was a different one."""
        if state is self.state:
            return False
        self.time_by_state[self.state] = self.time_in(self.state, at)
        self.state, self.since = state, at
        self.record_state(at)
        return True

    def record_state(self, at: datetime) -> None:
        """Record when the current state was reached."""
        if self.state is TodoState.IN_PROGRESS:
            self.started_at = self.started_at or at
        self.completed_at = at if self.state is TodoState.COMPLETED else None

    def time_in(self, state: TodoState, now: datetime) -> timedelta:
        """Returns the total time in a state."""
        before = self.time_by_state.get(state, timedelta())
        return before + max(now - self.since, timedelta()) if state is self.state else before


class Todos:
    """All items of a step."""

    def __init__(self) -> None:
        self._items: dict[str, Todo] = {}
        self.omitted = 0

    def __iter__(self) -> Iterator[Todo]:
        return iter(self._items.values())

    def get(self, todo_id: str) -> Todo | None:
        """Returns an item by its id; None if there is none."""
        return self._items.get(todo_id)

    @property
    def progress(self) -> tuple[int, int]:
        """The number of completed items, and of all that were not deleted."""
        states = Counter(item.state for item in self)
        return states[TodoState.COMPLETED], states.total() - states[TodoState.DELETED]

    def add_seen(self, event: TodoSeen) -> bool:
        """Add an item. Returns whether it is new."""
        if (item := self._items.get(event.todo_id)) is None:
            return self._add(event.todo_id, event.subject, event.state, event.at)
        item.subject = item.subject or _subject(event.subject)
        return False

    def update(self, event: TodoUpdated) -> bool:
        """Update an item. Returns whether its state changed."""
        state = event.state
        if (item := self._items.get(event.todo_id)) is None:
            return self._add(event.todo_id, event.subject, state or TodoState.PENDING, event.at)
        item.subject = _subject(event.subject) or item.subject
        return state is not None and item.move(state, event.at)

    def replace_all(self, event: TodosReplaced) -> bool:
        """Replace the whole list. Returns whether any item is new or changed its state."""
        changed = False
        occurrences: Counter[str] = Counter()
        listed_ids: set[str] = set()
        for content, state in event.items:
            # Two items may have the same text.
            occurrences[content] += 1
            todo_id = f"{content}#{occurrences[content]}"
            listed_ids.add(todo_id)
            item = self._items.get(todo_id)
            moved = (
                item.move(state, event.at) if item else self._add(todo_id, content, state, event.at)
            )
            changed = changed or moved
        for item in self:
            if item.id not in listed_ids:
                changed = item.move(TodoState.DELETED, event.at) or changed
        return changed

    def _add(self, todo_id: str, subject: str, state: TodoState, at: datetime) -> bool:
        if len(self._items) >= MAX_TODOS:
            self.omitted += 1
            return False
        item = Todo(todo_id, _subject(subject), state, at, at)
        item.record_state(at)
        self._items[todo_id] = item
        return True

    def document(self, now: datetime) -> list[dict[str, Any]]:
        """Returns all items in the order of their creation."""
        return [
            {
                "number": number,
                "subject": item.subject,
                "state": item.state.value,
                "createdAt": format_time(item.created_at),
                "startedAt": format_time(item.started_at),
                "completedAt": format_time(item.completed_at),
                "pendingMs": to_milliseconds(item.time_in(TodoState.PENDING, now)),
                "inProgressMs": to_milliseconds(item.time_in(TodoState.IN_PROGRESS, now)),
            }
            for number, item in enumerate(self, 1)
        ]


def _subject(text: str) -> str:
    return one_line(text, limit=SUBJECT_CHARACTERS)
