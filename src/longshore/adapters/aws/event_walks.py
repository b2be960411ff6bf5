"""Which index answers a question about events, and along which part of it.

Every sort key has the moment of its event in it, so that each walk is in the order of time and can
begin anywhere in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from longshore.adapters.aws.shapes import EVENT_INDEXES

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
) -> Walk:
    """The narrowest walk on which all events lie that are asked for."""
    of_tenant = f"TENANT#{tenant}#"
    if event_type is None and entity is not None:
        return _along(1, entity, f"{entity.partition('#')[0]}#")
    if event_type is None and app is not None:
        return _along(2, f"APP#{app}", "")
    if event_type is None:
        return Walk(index=None, partition=("PK", f"TENANT#{tenant}"), sort="SK", prefix="")
    kind = f"EVENT#{event_type}"
    if app is None and entity is None:
        return _along(4, kind, of_tenant)
    if app is None:
        return _along(5, kind, f"{of_tenant}{entity}#")
    if entity is None:
        return _along(6, kind, f"{of_tenant}APP#{app}#")
    return _along(7, kind, f"{of_tenant}APP#{app}#{entity}#")


def _along(number: int, partition: str, prefix: str) -> Walk:
    return Walk(
        index=EVENT_INDEXES[number - 1],
        partition=(f"GSI{number}PK", partition),
        sort=f"GSI{number}SK",
        prefix=prefix,
    )
