"""Queues and the bus, held against what the stacks make."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from longshore.adapters.aws.examining_calls import Asking, Reply
from longshore.adapters.aws.names import Names
from longshore.core.states import Priority
from longshore.ports.inspection import Check, Mark

Json = dict[str, Any]

IN_FLIGHT_LIMIT = 120_000
"""Messages that SQS hides in one queue; with more it hands out nothing."""

_NEAR = 0.8
_ABSENT = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"}
_NO_RULE = "ResourceNotFoundException"
_IN_FLIGHT = "ApproximateNumberOfMessagesNotVisible"
_DELAYED = "ApproximateNumberOfMessagesDelayed"
_VISIBLE = "ApproximateNumberOfMessages"
_TIMES = {"VisibilityTimeout": "hides messages", "MessageRetentionPeriod": "keeps messages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One queue of SQS as it was found."""

    name: str
    reply: Reply
    problems: tuple[Check, ...]

    @property
    def arn(self) -> str:
        """Its whole name; empty if it is not there."""
        return str(self._attributes.get("QueueArn", ""))

    @property
    def _attributes(self) -> Mapping[str, str]:
        found: Mapping[str, str] = (self.reply.answer or {}).get("Attributes", {})
        return found

    def count(self, *attributes: str) -> int:
        """How many messages it holds, approximately."""
        return sum(int(self._attributes.get(each, 0)) for each in attributes)

    @property
    def in_flight(self) -> int:
        """How many are hidden."""
        return self.count(_IN_FLIGHT)


async def queues(asking: Asking, resources: Mapping[str, Json], deploy: str) -> dict[str, Queue]:
    """Every queue of the template, by its name."""
    expected = {
        key: one["Properties"] for key, one in resources.items() if one["Type"] == "AWS::SQS::Queue"
    }
    named = {key: properties["QueueName"] for key, properties in expected.items()}
    found = await asyncio.gather(
        *(_queue(asking, properties, named, deploy) for properties in expected.values())
    )
    return {queue.name: queue for queue in found}


async def _queue(asking: Asking, wanted: Json, named: Mapping[str, str], deploy: str) -> Queue:
    name = wanted["QueueName"]
    reply = await asking.ask("sqs", "get_queue_url", QueueName=name)
    if reply.answer is not None:
        url = reply.answer["QueueUrl"]
        reply = await asking.ask(
            "sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=["All"]
        )
    return Queue(name=name, reply=reply, problems=tuple(_of_queue(wanted, reply, named, deploy)))


def _of_queue(wanted: Json, reply: Reply, named: Mapping[str, str], deploy: str) -> Iterator[Check]:
    name = f"queue {wanted['QueueName']}"
    if reply.code in _ABSENT:
        yield Check(name, Mark.FAIL, "it is not there", "a queue", deploy)
        return
    if reply.answer is None:
        yield reply.unexpected(name)
        return
    found = reply.answer["Attributes"]
    for attribute, verb in _TIMES.items():
        if int(found.get(attribute, 0)) != wanted[attribute]:
            detail = f"it {verb} for {found.get(attribute)} s"
            yield Check(name, Mark.WARN, detail, f"{wanted[attribute]} s", deploy)
    if found.get("SqsManagedSseEnabled") == "false" and not found.get("KmsMasterKeyId"):
        yield Check(name, Mark.WARN, "it is not encrypted", "encryption by SQS or KMS", deploy)
    if "RedrivePolicy" in wanted:
        yield from _of_redrive(name, wanted["RedrivePolicy"], found, named, deploy)


def _of_redrive(
    name: str, wanted: Json, found: Mapping[str, str], named: Mapping[str, str], deploy: str
) -> Iterator[Check]:
    dead = named[wanted["deadLetterTargetArn"]["Fn::GetAtt"][0]]
    expected = f"{dead} after {wanted['maxReceiveCount']} receives"
    policy = json.loads(found.get("RedrivePolicy") or "{}")
    there = str(policy.get("deadLetterTargetArn", "")).rpartition(":")[2]
    if not there:
        yield Check(name, Mark.FAIL, "it has no dead-letter queue", expected, deploy)
    elif (there, int(policy["maxReceiveCount"])) != (dead, wanted["maxReceiveCount"]):
        detail = f"its dead letters go to {there} after {policy['maxReceiveCount']} receives"
        yield Check(name, Mark.FAIL, detail, expected, deploy)


def of_tasks(names: Names, wanted: tuple[str, ...], found: Mapping[str, Queue]) -> Iterator[Check]:
    """A check for each queue of tasks: what is wrong with its lanes, else what it holds."""
    for name in wanted:
        lanes = [found[names.queue(name, priority)] for priority in Priority]
        graves = [found[names.dead(name, priority)] for priority in Priority]
        problems = [problem for queue in (*lanes, *graves) for problem in queue.problems]
        yield from problems
        ready = sum(lane.count(_VISIBLE) for lane in lanes)
        hidden = sum(lane.count(_IN_FLIGHT, _DELAYED) for lane in lanes)
        dead = sum(grave.count(_VISIBLE, _IN_FLIGHT) for grave in graves)
        detail = f"{ready} ready, {hidden} hidden, {dead} dead"
        if dead:
            yield Check(f"queue {name}", Mark.WARN, detail, remedy="see `longshore dead list`")
        elif not problems:
            yield Check(f"queue {name}", Mark.OK, detail)


def of_consumers(names: Names, consumers: list[str], found: Mapping[str, Queue]) -> Iterator[Check]:
    """Likewise for the queues by which consumers hear of events."""
    for name in consumers:
        queue = found[names.consumer(name)]
        yield from queue.problems
        detail = f"{queue.count(_VISIBLE)} ready, {queue.count(_IN_FLIGHT, _DELAYED)} hidden"
        if not queue.problems:
            yield Check(f"events for {name}", Mark.OK, detail)


def of_undelivered(queue: Queue) -> Iterator[Check]:
    """Of where events end that nobody could take."""
    yield from queue.problems
    if count := queue.count(_VISIBLE, _IN_FLIGHT):
        detail = f"{count} could not be delivered"
        remedy = "look at the log of the function eventbridge-dlq-alert, which stores them"
        yield Check("undelivered events", Mark.WARN, detail, remedy=remedy)
    elif not queue.problems:
        yield Check("undelivered events", Mark.OK, "none")


def of_limits(found: Mapping[str, Queue]) -> Check:
    """How near the installation is to what AWS allows."""
    fullest = max(found.values(), key=lambda queue: queue.in_flight)
    detail = f"{fullest.in_flight:,} of {IN_FLIGHT_LIMIT:,} messages hidden in {fullest.name}"
    if fullest.in_flight < _NEAR * IN_FLIGHT_LIMIT:
        return Check("limits", Mark.OK, detail)
    remedy = "spread the work over more queues, or put less off for long: beyond it SQS is silent"
    return Check("limits", Mark.WARN, detail, remedy=remedy)


async def bus(
    asking: Asking, names: Names, rules: list[Json], found: Mapping[str, Queue], deploy: str
) -> list[Check]:
    """The bus, each rule with its target, and what is done again and again."""
    name = f"bus {names.bus}"
    reply = await asking.ask("events", "describe_event_bus", Name=names.bus)
    if reply.code == _NO_RULE:
        return [Check(name, Mark.FAIL, "it is not there", "a bus", deploy)]
    if reply.answer is None:
        return [reply.unexpected(name)]
    told = [rule for rule in rules if "EventPattern" in rule]
    timed = [rule for rule in rules if "ScheduleExpression" in rule]
    checks = await asyncio.gather(
        *(_rule(asking, names, rule, found, deploy) for rule in told),
        *(_schedule(asking, rule, deploy) for rule in timed),
    )
    return [Check(name, Mark.OK, "it is there"), *(one for some in checks for one in some)]


async def _rule(
    asking: Asking, names: Names, wanted: Json, found: Mapping[str, Queue], deploy: str
) -> list[Check]:
    rule = wanted["Name"]
    name = f"rule {rule}"
    reply, targets = await asyncio.gather(
        asking.ask("events", "describe_rule", Name=rule, EventBusName=names.bus),
        asking.ask("events", "list_targets_by_rule", Rule=rule, EventBusName=names.bus),
    )
    if reply.code == _NO_RULE:
        return [Check(name, Mark.FAIL, "it is not there: its consumer hears nothing", None, deploy)]
    if reply.answer is None:
        return [reply.unexpected(name)]
    problems = []
    if reply.answer.get("State") != "ENABLED":
        detail = "it is switched off: its consumer hears nothing"
        problems.append(Check(name, Mark.FAIL, detail, "ENABLED", deploy))
    pattern = json.loads(reply.answer.get("EventPattern") or "{}")
    if _in_order(pattern) != _in_order(wanted["EventPattern"]):
        expected = json.dumps(wanted["EventPattern"])
        detail = f"it takes {json.dumps(pattern)}"
        problems.append(Check(name, Mark.FAIL, detail, expected, deploy))
    if targets.answer is None:
        problems.append(targets.unexpected(name))
    else:
        problems += _of_targets(name, names, rule, targets.answer.get("Targets", []), found, deploy)
    return problems or [Check(name, Mark.OK, f"brings events to {rule}")]


async def _schedule(asking: Asking, wanted: Json, deploy: str) -> list[Check]:
    name = f"schedule {wanted['Name']}"
    reply = await asking.ask("events", "describe_rule", Name=wanted["Name"])
    expected = wanted["ScheduleExpression"]
    if reply.code == _NO_RULE:
        return [Check(name, Mark.FAIL, "it is not there", expected, deploy)]
    if reply.answer is None:
        return [reply.unexpected(name)]
    found, state = reply.answer.get("ScheduleExpression"), reply.answer.get("State")
    if (found, state) != (expected, "ENABLED"):
        detail = f"it is {found}, {state}"
        return [Check(name, Mark.FAIL, detail, f"{expected}, ENABLED", deploy)]
    return [Check(name, Mark.OK, expected)]


def _in_order(pattern: Any) -> Any:
    """A pattern whose lists, which say "any of these", have one order."""
    if isinstance(pattern, dict):
        return {name: _in_order(value) for name, value in pattern.items()}
    return sorted(pattern, key=json.dumps) if isinstance(pattern, list) else pattern


def _of_targets(
    name: str,
    names: Names,
    queue: str,
    targets: list[Json],
    found: Mapping[str, Queue],
    deploy: str,
) -> Iterator[Check]:
    # A rule is called as the queue that it feeds.
    arns = {target["Arn"]: target for target in targets}
    target = arns.get(found[queue].arn)
    if target is None:
        to = ", ".join(arn.rpartition(":")[2] for arn in arns) or "nowhere"
        yield Check(name, Mark.FAIL, f"it leads to {to}", queue, deploy)
        return
    undelivered = names.consumer("undelivered")
    dead = str(target.get("DeadLetterConfig", {}).get("Arn", "")).rpartition(":")[2]
    if dead != undelivered:
        detail = "what it cannot deliver is lost" if not dead else f"what it cannot deliver: {dead}"
        yield Check(name, Mark.WARN, detail, undelivered, deploy)
