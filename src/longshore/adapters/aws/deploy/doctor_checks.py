"""Checks of queues, bus, tables and bucket against the templates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from longshore.adapters.aws.deploy.doctor_probe import (
    ACCESS_DENIED_CODES,
    Probe,
    ProbeResult,
    Subject,
)
from longshore.adapters.aws.names import UNDELIVERED, Names
from longshore.core.inspection import Check, CheckStatus
from longshore.core.tasks.states import Priority

Json = dict[str, Any]

IN_FLIGHT_LIMIT = 120_000
"""The messages that SQS can hide in one queue; beyond it delivers nothing."""

_WARNING_RATIO = 0.8
_NO_QUEUE_CODES = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"}
_NOT_FOUND_CODE = "ResourceNotFoundException"
_IN_FLIGHT = "ApproximateNumberOfMessagesNotVisible"
_DELAYED = "ApproximateNumberOfMessagesDelayed"
_VISIBLE = "ApproximateNumberOfMessages"
_PUBLIC_ACCESS_BLOCKS = (
    "BlockPublicAcls",
    "BlockPublicPolicy",
    "IgnorePublicAcls",
    "RestrictPublicBuckets",
)
_RECREATE_REMEDY = (
    "keys cannot be changed: use another stage, or move this table out of the way; then "
)
_DURATIONS = {"VisibilityTimeout": "hides messages", "MessageRetentionPeriod": "keeps messages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedQueue:
    """An SQS queue, and the problems with it."""

    name: str
    result: ProbeResult
    problems: tuple[Check, ...]

    @property
    def arn(self) -> str:
        """The ARN; empty if the queue does not exist."""
        return str(self._attributes.get("QueueArn", ""))

    @property
    def _attributes(self) -> Mapping[str, str]:
        attributes: Mapping[str, str] = (self.result.response or {}).get("Attributes", {})
        return attributes

    def count(self, *attributes: str) -> int:
        """The approximate number of messages."""
        return sum(int(self._attributes.get(attribute, 0)) for attribute in attributes)

    @property
    def in_flight(self) -> int:
        return self.count(_IN_FLIGHT)


async def inspect_queues(
    probe: Probe, resources: Mapping[str, Json], deploy_command: str
) -> dict[str, InspectedQueue]:
    """Every queue of the template, by its name."""
    expected = {
        key: resource["Properties"]
        for key, resource in resources.items()
        if resource["Type"] == "AWS::SQS::Queue"
    }
    queue_names = {key: properties["QueueName"] for key, properties in expected.items()}
    inspected = await asyncio.gather(
        *(
            _inspect_queue(probe, properties, queue_names, deploy_command)
            for properties in expected.values()
        )
    )
    return {queue.name: queue for queue in inspected}


async def _inspect_queue(
    probe: Probe, properties: Json, queue_names: Mapping[str, str], deploy_command: str
) -> InspectedQueue:
    name = properties["QueueName"]
    reply = await probe.call("sqs", "get_queue_url", QueueName=name)
    if reply.response is not None:
        url = reply.response["QueueUrl"]
        reply = await probe.call(
            "sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=["All"]
        )
    return InspectedQueue(
        name=name,
        result=reply,
        problems=tuple(_queue_problems(properties, reply, queue_names, deploy_command)),
    )


def _queue_problems(
    properties: Json, result: ProbeResult, queue_names: Mapping[str, str], deploy_command: str
) -> Iterator[Check]:
    subject = Subject(f"queue {properties['QueueName']}", deploy_command)
    if result.code in _NO_QUEUE_CODES:
        yield subject.fail("it does not exist", "a queue")
        return
    if result.response is None:
        yield result.unexpected_check(subject.name)
        return
    actual = result.response["Attributes"]
    for attribute, verb in _DURATIONS.items():
        if int(actual.get(attribute, 0)) != properties[attribute]:
            detail = f"it {verb} for {actual.get(attribute)} s"
            yield subject.warn(detail, f"{properties[attribute]} s")
    if actual.get("SqsManagedSseEnabled") == "false" and not actual.get("KmsMasterKeyId"):
        yield subject.warn("it is not encrypted", "encryption by SQS or KMS")
    if "RedrivePolicy" in properties:
        yield from _redrive_problems(subject, properties["RedrivePolicy"], actual, queue_names)


def _redrive_problems(
    subject: Subject,
    properties: Json,
    attributes: Mapping[str, str],
    queue_names: Mapping[str, str],
) -> Iterator[Check]:
    dead = queue_names[properties["deadLetterTargetArn"]["Fn::GetAtt"][0]]
    expected = f"{dead} after {properties['maxReceiveCount']} receives"
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    there = str(policy.get("deadLetterTargetArn", "")).rpartition(":")[2]
    if not there:
        yield subject.fail("it has no dead-letter queue", expected)
    elif (there, int(policy["maxReceiveCount"])) != (dead, properties["maxReceiveCount"]):
        detail = f"its dead letters go to {there} after {policy['maxReceiveCount']} receives"
        yield subject.fail(detail, expected)


def check_task_queues(
    names: Names, queue_names: tuple[str, ...], queues: Mapping[str, InspectedQueue]
) -> Iterator[Check]:
    """Checks of each task queue: the problems of its lanes, or its depth."""
    for name in queue_names:
        lanes = [queues[names.queue(name, priority)] for priority in Priority]
        dead_queues = [queues[names.dead_letter_queue(name, priority)] for priority in Priority]
        problems = [problem for queue in (*lanes, *dead_queues) for problem in queue.problems]
        yield from problems
        ready = sum(lane.count(_VISIBLE) for lane in lanes)
        hidden = sum(lane.count(_IN_FLIGHT, _DELAYED) for lane in lanes)
        dead = sum(queue.count(_VISIBLE, _IN_FLIGHT) for queue in dead_queues)
        detail = f"{ready} ready, {hidden} hidden, {dead} dead"
        if dead:
            yield Check(
                f"queue {name}", CheckStatus.WARN, detail, remedy="see `longshore dead list`"
            )
        elif not problems:
            yield Check(f"queue {name}", CheckStatus.OK, detail)


def check_consumer_queues(
    names: Names, consumers: list[str], queues: Mapping[str, InspectedQueue]
) -> Iterator[Check]:
    """Checks of the queues from which consumers receive events."""
    for name in consumers:
        queue = queues[names.consumer(name)]
        yield from queue.problems
        detail = f"{queue.count(_VISIBLE)} ready, {queue.count(_IN_FLIGHT, _DELAYED)} hidden"
        if not queue.problems:
            yield Check(f"events for {name}", CheckStatus.OK, detail)


def check_undelivered_queue(queue: InspectedQueue) -> Iterator[Check]:
    """Checks of the queue of undelivered events."""
    yield from queue.problems
    if count := queue.count(_VISIBLE, _IN_FLIGHT):
        detail = f"{count} could not be delivered"
        remedy = "look at the log of the function eventbridge-dlq-alert, which stores them"
        yield Check("undelivered events", CheckStatus.WARN, detail, remedy=remedy)
    elif not queue.problems:
        yield Check("undelivered events", CheckStatus.OK, "none")


def check_limits(queues: Mapping[str, InspectedQueue]) -> Check:
    """How close the installation is to the limits of AWS."""
    fullest = max(queues.values(), key=lambda queue: queue.in_flight)
    detail = f"{fullest.in_flight:,} of {IN_FLIGHT_LIMIT:,} messages hidden in {fullest.name}"
    if fullest.in_flight < _WARNING_RATIO * IN_FLIGHT_LIMIT:
        return Check("limits", CheckStatus.OK, detail)
    remedy = "spread the work over more queues: beyond the limit SQS delivers nothing"
    return Check("limits", CheckStatus.WARN, detail, remedy=remedy)


async def check_bus(
    probe: Probe,
    names: Names,
    rules: list[Json],
    queues: Mapping[str, InspectedQueue],
    deploy_command: str,
) -> list[Check]:
    """Checks of the bus, of each rule with its target, and of the schedules."""
    subject = Subject(f"bus {names.bus}", deploy_command)
    reply = await probe.call("events", "describe_event_bus", Name=names.bus)
    if reply.code == _NOT_FOUND_CODE:
        return [subject.fail("it does not exist", "a bus")]
    if reply.response is None:
        return [reply.unexpected_check(subject.name)]
    event_rules = [rule for rule in rules if "EventPattern" in rule]
    schedules = [rule for rule in rules if "ScheduleExpression" in rule]
    checks = await asyncio.gather(
        *(_check_rule(probe, names, rule, queues, deploy_command) for rule in event_rules),
        *(_check_schedule(probe, rule, deploy_command) for rule in schedules),
    )
    return [subject.ok("it exists"), *(check for part in checks for check in part)]


async def _check_rule(
    probe: Probe,
    names: Names,
    properties: Json,
    queues: Mapping[str, InspectedQueue],
    deploy_command: str,
) -> list[Check]:
    rule = properties["Name"]
    subject = Subject(f"rule {rule}", deploy_command)
    reply, targets = await asyncio.gather(
        probe.call("events", "describe_rule", Name=rule, EventBusName=names.bus),
        probe.call("events", "list_targets_by_rule", Rule=rule, EventBusName=names.bus),
    )
    if reply.code == _NOT_FOUND_CODE:
        return [subject.fail("it does not exist: its consumer receives nothing", None)]
    if reply.response is None:
        return [reply.unexpected_check(subject.name)]
    problems = []
    if reply.response.get("State") != "ENABLED":
        detail = "it is disabled: its consumer receives nothing"
        problems.append(subject.fail(detail, "ENABLED"))
    pattern = json.loads(reply.response.get("EventPattern") or "{}")
    if _normalised(pattern) != _normalised(properties["EventPattern"]):
        expected = json.dumps(properties["EventPattern"])
        detail = f"it takes {json.dumps(pattern)}"
        problems.append(subject.fail(detail, expected))
    if targets.response is None:
        problems.append(targets.unexpected_check(subject.name))
    else:
        actual = targets.response.get("Targets", [])
        problems += _target_problems(subject, names, rule, actual, queues)
    return problems or [subject.ok(f"brings events to {rule}")]


async def _check_schedule(probe: Probe, properties: Json, deploy_command: str) -> list[Check]:
    subject = Subject(f"schedule {properties['Name']}", deploy_command)
    reply = await probe.call("events", "describe_rule", Name=properties["Name"])
    expected = properties["ScheduleExpression"]
    if reply.code == _NOT_FOUND_CODE:
        return [subject.fail("it does not exist", expected)]
    if reply.response is None:
        return [reply.unexpected_check(subject.name)]
    actual, state = reply.response.get("ScheduleExpression"), reply.response.get("State")
    if (actual, state) != (expected, "ENABLED"):
        detail = f"it is {actual}, {state}"
        return [subject.fail(detail, f"{expected}, ENABLED")]
    return [subject.ok(expected)]


def _normalised(pattern: Any) -> Any:
    """A pattern with sorted lists, because the order in them has no meaning."""
    if isinstance(pattern, dict):
        return {name: _normalised(value) for name, value in pattern.items()}
    return sorted(pattern, key=json.dumps) if isinstance(pattern, list) else pattern


def _target_problems(
    subject: Subject,
    names: Names,
    queue: str,
    targets: list[Json],
    queues: Mapping[str, InspectedQueue],
) -> Iterator[Check]:
    # A rule has the name of its target queue.
    arns = {target["Arn"]: target for target in targets}
    target = arns.get(queues[queue].arn)
    if target is None:
        to = ", ".join(arn.rpartition(":")[2] for arn in arns) or "nowhere"
        yield subject.fail(f"its target is {to}", queue)
        return
    undelivered = names.consumer(UNDELIVERED)
    dead = str(target.get("DeadLetterConfig", {}).get("Arn", "")).rpartition(":")[2]
    if dead != undelivered:
        detail = "undelivered events are lost" if not dead else f"undelivered events go to {dead}"
        yield subject.warn(detail, undelivered)


# Tables and the bucket --------------------------------------------------------------------------


async def check_tables(probe: Probe, expected: list[Json], deploy_command: str) -> list[Check]:
    """Checks of each table against its resource in the template."""
    results = await asyncio.gather(
        *(_check_table(probe, schema, deploy_command) for schema in expected)
    )
    return [check for checks in results for check in checks]


async def _check_table(probe: Probe, schema: Json, deploy_command: str) -> list[Check]:
    table = schema["TableName"]
    subject = Subject(f"table {table}", deploy_command)
    reply, expiry = await asyncio.gather(
        probe.call("dynamodb", "describe_table", TableName=table),
        probe.call("dynamodb", "describe_time_to_live", TableName=table),
    )
    if reply.code == _NOT_FOUND_CODE:
        return [subject.fail("it does not exist", "a table")]
    if reply.response is None:
        return [reply.unexpected_check(subject.name)]
    table_description = reply.response["Table"]
    problems = [
        *_key_problems(subject, schema, table_description),
        *_index_problems(subject, schema, table_description),
        *_stream_problems(subject, schema, table_description),
        *_ttl_problems(subject, schema, expiry),
    ]
    if (status := table_description.get("TableStatus")) != "ACTIVE":
        problems.append(subject.warn(f"it is {status}", "ACTIVE", "wait a little"))
    if _is_provisioned(table_description):
        detail = "its capacity is provisioned, and more is throttled"
        problems.append(subject.warn(detail, "pay per request"))
    if problems:
        return problems
    count = len(schema.get("GlobalSecondaryIndexes", ()))
    parts = [f"{count} indexes"] if count else []
    parts += ["a stream"] if "StreamSpecification" in schema else []
    parts += ["expiry"] if "TimeToLiveSpecification" in schema else []
    return [subject.ok(f"as deployed: {', '.join(['keys', *parts])}")]


def _is_provisioned(description: Json) -> bool:
    if description.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST":
        return False
    return bool(description.get("ProvisionedThroughput", {}).get("WriteCapacityUnits"))


def _key_names(schema: list[Json]) -> str:
    parts = sorted(schema, key=lambda part: part["KeyType"])  # HASH, then RANGE
    return ", ".join(part["AttributeName"] for part in parts)


def _key_problems(subject: Subject, schema: Json, description: Json) -> Iterator[Check]:
    expected, actual = _key_names(schema["KeySchema"]), _key_names(description["KeySchema"])
    if expected != actual:
        yield subject.fail(
            f"its keys are {actual}",
            expected,
            _RECREATE_REMEDY + subject.deploy_command,
        )
    kinds = {
        definition["AttributeName"]: definition["AttributeType"]
        for definition in description["AttributeDefinitions"]
    }
    for definition in schema["AttributeDefinitions"]:
        attribute, kind = definition["AttributeName"], definition["AttributeType"]
        if kinds.get(attribute, kind) != kind:
            detail = f"{attribute} is of type {kinds[attribute]}"
            yield subject.fail(detail, f"type {kind}", _RECREATE_REMEDY + subject.deploy_command)


def _index_problems(subject: Subject, schema: Json, description: Json) -> Iterator[Check]:
    expected = {item["IndexName"]: item for item in schema.get("GlobalSecondaryIndexes", ())}
    actual = {item["IndexName"]: item for item in description.get("GlobalSecondaryIndexes", ())}
    for index, item in expected.items():
        label = f"index {index}"
        if index not in actual:
            yield subject.fail(f"{label} is missing", _index_text(item))
        elif _index_text(item) != _index_text(actual[index]):
            yield subject.fail(f"{label} has {_index_text(actual[index])}", _index_text(item))
        elif (status := actual[index].get("IndexStatus", "ACTIVE")) != "ACTIVE":
            yield subject.warn(f"{label} is {status}", "ACTIVE", "wait until it is built")
    for index in actual.keys() - expected.keys():
        detail = f"index {index} is not used and costs a write each time"
        yield subject.warn(detail, "no such index", "delete it")


def _index_text(index: Json) -> str:
    projection = index["Projection"]
    others = sorted(projection.get("NonKeyAttributes") or ())
    attributes = " ".join([projection["ProjectionType"], *others])
    return f"{_key_names(index['KeySchema'])} ({attributes})"


def _stream_problems(subject: Subject, schema: Json, description: Json) -> Iterator[Check]:
    if "StreamSpecification" not in schema:
        return
    expected = schema["StreamSpecification"]["StreamViewType"]
    stream = description.get("StreamSpecification") or {}
    actual = stream.get("StreamViewType") if stream.get("StreamEnabled") else None
    if actual != expected:
        detail = (
            f"its stream shows {actual}" if actual else "it has no stream: no event is published"
        )
        yield subject.fail(detail, f"a stream of {expected}")


def _ttl_problems(subject: Subject, schema: Json, result: ProbeResult) -> Iterator[Check]:
    if result.response is None:
        yield result.unexpected_check(subject.name)
        return
    expected = schema.get("TimeToLiveSpecification", {}).get("AttributeName")
    described = result.response.get("TimeToLiveDescription", {})
    on = described.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    actual = described.get("AttributeName") if on else None
    if actual == expected:
        return
    detail = f"it expires by {actual}" if on else "nothing in it expires"
    if expected is None:
        # The template does not set it, so a deployment would not change it.
        remedy = "disable its time to live: its items must not expire"
        yield subject.fail(detail, "no expiry", remedy)
    else:
        yield subject.warn(detail, f"expiry by {expected}")


async def check_bucket(
    probe: Probe, names: Names, account: str, deploy_command: str
) -> list[Check]:
    """Checks of the bucket of the blobs."""
    if not names.bucket:
        detail = "aws.bucket is not set"
        remedy = f"set LONGSHORE_AWS_BUCKET to the bucket that `{deploy_command.strip('`')}` prints"
        usual = f"longshore-{names.stage}-{account}-REGION, unless you named it yourself"
        return [Check("bucket", CheckStatus.FAIL, detail, usual, remedy)]
    subject = Subject(f"bucket {names.bucket}", deploy_command)
    head, blocked, encrypted = await asyncio.gather(
        probe.call("s3", "head_bucket", Bucket=names.bucket),
        probe.call("s3", "get_public_access_block", Bucket=names.bucket),
        probe.call("s3", "get_bucket_encryption", Bucket=names.bucket),
    )
    if head.response is None:
        return [_bucket_unavailable(subject, head)]
    problems = [
        *_public_access_problems(subject, blocked),
        *_encryption_problems(subject, encrypted),
    ]
    return problems or [subject.ok("it exists, private and encrypted")]


def _bucket_unavailable(subject: Subject, head: ProbeResult) -> Check:
    if head.code in ("404", "NoSuchBucket"):
        return subject.fail("it does not exist", "a bucket")
    if head.code in ACCESS_DENIED_CODES:
        detail = "access denied: it is in another account, or this identity lacks s3:ListBucket"
        return subject.fail(detail, remedy="correct aws.bucket, or allow it")
    if head.code in ("301", "PermanentRedirect", "400"):
        return subject.fail("it is in another region", remedy="correct aws.region")
    return head.unexpected_check(subject.name)


def _public_access_problems(subject: Subject, result: ProbeResult) -> Iterator[Check]:
    if result.response is None and result.code != "NoSuchPublicAccessBlockConfiguration":
        yield result.unexpected_check(subject.name)
        return
    actual: Mapping[str, bool] = (result.response or {}).get("PublicAccessBlockConfiguration", {})
    if open_ := [block for block in _PUBLIC_ACCESS_BLOCKS if not actual.get(block)]:
        detail = f"it can be made public: {', '.join(open_)} is off"
        yield subject.fail(detail, "all public access blocked")


def _encryption_problems(subject: Subject, result: ProbeResult) -> Iterator[Check]:
    if result.code == "ServerSideEncryptionConfigurationNotFoundError":
        yield subject.warn("it has no rule for encryption", "AES256 or KMS")
    elif result.response is None:
        yield result.unexpected_check(subject.name)
