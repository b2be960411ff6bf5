"""The tables as the code expects them: what the stacks make and ``doctor`` compares.

Every table's partition key spreads by itself (a job, a task). Index keys that many rows share carry
a shard, and hold keys alone: an index is a hint before a consistent read, and is paid for at every
change of what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshore.adapters.aws.names import Names

LISTING_INDEX, STATE_INDEX, NAME_INDEX = "listing", "state", "name"
"""Indexes of the ledger: of what was submitted, of where it stands, and of jobs by their name."""

EVENT_INDEXES = tuple(f"GSI{number}-index" for number in range(1, 8))


def table_schemas(names: Names) -> list[dict[str, Any]]:
    """What each table is created with."""
    return [
        _table(
            names.ledger,
            ("bucket", "id"),
            {LISTING_INDEX: ("g1", "s1"), STATE_INDEX: ("g2", "s2"), NAME_INDEX: ("g3", "s3")},
            stream=True,
            extra_attributes={STATE_INDEX: ["t"]},
        ),
        _table(
            names.events,
            ("PK", "SK"),
            {
                name: (f"GSI{number}PK", f"GSI{number}SK")
                for number, name in enumerate(EVENT_INDEXES, start=1)
            },
            projection="ALL",
        ),
        _table(names.output, ("task", "position")),
        _table(names.config, ("kind", "name")),
    ]


def _table(
    name: str,
    key: tuple[str, str],
    indexes: Mapping[str, tuple[str, str]] | None = None,
    *,
    projection: str = "KEYS_ONLY",
    extra_attributes: Mapping[str, list[str]] | None = None,
    stream: bool = False,
) -> dict[str, Any]:
    indexes = indexes or {}
    attributes = sorted({*key, *(part for each in indexes.values() for part in each)})
    shape: dict[str, Any] = {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": _key(*key),
        "AttributeDefinitions": [
            {"AttributeName": each, "AttributeType": "S"} for each in attributes
        ],
        "SSESpecification": {"Enabled": True},
    }
    if indexes:
        shape["GlobalSecondaryIndexes"] = [
            {
                "IndexName": index,
                "KeySchema": _key(*parts),
                "Projection": _projection(projection, (extra_attributes or {}).get(index)),
            }
            for index, parts in indexes.items()
        ]
    if stream:
        shape["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
    return shape


def _projection(kind: str, extra_attributes: list[str] | None) -> dict[str, Any]:
    if extra_attributes is None:
        return {"ProjectionType": kind}
    return {"ProjectionType": "INCLUDE", "NonKeyAttributes": extra_attributes}


def _key(partition: str, sort: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": partition, "KeyType": "HASH"},
        {"AttributeName": sort, "KeyType": "RANGE"},
    ]
