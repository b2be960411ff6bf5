"""Checks an installation on AWS: reads, compares with the templates, changes nothing.

The expected state comes from the templates that ``longshore aws deploy`` sends. Every call has a
timeout (see ``doctor_probe``), and a service that does not answer is not called again, so the
doctor ends within half a minute.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from itertools import chain
from typing import Any, Final

from longshore.adapters.aws.deploy.doctor_probe import (
    ACCESS_DENIED_CODES,
    Probe,
    ProbeResult,
    Subject,
    identity_check,
)
from longshore.adapters.aws.deploy.stacks.render import Json
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import CONSUMERS, INFRASTRUCTURE, templates
from longshore.adapters.aws.names import UNDELIVERED, Names
from longshore.core.inspection import Check, CheckStatus
from longshore.core.tasks.states import Priority

SIGNATURE_SKEW_LIMIT: Final = timedelta(minutes=5)
"""AWS refuses requests that are signed with a larger clock skew."""
IN_FLIGHT_LIMIT: Final = 120_000
"""The messages that SQS can hide in one queue; beyond it delivers nothing."""

_HALF_A_SECOND = timedelta(milliseconds=500)
_MILLISECOND = timedelta(milliseconds=1)
_WARNING_RATIO = 0.8
_IN_FLIGHT = "ApproximateNumberOfMessagesNotVisible"
_DELAYED = "ApproximateNumberOfMessagesDelayed"
_VISIBLE = "ApproximateNumberOfMessages"
_DURATIONS = {"VisibilityTimeout": "hides messages", "MessageRetentionPeriod": "keeps messages"}
_PUBLIC_ACCESS_BLOCKS = (
    "BlockPublicAcls",
    "BlockPublicPolicy",
    "IgnorePublicAcls",
    "RestrictPublicBuckets",
)
_RECREATE_REMEDY = (
    "keys cannot be changed: use another stage, or move this table out of the way; then "
)


@dataclass(frozen=True, slots=True)
class _Queue:
    """An SQS queue, and the problems with it."""

    name: str
    attributes: Mapping[str, str]  # empty if the queue could not be read
    problems: Sequence[Check]

    def count(self, *attributes: str) -> int:
        """The approximate number of messages."""
        return sum(int(self.attributes.get(attribute, 0)) for attribute in attributes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsDoctor:
    """The checks of one installation, with its expected state."""

    probe: Probe
    names: Names
    queues: tuple[str, ...]
    dispatcher_events: tuple[str, ...]  # the types that the dispatcher receives
    skew_margin: timedelta

    async def diagnose(self) -> list[Check]:
        """All checks of the installation."""
        names = self.names
        who, *first = replies = await asyncio.gather(
            self.probe.call("sts", "get_caller_identity"),
            self.probe.call("dynamodb", "describe_table", TableName=names.ledger),
            self.probe.call("sqs", "get_queue_url", QueueName=names.consumer(UNDELIVERED)),
            self.probe.call("s3", "head_bucket", Bucket=names.bucket or names.bus),
            self.probe.call("events", "describe_event_bus", Name=names.bus),
        )
        library = f"aiobotocore {version('aiobotocore')}, botocore {version('botocore')}"
        identity = _check_identity(who, first)
        checks = [Check("aws library", CheckStatus.OK, library), identity]
        checks += _check_clock(replies, self.skew_margin)
        if any(reply.unconfigured for reply in replies) or identity.status is CheckStatus.FAIL:
            return checks
        checks += [_check_service(reply) for reply in first]
        account = str((who.response or {}).get("Account", "ACCOUNT"))
        reachable = {reply.service: reply for reply in first if reply.reachable}
        return checks + await self._check_resources(account, reachable)

    def _subject(self, name: str) -> Subject:
        return Subject(name, f"`longshore aws deploy --stage {self.names.stage}`")

    async def _check_resources(
        self, account: str, reachable: Mapping[str, ProbeResult]
    ) -> list[Check]:
        """Checks of the resources of the services that have answered."""
        config = StageConfig(stage=self.names.stage, queues=self.queues)
        stacks = templates(config, dispatcher_events=self.dispatcher_events)
        expected: dict[str, dict[str, Json]] = {}  # properties by type and name in the template
        for stack in (INFRASTRUCTURE, "event", "dispatcher"):
            for name, resource in stacks[stack]["Resources"].items():
                expected.setdefault(resource["Type"], {})[name] = resource["Properties"]
        checks: list[Awaitable[list[Check]]] = []
        if "dynamodb" in reachable:
            tables = expected["AWS::DynamoDB::Table"]
            checks += [self._check_table(schema) for schema in tables.values()]
        if "s3" in reachable:
            checks.append(self._check_bucket(account, reachable["s3"]))
        if "sqs" in reachable:
            rules = [*expected["AWS::Events::Rule"].values()]
            checks.append(
                self._check_messaging(expected["AWS::SQS::Queue"], rules, reachable.get("events"))
            )
        return await _gather(checks)

    async def _check_messaging(
        self, expected: Mapping[str, Json], rules: list[Json], bus: ProbeResult | None
    ) -> list[Check]:
        """Checks of the bus, if EventBridge has answered, and of the queues."""
        inspected = await asyncio.gather(*(self._inspect_queue(key, expected) for key in expected))
        queues = {queue.name: queue for queue in inspected}
        checks = await self._check_bus(bus, rules, queues) if bus else []
        return [*checks, *self._check_queues(queues), _check_limits(inspected)]

    # Queues -------------------------------------------------------------------------------------

    async def _inspect_queue(self, key: str, expected: Mapping[str, Json]) -> _Queue:
        name = expected[key]["QueueName"]
        reply = await self.probe.call("sqs", "get_queue_url", QueueName=name)
        if reply.response is not None:
            url = reply.response["QueueUrl"]
            reply = await self.probe.call(
                "sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=["All"]
            )
        subject = self._subject(f"queue {name}")
        if problem := subject.unavailable(reply, "a queue"):
            return _Queue(name, {}, [problem])
        attributes = (reply.response or {})["Attributes"]
        return _Queue(name, attributes, [*_queue_problems(subject, key, expected, attributes)])

    def _check_queues(self, queues: Mapping[str, _Queue]) -> Iterator[Check]:
        for name in self.queues:
            lanes = [queues[self.names.queue(name, priority)] for priority in Priority]
            dead = [queues[self.names.dead_letter_queue(name, priority)] for priority in Priority]
            count = sum(queue.count(_VISIBLE, _IN_FLIGHT) for queue in dead)
            remedy = "see `longshore dead list`" if count else None
            detail = f"{_depth(lanes)}, {count} dead"
            yield from _summary(f"queue {name}", [*lanes, *dead], detail, remedy)
        for name in CONSUMERS:
            queue = queues[self.names.consumer(name)]
            yield from _summary(f"events for {name}", [queue], _depth([queue]))
        queue = queues[self.names.consumer(UNDELIVERED)]
        count = queue.count(_VISIBLE, _IN_FLIGHT)
        remedy = "look at the log of the function eventbridge-dlq-alert, which stores them"
        yield from _summary(
            "undelivered events",
            [queue],
            f"{count} could not be delivered" if count else "none",
            remedy if count else None,
        )

    # The bus ------------------------------------------------------------------------------------

    async def _check_bus(
        self, bus: ProbeResult, rules: list[Json], queues: Mapping[str, _Queue]
    ) -> list[Check]:
        """Checks of the bus, of each rule with its target, and of the schedules."""
        subject = self._subject(f"bus {self.names.bus}")
        if problem := subject.unavailable(bus, "a bus"):
            return [problem]
        checks = await _gather(
            self._check_rule(rule, queues) if "EventPattern" in rule else self._check_schedule(rule)
            for rule in rules
        )
        return [subject.ok("it exists"), *checks]

    async def _check_rule(self, expected: Json, queues: Mapping[str, _Queue]) -> list[Check]:
        rule = expected["Name"]
        subject = self._subject(f"rule {rule}")
        reply, targets = await asyncio.gather(
            self.probe.call("events", "describe_rule", Name=rule, EventBusName=self.names.bus),
            self.probe.call(
                "events", "list_targets_by_rule", Rule=rule, EventBusName=self.names.bus
            ),
        )
        if problem := subject.unavailable(reply, "a rule: without it, its consumer gets nothing"):
            return [problem]
        actual = reply.response or {}
        pattern = _pattern_text(json.loads(actual.get("EventPattern") or "{}"))
        problems = [
            *subject.compare(
                actual.get("State"), "ENABLED", "it is {}: its consumer receives nothing"
            ),
            *subject.compare(pattern, _pattern_text(expected["EventPattern"]), "it takes {}"),
        ]
        if targets.response is None:
            problems.append(targets.unexpected_check(subject.name))
        else:
            # A rule has the name of its target queue.
            problems += self._target_problems(
                subject, queues[rule], targets.response.get("Targets", [])
            )
        return problems or [subject.ok(f"brings events to {rule}")]

    def _target_problems(
        self, subject: Subject, queue: _Queue, targets: list[Json]
    ) -> Iterator[Check]:
        arns = {target["Arn"]: target for target in targets}
        target = arns.get(queue.attributes.get("QueueArn", ""))
        if target is None:
            to = ", ".join(arn.rpartition(":")[2] for arn in arns) or "nowhere"
            yield subject.fail(f"its target is {to}", queue.name)
            return
        undelivered = self.names.consumer(UNDELIVERED)
        dead = str(target.get("DeadLetterConfig", {}).get("Arn", "")).rpartition(":")[2]
        if dead != undelivered:
            target_text = f"go to {dead}" if dead else "are lost"
            yield subject.warn(f"undelivered events {target_text}", undelivered)

    async def _check_schedule(self, expected: Json) -> list[Check]:
        subject = self._subject(f"schedule {expected['Name']}")
        reply = await self.probe.call("events", "describe_rule", Name=expected["Name"])
        rate = expected["ScheduleExpression"]
        if problem := subject.unavailable(reply, rate):
            return [problem]
        actual = reply.response or {}
        state = f"{actual.get('ScheduleExpression')}, {actual.get('State')}"
        return [*subject.compare(state, f"{rate}, ENABLED", "it is {}")] or [subject.ok(rate)]

    # Tables and the bucket ----------------------------------------------------------------------

    async def _check_table(self, schema: Json) -> list[Check]:
        table = schema["TableName"]
        subject = self._subject(f"table {table}")
        reply, expiry = await asyncio.gather(
            self.probe.call("dynamodb", "describe_table", TableName=table),
            self.probe.call("dynamodb", "describe_time_to_live", TableName=table),
        )
        if problem := subject.unavailable(reply, "a table"):
            return [problem]
        description = (reply.response or {})["Table"]
        expected_keys, actual_keys = (_key_names(item, item) for item in (schema, description))
        recreate = _RECREATE_REMEDY + subject.deploy_command
        problems = [
            *subject.compare(actual_keys, expected_keys, "its keys are {}", recreate),
            *_index_problems(subject, schema, description),
            *_stream_problems(subject, schema, description),
            *_ttl_problems(subject, schema, expiry),
        ]
        if (status := description.get("TableStatus")) != "ACTIVE":
            problems.append(subject.warn(f"it is {status}", "ACTIVE", "wait a little"))
        billing = description.get("BillingModeSummary", {}).get("BillingMode")
        throughput = description.get("ProvisionedThroughput", {})
        if billing != "PAY_PER_REQUEST" and throughput.get("WriteCapacityUnits"):
            detail = "its capacity is provisioned, and more is throttled"
            problems.append(subject.warn(detail, "pay per request"))
        return problems or [subject.ok("as deployed: keys, indexes, stream and expiry")]

    async def _check_bucket(self, account: str, head: ProbeResult) -> list[Check]:
        bucket, subject = self.names.bucket, self._subject(f"bucket {self.names.bucket}")
        if not bucket:
            deploy = subject.deploy_command
            remedy = f"set LONGSHORE_AWS_BUCKET to the bucket that {deploy} prints"
            usual = f"longshore-{self.names.stage}-{account}-REGION, unless you named it yourself"
            return [Check("bucket", CheckStatus.FAIL, "aws.bucket is not set", usual, remedy)]
        blocked, encrypted = await asyncio.gather(
            self.probe.call("s3", "get_public_access_block", Bucket=bucket),
            self.probe.call("s3", "get_bucket_encryption", Bucket=bucket),
        )
        if head.code in ACCESS_DENIED_CODES:
            detail = "access denied: it is in another account, or this identity lacks s3:ListBucket"
            return [subject.fail(detail, remedy="correct aws.bucket, or allow it")]
        if head.code in ("301", "PermanentRedirect", "400"):
            return [subject.fail("it is in another region", remedy="correct aws.region")]
        if problem := subject.unavailable(head, "a bucket"):
            return [problem]
        problems = [
            *_public_access_problems(subject, blocked),
            *_encryption_problems(subject, encrypted),
        ]
        return problems or [subject.ok("it exists, private and encrypted")]


async def _gather(checks: Iterable[Awaitable[list[Check]]]) -> list[Check]:
    return [*chain.from_iterable(await asyncio.gather(*checks))]


# Identity, services, clock ----------------------------------------------------------------------


def _check_identity(caller: ProbeResult, others: Sequence[ProbeResult]) -> Check:
    """The identity; if STS does not answer, whether other services accept the credentials."""
    refusing = next((reply for reply in others if reply.credentials_error), None)
    return identity_check(
        refusing if refusing and not caller.credentials_error and not caller.response else caller
    )


def _check_service(result: ProbeResult) -> Check:
    name = f"reach {result.service}"
    if not result.reachable:
        detail = f"{result.unreachable_reason} from {result.endpoint}"
        return Check(name, CheckStatus.FAIL, detail, remedy=result.remedy)
    return Check(name, CheckStatus.OK, f"{result.endpoint}, {result.duration // _MILLISECOND} ms")


def _check_clock(results: Sequence[ProbeResult], margin: timedelta) -> Iterator[Check]:
    """Our clock against AWS's, within whole seconds and the time of the call."""
    timed = [reply for reply in results if reply.server_time is not None]
    nearest = min(timed, key=lambda reply: reply.duration, default=None)
    if nearest is None or nearest.server_time is None or nearest.local_time is None:
        return
    skew = nearest.local_time - (nearest.server_time + _HALF_A_SECOND)
    off = max(abs(skew) - _HALF_A_SECOND - nearest.duration / 2, timedelta(0))
    side = "ahead of" if skew > timedelta(0) else "behind"
    detail = f"{abs(skew).total_seconds():.1f} s {side} AWS"
    remedy = "synchronise the clock with chrony or systemd-timesyncd"
    if off > SIGNATURE_SKEW_LIMIT:
        allowed = f"less than {SIGNATURE_SKEW_LIMIT.seconds} s: AWS refuses such requests"
        yield Check("clock", CheckStatus.FAIL, detail, allowed, remedy)
    elif off > margin:
        allowed = f"within worker.skew_margin, {margin.total_seconds():g} s"
        yield Check("clock", CheckStatus.WARN, detail, allowed, remedy)
    else:
        precision = (nearest.duration / 2 + 2 * _HALF_A_SECOND).total_seconds()
        yield Check("clock", CheckStatus.OK, f"within {precision:.1f} s of AWS's")


# Queues -----------------------------------------------------------------------------------------


def _queue_problems(
    subject: Subject, key: str, expected: Mapping[str, Json], actual: Mapping[str, str]
) -> Iterator[Check]:
    """Differences between a queue and its properties in the template.

    Args:
        expected: The properties of all queues, by their names in the template.
    """
    properties = expected[key]
    for attribute, verb in _DURATIONS.items():
        if int(actual.get(attribute, 0)) != properties[attribute]:
            detail = f"it {verb} for {actual.get(attribute)} s"
            yield subject.warn(detail, f"{properties[attribute]} s")
    if actual.get("SqsManagedSseEnabled") == "false" and not actual.get("KmsMasterKeyId"):
        yield subject.warn("it is not encrypted", "encryption by SQS or KMS")
    if "RedrivePolicy" not in properties:
        return
    redrive = properties["RedrivePolicy"]
    dead = expected[redrive["deadLetterTargetArn"]["Fn::GetAtt"][0]]["QueueName"]
    usual = f"{dead} after {redrive['maxReceiveCount']} receives"
    policy = json.loads(actual.get("RedrivePolicy") or "{}")
    there = str(policy.get("deadLetterTargetArn", "")).rpartition(":")[2]
    if not there:
        yield subject.fail("it has no dead-letter queue", usual)
    elif f"{there} after {policy['maxReceiveCount']} receives" != usual:
        detail = f"its dead letters go to {there} after {policy['maxReceiveCount']} receives"
        yield subject.fail(detail, usual)


def _depth(queues: Iterable[_Queue]) -> str:
    queues = list(queues)
    ready = sum(queue.count(_VISIBLE) for queue in queues)
    hidden = sum(queue.count(_IN_FLIGHT, _DELAYED) for queue in queues)
    return f"{ready} ready, {hidden} in flight or delayed"


def _summary(
    name: str, queues: Iterable[_Queue], detail: str, remedy: str | None = None
) -> Iterator[Check]:
    """The problems of some queues, then their messages: a warning if there is a remedy."""
    problems = [problem for queue in queues for problem in queue.problems]
    yield from problems
    if remedy:
        yield Check(name, CheckStatus.WARN, detail, remedy=remedy)
    elif not problems:
        yield Check(name, CheckStatus.OK, detail)


def _check_limits(queues: Iterable[_Queue]) -> Check:
    """How close the installation is to the limits of AWS."""
    count, name = max((queue.count(_IN_FLIGHT), queue.name) for queue in queues)
    detail = f"{count:,} of {IN_FLIGHT_LIMIT:,} messages in flight in {name}"
    if count < _WARNING_RATIO * IN_FLIGHT_LIMIT:
        return Check("limits", CheckStatus.OK, detail)
    remedy = "spread the work over more queues: beyond the limit SQS delivers nothing"
    return Check("limits", CheckStatus.WARN, detail, remedy=remedy)


def _pattern_text(pattern: Any) -> str:
    """A pattern with sorted lists, because the order in them has no meaning."""
    return json.dumps(_normalised(pattern), sort_keys=True)


def _normalised(pattern: Any) -> Any:
    if isinstance(pattern, dict):
        return {name: _normalised(value) for name, value in pattern.items()}
    return sorted(pattern, key=json.dumps) if isinstance(pattern, list) else pattern


# Tables and the bucket --------------------------------------------------------------------------


def _key_names(item: Json, table: Json) -> str:
    """The keys of a table or of its index; those of the templates are strings."""
    kinds = {
        definition["AttributeName"]: definition["AttributeType"]
        for definition in table["AttributeDefinitions"]
    }
    keys = sorted(item["KeySchema"], key=lambda key: key["KeyType"])  # HASH, then RANGE
    names = [key["AttributeName"] for key in keys]
    return ", ".join(
        name if kinds[name] == "S" else f"{name} of type {kinds[name]}" for name in names
    )


def _index_problems(subject: Subject, schema: Json, description: Json) -> Iterator[Check]:
    expected, actual = (
        {item["IndexName"]: item for item in side.get("GlobalSecondaryIndexes", ())}
        for side in (schema, description)
    )
    for index, item in expected.items():
        text = _index_text(item, schema)
        if index not in actual:
            yield subject.fail(f"index {index} is missing", text)
        elif text != (there := _index_text(actual[index], description)):
            yield subject.fail(f"index {index} has {there}", text)
        elif (status := actual[index].get("IndexStatus", "ACTIVE")) != "ACTIVE":
            yield subject.warn(f"index {index} is {status}", "ACTIVE", "wait until it is built")
    for index in actual.keys() - expected.keys():
        detail = f"index {index} is not used and costs a write each time"
        yield subject.warn(detail, "no such index", "delete it")


def _index_text(index: Json, table: Json) -> str:
    projection = index["Projection"]
    others = sorted(projection.get("NonKeyAttributes") or ())
    attributes = " ".join([projection["ProjectionType"], *others])
    return f"{_key_names(index, table)} ({attributes})"


def _stream_problems(subject: Subject, schema: Json, description: Json) -> Iterator[Check]:
    if "StreamSpecification" not in schema:
        return
    expected = schema["StreamSpecification"]["StreamViewType"]
    stream = description.get("StreamSpecification") or {}
    if not stream.get("StreamEnabled"):
        detail = "it has no stream: no event is published"
        yield subject.fail(detail, f"a stream of {expected}")
    else:
        yield from subject.compare(stream["StreamViewType"], expected, "its stream shows {}")


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
