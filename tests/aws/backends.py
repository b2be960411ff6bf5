"""Backends on the stand-in: the requested ports use AWS, the others are in memory."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.events.event_bus import DETAIL_TYPE, EventBridgeBus
from longshore.adapters.aws.events.event_log import DynamoEventLog
from longshore.adapters.aws.names import Names
from longshore.core.events.event import Event
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.pages import Page
from longshore.core.tasks.states import Priority
from longshore.ports.backend import Backend
from longshore.ports.events import Delivery
from longshore.testing.clock import FakeClock
from longshore.testing.memory.backend import memory_backend
from tests.aws.event_pump import EventPump
from tests.aws.stand_in import ACCOUNT, REGION, stand_in
from tests.aws.table_schemas import table_schemas

QUEUES = ("a", "agents", "b", "default", "mail", "never", "other")
"""The queues that contracts speak of; those of the queue's own contract name two more."""


class AwsContract:
    """Parameters of the contract suites for backends that call a server."""

    rounds = 10
    limit_s = 120


PortFactory = Callable[[AwsClient, Names, FakeClock], Any]


@asynccontextmanager
async def on_aws(
    tmp_path: Path,
    clock: FakeClock,
    *,
    queues: tuple[str, ...] = (),
    consumers: tuple[str, ...] = (),
    on_open: Callable[[AwsClient, Names], None] = lambda *_: None,
    **ports: PortFactory,
) -> AsyncIterator[Backend]:
    """A backend whose ``ports`` are built for the stand-in; ``on_open`` gets its client first.

    With a ledger and an event log, what is committed is brought to the log (and the bus).

    Opened again with the same folder, it is another process on the same tables. A port that is an
    async context manager is entered, and left at the end.
    """
    server = stand_in()
    async with AsyncExitStack() as stack:
        stack.enter_context(server.follow_clock(clock))
        aws = AwsClient(server.client_options)
        stack.push_async_callback(aws.close)
        names = await installation_names(aws, tmp_path, queues, consumers)
        on_open(aws, names)
        built = {name: make(aws, names, clock) for name, make in ports.items()}
        for port in built.values():
            if hasattr(port, "close"):
                stack.push_async_callback(port.close)
        if "ledger" in built and "events" in built:
            pump = EventPump(aws, names, built["events"], built.get("bus"))
            await stack.enter_async_context(pump)
            built["events"] = CaughtUpEventLog(built["events"], pump)
            if "bus" in built:
                built["bus"] = CaughtUpEventBus(built["bus"], pump)
        yield replace(memory_backend(clock), **built)


class CaughtUpEventLog:
    """An event log that has caught up with the ledger whenever it is queried."""

    def __init__(self, log: DynamoEventLog, pump: EventPump) -> None:
        self._log = log
        self._pump = pump

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def catch_up(self) -> None:
        """Wait until all committed events are in the log."""
        await self._pump.caught_up()

    async def query(self, *args: Any, **kwargs: Any) -> Page[Event]:
        await self.catch_up()
        return await self._log.query(*args, **kwargs)


class CaughtUpEventBus:
    """A bus that has every committed event whenever it is read without waiting."""

    def __init__(self, bus: EventBridgeBus, pump: EventPump) -> None:
        self._bus = bus
        self._pump = pump

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def receive(self, *args: Any, **kwargs: Any) -> Delivery | None:
        if not kwargs["wait"]:
            await self._pump.caught_up()
        return await self._bus.receive(*args, **kwargs)


async def installation_names(
    aws: AwsClient,
    tmp_path: Path,
    queues: tuple[str, ...],
    consumers: tuple[str, ...],
    only: Mapping[str, Sequence[str]] | None = None,
) -> Names:
    """The names of this folder's installation, which the first call creates."""
    stage = tmp_path / "stage"
    exists = stage.exists()
    if not exists:
        tmp_path.mkdir(parents=True, exist_ok=True)
        stage.write_text(stand_in().new_stage())
    name = stage.read_text()
    names = Names(stage=name, bucket=f"longshore-{name}-blobs")
    if not exists:
        await create_resources(aws, names, queues, consumers, only)
    return names


async def create_resources(
    aws: AwsClient,
    names: Names,
    queues: tuple[str, ...],
    consumers: tuple[str, ...] = (),
    only: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Make the tables, the bucket, the queues and the bus, as the stacks do.

    Args:
        only: The types of events that each consumer receives; a consumer not listed receives all.
    """
    for shape in table_schemas(names):
        await aws.call("dynamodb", "create_table", **shape)
    await aws.call(
        "s3",
        "create_bucket",
        Bucket=names.bucket,
        CreateBucketConfiguration={"LocationConstraint": REGION},
    )
    for queue in queues:
        for priority in Priority:
            await create_lane(aws, names, queue, priority)
    if consumers:
        await aws.call("events", "create_event_bus", Name=names.bus)
    for consumer in consumers:
        arn = await _create_queue(aws, names.consumer(consumer), {})
        rule = {"Name": names.consumer(consumer), "EventBusName": names.bus}
        pattern: dict[str, Any] = {"detail-type": [DETAIL_TYPE]}
        if only and consumer in only:
            pattern["detail"] = {"eventType": only[consumer]}
        await aws.call("events", "put_rule", EventPattern=json.dumps(pattern), **rule)
        await aws.call(
            "events",
            "put_targets",
            Rule=rule["Name"],
            EventBusName=names.bus,
            Targets=[{"Id": consumer, "Arn": arn}],
        )


async def create_lane(aws: AwsClient, names: Names, queue: str, priority: Priority) -> None:
    """Make the queue of one name and priority, with the one for its dead letters."""
    dead = await _create_queue(aws, names.dead_letter_queue(queue, priority), {})
    policy = f'{{"deadLetterTargetArn":"{dead}","maxReceiveCount":{RECEIVE_LIMIT}}}'
    await _create_queue(aws, names.queue(queue, priority), {"RedrivePolicy": policy})


async def _create_queue(aws: AwsClient, name: str, attributes: dict[str, str]) -> str:
    await aws.call("sqs", "create_queue", QueueName=name, Attributes=attributes)
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
