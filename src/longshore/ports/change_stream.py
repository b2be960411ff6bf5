"""The stream of committed changes, on backends whose ledger cannot dispatch in its commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from longshore.core.events.event import Event

Record = Mapping[str, Any]


class ChangeStream(Protocol):
    """Reads the records that the ledger's stream delivers, in order and at least once."""

    def position_of(self, record: Record) -> str:
        """The position of a record in the stream."""
        ...

    def events_in(self, record: Record) -> Sequence[Event]:
        """The events of the change; none if the record is not the change of a row.

        Raises:
            UsageError: the record cannot be read.
        """
        ...

    async def dead_letter(self, record: Record, reason: str) -> None:
        """Store a record that cannot be read with the undelivered events.

        Raises:
            BackendUnavailable: the record was not stored.
        """
        ...
