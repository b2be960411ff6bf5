"""Queues and the bus, held against what the stacks make."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from longshore.adapters.aws.deploy.doctor_probe import Probe, ProbeResult
from longshore.adapters.aws.names import Names
from longshore.core.inspection import Check, CheckStatus
from longshore.core.tasks.states import Priority

Json = dict[str, Any]

IN_FLIGHT_LIMIT = 120_000
"""Messages that SQS hides in one queue; with more it hands out nothing."""

_WARNING_RATIO = 0.8
_NO_QUEUE_CODES = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"}
_NOT_FOUND_CODE = "ResourceNotFoundException"
_IN_FLIGHT = "ApproximateNumberOfMessagesNotVisible"
_DELAYED = "ApproximateNumberOfMessagesDelayed"
_VISIBLE = "ApproximateNumberOfMessages"
_DURATIONS = {"VisibilityTimeout": "hides messages", "MessageRetentionPeriod": "keeps messages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedQueue:
    """One queue of SQS as it was found."""

    name: str
    result: ProbeResult
    problems: tuple[Check, ...]

    @property
    def arn(self) -> str:
        """Its whole name; empty if it is not there."""
        return str(self._attributes.get("QueueArn", ""))

    @property
    def _attributes(self) -> Mapping[str, str]:
        found: Mapping[str, str] = (self.result.response or {}).get("Attributes", {})
        return found

    def count(self, *attributes: str) -> int:
        """How many messages it holds, approximately."""
        return sum(int(self._attributes.get(each, 0)) for each in attributes)

    @property
    def in_flight(self) -> int:
        """How many are hidden."""
        return self.count(_IN_FLIGHT)


async def inspect_queues(
    probe: Probe, resources: Mapping[str, Json], deploy_command: str
) -> dict[str, InspectedQueue]:
    """Every queue of the template, by its name."""
    expected = {
        key: one["Properties"] for key, one in resources.items() if one["Type"] == "AWS::SQS::Queue"
    }
    named = {key: properties["QueueName"] for key, properties in expected.items()}
    found = await asyncio.gather(
        *(
            _inspect_queue(probe, properties, named, deploy_command)
            for properties in expected.values()
        )
    )
    return {queue.name: queue for queue in found}


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
    name = f"queue {properties['QueueName']}"
    if result.code in _NO_QUEUE_CODES:
        yield Check(name, CheckStatus.FAIL, "it is not there", "a queue", deploy_command)
        return
    if result.response is None:
        yield result.unexpected_check(name)
        return
    found = result.response["Attributes"]
    for attribute, verb in _DURATIONS.items():
        if int(found.get(attribute, 0)) != properties[attribute]:
            detail = f"it {verb} for {found.get(attribute)} s"
            yield Check(
                name, CheckStatus.WARN, detail, f"{properties[attribute]} s", deploy_command
            )
    if found.get("SqsManagedSseEnabled") == "false" and not found.get("KmsMasterKeyId"):
        yield Check(
            name,
            CheckStatus.WARN,
            "it is not encrypted",
            "encryption by SQS or KMS",
            deploy_command,
        )
    if "RedrivePolicy" in properties:
        yield from _redrive_problems(
            name, properties["RedrivePolicy"], found, queue_names, deploy_command
        )


def _redrive_problems(
    name: str,
    properties: Json,
    attributes: Mapping[str, str],
    queue_names: Mapping[str, str],
    deploy_command: str,
) -> Iterator[Check]:
    dead = queue_names[properties["deadLetterTargetArn"]["Fn::GetAtt"][0]]
    expected = f"{dead} after {properties['maxReceiveCount']} receives"
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    there = str(policy.get("deadLetterTargetArn", "")).rpartition(":")[2]
    if not there:
        yield Check(name, CheckStatus.FAIL, "it has no dead-letter queue", expected, deploy_command)
    elif (there, int(policy["maxReceiveCount"])) != (dead, properties["maxReceiveCount"]):
        detail = f"its dead letters go to {there} after {policy['maxReceiveCount']} receives"
        yield Check(name, CheckStatus.FAIL, detail, expected, deploy_command)


def check_task_queues(
    names: Names, queue_names: tuple[str, ...], queues: Mapping[str, InspectedQueue]
) -> Iterator[Check]:
    """A check for each queue of tasks: what is wrong with its lanes, else what it holds."""
    for name in queue_names:
        lanes = [queues[names.queue(name, priority)] for priority in Priority]
        graves = [queues[names.dead_letter_queue(name, priority)] for priority in Priority]
        problems = [problem for queue in (*lanes, *graves) for problem in queue.problems]
        yield from problems
        ready = sum(lane.count(_VISIBLE) for lane in lanes)
        hidden = sum(lane.count(_IN_FLIGHT, _DELAYED) for lane in lanes)
        dead = sum(grave.count(_VISIBLE, _IN_FLIGHT) for grave in graves)
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
    """Likewise for the queues by which consumers hear of events."""
    for name in consumers:
        queue = queues[names.consumer(name)]
        yield from queue.problems
        detail = f"{queue.count(_VISIBLE)} ready, {queue.count(_IN_FLIGHT, _DELAYED)} hidden"
        if not queue.problems:
            yield Check(f"events for {name}", CheckStatus.OK, detail)


def check_undelivered_queue(queue: InspectedQueue) -> Iterator[Check]:
    """Of where events end that nobody could take."""
    yield from queue.problems
    if count := queue.count(_VISIBLE, _IN_FLIGHT):
        detail = f"{count} could not be delivered"
        remedy = "look at the log of the function eventbridge-dlq-alert, which stores them"
        yield Check("undelivered events", CheckStatus.WARN, detail, remedy=remedy)
    elif not queue.problems:
        yield Check("undelivered events", CheckStatus.OK, "none")


def check_limits(queues: Mapping[str, InspectedQueue]) -> Check:
    """How near the installation is to what AWS allows."""
    fullest = max(queues.values(), key=lambda queue: queue.in_flight)
    detail = f"{fullest.in_flight:,} of {IN_FLIGHT_LIMIT:,} messages hidden in {fullest.name}"
    if fullest.in_flight < _WARNING_RATIO * IN_FLIGHT_LIMIT:
        return Check("limits", CheckStatus.OK, detail)
    remedy = "spread the work over more queues, or put less off for long: beyond it SQS is silent"
    return Check("limits", CheckStatus.WARN, detail, remedy=remedy)


async def check_bus(
    probe: Probe,
    names: Names,
    rules: list[Json],
    queues: Mapping[str, InspectedQueue],
    deploy_command: str,
) -> list[Check]:
    """The bus, each rule with its target, and what is done again and again."""
    name = f"bus {names.bus}"
    reply = await probe.call("events", "describe_event_bus", Name=names.bus)
    if reply.code == _NOT_FOUND_CODE:
        return [Check(name, CheckStatus.FAIL, "it is not there", "a bus", deploy_command)]
    if reply.response is None:
        return [reply.unexpected_check(name)]
    told = [rule for rule in rules if "EventPattern" in rule]
    timed = [rule for rule in rules if "ScheduleExpression" in rule]
    checks = await asyncio.gather(
        *(_check_rule(probe, names, rule, queues, deploy_command) for rule in told),
        *(_check_schedule(probe, rule, deploy_command) for rule in timed),
    )
    return [Check(name, CheckStatus.OK, "it is there"), *(one for some in checks for one in some)]


async def _check_rule(
    probe: Probe,
    names: Names,
    properties: Json,
    queues: Mapping[str, InspectedQueue],
    deploy_command: str,
) -> list[Check]:
    rule = properties["Name"]
    name = f"rule {rule}"
    reply, targets = await asyncio.gather(
        probe.call("events", "describe_rule", Name=rule, EventBusName=names.bus),
        probe.call("events", "list_targets_by_rule", Rule=rule, EventBusName=names.bus),
    )
    if reply.code == _NOT_FOUND_CODE:
        return [
            Check(
                name,
                CheckStatus.FAIL,
                "it is not there: its consumer hears nothing",
                None,
                deploy_command,
            )
        ]
    if reply.response is None:
        return [reply.unexpected_check(name)]
    problems = []
    if reply.response.get("State") != "ENABLED":
        detail = "it is switched off: its consumer hears nothing"
        problems.append(Check(name, CheckStatus.FAIL, detail, "ENABLED", deploy_command))
    pattern = json.loads(reply.response.get("EventPattern") or "{}")
    if _normalised(pattern) != _normalised(properties["EventPattern"]):
        expected = json.dumps(properties["EventPattern"])
        detail = f"it takes {json.dumps(pattern)}"
        problems.append(Check(name, CheckStatus.FAIL, detail, expected, deploy_command))
    if targets.response is None:
        problems.append(targets.unexpected_check(name))
    else:
        problems += _target_problems(
            name, names, rule, targets.response.get("Targets", []), queues, deploy_command
        )
    return problems or [Check(name, CheckStatus.OK, f"brings events to {rule}")]


async def _check_schedule(probe: Probe, properties: Json, deploy_command: str) -> list[Check]:
    name = f"schedule {properties['Name']}"
    reply = await probe.call("events", "describe_rule", Name=properties["Name"])
    expected = properties["ScheduleExpression"]
    if reply.code == _NOT_FOUND_CODE:
        return [Check(name, CheckStatus.FAIL, "it is not there", expected, deploy_command)]
    if reply.response is None:
        return [reply.unexpected_check(name)]
    found, state = reply.response.get("ScheduleExpression"), reply.response.get("State")
    if (found, state) != (expected, "ENABLED"):
        detail = f"it is {found}, {state}"
        return [Check(name, CheckStatus.FAIL, detail, f"{expected}, ENABLED", deploy_command)]
    return [Check(name, CheckStatus.OK, expected)]


def _normalised(pattern: Any) -> Any:
    """A pattern whose lists, which say "any of these", have one order."""
    if isinstance(pattern, dict):
        return {name: _normalised(value) for name, value in pattern.items()}
    return sorted(pattern, key=json.dumps) if isinstance(pattern, list) else pattern


def _target_problems(
    name: str,
    names: Names,
    queue: str,
    targets: list[Json],
    queues: Mapping[str, InspectedQueue],
    deploy_command: str,
) -> Iterator[Check]:
    # A rule is called as the queue that it feeds.
    arns = {target["Arn"]: target for target in targets}
    target = arns.get(queues[queue].arn)
    if target is None:
        to = ", ".join(arn.rpartition(":")[2] for arn in arns) or "nowhere"
        yield Check(name, CheckStatus.FAIL, f"it leads to {to}", queue, deploy_command)
        return
    undelivered = names.consumer("undelivered")
    dead = str(target.get("DeadLetterConfig", {}).get("Arn", "")).rpartition(":")[2]
    if dead != undelivered:
        detail = "what it cannot deliver is lost" if not dead else f"what it cannot deliver: {dead}"
        yield Check(name, CheckStatus.WARN, detail, undelivered, deploy_command)
