"""A history in DynamoDB's tables, read once and then handed out again as often as it is forged."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from longshore.adapters.aws.blobs import S3BlobStore
from longshore.adapters.aws.client import AwsClient, CallRefused
from longshore.adapters.aws.events.event_log import DynamoEventLog
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.adapters.aws.output_log import DynamoOutputLog
from longshore.audit import dynamo_reader
from longshore.audit.audit import Violation, audit
from longshore.audit.store_snapshot import StoreSnapshot
from longshore.core.events.event import EventContext
from longshore.core.events.types import MessageRejected
from longshore.core.tasks.changes import Effect
from longshore.ports.backend import Backend
from longshore.ports.events import EventBus
from longshore.ports.ledger import AnyChange
from longshore.testing.clock import FakeClock
from longshore.testing.memory.backend import memory_backend
from tests.audit.workload import JOBS, JobWorkload, run_open_jobs
from tests.aws.audit_names import audit_names_in
from tests.aws.backends import installation_names
from tests.aws.full_backend import LoopAwareAws
from tests.aws.stand_in import stand_in
from tests.unit.services.harness import APP, TENANT, ServiceHarness, scenario

Item = dict[str, dict[str, Any]]
Forge = Callable[[str, list[Item]], list[Item]]  # the table, and what is found there


class Body:
    """What S3 answers a read with."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aenter__(self) -> "Body":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self) -> bytes:
        return self._data


class RecordedInstallation(NamedTuple):
    """An installation as it was read once, to be read again and again."""

    names: dynamo_reader.InstallationNames
    answers: dict[str, Any]
    settled: StoreSnapshot
    unsettled: StoreSnapshot

    async def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        answer = self.answers[_request_key(service, operation, arguments)]
        if isinstance(answer, Exception):
            raise answer
        return {"Body": Body(answer)} if isinstance(answer, bytes) else deepcopy(answer)

    def audit_forged(self, forge: Forge) -> list[Violation]:
        async def call(service: str, operation: str, **arguments: Any) -> dict[str, Any]:
            answer = await self.call(service, operation, **arguments)
            if "Items" in answer:
                answer["Items"] = forge(arguments["TableName"].rpartition("-")[2], answer["Items"])
            return answer

        return audit(
            asyncio.run(
                dynamo_reader.read_snapshot(
                    call, self.names, taken_at_us=self.unsettled.taken_at_us, pauses=()
                )
            )
        )


def _request_key(service: str, operation: str, arguments: dict[str, Any]) -> str:
    return json.dumps([service, operation, arguments], sort_keys=True, default=str)


class PublishingLedger:
    """A ledger whose events are stored and published at once, as if relays took no time."""

    def __init__(self, ledger: DynamoLedger, log: DynamoEventLog, bus: EventBus) -> None:
        self._ledger = ledger
        self._log = log
        self._bus = bus

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        effects = await self._ledger.commit(*changes)
        for change in changes:
            await self._log.save(change.events)
            await self._bus.publish(change.events)
        return effects


@asynccontextmanager
async def open_dynamo_backend(
    folder: Path, clock: FakeClock
) -> AsyncIterator[tuple[AwsClient, Backend]]:
    """All that the auditor reads is on AWS; the rest, which it does not, is in memory."""
    aws = LoopAwareAws(stand_in().client_options, clock)
    try:
        names = await installation_names(aws, folder, (), ())
        memory = memory_backend(clock)
        log = DynamoEventLog(aws, names, clock)
        yield (
            aws,
            replace(
                memory,
                ledger=PublishingLedger(DynamoLedger(aws, names, clock), log, memory.bus),
                events=log,
                output=DynamoOutputLog(aws, names, clock),
                blobs=S3BlobStore(aws, names),
            ),
        )
    finally:
        await aws.close()


async def run_some_jobs(harness: ServiceHarness) -> None:
    """Of all that is played elsewhere, what lies differently here; calls take their time."""
    for request_id in ("pipeline", "failing", "late"):
        await JOBS[request_id](JobWorkload(harness, request_id))
    await harness.backend.events.append(
        tenant=TENANT,
        app=APP,
        entity_id="default",
        body=MessageRejected(queue="default", message_id="1", reason="not JSON"),
        context=EventContext(origin="worker"),
        now=harness.clock.now(),
    )


def record_installation(folder: Path) -> RecordedInstallation:
    """Run a workload on its own tables, and read them."""
    recordings: list[RecordedInstallation] = []

    @scenario
    async def run_workload() -> None:
        clock = FakeClock()
        async with open_dynamo_backend(folder, clock) as (aws, backend):
            names, harness = audit_names_in(folder), ServiceHarness(backend)
            answers: dict[str, Any] = {}

            async def call(service: str, operation: str, **arguments: Any) -> dict[str, Any]:
                request = _request_key(service, operation, arguments)
                try:
                    answer = await aws.call(service, operation, **arguments)
                except CallRefused as refused:
                    answers[request] = refused
                    raise
                answers[request] = answer
                if "Body" in answer:
                    async with answer["Body"] as body:
                        answers[request] = await body.read()
                    return {"Body": Body(answers[request])}
                return answer

            async def read(*, settled: bool) -> StoreSnapshot:
                now_us = int(clock.now().timestamp() * 1_000_000)
                answers.clear()
                return await dynamo_reader.read_snapshot(
                    call, names, settled=settled, taken_at_us=now_us, pauses=()
                )

            await run_some_jobs(harness)
            at_rest = await read(settled=True)
            await run_open_jobs(harness)
            at_work = await read(settled=False)
            recordings.append(RecordedInstallation(names, answers, at_rest, at_work))

    run_workload()
    return recordings[0]
