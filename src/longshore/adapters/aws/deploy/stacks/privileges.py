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


@dataclass(frozen=True, slots=True)
class IamResource:
    """Something that can be acted on, as templates/iam-resources.yaml describes it."""

    label: str  # for a person; {stage} and so on as in the names themselves
    templates: list[Any]  # of its ARNs
    for_each: str | None = None  # a list of the stage: every item has its own ARNs

    def arns(self, config: StageConfig) -> list[Any]:
        """The ARNs as CloudFormation has them."""
        items = getattr(config, self.for_each) if self.for_each else [None]
        return [arn for item in items for arn in fill(self.templates, config, item=item)]


RESOURCES: Final = {
    name: IamResource(entry["label"], entry["arns"], entry.get("for_each"))
    for name, entry in read("iam-resources").items()
}

EVENT_SOURCE_REASON: Final = "event source of the function"
"""Why a function may read a queue or a stream that it never reads itself."""


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
        policy_statement(grant.actions, RESOURCES[grant.resource].arns(config))
        for grant in GRANTS[name]
    ]


def policy_statement(actions: Iterable[str], resources: list[Any]) -> Json:
    """A policy statement that allows actions."""
    return {
        "Effect": "Allow",
        "Action": sorted(actions),
        "Resource": resources[0] if len(resources) == 1 else resources,
    }
