"""Examines an installation on AWS: reads, compares with what the stacks make, changes nothing.

What is expected is read from the very templates that ``longshore aws deploy`` sends. Every question
waits a few seconds at most (see ``examining_calls``), and what is asked of a service that is silent
is not asked: so this ends within half a minute, also where nothing answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Final

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.deploy import doctor_queues, doctor_stores
from longshore.adapters.aws.deploy.doctor_probe import Probe, ProbeResult, identity_check
from longshore.adapters.aws.deploy.stacks.dispatcher import dispatcher_template
from longshore.adapters.aws.deploy.stacks.event import event_template
from longshore.adapters.aws.deploy.stacks.infrastructure import (
    CONSUMERS,
    UNDELIVERED,
    infrastructure_template,
)
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.names import Names
from longshore.core.inspection import Check, CheckStatus
from longshore.ports.clock import Clock

Json = dict[str, Any]

SIGNATURE_SKEW_LIMIT: Final = timedelta(minutes=5)
"""By so much a clock may differ before AWS refuses what it has signed."""

_HALF_A_SECOND = timedelta(milliseconds=500)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedInstallation:
    """What is expected of an installation."""

    names: Names
    queues: tuple[str, ...]
    dispatcher_events: tuple[str, ...]  # types of the events that the dispatcher hears of
    skew_margin: timedelta

    @property
    def deploy_command(self) -> str:
        """How it becomes as it is expected."""
        return f"`longshore aws deploy --stage {self.names.stage}`"


async def diagnose(aws: AwsClient, expected: ExpectedInstallation, clock: Clock) -> list[Check]:
    """Everything that was looked at."""
    names, probe = expected.names, Probe(aws, clock)
    who, *first = await asyncio.gather(
        probe.call("sts", "get_caller_identity"),
        probe.call("dynamodb", "describe_table", TableName=names.ledger),
        probe.call("sqs", "get_queue_url", QueueName=names.consumer(UNDELIVERED)),
        probe.call("s3", "head_bucket", Bucket=names.bucket or names.bus),
        probe.call("events", "describe_event_bus", Name=names.bus),
    )
    library = f"aiobotocore {version('aiobotocore')}, botocore {version('botocore')}"
    checks = [Check("aws library", CheckStatus.OK, library), _check_identity(who, first)]
    checks += [*_check_clock([who, *first], expected.skew_margin)]
    if any(reply.unconfigured for reply in (who, *first)) or checks[1].status is CheckStatus.FAIL:
        return checks
    checks += [_check_service(reply) for reply in first]
    account = str((who.response or {}).get("Account", "ACCOUNT"))
    heard = {reply.service for reply in first if reply.reachable}
    return checks + await _check_resources(probe, expected, account, heard)


def _check_identity(caller: ProbeResult, others: Sequence[ProbeResult]) -> Check:
    """Who we are; if STS does not say, whether the others let us in."""
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
    """Our clock against AWS's, as far as whole seconds and the way there can tell."""
    heard = [reply for reply in results if reply.server_time is not None]
    if not heard:
        return
    nearest = min(heard, key=lambda reply: reply.duration)
    if nearest.server_time is None or nearest.local_time is None:
        return
    skew = nearest.local_time - (nearest.server_time + _HALF_A_SECOND)
    off = max(abs(skew) - _HALF_A_SECOND - nearest.duration / 2, timedelta(0))
    side = "ahead of" if skew > timedelta(0) else "behind"
    detail = f"{abs(skew).total_seconds():.1f} s {side} AWS"
    remedy = "set the machine's clock: chrony or systemd-timesyncd keep it right"
    if off > SIGNATURE_SKEW_LIMIT:
        allowed = f"less than {SIGNATURE_SKEW_LIMIT.seconds} s: AWS refuses what is signed with it"
        yield Check("clock", CheckStatus.FAIL, detail, allowed, remedy)
    elif off > margin:
        allowed = f"within worker.skew_margin, {margin.total_seconds():g} s"
        yield Check("clock", CheckStatus.WARN, detail, allowed, remedy)
    else:
        within = (
            f"within {(nearest.duration / 2 + 2 * _HALF_A_SECOND).total_seconds():.1f} s of AWS's"
        )
        yield Check("clock", CheckStatus.OK, within)


async def _check_resources(
    probe: Probe, expected: ExpectedInstallation, account: str, reachable: set[str]
) -> list[Check]:
    names, deploy = expected.names, expected.deploy_command
    config = StageConfig(stage=names.stage, queues=expected.queues)
    resources: dict[str, Json] = infrastructure_template(config)["Resources"]
    shapes = [
        one["Properties"] for one in resources.values() if one["Type"] == "AWS::DynamoDB::Table"
    ]
    rules = [
        one["Properties"]
        for template in (
            event_template(config),
            dispatcher_template(config, expected.dispatcher_events),
        )
        for one in template["Resources"].values()
        if one["Type"] == "AWS::Events::Rule"
    ]
    tables, bucket, queues = await asyncio.gather(
        doctor_stores.check_tables(probe, shapes if "dynamodb" in reachable else [], deploy),
        doctor_stores.check_bucket(probe, names, account, deploy),
        doctor_queues.inspect_queues(probe, resources if "sqs" in reachable else {}, deploy),
    )
    checks = [*tables, *(bucket if "s3" in reachable else [])]
    if not queues:
        return checks
    if "events" in reachable:
        checks += await doctor_queues.check_bus(probe, names, rules, queues, deploy)
    checks += doctor_queues.check_task_queues(names, expected.queues, queues)
    checks += doctor_queues.check_consumer_queues(names, list(CONSUMERS), queues)
    checks += doctor_queues.check_undelivered_queue(queues[names.consumer(UNDELIVERED)])
    return [*checks, doctor_queues.check_limits(queues)]
