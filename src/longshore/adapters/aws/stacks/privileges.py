"""Who may do what: one table, of which the templates' policies and a page of the docs are made.

Each row is what the code really calls, and nothing else: a test runs everything on a stand-in that
denies what a policy does not allow, notes each call, and compares both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from longshore.adapters.aws.event_walks import ALL, FEW
from longshore.adapters.aws.shapes import EVENT_INDEXES, LISTING, NAME, STATE
from longshore.adapters.aws.stacks.config import StageConfig
from longshore.adapters.aws.stacks.parts import Json, arn, imported, statement, sub
from longshore.core.states import Priority


@dataclass(frozen=True, slots=True)
class Grant:
    """What may be done, and with what."""

    place: str  # a key of PLACES
    actions: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Place:
    """Something that can be acted on."""

    called: str  # for a person; {stage} and so on as in the names themselves
    arns: Callable[[StageConfig], list[Any]]


def _table(name: str) -> Place:
    return Place(f"table `{name}`", lambda config: [imported(config.stage, f"{name}-table")])


def _indexes(table: str, *indexes: str) -> Place:
    def arns(config: StageConfig) -> list[Any]:
        whole = imported(config.stage, f"{table}-table")
        return [sub(f"${{Table}}/index/{index}", Table=whole) for index in indexes]

    return Place(f"indexes of `{table}`: {', '.join(indexes)}", arns)


def _event_indexes(config: StageConfig) -> list[Any]:
    """Those that are filled: no other is ever asked."""
    filled = ALL if config.settings.get("aws.event_indexes") == "all" else FEW
    return _indexes("events", *(EVENT_INDEXES[number - 1] for number in sorted(filled))).arns(
        config
    )


def _blobs(prefix: str) -> Place:
    def arns(config: StageConfig) -> list[Any]:
        bucket = imported(config.stage, "bucket")
        return [sub(f"arn:${{AWS::Partition}}:s3:::${{Bucket}}/{prefix}*", Bucket=bucket)]

    return Place(f"blobs `{prefix}*`", arns)


def _bucket(config: StageConfig) -> list[Any]:
    bucket = imported(config.stage, "bucket")
    return [sub("arn:${AWS::Partition}:s3:::${Bucket}", Bucket=bucket)]


def _queues(config: StageConfig) -> list[Any]:
    names = config.names
    return [
        arn("sqs", names.queue(queue, priority)) for queue in config.queues for priority in Priority
    ]


def _dead(config: StageConfig) -> list[Any]:
    names = config.names
    return [
        arn("sqs", names.dead(queue, priority)) for queue in config.queues for priority in Priority
    ]


def _consumer(name: str) -> Place:
    return Place(f"queue `{name}-events`", lambda config: [arn("sqs", config.names.consumer(name))])


PLACES: Final[dict[str, Place]] = {
    "ledger": _table("ledger"),
    "ledger stream": Place(
        "stream of `ledger`", lambda config: [imported(config.stage, "ledger-stream")]
    ),
    "listings": _indexes("ledger", LISTING, NAME, STATE),
    "open rows": _indexes("ledger", STATE),
    "events": _table("events"),
    "event indexes": Place("indexes of `events` that are filled", _event_indexes),
    "output": _table("output"),
    "house": _table("house"),
    "bus": Place("bus", lambda config: [imported(config.stage, "bus")]),
    "queues": Place("every queue and priority", _queues),
    "dead letters": Place("their dead-letter queues", _dead),
    # AWS knows no narrower resource for listing queues.
    "queue names": Place("`*`: AWS knows no narrower", lambda _: ["*"]),
    "streams": Place(
        "streams of `ledger`",
        lambda config: [sub("${Table}/stream/*", Table=imported(config.stage, "ledger-table"))],
    ),
    "dispatcher-events": _consumer("dispatcher"),
    "history-events": _consumer("history"),
    "undelivered-events": _consumer("undelivered"),
    "bucket": Place("bucket", _bucket),
    "documents": _blobs("jobs/"),
    "files": _blobs("task/logs/"),
    "large events": _blobs("events/"),
    "lost messages": _blobs("dead/"),
    "what was told": _blobs("health/"),
    "undelivered": _blobs("undelivered/"),
    "secrets": Place(
        "SSM parameters below `/longshore/{stage}/`",
        # What is asked for ends with a slash, and so does what AWS takes it for.
        lambda config: [arn("ssm", f"parameter/longshore/{config.stage}/*")],
    ),
}

_GET, _GET_MANY, _QUERY = "dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"
_PUT, _UPDATE = "dynamodb:PutItem", "dynamodb:UpdateItem"
_LOAD, _STORE, _FORGET = "s3:GetObject", "s3:PutObject", "s3:DeleteObject"
# What is large goes in parts: taken back if they are not joined, and looked at if nobody knows.
_STORE_LARGE = (_STORE, _LOAD, "s3:AbortMultipartUpload")
_URL, _SEND, _RECEIVE = "sqs:GetQueueUrl", "sqs:SendMessage", "sqs:ReceiveMessage"
_REMOVE, _HIDE, _COUNT = (
    "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibility",
    "sqs:GetQueueAttributes",
)
_TELL = "events:PutEvents"


def _fed_by(queue: str) -> Grant:
    return Grant(queue, (_RECEIVE, _REMOVE, _COUNT), FEEDS)


FEEDS: Final = "Lambda takes messages for it"
"""Why a function may read a queue or a stream that it never reads itself."""
_SECRETS = Grant("secrets", ("ssm:GetParametersByPath",), "settings that are secret")
_RINGING = Grant("queues", (_URL, _SEND), "rings for what is due")
# Without it, S3 does not tell a blob that is not there from one that is forbidden.
_KEPT_ALREADY = Grant("bucket", ("s3:ListBucket",), "is told that a blob is not there")
_ROWS = Grant("ledger", (_GET, _GET_MANY, _QUERY, _UPDATE), "decides from rows, changes them")
_OPEN_ROWS = Grant("open rows", (_QUERY,), "finds what is open, or failed")
_LARGE_EVENTS = Grant("large events", _STORE_LARGE, "events of very large jobs")
_UNNUMBERED = (
    Grant("house", (_GET, _UPDATE), "numbers events of what has no row"),
    Grant("events", (_PUT,), "keeps them"),
    Grant("bus", (_TELL,), "tells them"),
)
_DEAD_LOOKED_AT = (
    Grant("queue names", ("sqs:ListQueues",), "finds dead-letter queues"),
    Grant(
        "dead letters",
        (_COUNT, _URL, _RECEIVE, _HIDE),
        "looks whether there are any, and at them",
    ),
)
_TOLD = Grant("what was told", (_LOAD, _STORE, _FORGET), "tells people each problem once")

_DISPATCHER = (
    _ROWS,
    _RINGING,
    Grant("documents", (_LOAD,), "graphs of jobs"),
    _LARGE_EVENTS,
    _KEPT_ALREADY,
)
_SWEEPER = (
    Grant("ledger", _ROWS.actions, "reads rows, and changes those that are overdue"),
    _OPEN_ROWS,
    _RINGING,
    *_DEAD_LOOKED_AT,
    Grant("dead letters", (_REMOVE,), "removes those of tasks that ended"),
    Grant("house", (_GET, _UPDATE), "definitions; wakes a worker"),
    Grant("documents", _STORE_LARGE, "finishes what was begun"),
    _LARGE_EVENTS,
    _KEPT_ALREADY,
)
_HEALTH_CHECK = (
    Grant("ledger", (_GET, _GET_MANY), "rows of what runs"),
    _OPEN_ROWS,
    *_UNNUMBERED,
    *_DEAD_LOOKED_AT,
    _TOLD,
    _KEPT_ALREADY,
)
_API = (
    _ROWS,
    Grant("listings", (_QUERY,), "lists jobs and tasks"),
    _RINGING,
    Grant("house", (_GET, _PUT, _QUERY, _UPDATE), "definitions, keys, pauses"),
    Grant("events", (_PUT, _QUERY), "histories, and events of what has no row"),
    Grant("event indexes", (_QUERY,), "histories"),
    Grant("bus", (_TELL,), "tells events of what has no row"),
    Grant("output", (_QUERY,), "what tasks print"),
    Grant("documents", _STORE_LARGE, "inputs, results and graphs"),
    Grant("files", (_LOAD,), "what attempts leave"),
    Grant("bucket", ("s3:ListBucket",), "lists what attempts left"),
    _LARGE_EVENTS,
    _KEPT_ALREADY,
    *_DEAD_LOOKED_AT,
    Grant("dead letters", (_REMOVE,), "forgets those that lead nowhere"),
    _TOLD,
)
# Functions dispatch and sweep for it.
_WORKER = (
    Grant("queues", (_URL, _RECEIVE, _REMOVE, _HIDE, _SEND), "takes messages, puts them off"),
    Grant("ledger", (_GET, _GET_MANY, _UPDATE), "claims, renews, ends"),
    Grant("open rows", (_QUERY,), "takes over from workers that died"),
    Grant("output", (_PUT, _QUERY), "what tasks print"),
    Grant("house", (_GET, _QUERY, _UPDATE), "definitions, pauses, wake-ups; holds a queue"),
    *_UNNUMBERED,
    Grant("documents", _STORE_LARGE, "inputs and results"),
    Grant("files", _STORE_LARGE, "what attempts leave"),
    _KEPT_ALREADY,
)


def _together(*lists: Iterable[Grant]) -> tuple[Grant, ...]:
    """One grant for each place."""
    found: dict[str, list[Grant]] = {}
    for grant in (grant for one in lists for grant in one):
        found.setdefault(grant.place, []).append(grant)
    return tuple(
        Grant(
            place,
            tuple(sorted({action for grant in grants for action in grant.actions})),
            "; ".join(dict.fromkeys(grant.why for grant in grants)),
        )
        for place, grants in found.items()
    )


GRANTS: Final[dict[str, tuple[Grant, ...]]] = {
    "relay": (
        Grant(
            "ledger stream",
            ("dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"),
            FEEDS,
        ),
        Grant("streams", ("dynamodb:ListStreams",), FEEDS),
        Grant("bus", (_TELL,), "tells what was committed"),
        Grant("undelivered-events", (_URL, _SEND), "puts aside what it cannot read"),
    ),
    "save-event": (
        _fed_by("history-events"),
        Grant("events", (_PUT,), "keeps what happened"),
    ),
    "eventbridge-dlq-alert": (
        _fed_by("undelivered-events"),
        Grant("undelivered", (_LOAD, _STORE), "keeps what was not delivered"),
        _KEPT_ALREADY,
        _SECRETS,
    ),
    "dispatcher": (_fed_by("dispatcher-events"), *_together(_DISPATCHER)),
    "dlq-processor": (
        _fed_by("dead letters"),
        Grant("ledger", (_GET, _UPDATE), "fails the task"),
        *_UNNUMBERED,
        Grant("lost messages", (_STORE,), "keeps messages that lead nowhere"),
    ),
    "sweeper": _together(_SWEEPER),
    "health-check": (*_together(_HEALTH_CHECK), _SECRETS),
    "health-check-single": (
        Grant("ledger", (_GET,), "the task's row"),
        Grant("house", (_GET,), "its definition"),
    ),
    "api": (*_together(_API), _SECRETS),
    "worker": _together(_WORKER),
    "server": _together(_API),
}
"""By function or service."""


def statements_of(config: StageConfig, name: str) -> list[Json]:
    """The sentences of a policy."""
    return [statement(grant.actions, PLACES[grant.place].arns(config)) for grant in GRANTS[name]]
