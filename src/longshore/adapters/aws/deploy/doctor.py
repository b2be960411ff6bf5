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
    Properties,
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
_PUBLIC_ACCESS_BLOCKS = (
    "BlockPublicAcls",
    "BlockPublicPolicy",
    "IgnorePublicAcls",
    "RestrictPublicBuckets",
)
_NO_BLOCKS = "NoSuchPublicAccessBlockConfiguration"
_NO_ENCRYPTION = "ServerSideEncryptionConfigurationNotFoundError"
_ACTIVE = "ACTIVE"


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
        identity = identity_check(who, first)
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
        queues = {queue.name: queue for queue in inspected}
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

    async def _inspect_queue(self, key: str, expected: Mapping[str, Json]) -> Resource:
        queue = self._resource("queue", expected[key]["QueueName"])
        reply = await self.probe.call("sqs", "get_queue_url", QueueName=queue.name)
        if reply.response is not None:
            url = reply.response["QueueUrl"]
            reply = await self.probe.call(
                "sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=["All"]
            )
        if answer := queue.answer_of(reply):
            queue.attributes.update(answer["Attributes"])
            queue.compare(
                _queue_properties(_attributes_of(key, expected)),
                _queue_properties(queue.attributes),
            )
        return queue

    # The bus ------------------------------------------------------------------------------------

    async def _check_bus(self, reply: ProbeResult, rules: list[Json]) -> list[Check]:
        """Checks of the bus, of each rule with its target, and of the schedules."""
        bus = self._resource("bus", self.names.bus)
        if (answer := bus.answer_of(reply)) is None:
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
        name, bus = expected["Name"], {"EventBusName": self.names.bus}
        rule = self._resource("rule", name)
        described, listed = await asyncio.gather(
            self.probe.call("events", "describe_rule", Name=name, **bus),
            self.probe.call("events", "list_targets_by_rule", Rule=name, **bus),
        )
        if actual := rule.answer_of(described):
            pattern = json.loads(actual.get("EventPattern") or "{}")
            rule.compare(
                {"state": "ENABLED", "pattern": _pattern_text(expected["EventPattern"])},
                {"state": actual.get("State"), "pattern": _pattern_text(pattern)},
            )
        if answer := rule.answer_of(listed):
            targets = {target["Arn"]: target for target in answer.get("Targets", [])}
            undelivered = targets.get(queue_arn, {}).get("DeadLetterConfig", {}).get("Arn", "")
            target = name if queue_arn in targets else ", ".join(map(_last_name, targets))
            rule.compare(
                {"target": name, "undelivered-events queue": self.names.consumer(UNDELIVERED)},
                {"target": target, "undelivered-events queue": _last_name(undelivered)},
            )
        return rule.checks(f"brings events to {name}")

    async def _check_schedule(self, expected: Json) -> list[Check]:
        rate = expected["ScheduleExpression"]
        schedule = self._resource("schedule", expected["Name"])
        reply = await self.probe.call("events", "describe_rule", Name=expected["Name"])
        if actual := schedule.answer_of(reply):
            there = {"rate": actual.get("ScheduleExpression"), "state": actual.get("State")}
            schedule.compare({"rate": rate, "state": "ENABLED"}, there)
        return schedule.checks(rate)

    # Tables and the bucket ----------------------------------------------------------------------

    async def _check_table(self, schema: Json) -> list[Check]:
        table = self._resource("table", schema["TableName"])
        described, expiry = await asyncio.gather(
            self.probe.call("dynamodb", "describe_table", TableName=table.name),
            self.probe.call("dynamodb", "describe_time_to_live", TableName=table.name),
        )
        if answer := table.answer_of(described):
            table.compare(_table_properties(schema), _table_properties(answer["Table"]))
        _compare_expiry(table, schema, expiry)
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
                on = [block for block in _PUBLIC_ACCESS_BLOCKS if blocks.get(block)]
                bucket.compare(
                    {"public access block": ", ".join(_PUBLIC_ACCESS_BLOCKS)},
                    {"public access block": ", ".join(on)},
                )
            if (rules := bucket.answer_of(encrypted, absent=_NO_ENCRYPTION)) is not None:
                bucket.compare({"encryption": "on"}, {"encryption": "on" if rules else None})
        return bucket.checks("it exists, private and encrypted")


async def _gather(checks: Iterable[Awaitable[list[Check]]]) -> list[Check]:
    return [*chain.from_iterable(await asyncio.gather(*checks))]


# Identity, services, clock ----------------------------------------------------------------------


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


def _attributes_of(key: str, expected: Mapping[str, Json]) -> Json:
    """The properties of a queue in the template, in the form of SQS's attributes."""
    properties = expected[key]
    if "RedrivePolicy" not in properties:
        return properties
    policy = properties["RedrivePolicy"]
    dead = expected[policy["deadLetterTargetArn"]["Fn::GetAtt"][0]]["QueueName"]
    return {**properties, "RedrivePolicy": json.dumps({**policy, "deadLetterTargetArn": dead})}


def _queue_properties(attributes: Json) -> Properties:
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    target = _last_name(policy.get("deadLetterTargetArn", ""))
    managed = attributes.get("SqsManagedSseEnabled") not in (False, "false")
    return {
        "visibility timeout": f"{attributes.get('VisibilityTimeout')} s",
        "retention": f"{attributes.get('MessageRetentionPeriod')} s",
        "encryption": "on" if managed or attributes.get("KmsMasterKeyId") else None,
        "dead-letter queue": target and f"{target} after {policy['maxReceiveCount']} receives",
    }


def _last_name(arn: str) -> str:
    return arn.rpartition(":")[2]


def _depth(queues: Iterable[Resource]) -> str:
    queues = list(queues)
    ready = sum(queue.count(_VISIBLE) for queue in queues)
    hidden = sum(queue.count(_IN_FLIGHT, _DELAYED) for queue in queues)
    return f"{ready} ready, {hidden} in flight or delayed"


def _summary(
    name: str, queues: Iterable[Resource], detail: str, remedy: str | None = None
) -> Iterator[Check]:
    """The problems of some queues, then their messages: a warning if there is a remedy."""
    problems = [problem for queue in queues for problem in queue.problems]
    yield from problems
    if remedy:
        yield Check(name, CheckStatus.WARN, detail, remedy=remedy)
    elif not problems:
        yield Check(name, CheckStatus.OK, detail)


def _check_limits(queues: Iterable[Resource]) -> Check:
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


# Tables -----------------------------------------------------------------------------------------


def _table_properties(schema: Json) -> Properties:
    """The properties of a table, as a template or DynamoDB describes it."""
    stream = schema.get("StreamSpecification") or {}
    billing = schema.get("BillingModeSummary", schema).get("BillingMode", "PROVISIONED")
    capacity = schema.get("ProvisionedThroughput", {}).get("WriteCapacityUnits")
    properties = {
        "key": _key_names(schema, schema),
        "status": schema.get("TableStatus", _ACTIVE),
        "stream": stream.get("StreamViewType") if stream.get("StreamEnabled", True) else None,
        "billing": "provisioned" if capacity and billing == "PROVISIONED" else "per request",
    }
    for index in schema.get("GlobalSecondaryIndexes", ()):
        name, projection = f"index {index['IndexName']}", index["Projection"]
        attributes = sorted(projection.get("NonKeyAttributes") or ())
        text = " ".join([projection["ProjectionType"], *attributes])
        properties[name] = f"{_key_names(index, schema)} ({text})"
        if (status := index.get("IndexStatus", _ACTIVE)) != _ACTIVE:
            properties["status"] = f"{properties['status']}, {name} {status}"
    return properties


def _compare_expiry(table: Resource, schema: Json, result: ProbeResult) -> None:
    """Report if a table expires items by another attribute than in the template, or not at all."""
    if answer := table.answer_of(result):
        actual = answer.get("TimeToLiveDescription", {})
        on = actual.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
        table.compare(
            {"expiry": schema.get("TimeToLiveSpecification", {}).get("AttributeName")},
            {"expiry": actual.get("AttributeName") if on else None},
        )


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
