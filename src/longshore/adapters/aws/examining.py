"""Examines an installation on AWS: reads, compares with what the stacks make, changes nothing.

What is expected is read from the very templates that ``longshore deploy`` sends. Every question
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

from longshore.adapters.aws import examining_queues, examining_stores
from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.examining_calls import Asking, Reply, identity_of
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.stacks.config import StageConfig
from longshore.adapters.aws.stacks.dispatcher import dispatcher
from longshore.adapters.aws.stacks.event import event
from longshore.adapters.aws.stacks.infrastructure import CONSUMERS, UNDELIVERED, infrastructure
from longshore.ports.clock import Clock
from longshore.ports.inspection import Check, Mark

Json = dict[str, Any]

REFUSED_BEYOND: Final = timedelta(minutes=5)
"""By so much a clock may differ before AWS refuses what it has signed."""

_HALF_A_SECOND = timedelta(milliseconds=500)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is expected of an installation."""

    names: Names
    queues: tuple[str, ...]
    wakes: tuple[str, ...]  # types of the events that the dispatcher hears of
    skew_margin: timedelta

    @property
    def deploy(self) -> str:
        """How it becomes as it is expected."""
        return f"`longshore deploy --stage {self.names.stage}`"


async def examine(aws: Aws, wanted: Wanted, clock: Clock) -> list[Check]:
    """Everything that was looked at."""
    names, asking = wanted.names, Asking(aws, clock)
    who, *first = await asyncio.gather(
        asking.ask("sts", "get_caller_identity"),
        asking.ask("dynamodb", "describe_table", TableName=names.ledger),
        asking.ask("sqs", "get_queue_url", QueueName=names.consumer(UNDELIVERED)),
        asking.ask("s3", "head_bucket", Bucket=names.bucket or names.bus),
        asking.ask("events", "describe_event_bus", Name=names.bus),
    )
    library = f"aiobotocore {version('aiobotocore')}, botocore {version('botocore')}"
    checks = [Check("aws library", Mark.OK, library), _identity(who, first)]
    checks += [*_clock([who, *first], wanted.skew_margin)]
    if any(reply.keyless for reply in (who, *first)) or checks[1].mark is Mark.FAIL:
        return checks
    checks += [_service(reply) for reply in first]
    account = str((who.answer or {}).get("Account", "ACCOUNT"))
    heard = {reply.service for reply in first if reply.heard}
    return checks + await _details(asking, wanted, account, heard)


def _identity(who: Reply, others: Sequence[Reply]) -> Check:
    """Who we are; if STS does not say, whether the others let us in."""
    refusing = next((reply for reply in others if reply.turned_away), None)
    return identity_of(refusing if refusing and not who.turned_away and not who.answer else who)


def _service(reply: Reply) -> Check:
    name = f"reach {reply.service}"
    if not reply.heard:
        detail = f"{reply.silence} from {reply.endpoint}"
        return Check(name, Mark.FAIL, detail, remedy=reply.remedy)
    return Check(name, Mark.OK, f"{reply.endpoint}, {reply.took // _MILLISECOND} ms")


def _clock(replies: Sequence[Reply], margin: timedelta) -> Iterator[Check]:
    """Our clock against AWS's, as far as whole seconds and the way there can tell."""
    heard = [reply for reply in replies if reply.told_at is not None]
    if not heard:
        return
    nearest = min(heard, key=lambda reply: reply.took)
    if nearest.told_at is None or nearest.heard_at is None:
        return
    skew = nearest.heard_at - (nearest.told_at + _HALF_A_SECOND)
    off = max(abs(skew) - _HALF_A_SECOND - nearest.took / 2, timedelta(0))
    side = "ahead of" if skew > timedelta(0) else "behind"
    detail = f"{abs(skew).total_seconds():.1f} s {side} AWS"
    remedy = "set the machine's clock: chrony or systemd-timesyncd keep it right"
    if off > REFUSED_BEYOND:
        allowed = f"less than {REFUSED_BEYOND.seconds} s: AWS refuses what is signed with it"
        yield Check("clock", Mark.FAIL, detail, allowed, remedy)
    elif off > margin:
        allowed = f"within worker.skew_margin, {margin.total_seconds():g} s"
        yield Check("clock", Mark.WARN, detail, allowed, remedy)
    else:
        within = f"within {(nearest.took / 2 + 2 * _HALF_A_SECOND).total_seconds():.1f} s of AWS's"
        yield Check("clock", Mark.OK, within)


async def _details(asking: Asking, wanted: Wanted, account: str, heard: set[str]) -> list[Check]:
    names, deploy = wanted.names, wanted.deploy
    config = StageConfig(stage=names.stage, queues=wanted.queues)
    resources: dict[str, Json] = infrastructure(config)["Resources"]
    shapes = [
        one["Properties"] for one in resources.values() if one["Type"] == "AWS::DynamoDB::Table"
    ]
    rules = [
        one["Properties"]
        for template in (event(config), dispatcher(config, wanted.wakes))
        for one in template["Resources"].values()
        if one["Type"] == "AWS::Events::Rule"
    ]
    tables, bucket, queues = await asyncio.gather(
        examining_stores.tables(asking, shapes if "dynamodb" in heard else [], deploy),
        examining_stores.bucket(asking, names, account, deploy),
        examining_queues.queues(asking, resources if "sqs" in heard else {}, deploy),
    )
    checks = [*tables, *(bucket if "s3" in heard else [])]
    if not queues:
        return checks
    if "events" in heard:
        checks += await examining_queues.bus(asking, names, rules, queues, deploy)
    checks += examining_queues.of_tasks(names, wanted.queues, queues)
    checks += examining_queues.of_consumers(names, list(CONSUMERS), queues)
    checks += examining_queues.of_undelivered(queues[names.consumer(UNDELIVERED)])
    return [*checks, examining_queues.of_limits(queues)]
