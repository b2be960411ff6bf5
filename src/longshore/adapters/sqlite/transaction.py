"""One item of work inside a transaction of the writer: rows with their events and the feed.

The *feed* is the order of all events. An item of work that records events adds one row to it, which
groups the entities by type, tenant and sequence: in a batch, most entities have the same ones. The
events of one entity keep their order. A row of the feed has no content of its own; what its events
say is in the histories.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import apsw
import msgspec

from longshore.adapters.sqlite.history import SEGMENT_BYTES, unpack_records
from longshore.adapters.sqlite.names import Names
from longshore.adapters.sqlite.rows import NUMBER_BITS
from longshore.adapters.sqlite.store_file import Bindings, Row, rows

_INSERT_SEGMENT = "INSERT INTO history_segments (entity, first_sequence, body) VALUES (?,?,?)"
_INSERT_TYPE = (
    "INSERT INTO feed_types (tenant, type, app, block) VALUES (?,?,?,?) ON CONFLICT DO NOTHING"
)
FEED_BLOCK_BITS = 6
"""The types of events are indexed by blocks of so many bits of positions."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class FeedEntry(NamedTuple):
    """An event in the feed.

    ``entity`` is the number of a task, the negated number of a job, or for other entities None;
    then ``sequence`` is the number of the row in ``other_events``.
    """

    type: int
    tenant: int
    entity: int | None
    sequence: int

    @property
    def job(self) -> int | None:
        """The number of the job that the entity is or belongs to; None for other entities."""
        if self.entity is None:
            return None
        return -self.entity if self.entity < 0 else self.entity >> NUMBER_BITS


class StoreTransaction:
    """Writes of one item of work; ``close`` adds its row to the feed."""

    __slots__ = ("_position", "_recorded", "connection", "execute", "names")

    def __init__(self, connection: apsw.Connection, names: Names, *, position: int = 0) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.names = names
        self._position = position  # 0: not read yet
        # Type, tenant, app and sequence of events, and their entities.
        self._recorded: list[tuple[int, int, int, int, Sequence[int]]] = []

    @property
    def position(self) -> int:
        """The position of this item's events in the feed."""
        if not self._position:
            ((last,),) = self.select("SELECT max(position) FROM feed")
            self._position = (last or 0) + 1
        return self._position

    def select(self, sql: str, values: Bindings = ()) -> list[Row]:
        """All rows of a statement."""
        return rows(self.connection, sql, values)

    def number_of(self, text: str) -> int:
        """The number of a name."""
        return self.names.number_of(self.connection, text)

    def record(self, type_: int, tenant: int, app: int, entity: int, sequence: int) -> None:
        """An event was added to a history; ``entity`` as in ``FeedEntry``, 0 for other entities."""
        self._recorded.append((type_, tenant, app, sequence, (entity,)))

    def record_events(
        self, type_: int, tenant: int, app: int, sequence: int, entities: Sequence[int]
    ) -> None:
        """Events of one kind, with the same sequence, were added to different histories."""
        self._recorded.append((type_, tenant, app, sequence, entities))

    @contextmanager
    def undoable(self) -> Iterator[None]:
        """What is written inside is undone if it raises."""
        count = len(self._recorded)
        self.execute("SAVEPOINT undoable")
        try:
            yield
        except apsw.Error:
            raise  # the writer undoes everything
        except Exception:
            self.execute("ROLLBACK TO undoable")
            self.execute("RELEASE undoable")
            del self._recorded[count:]
            raise
        self.execute("RELEASE undoable")

    def close(self) -> None:
        """Write the row of the feed, if events were recorded."""
        if not self._recorded:
            return
        position = self.position
        self.execute(
            "INSERT INTO feed (position, entries) VALUES (?,?)",
            (position, _encode(_grouped(self._recorded))),
        )
        apps = dict.fromkeys((tenant, type_, app) for type_, tenant, app, _, _ in self._recorded)
        block = position >> FEED_BLOCK_BITS
        self.connection.executemany(_INSERT_TYPE, [(*app, block) for app in apps])

    def grown_history(
        self, entity: int, history: bytes, sequence: int, records: Sequence[bytes]
    ) -> bytes:
        """The history with these records; a part that is long enough becomes a segment.

        Args:
            sequence: Of the last event in ``history``.
        """
        if len(history) > SEGMENT_BYTES:
            first = sequence - len(unpack_records(history)) + 1
            self.execute(_INSERT_SEGMENT, (entity, first, history))
            history = b""
        return b"".join((history, *records))


def feed_entries(data: bytes) -> Iterator[FeedEntry]:
    """The events in a row of the feed, in order."""
    for type_, tenant, sequence, differences in _decode(data):
        entity = 0
        for difference in differences:
            entity += difference
            yield FeedEntry(type_, tenant, entity or None, sequence)


def _grouped(
    recorded: Sequence[tuple[int, int, int, int, Sequence[int]]],
) -> list[tuple[Any, ...]]:
    """The entities by type, tenant and sequence, in the order of recording."""
    groups: list[tuple[tuple[int, int, int], list[int]]] = []
    latest_group: dict[tuple[int, int, int], int] = {}
    group_of_entity: dict[int, int] = {}  # the last one with an event of the entity
    for type_, tenant, _, sequence, entities in recorded:
        key = (type_, tenant, sequence)
        number = latest_group.get(key, -1)
        if number <= max([group_of_entity.get(entity, -1) for entity in entities]):
            # There is no such group yet, or it comes before another event of an entity.
            number = latest_group[key] = len(groups)
            groups.append((key, []))
        groups[number][1].extend(entities)
        group_of_entity.update(dict.fromkeys(entities, number))
    return [(*key, _differences(entities)) for key, entities in groups]


def _differences(entities: list[int]) -> list[int]:
    return [entity - before for before, entity in zip([0, *entities], entities, strict=False)]
