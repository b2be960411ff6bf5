"""Checks an installation on AWS: reads, compares with the templates, changes nothing.

The expected state comes from the templates that ``longshore aws deploy`` sends. Every call has a
timeout (see ``doctor_probe``), and a service that does not answer is not called again, so the
doctor ends within half a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Final

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.deploy import doctor_checks
from longshore.adapters.aws.deploy.doctor_probe import Probe, ProbeResult, identity_check
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import CONSUMERS, INFRASTRUCTURE, templates
from longshore.adapters.aws.names import UNDELIVERED, Names
from longshore.core.inspection import Check, CheckStatus
from longshore.ports.clock import Clock

Json = dict[str, Any]

SIGNATURE_SKEW_LIMIT: Final = timedelta(minutes=5)
"""AWS refuses requests that are signed with a larger clock skew."""

_HALF_A_SECOND = timedelta(milliseconds=500)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedInstallation:
    """The expected state of an installation."""

    names: Names
    queues: tuple[str, ...]
    dispatcher_events: tuple[str, ...]  # the types that the dispatcher receives
    skew_margin: timedelta

    @property
    def deploy_command(self) -> str:
        """The command that creates the expected state."""
        return f"`longshore aws deploy --stage {self.names.stage}`"


async def diagnose(aws: AwsClient, expected: ExpectedInstallation, clock: Clock) -> list[Check]:
    """All checks of an installation."""
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
    reachable = {reply.service for reply in first if reply.reachable}
    return checks + await _check_resources(probe, expected, account, reachable)


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
    if not timed:
        return
    nearest = min(timed, key=lambda reply: reply.duration)
    if nearest.server_time is None or nearest.local_time is None:
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
        within = (
            f"within {(nearest.duration / 2 + 2 * _HALF_A_SECOND).total_seconds():.1f} s of AWS's"
        )
        yield Check("clock", CheckStatus.OK, within)


async def _check_resources(
    probe: Probe, expected: ExpectedInstallation, account: str, reachable: set[str]
) -> list[Check]:
    names, deploy = expected.names, expected.deploy_command
    config = StageConfig(stage=names.stage, queues=expected.queues)
    stacks = templates(config, dispatcher_events=expected.dispatcher_events)
    resources: dict[str, Json] = stacks[INFRASTRUCTURE]["Resources"]
    schemas = [
        resource["Properties"]
        for resource in resources.values()
        if resource["Type"] == "AWS::DynamoDB::Table"
    ]
    rules = [
        resource["Properties"]
        for stack in ("event", "dispatcher")
        for resource in stacks[stack]["Resources"].values()
        if resource["Type"] == "AWS::Events::Rule"
    ]
    tables, bucket, queues = await asyncio.gather(
        doctor_checks.check_tables(probe, schemas if "dynamodb" in reachable else [], deploy),
        doctor_checks.check_bucket(probe, names, account, deploy),
        doctor_checks.inspect_queues(probe, resources if "sqs" in reachable else {}, deploy),
    )
    checks = [*tables, *(bucket if "s3" in reachable else [])]
    if not queues:
        return checks
    if "events" in reachable:
        checks += await doctor_checks.check_bus(probe, names, rules, queues, deploy)
    checks += doctor_checks.check_task_queues(names, expected.queues, queues)
    checks += doctor_checks.check_consumer_queues(names, list(CONSUMERS), queues)
    checks += doctor_checks.check_undelivered_queue(queues[names.consumer(UNDELIVERED)])
    return [*checks, doctor_checks.check_limits(queues)]
