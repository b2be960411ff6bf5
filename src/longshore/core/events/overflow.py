"""Overflow: where the large fields of an event go when it is too big to carry.

Stores and buses refuse events of more than a few hundred kilobytes. The fields
that grow (inputs, results, lists of tasks) are then kept in the blob store,
and the event carries a reference in their place; readers put them back and
never know. Only these fields move, so that what routes an event is always in it.

This module only decides: the caller measures the event, writes the payload
*before* the event that refers to it, and fetches it again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EVENT_SIZE_LIMIT_BYTES = 200_000

LARGE_FIELDS = (
    "output",
    "outputs",
    "input",
    "claudeOutput",
    "tasks",
    "newTasks",
    "taskStatuses",
)

REFERENCE_FIELD = "_s3Overflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """What has to be in the blob store before the event is written."""

    key: str
    fields: dict[str, Any]


def split_overflow(
    properties: Mapping[str, Any],
    *,
    entity_id: str,
    event_id: str,
    size: int,
    bucket: str | None = None,
    limit: int = EVENT_SIZE_LIMIT_BYTES,
) -> tuple[dict[str, Any], Overflow | None]:
    """The properties to carry, and what is to be stored apart (None: nothing).

    Properties that were split before are left as they are: a second payload
    would have the key of the first.

    Args:
        size: Bytes of the whole event as it would be written.
        bucket: Where readers find the payload; None where there is only one place.
    """
    moved = {name: properties[name] for name in LARGE_FIELDS if name in properties}
    if size <= limit or not moved or REFERENCE_FIELD in properties:
        return dict(properties), None
    key = f"events/{entity_id}/{event_id}-payload.json"
    kept = {name: value for name, value in properties.items() if name not in moved}
    kept[REFERENCE_FIELD] = {"key": key} if bucket is None else {"bucket": bucket, "key": key}
    return kept, Overflow(key=key, fields=moved)


def payload_key(properties: Mapping[str, Any]) -> str | None:
    """The key of the payload these properties need back, or None if they are whole."""
    reference = properties.get(REFERENCE_FIELD)
    if reference is None:
        return None
    return str(reference["key"])


def join_overflow(properties: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    """The properties as they were before ``split``."""
    kept = {name: value for name, value in properties.items() if name != REFERENCE_FIELD}
    return {**kept, **payload}
