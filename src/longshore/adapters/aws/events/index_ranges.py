"""Which index answers a question about events, and along which part of it.

Every sort key has the moment of its event in it, so that each walk is in the order of time and can
begin anywhere in it.

Each index that is filled is one more write of the whole event, and those by type put all events of
a type into one partition. So an installation may leave most of them empty: then the history of a
task and the table itself, by tenant, answer every question, and what does not fit is passed over.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Final

from longshore.adapters.aws.table_schemas import EVENT_INDEXES

ALL_INDEXES: Final = frozenset(range(1, 8))
DEFAULT_INDEXES: Final = frozenset({1})
"""The numbers of the indexes that are filled: seed 001's, or the one by entity alone."""

_TIMESTAMP = "TIMESTAMP#"
_MAX_KEY = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRange:
    """A part of one partition of an index."""

    index: str | None  # None: of the table itself
    partition: tuple[str, str]
    sort: str
    prefix: str  # what stands before the moment
    start: str = ""

    @property
    def low(self) -> str:
        return f"{self.prefix}{_TIMESTAMP}{self.start}"

    @property
    def high(self) -> str:
        return f"{self.prefix}{_TIMESTAMP}{_MAX_KEY}"

    def since(self, at_ms: int) -> IndexRange:
        """The same from a moment on."""
        return replace(self, start=str(at_ms))


def index_range_for(
    tenant: str,
    *,
    app: str | None = None,
    event_type: str | None = None,
    entity: str | None = None,
    indexes: Set[int] = ALL_INDEXES,
) -> IndexRange:
    """The narrowest walk on which all events lie that are asked for."""
    of_tenant = f"TENANT#{tenant}#"
    kind, of_app = f"EVENT#{event_type}", f"APP#{app}"
    asked = (event_type is not None, app is not None, entity is not None)
    walks = {
        (True, True, True): _index_range(7, kind, f"{of_tenant}{of_app}#{entity}#"),
        (True, True, False): _index_range(6, kind, f"{of_tenant}{of_app}#"),
        (True, False, True): _index_range(5, kind, f"{of_tenant}{entity}#"),
        (True, False, False): _index_range(4, kind, of_tenant),
        (False, True, False): _index_range(2, of_app, ""),
    }
    number, walk = walks.get(asked, (0, None))
    if walk is not None and number in indexes:
        return walk
    if entity is not None:
        return _index_range(1, entity, f"{entity.partition('#')[0]}#")[1]
    return IndexRange(index=None, partition=("PK", f"TENANT#{tenant}"), sort="SK", prefix="")


def _index_range(number: int, partition: str, prefix: str) -> tuple[int, IndexRange]:
    return number, IndexRange(
        index=EVENT_INDEXES[number - 1],
        partition=(f"GSI{number}PK", partition),
        sort=f"GSI{number}SK",
        prefix=prefix,
    )
