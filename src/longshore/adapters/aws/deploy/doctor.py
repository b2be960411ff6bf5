"""Checks an installation on AWS: reads, compares with the templates, changes nothing.

The expected state comes from the templates that ``longshore aws deploy`` sends: each property is
read from the template and from AWS, and compared as text. Every call has a timeout (see
``doctor_probe``), and a service that does not answer is not called again, so the doctor ends within
half a minute.
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
    Resource,
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
_NO_BLOCKS = "NoSuchPublicAccessBlockConfiguration"
_NO_ENCRYPTION = "ServerSideEncryptionConfigurationNotFoundError"
_RECREATE_REMEDY = (
    "keys cannot be changed: use another stage, or move this table out of the way; then "
)
_WARN = CheckStatus.WARN


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
        if "events" in reachable:
            rules = [*expected["AWS::Events::Rule"].values()]
            checks.append(self._check_bus(reachable["events"], rules))
        if "sqs" in reachable:
            checks.append(self._check_queues(expected["AWS::SQS::Queue"]))
        return await _gather(checks)

    def _resource(self, kind: str, name: str) -> Resource:
        deploy_command = f"`longshore aws deploy --stage {self.names.stage}`"
        return Resource(kind, name, deploy_command)

    # Queues -------------------------------------------------------------------------------------

    async def _check_queues(self, expected: Mapping[str, Json]) -> list[Check]:
        """Checks of all queues, by their names in the template."""
        inspected = await asyncio.gather(*(self._inspect_queue(key, expected) for key in expected))
        queues = {queue.resource.name: queue for queue in inspected}
        checks: list[Check] = []
        for name in self.queues:
            lanes = [queues[self.names.queue(name, priority)] for priority in Priority]
            dead = [queues[self.names.dead_letter_queue(name, priority)] for priority in Priority]
            count = sum(queue.count(_VISIBLE, _IN_FLIGHT) for queue in dead)
            remedy = "see `longshore dead list`" if count else None
            detail = f"{_depth(lanes)}, {count} dead"
            checks += _summary(f"queue {name}", [*lanes, *dead], detail, remedy)
        for name in CONSUMERS:
            queue = queues[self.names.consumer(name)]
            checks += _summary(f"events for {name}", [queue], _depth([queue]))
        queue = queues[self.names.consumer(UNDELIVERED)]
        count = queue.count(_VISIBLE, _IN_FLIGHT)
        detail = f"{count} could not be delivered" if count else "none"
        remedy = "look at the log of the function eventbridge-dlq-alert, which stores them"
        checks += _summary("undelivered events", [queue], detail, remedy if count else None)
        return [*checks, _check_limits(inspected)]

    async def _inspect_queue(self, key: str, expected: Mapping[str, Json]) -> _Queue:
        properties = expected[key]
        name = properties["QueueName"]
        queue = self._resource("queue", name)
        reply = await self.probe.call("sqs", "get_queue_url", QueueName=name)
        if reply.response is not None:
            url = reply.response["QueueUrl"]
            reply = await self.probe.call(
                "sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=["All"]
            )
        if (answer := queue.answer_of(reply)) is None:
            return _Queue(queue, {})
        actual = answer["Attributes"]
        for attribute, verb in _DURATIONS.items():
            usual, there = f"{properties[attribute]} s", f"{actual.get(attribute)} s"
            queue.expect(usual, there, f"it {verb} for {{}}", status=_WARN)
        if actual.get("SqsManagedSseEnabled") == "false" and not actual.get("KmsMasterKeyId"):
            queue.report("it is not encrypted", "encryption by SQS or KMS", status=_WARN)
        if redrive := properties.get("RedrivePolicy"):
            dead = expected[redrive["deadLetterTargetArn"]["Fn::GetAtt"][0]]["QueueName"]
            queue.expect(
                f"{dead} after {redrive['maxReceiveCount']} receives",
                _redrive_text(actual),
                "its dead letters go to {}",
                missing="it has no dead-letter queue",
            )
        return _Queue(queue, actual)

    # The bus ------------------------------------------------------------------------------------

    async def _check_bus(self, reply: ProbeResult, rules: list[Json]) -> list[Check]:
        """Checks of the bus, of each rule with its target, and of the schedules."""
        bus = self._resource("bus", self.names.bus)
        if not (answer := bus.answer_of(reply)):
            return bus.problems
        queue_arns = answer["Arn"].replace(":events:", ":sqs:").rpartition(":")[0]
        checks = await _gather(
            self._check_rule(rule, f"{queue_arns}:{rule['Name']}")
            if "EventPattern" in rule
            else self._check_schedule(rule)
            for rule in rules
        )
        return [*bus.checks("it exists"), *checks]

    async def _check_rule(self, expected: Json, queue_arn: str) -> list[Check]:
        """Check a rule; it has the name of its target queue."""
        name, undelivered = expected["Name"], self.names.consumer(UNDELIVERED)
        rule = self._resource("rule", name)
        bus = {"EventBusName": self.names.bus}
        described, listed = await asyncio.gather(
            self.probe.call("events", "describe_rule", Name=name, **bus),
            self.probe.call("events", "list_targets_by_rule", Rule=name, **bus),
        )
        if actual := rule.answer_of(described):
            state, pattern = actual.get("State"), json.loads(actual.get("EventPattern") or "{}")
            rule.expect("ENABLED", state, "it is {}: its consumer receives nothing")
            usual = _pattern_text(expected["EventPattern"])
            rule.expect(usual, _pattern_text(pattern), "it takes {}")
        if answer := rule.answer_of(listed):
            targets = {target["Arn"]: target for target in answer.get("Targets", [])}
            if target := targets.get(queue_arn):
                dead = _last_name(target.get("DeadLetterConfig", {}).get("Arn", ""))
                lost = "undelivered events are lost"
                rule.expect(
                    undelivered, dead, "undelivered events go to {}", missing=lost, status=_WARN
                )
            else:
                others = ", ".join(map(_last_name, targets)) or "nowhere"
                rule.report(f"its target is {others}", name)
        return rule.checks(f"brings events to {name}")

    async def _check_schedule(self, expected: Json) -> list[Check]:
        rate = expected["ScheduleExpression"]
        schedule = self._resource("schedule", expected["Name"])
        reply = await self.probe.call("events", "describe_rule", Name=expected["Name"])
        if actual := schedule.answer_of(reply):
            state = f"{actual.get('ScheduleExpression')}, {actual.get('State')}"
            schedule.expect(f"{rate}, ENABLED", state, "it is {}")
        return schedule.checks(rate)

    # Tables and the bucket ----------------------------------------------------------------------

    async def _check_table(self, schema: Json) -> list[Check]:
        name = schema["TableName"]
        table = self._resource("table", name)
        described, expiry = await asyncio.gather(
            self.probe.call("dynamodb", "describe_table", TableName=name),
            self.probe.call("dynamodb", "describe_time_to_live", TableName=name),
        )
        if answer := table.answer_of(described):
            _compare_tables(table, schema, answer["Table"])
        if answer := table.answer_of(expiry):
            _compare_expiry(table, schema, answer.get("TimeToLiveDescription", {}))
        return table.checks("as deployed: keys, indexes, stream and expiry")

    async def _check_bucket(self, account: str, head: ProbeResult) -> list[Check]:
        name = self.names.bucket
        bucket = self._resource("bucket", name)
        if not name:
            remedy = f"set LONGSHORE_AWS_BUCKET to the bucket that {bucket.deploy_command} prints"
            usual = f"longshore-{self.names.stage}-{account}-REGION, unless you named it yourself"
            return [Check("bucket", CheckStatus.FAIL, "aws.bucket is not set", usual, remedy)]
        if head.code in ACCESS_DENIED_CODES:
            detail = "access denied: it is in another account, or this identity lacks s3:ListBucket"
            bucket.report(detail, remedy="correct aws.bucket, or allow it")
        elif head.code in ("301", "PermanentRedirect", "400"):
            bucket.report("it is in another region", remedy="correct aws.region")
        elif bucket.answer_of(head) is not None:
            blocked, encrypted = await asyncio.gather(
                self.probe.call("s3", "get_public_access_block", Bucket=name),
                self.probe.call("s3", "get_bucket_encryption", Bucket=name),
            )
            if (access := bucket.answer_of(blocked, absent=_NO_BLOCKS)) is not None:
                blocks = access.get("PublicAccessBlockConfiguration", {})
                if off := [block for block in _PUBLIC_ACCESS_BLOCKS if not blocks.get(block)]:
                    detail = f"it can be made public: {', '.join(off)} is off"
                    bucket.report(detail, "all public access blocked")
            if bucket.answer_of(encrypted, absent=_NO_ENCRYPTION) == {}:
                bucket.report("it has no rule for encryption", "AES256 or KMS", status=_WARN)
        return bucket.checks("it exists, private and encrypted")


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


@dataclass(frozen=True, slots=True)
class _Queue:
    """An SQS queue and its attributes; none if it could not be read."""

    resource: Resource
    attributes: Mapping[str, str]

    def count(self, *attributes: str) -> int:
        """The approximate number of messages."""
        return sum(int(self.attributes.get(attribute, 0)) for attribute in attributes)


def _redrive_text(attributes: Mapping[str, str]) -> str | None:
    """Where dead letters go, and when; None if there is no such queue."""
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    target = _last_name(policy.get("deadLetterTargetArn", ""))
    return f"{target} after {policy['maxReceiveCount']} receives" if target else None


def _last_name(arn: str) -> str:
    return arn.rpartition(":")[2]


def _depth(queues: Iterable[_Queue]) -> str:
    queues = list(queues)
    ready = sum(queue.count(_VISIBLE) for queue in queues)
    hidden = sum(queue.count(_IN_FLIGHT, _DELAYED) for queue in queues)
    return f"{ready} ready, {hidden} in flight or delayed"


def _summary(
    name: str, queues: Iterable[_Queue], detail: str, remedy: str | None = None
) -> Iterator[Check]:
    """The problems of some queues, then their messages: a warning if there is a remedy."""
    problems = [problem for queue in queues for problem in queue.resource.problems]
    yield from problems
    if remedy:
        yield Check(name, CheckStatus.WARN, detail, remedy=remedy)
    elif not problems:
        yield Check(name, CheckStatus.OK, detail)


def _check_limits(queues: Iterable[_Queue]) -> Check:
    """How close the installation is to the limits of AWS."""
    count, name = max((queue.count(_IN_FLIGHT), queue.resource.name) for queue in queues)
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


# Tables -----------------------------------------------------------------------------------------


def _compare_tables(table: Resource, expected: Json, actual: Json) -> None:
    """Report how a table differs from its properties in the template."""
    recreate = f"{_RECREATE_REMEDY}{table.deploy_command}"
    keys, actual_keys = (_key_names(side, side) for side in (expected, actual))
    table.expect(keys, actual_keys, "its keys are {}", remedy=recreate)
    indexes, actual_indexes = (_index_texts(side) for side in (expected, actual))
    for name, text in indexes.items():
        missing = f"index {name} is missing"
        table.expect(text, actual_indexes.get(name), f"index {name} has {{}}", missing=missing)
    for name in actual_indexes.keys() - indexes.keys():
        detail = f"index {name} is not used and costs a write each time"
        table.report(detail, "no such index", "delete it", status=_WARN)
    for index in actual.get("GlobalSecondaryIndexes", ()):
        detail, status = f"index {index['IndexName']} is {{}}", index.get("IndexStatus", "ACTIVE")
        table.expect("ACTIVE", status, detail, remedy="wait until it is built", status=_WARN)
    if stream := expected.get("StreamSpecification"):
        there = (actual.get("StreamSpecification") or {}).get("StreamViewType")
        missing = "it has no stream: no event is published"
        usual = f"a stream of {stream['StreamViewType']}"
        table.expect(usual, there and f"a stream of {there}", "it has {}", missing=missing)
    status = actual.get("TableStatus")
    table.expect("ACTIVE", status, "it is {}", remedy="wait a little", status=_WARN)
    billing = actual.get("BillingModeSummary", {}).get("BillingMode")
    throughput = actual.get("ProvisionedThroughput", {})
    if billing != "PAY_PER_REQUEST" and throughput.get("WriteCapacityUnits"):
        detail = "its capacity is provisioned, and more is throttled"
        table.report(detail, "pay per request", status=_WARN)


def _compare_expiry(table: Resource, schema: Json, actual: Json) -> None:
    """Report if a table expires items by another attribute than in the template, or none."""
    expected = schema.get("TimeToLiveSpecification", {}).get("AttributeName")
    on = actual.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    there = f"expiry by {actual.get('AttributeName')}" if on else None
    if expected:
        missing = "nothing in it expires"
        table.expect(f"expiry by {expected}", there, "it has {}", missing=missing, status=_WARN)
    elif there:
        # The template does not set it, so a deployment would not change it.
        remedy = "disable its time to live: its items must not expire"
        table.report(f"it has {there}", "no expiry", remedy)


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


def _index_texts(schema: Json) -> dict[str, str]:
    """The keys and the projection of each index of a table."""
    texts = {}
    for index in schema.get("GlobalSecondaryIndexes", ()):
        projection = index["Projection"]
        others = sorted(projection.get("NonKeyAttributes") or ())
        attributes = " ".join([projection["ProjectionType"], *others])
        texts[index["IndexName"]] = f"{_key_names(index, schema)} ({attributes})"
    return texts
