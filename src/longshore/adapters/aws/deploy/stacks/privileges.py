"""The permissions of each role, from which the policies and a reference page are made.

templates/grants.yaml is the table of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from longshore.adapters.aws.deploy.stacks.render import Json, fill, read
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig


@dataclass(frozen=True, slots=True)
class Grant:
    """What may be done, and with what."""

    resource: str  # a key of RESOURCES
    actions: Sequence[str]
    reason: str


RESOURCES: Final = read("iam-resources")
"""What can be acted on: its label, its ARNs, and a list of the stage whose items each have ARNs."""


def arns_of(resource: str, config: StageConfig) -> list[Any]:
    """The ARNs of a resource, as CloudFormation has them."""
    entry = RESOURCES[resource]
    items = getattr(config, entry["for_each"]) if "for_each" in entry else [None]
    return [arn for item in items for arn in fill(entry["arns"], config, item=item)]


def _grants_in(rows: list[Any]) -> Iterator[Grant]:
    """The grants of a role; a row may be a list of rows that several roles have."""
    for row in rows:
        if isinstance(row[0], str):
            yield Grant(*row)
        else:
            yield from _grants_in(row)


def _merge_grants(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """One grant for each resource."""
    by_resource: dict[str, list[Grant]] = {}
    for grant in grants:
        by_resource.setdefault(grant.resource, []).append(grant)
    return tuple(
        Grant(
            resource,
            tuple(sorted({action for grant in same for action in grant.actions})),
            "; ".join(dict.fromkeys(grant.reason for grant in same)),
        )
        for resource, same in by_resource.items()
    )


GRANTS: Final = {
    name: _merge_grants(_grants_in(rows)) for name, rows in read("grants")["roles"].items()
}
"""By function or service."""


def statements_of(config: StageConfig, name: str) -> list[Json]:
    """The statements of a role's policy."""
    return [
        policy_statement(grant.actions, arns_of(grant.resource, config)) for grant in GRANTS[name]
    ]


def policy_statement(actions: Iterable[str], resources: list[Any]) -> Json:
    """A policy statement that allows actions."""
    return {
        "Effect": "Allow",
        "Action": sorted(actions),
        "Resource": resources[0] if len(resources) == 1 else resources,
    }
