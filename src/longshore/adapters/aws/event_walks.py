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

from longshore.adapters.aws.shapes import EVENT_INDEXES

ALL: Final = frozenset(range(1, 8))
FEW: Final = frozenset({1})
"""The numbers of the indexes that are filled: seed 001's, or the one by entity alone."""

_MOMENT = "TIMESTAMP#"
_BEYOND_ALL = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A part of one partition of an index."""

    index: str | None  # None: of the table itself
    partition: tuple[str, str]
    sort: str
    prefix: str  # what stands before the moment
    first: str = ""

    @property
    def low(self) -> str:
        return f"{self.prefix}{_MOMENT}{self.first}"

    @property
    def high(self) -> str:
        return f"{self.prefix}{_MOMENT}{_BEYOND_ALL}"

    def since(self, at_ms: int) -> Walk:
        """The same from a moment on."""
        return replace(self, first=str(at_ms))


def walk_for(
    tenant: str,
    *,
    app: str | None = None,
    event_type: str | None = None,
    entity: str | None = None,
    filled: Set[int] = ALL,
) -> Walk:
    """The narrowest walk on which all events lie that are asked for."""
    of_tenant = f"TENANT#{tenant}#"
    kind, of_app = f"EVENT#{event_type}", f"APP#{app}"
    asked = (event_type is not None, app is not None, entity is not None)
    walks = {
        (True, True, True): _along(7, kind, f"{of_tenant}{of_app}#{entity}#"),
        (True, True, False): _along(6, kind, f"{of_tenant}{of_app}#"),
        (True, False, True): _along(5, kind, f"{of_tenant}{entity}#"),
        (True, False, False): _along(4, kind, of_tenant),
        (False, True, False): _along(2, of_app, ""),
    }
    number, walk = walks.get(asked, (0, None))
    if walk is not None and number in filled:
        return walk
    if entity is not None:
        return _along(1, entity, f"{entity.partition('#')[0]}#")[1]
    return Walk(index=None, partition=("PK", f"TENANT#{tenant}"), sort="SK", prefix="")


def _along(number: int, partition: str, prefix: str) -> tuple[int, Walk]:
    return number, Walk(
        index=EVENT_INDEXES[number - 1],
        partition=(f"GSI{number}PK", partition),
        sort=f"GSI{number}SK",
        prefix=prefix,
    )
