"""One decision being made: the row, the time, who caused what, and how a change is written down.

The place where a row's version, its change id and the sequence and times of its events move on, for
tasks and jobs alike.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

from longshore.core.changes import Change, Effect
from longshore.core.events.event import Context, Event, next_moment
from longshore.core.events.types import EventBody
from longshore.core.evolving import evolved
from longshore.core.rows import JobRow, TaskRow

RowT = TypeVar("RowT", TaskRow, JobRow)


class Step(Generic[RowT]):
    """From a row to the change that follows it."""

    __slots__ = ("change_id", "context", "now", "row")
    row: RowT

    def __init__(self, row: RowT, now: datetime, change_id: str, context: Context) -> None:
        self.row = row
        self.now = now
        self.change_id = change_id
        self.context = context

    def change(
        self,
        *bodies: EventBody,
        effects: tuple[Effect, ...] = (),
        promised: bool = True,
        **fields: Any,
    ) -> Change[RowT]:
        """The change that tells these events and gives the row these fields."""
        row = self.row
        spec = row.spec
        sequence, at = row.last_sequence, row.last_event_at
        events = []
        for body in bodies:
            sequence += 1
            at = next_moment(self.now, at)
            events.append(
                Event(
                    entity_type=body.ENTITY,
                    entity_id=spec.id,
                    tenant=spec.tenant,
                    app=spec.app,
                    sequence=sequence,
                    at=at,
                    body=body,
                    context=self.context,
                )
            )
        fields["version"] = row.version + 1
        fields["change_id"] = self.change_id
        fields["updated_at"] = self.now
        fields["last_sequence"] = sequence
        fields["last_event_at"] = at
        return Change(
            row=evolved(row, fields),
            expected_version=row.version,
            events=tuple(events),
            effects=effects,
            promised=promised,
        )
