"""The permissions of each role: one table, from which the policies and a reference page are made.

Each row is what the code really calls, and nothing else: a test runs everything on an emulator that
denies what a policy does not allow, records each call, and compares both ways.
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


EVENT_SOURCE_REASON: Final = "event source of the function"
"""Why a function may read a queue or a stream that it never reads itself."""
_SECRETS = Grant("secrets", ("ssm:GetParametersByPath",), "reads secret settings")
_ENQUEUE = Grant("queues", (_URL, _SEND), "enqueues due tasks")
# Without it, S3 answers "denied" for a blob that does not exist.
_BLOB_EXISTENCE = Grant("bucket", ("s3:ListBucket",), "separates missing from denied objects")
_ROWS = Grant("ledger", (_GET, _GET_MANY, _QUERY, _UPDATE), "reads and changes rows")
_OPEN_ROWS = Grant("open rows", (_QUERY,), "finds open and failed tasks")
_LARGE_EVENTS = Grant("large events", _PUT_LARGE_OBJECT, "stores events of very large jobs")
_APPEND_EVENTS = (
    Grant("config", (_GET, _UPDATE), "numbers events of queues and the system"),
    Grant("events", (_PUT,), "stores these events"),
    Grant("bus", (_PUT_EVENTS,), "publishes these events"),
)
_READ_DEAD_LETTERS = (
    Grant("queue names", ("sqs:ListQueues",), "finds dead-letter queues"),
    Grant(
        "dead letters",
        (_COUNT, _URL, _RECEIVE, _HIDE),
        "counts and reads dead letters",
    ),
)
_ALERT_RECORDS = Grant(
    "alert records", (_GET_OBJECT, _PUT_OBJECT, _DELETE_OBJECT), "records which alerts were sent"
)

_API = (
    _ROWS,
    Grant("listings", (_QUERY,), "lists jobs and tasks"),
    _ENQUEUE,
    Grant("config", (_GET, _PUT, _QUERY, _UPDATE), "manages definitions, keys and pauses"),
    Grant("events", (_PUT, _QUERY), "reads histories; stores events of queues and the system"),
    Grant("event indexes", (_QUERY,), "reads histories"),
    Grant("bus", (_PUT_EVENTS,), "publishes events of queues and the system"),
    Grant("output", (_QUERY,), "reads output"),
    Grant("documents", _PUT_LARGE_OBJECT, "reads and stores inputs, results and graphs"),
    Grant("files", (_GET_OBJECT,), "reads artifacts"),
    Grant("bucket", ("s3:ListBucket",), "lists artifacts"),
    _LARGE_EVENTS,
    _BLOB_EXISTENCE,
    *_READ_DEAD_LETTERS,
    Grant("dead letters", (_REMOVE,), "deletes messages without a task"),
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
        Grant("events", (_PUT,), "stores events"),
    ),
    "eventbridge-dlq-alert": (
        _event_source_grant("undelivered-events"),
        Grant("undelivered", (_GET_OBJECT, _PUT_OBJECT), "stores undelivered events"),
        _BLOB_EXISTENCE,
        _SECRETS,
    ),
    "dispatcher": (
        _event_source_grant("dispatcher-events"),
        _ROWS,
        _ENQUEUE,
        Grant("documents", (_GET_OBJECT,), "reads graphs of jobs"),
        _LARGE_EVENTS,
        _BLOB_EXISTENCE,
    ),
    "dlq-processor": (
        _event_source_grant("dead letters"),
        Grant("ledger", (_GET, _UPDATE), "fails the task"),
        *_APPEND_EVENTS,
        Grant("lost messages", (_PUT_OBJECT,), "stores messages without a task"),
    ),
    "sweeper": (
        Grant("ledger", _ROWS.actions, "reads rows, and changes those that are overdue"),
        _OPEN_ROWS,
        _ENQUEUE,
        *_READ_DEAD_LETTERS,
        Grant("dead letters", (_REMOVE,), "deletes messages of tasks that have ended"),
        Grant("config", (_GET, _UPDATE), "reads definitions; wakes workers"),
        Grant("documents", _PUT_LARGE_OBJECT, "completes interrupted operations"),
        _LARGE_EVENTS,
        _BLOB_EXISTENCE,
    ),
    "health-check": (
        Grant("ledger", (_GET, _GET_MANY), "reads rows of running tasks"),
        _OPEN_ROWS,
        *_APPEND_EVENTS,
        *_READ_DEAD_LETTERS,
        _ALERT_RECORDS,
        _BLOB_EXISTENCE,
        _SECRETS,
    ),
    "health-check-single": (
        Grant("ledger", (_GET,), "reads the row of the task"),
        Grant("config", (_GET,), "reads the definition of the task"),
    ),
    "api": (*_API, _SECRETS),
    # Functions dispatch and sweep for it.
    "worker": (
        Grant("queues", (_URL, _RECEIVE, _REMOVE, _HIDE, _SEND), "receives and delays messages"),
        Grant("ledger", (_GET, _GET_MANY, _UPDATE), "claims tasks, commits outcomes"),
        Grant("open rows", (_QUERY,), "takes over from workers that died"),
        Grant("output", (_PUT,), "stores output"),
        Grant("config", (_GET, _QUERY, _UPDATE), "reads definitions and pauses; sets holds"),
        *_APPEND_EVENTS,
        Grant("documents", _PUT_LARGE_OBJECT, "reads inputs, stores results"),
        Grant("files", _PUT_LARGE_OBJECT, "stores artifacts"),
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
