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
from longshore.adapters.aws.calls import Aws, Refused
from longshore.adapters.aws.events import DynamoEventLog
from longshore.adapters.aws.ledger import DynamoLedger
from longshore.adapters.aws.output import DynamoOutputLog
from longshore.adapters.memory.backend import memory_backend
from longshore.core.changes import Effect
from longshore.core.events.event import Context
from longshore.core.events.types import MessageRejected
from longshore.ports.backend import Backend
from longshore.ports.events import EventBus
from longshore.ports.ledger import AnyChange
from longshore.testing.auditing import from_dynamo
from longshore.testing.auditing.audit import Violation, audit
from longshore.testing.auditing.evidence import Evidence
from longshore.testing.clock import FakeClock
from tests.auditing.workload import JOBS, Play, be_at_work
from tests.aws.backends import names_in
from tests.aws.evidence import place_in
from tests.aws.standin import stand_in
from tests.aws.whole import TellingAws
from tests.unit.services.stage import APP, TENANT, Stage, scenario

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


class Stored(NamedTuple):
    """An installation as it was read once, to be read again and again."""

    place: from_dynamo.Place
    answers: dict[str, Any]
    at_rest: Evidence
    at_work: Evidence

    async def call(self, service: str, operation: str, **given: Any) -> dict[str, Any]:
        answer = self.answers[_asked(service, operation, given)]
        if isinstance(answer, Exception):
            raise answer
        return {"Body": Body(answer)} if isinstance(answer, bytes) else deepcopy(answer)

    def found(self, forge: Forge) -> list[Violation]:
        async def call(service: str, operation: str, **given: Any) -> dict[str, Any]:
            answer = await self.call(service, operation, **given)
            if "Items" in answer:
                answer["Items"] = forge(given["TableName"].rpartition("-")[2], answer["Items"])
            return answer

        return audit(
            asyncio.run(
                from_dynamo.evidence_of(
                    call, self.place, taken_at_us=self.at_work.taken_at_us, pauses=()
                )
            )
        )


def _asked(service: str, operation: str, given: dict[str, Any]) -> str:
    return json.dumps([service, operation, given], sort_keys=True, default=str)


class Told:
    """A ledger whose events are stored and told at once, as if relays took no time."""

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
async def on_tables(folder: Path, clock: FakeClock) -> AsyncIterator[tuple[Aws, Backend]]:
    """All that the auditor reads is on AWS; the rest, which it does not, is in memory."""
    aws = TellingAws(stand_in().place, clock)
    try:
        names = await names_in(aws, folder, (), ())
        memory = memory_backend(clock)
        log = DynamoEventLog(aws, names, clock)
        yield (
            aws,
            replace(
                memory,
                ledger=Told(DynamoLedger(aws, names, clock), log, memory.bus),
                events=log,
                output=DynamoOutputLog(aws, names, clock),
                blobs=S3BlobStore(aws, names),
            ),
        )
    finally:
        await aws.close()


async def play_some(stage: Stage) -> None:
    """Of all that is played elsewhere, what lies differently here; calls take their time."""
    for request_id in ("pipeline", "failing", "late"):
        await JOBS[request_id](Play(stage, request_id))
    await stage.backend.events.append(
        tenant=TENANT,
        app=APP,
        entity_id="default",
        body=MessageRejected(queue="default", message_id="1", reason="not JSON"),
        context=Context(origin="worker"),
        now=stage.clock.now(),
    )


def recorded(folder: Path) -> Stored:
    """Play something on tables of its own, and read it."""
    found: list[Stored] = []

    @scenario
    async def play() -> None:
        clock = FakeClock()
        async with on_tables(folder, clock) as (aws, backend):
            place, stage = place_in(folder), Stage(backend)
            answers: dict[str, Any] = {}

            async def call(service: str, operation: str, **given: Any) -> dict[str, Any]:
                asked = _asked(service, operation, given)
                try:
                    answer = await aws.call(service, operation, **given)
                except Refused as refused:
                    answers[asked] = refused
                    raise
                answers[asked] = answer
                if "Body" in answer:
                    async with answer["Body"] as body:
                        answers[asked] = await body.read()
                    return {"Body": Body(answers[asked])}
                return answer

            async def read(*, settled: bool) -> Evidence:
                now_us = int(clock.now().timestamp() * 1_000_000)
                answers.clear()
                return await from_dynamo.evidence_of(
                    call, place, settled=settled, taken_at_us=now_us, pauses=()
                )

            await play_some(stage)
            at_rest = await read(settled=True)
            await be_at_work(stage)
            at_work = await read(settled=False)
            found.append(Stored(place, answers, at_rest, at_work))

    play()
    return found[0]
