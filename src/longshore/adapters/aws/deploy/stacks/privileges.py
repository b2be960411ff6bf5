"""Who may do what: one table, of which the templates' policies and a page of the docs are made.

Each row is what the code really calls, and nothing else: a test runs everything on a stand-in that
denies what a policy does not allow, notes each call, and compares both ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from longshore.adapters.aws.deploy.stacks.render import Json, fill, read
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig


@dataclass(frozen=True, slots=True)
class Grant:
    """What may be done, and with what."""

    resource: str  # a key of RESOURCES
    actions: tuple[str, ...]
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

_GET, _GET_MANY, _QUERY = "dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"
_PUT, _UPDATE = "dynamodb:PutItem", "dynamodb:UpdateItem"
_GET_OBJECT, _PUT_OBJECT, _DELETE_OBJECT = "s3:GetObject", "s3:PutObject", "s3:DeleteObject"
# Multipart uploads: aborted if they fail, and read if the outcome is unknown.
_PUT_LARGE_OBJECT = (_PUT_OBJECT, _GET_OBJECT, "s3:AbortMultipartUpload")
_URL, _SEND, _RECEIVE = "sqs:GetQueueUrl", "sqs:SendMessage", "sqs:ReceiveMessage"
_REMOVE, _HIDE, _COUNT = (
    "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibility",
    "sqs:GetQueueAttributes",
)
_PUT_EVENTS = "events:PutEvents"


def _event_source_grant(queue: str) -> Grant:
    return Grant(queue, (_RECEIVE, _REMOVE, _COUNT), EVENT_SOURCE_REASON)


EVENT_SOURCE_REASON: Final = "Lambda receives messages for it"
"""Why a function may read a queue or a stream that it never reads itself."""
_SECRETS = Grant("secrets", ("ssm:GetParametersByPath",), "secret settings")
_ENQUEUE = Grant("queues", (_URL, _SEND), "enqueues due tasks")
# Without it, S3 answers "denied" for a blob that does not exist.
_BLOB_EXISTENCE = Grant("bucket", ("s3:ListBucket",), "sees that a blob does not exist")
_ROWS = Grant("ledger", (_GET, _GET_MANY, _QUERY, _UPDATE), "reads and changes rows")
_OPEN_ROWS = Grant("open rows", (_QUERY,), "finds open and failed tasks")
_LARGE_EVENTS = Grant("large events", _PUT_LARGE_OBJECT, "events of very large jobs")
_APPEND_EVENTS = (
    Grant("config", (_GET, _UPDATE), "numbers events of entities without a row"),
    Grant("events", (_PUT,), "stores them"),
    Grant("bus", (_PUT_EVENTS,), "publishes them"),
)
_READ_DEAD_LETTERS = (
    Grant("queue names", ("sqs:ListQueues",), "finds dead-letter queues"),
    Grant(
        "dead letters",
        (_COUNT, _URL, _RECEIVE, _HIDE),
        "counts and reads them",
    ),
)
_ALERT_RECORDS = Grant(
    "alert records", (_GET_OBJECT, _PUT_OBJECT, _DELETE_OBJECT), "alerts once for each problem"
)

_API = (
    _ROWS,
    Grant("listings", (_QUERY,), "lists jobs and tasks"),
    _ENQUEUE,
    Grant("config", (_GET, _PUT, _QUERY, _UPDATE), "definitions, keys, pauses"),
    Grant("events", (_PUT, _QUERY), "histories, and events of what has no row"),
    Grant("event indexes", (_QUERY,), "histories"),
    Grant("bus", (_PUT_EVENTS,), "publishes events of entities without a row"),
    Grant("output", (_QUERY,), "what tasks print"),
    Grant("documents", _PUT_LARGE_OBJECT, "inputs, results and graphs"),
    Grant("files", (_GET_OBJECT,), "files of attempts"),
    Grant("bucket", ("s3:ListBucket",), "lists what attempts left"),
    _LARGE_EVENTS,
    _BLOB_EXISTENCE,
    *_READ_DEAD_LETTERS,
    Grant("dead letters", (_REMOVE,), "forgets those that lead nowhere"),
    _ALERT_RECORDS,
)


_GRANTS: Final[dict[str, tuple[Grant, ...]]] = {
    "relay": (
        Grant(
            "ledger stream",
            ("dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"),
            EVENT_SOURCE_REASON,
        ),
        Grant("streams", ("dynamodb:ListStreams",), EVENT_SOURCE_REASON),
        Grant("bus", (_PUT_EVENTS,), "publishes committed events"),
        Grant("undelivered-events", (_URL, _SEND), "stores records that it cannot read"),
    ),
    "save-event": (
        _event_source_grant("history-events"),
        Grant("events", (_PUT,), "keeps what happened"),
    ),
    "eventbridge-dlq-alert": (
        _event_source_grant("undelivered-events"),
        Grant("undelivered", (_GET_OBJECT, _PUT_OBJECT), "keeps what was not delivered"),
        _BLOB_EXISTENCE,
        _SECRETS,
    ),
    "dispatcher": (
        _event_source_grant("dispatcher-events"),
        _ROWS,
        _ENQUEUE,
        Grant("documents", (_GET_OBJECT,), "graphs of jobs"),
        _LARGE_EVENTS,
        _BLOB_EXISTENCE,
    ),
    "dlq-processor": (
        _event_source_grant("dead letters"),
        Grant("ledger", (_GET, _UPDATE), "fails the task"),
        *_APPEND_EVENTS,
        Grant("lost messages", (_PUT_OBJECT,), "keeps messages that lead nowhere"),
    ),
    "sweeper": (
        Grant("ledger", _ROWS.actions, "reads rows, and changes those that are overdue"),
        _OPEN_ROWS,
        _ENQUEUE,
        *_READ_DEAD_LETTERS,
        Grant("dead letters", (_REMOVE,), "removes those of tasks that ended"),
        Grant("config", (_GET, _UPDATE), "definitions; wakes a worker"),
        Grant("documents", _PUT_LARGE_OBJECT, "finishes what was begun"),
        _LARGE_EVENTS,
        _BLOB_EXISTENCE,
    ),
    "health-check": (
        Grant("ledger", (_GET, _GET_MANY), "rows of what runs"),
        _OPEN_ROWS,
        *_APPEND_EVENTS,
        *_READ_DEAD_LETTERS,
        _ALERT_RECORDS,
        _BLOB_EXISTENCE,
        _SECRETS,
    ),
    "health-check-single": (
        Grant("ledger", (_GET,), "the task's row"),
        Grant("config", (_GET,), "its definition"),
    ),
    "api": (*_API, _SECRETS),
    # Functions dispatch and sweep for it.
    "worker": (
        Grant("queues", (_URL, _RECEIVE, _REMOVE, _HIDE, _SEND), "takes messages, puts them off"),
        Grant("ledger", (_GET, _GET_MANY, _UPDATE), "claims, renews, ends"),
        Grant("open rows", (_QUERY,), "takes over from workers that died"),
        Grant("output", (_PUT,), "what tasks print"),
        Grant("config", (_GET, _QUERY, _UPDATE), "definitions, pauses, wake-ups; holds a queue"),
        *_APPEND_EVENTS,
        Grant("documents", _PUT_LARGE_OBJECT, "inputs and results"),
        Grant("files", _PUT_LARGE_OBJECT, "files of attempts"),
        _BLOB_EXISTENCE,
    ),
    "server": _API,
}


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


GRANTS: Final = {name: _merge_grants(grants) for name, grants in _GRANTS.items()}
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
