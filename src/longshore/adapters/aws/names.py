"""Names and table schemas of an installation; the stage is part of each name.

Several installations can share an account. The stacks create the tables from these schemas, and
``longshore doctor`` compares the tables with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longshore.core.tasks.states import Priority

LISTING_INDEX, STATE_INDEX, NAME_INDEX = "listing", "state", "name"
"""Indexes of the ledger: by time of submission, by state, and jobs by name."""

UNDELIVERED = "undelivered"
"""The consumer whose queue takes the events that reached no other."""
EVENT_INDEXES = tuple(f"GSI{number}-index" for number in range(1, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of one installation's resources, in code and in the templates alike."""

    stage: str
    bucket: str

    @property
    def ledger(self) -> str:
        """The table of job and task rows."""
        return self._qualified("ledger")

    @property
    def events(self) -> str:
        """The table of events."""
        return self._qualified("events")

    @property
    def output(self) -> str:
        """The table of output."""
        return self._qualified("output")

    @property
    def config(self) -> str:
        """The table of definitions, API keys, queue pauses and budgets."""
        return self._qualified("config")

    @property
    def bus(self) -> str:
        """The event bus."""
        return self._qualified("events")

    def queue(self, name: str, priority: Priority) -> str:
        """The SQS queue of a lane."""
        return self._qualified(f"{name}-{priority.name.lower()}")

    def dead_letter_queue(self, name: str, priority: Priority) -> str:
        """The SQS queue of a lane's dead letters."""
        return f"{self.queue(name, priority)}-dead"

    def consumer(self, name: str) -> str:
        """The SQS queue from which a consumer receives events."""
        return self._qualified(f"{name}-events")

    def _qualified(self, name: str) -> str:
        return f"longshore-{self.stage}-{name}"


def table_schemas(names: Names) -> list[dict[str, Any]]:
    """The parameters that create each table.

    The partition key of every table spreads by itself (a job, a task). Index keys that many rows
    share carry a shard. Most indexes hold keys only: an index is a hint before a consistent read,
    and costs a write whenever a projected attribute changes.
    """
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
    attributes = sorted({*key, *(part for keys in indexes.values() for part in keys)})
    schema: dict[str, Any] = {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": _key(*key),
        "AttributeDefinitions": [
            {"AttributeName": attribute, "AttributeType": "S"} for attribute in attributes
        ],
        "SSESpecification": {"Enabled": True},
    }
    if indexes:
        schema["GlobalSecondaryIndexes"] = [
            {
                "IndexName": index,
                "KeySchema": _key(*parts),
                "Projection": _projection(projection, (extra_attributes or {}).get(index)),
            }
            for index, parts in indexes.items()
        ]
    if stream:
        schema["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
    return schema


def _projection(kind: str, extra_attributes: list[str] | None) -> dict[str, Any]:
    if extra_attributes is None:
        return {"ProjectionType": kind}
    return {"ProjectionType": "INCLUDE", "NonKeyAttributes": extra_attributes}


def _key(partition: str, sort: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": partition, "KeyType": "HASH"},
        {"AttributeName": sort, "KeyType": "RANGE"},
    ]
