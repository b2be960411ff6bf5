"""Retention on AWS: tombstones in the ledger's table, and what a removal deletes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

from longshore.adapters.aws import retention
from longshore.adapters.aws.attributes import Item, decode_item, encode_item
from longshore.adapters.aws.blobs import S3BlobStore
from longshore.adapters.aws.client import AwsClient, AwsResponse
from longshore.adapters.aws.events.event_log import DynamoEventLog
from longshore.adapters.aws.lambda_records import DynamoChangeStream
from longshore.adapters.aws.ledger.items import key_of
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.output_log import DynamoOutputLog
from longshore.adapters.aws.retention import DynamoRetention
from longshore.adapters.shared import codec
from longshore.audit.audit import audit
from longshore.audit.dynamo_reader import InstallationNames, read_snapshot
from longshore.core.jobs import job
from longshore.core.jobs.numbers import NumberSet
from longshore.errors import BackendUnavailable
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.retention import (
    ENDED_BY,
    OTHER_EVENTS_AGE,
    UNTIL,
    RetentionContract,
    attempt_failed,
    blob_keys,
    chunk,
    create_running_job,
    end_recorded,
)
from longshore.testing.contracts.samples import (
    TENANT,
    append_event,
    apply_command,
    apply_job_command,
    commit,
    commit_job,
    new_task,
)
from longshore.testing.contracts.suite import START
from tests.aws.backends import AwsContract, CaughtUpEventLog, on_aws
from tests.aws.call_faults import Call, FaultyAws, after_action, response_lost


class CaughtUpRetention:
    """Removals after all events were saved: on AWS, that takes less time than a job is kept."""

    def __init__(self, retention: DynamoRetention, log: CaughtUpEventLog) -> None:
        self._retention = retention
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._retention, name)

    async def remove_jobs(self, job_ids: Sequence[str], **times: Any) -> list[str]:
        await self._log.catch_up()
        return await self._retention.remove_jobs(job_ids, **times)


def _retention(aws: AwsClient, names: Names, clock: FakeClock) -> DynamoRetention:
    ledger = DynamoLedger(aws, names, clock)
    return DynamoRetention(aws, names, clock, ledger, S3BlobStore(aws, names))


@asynccontextmanager
async def retention_backend(
    tmp_path: Path, clock: FakeClock, on_open: Callable[[AwsClient, Names], None] = lambda *_: None
) -> AsyncIterator[Backend]:
    """A backend with all ports that a removal is about."""
    opened = on_aws(
        tmp_path,
        clock,
        on_open=on_open,
        ledger=DynamoLedger,
        events=partial(DynamoEventLog, retention=OTHER_EVENTS_AGE),
        output=DynamoOutputLog,
        blobs=lambda aws, names, _: S3BlobStore(aws, names),
        retention=_retention,
    )
    async with opened as backend:
        retention: Any = CaughtUpRetention(backend.retention, backend.events)  # type: ignore[arg-type]
        yield replace(backend, retention=retention)


class TestDynamoRetention(AwsContract, RetentionContract):
    make_backend = staticmethod(retention_backend)


JOB_ID, KEPT_ID = "job-one", "job-one-kept"


class DyingAws(FaultyAws):
    """A client of a process that dies before its n-th write."""

    def __init__(self, aws: AwsClient, writes: int) -> None:
        super().__init__(aws)
        self._writes_left = writes

    async def call(self, service: str, operation: str, **parameters: Any) -> AwsResponse:
        if parameters.pop("alters", False):
            self._writes_left -= 1
            parameters["alters"] = True
        if self._writes_left < 0:
            raise BackendUnavailable("the process has died")
        return await super().call(service, operation, **parameters)


@dataclass
class Installation:
    """What a scenario is about."""

    backend: Backend
    aws: AwsClient
    names: Names
    clock: FakeClock

    def retention(self, aws: AwsClient | None = None) -> DynamoRetention:
        return _retention(aws or self.aws, self.names, self.clock)

    async def create_job(self, job_id: str = JOB_ID) -> None:
        """A failed job with a task that waits behind, output, events and blobs."""
        row, task = await create_running_job(self.backend, job_id, total=2)
        await commit(self.backend, new_task("b", job_id=job_id, number=1, awaits=[0]))
        failed = await commit(self.backend, apply_command(task, attempt_failed(task)))
        await commit_job(self.backend, apply_job_command(row, end_recorded(failed, blocks=[1])))
        await self.backend.output.append(f"{job_id}_a", [chunk(1)])
        for key in blob_keys(job_id):
            await self.backend.blobs.put(key, b"x")
        await self.backend.events.catch_up()  # type: ignore[attr-defined]

    async def remove(self, retention: DynamoRetention, *job_ids: str) -> list[str]:
        return await retention.remove_jobs(
            job_ids or (JOB_ID,), ended_by=ENDED_BY, remember_until=UNTIL
        )

    async def items(self, table: str) -> list[Item]:
        answer = await self.aws.call("dynamodb", "scan", TableName=table, ConsistentRead=True)
        return [decode_item(item) for item in answer["Items"]]

    async def left(self) -> list[object]:
        """All rows, events, output and blobs."""
        rows = [item["id"] for item in await self.items(self.names.ledger) if "row" in item]
        events = [item["entityId"] for item in await self.items(self.names.events)]
        output = [item["task"] for item in await self.items(self.names.output)]
        return [*rows, *events, *output, *await self.backend.blobs.list_keys("")]


def retention_scenario(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(scenario)
    def test(tmp_path: Path) -> None:
        asyncio.run(_run(scenario, tmp_path))

    test.__signature__ = signature(_takes_folder)  # type: ignore[attr-defined]
    return test


def _takes_folder(tmp_path: Path) -> None: ...


async def _run(scenario: Callable[..., Coroutine[Any, Any, None]], folder: Path) -> None:
    clock = FakeClock(START)
    opened: list[tuple[AwsClient, Names]] = []
    async with retention_backend(folder, clock, lambda *client: opened.append(client)) as backend:
        await scenario(Installation(backend, *opened[0], clock))


@retention_scenario
async def test_a_removal_that_dies_at_any_write_is_finished_by_the_sweeper(
    installation: Installation,
) -> None:
    writes = 0
    finished = False
    while not finished:
        job_id = f"job-{writes}"
        await installation.create_job(job_id)
        dying = installation.retention(DyingAws(installation.aws, writes))
        with suppress(BackendUnavailable):
            await installation.remove(dying, job_id)
            await dying.remove_remains(now=START, limit=10)
            finished = True
        sweeper = installation.retention()
        await sweeper.remove_remains(now=START, limit=10)
        if not await sweeper.is_removed(job_id):
            assert await installation.backend.ledger.get_task(f"{job_id}_a")
            assert await installation.remove(sweeper, job_id) == [job_id]
            await sweeper.remove_remains(now=START, limit=10)

        assert await installation.left() == []
        assert await sweeper.remove_remains(now=START, limit=10) == 0
        writes += 1
    assert writes > 6


@retention_scenario
async def test_all_tombstones_of_a_job_have_one_time_and_those_of_tasks_expire(
    installation: Installation,
) -> None:
    await installation.create_job()
    await installation.remove(installation.retention())

    items = await installation.items(installation.names.ledger)
    until = codec.to_us(UNTIL)
    assert [(item["id"], item["until"], "row" in item) for item in items] == [
        (JOB_ID, until, False),
        (f"{JOB_ID}_a", until, False),
        (f"{JOB_ID}_b", until, False),
    ]
    # Not that of the job: the sweeper must find what was stored late.
    assert ["ttl" in item for item in items] == [False, True, True]
    assert all(item["ttl"] > UNTIL.timestamp() for item in items[1:])


@retention_scenario
async def test_a_job_has_no_item_that_expires_before_it_is_removed(
    installation: Installation,
) -> None:
    await installation.create_job()
    await append_event(installation.backend)

    names = installation.names
    for table in (names.ledger, names.output, names.events):
        for item in await installation.items(table):
            assert ("ttl" in item) == (item.get("entityType") == "QUEUE")


@retention_scenario
async def test_a_removal_whose_answer_was_lost_is_a_removal(installation: Installation) -> None:
    await installation.create_job()
    faulty = FaultyAws(installation.aws)
    faulty.inject("update_item", response_lost)

    assert await installation.remove(installation.retention(faulty)) == [JOB_ID]


@retention_scenario
async def test_keys_that_a_batch_leaves_over_are_deleted_again(installation: Installation) -> None:
    async def leaves_over(call: Call) -> AwsResponse:
        return {"UnprocessedItems": faulty.calls[-1][1]["RequestItems"]}

    await installation.create_job()
    faulty = FaultyAws(installation.aws)
    faulty.inject("batch_write_item", leaves_over)

    removal = asyncio.ensure_future(installation.remove(installation.retention(faulty)))
    while not removal.done():
        installation.clock.advance(timedelta(seconds=1))
        await asyncio.sleep(0)
    await installation.retention().remove_remains(now=START, limit=10)
    assert await installation.left() == []


@retention_scenario
async def test_blobs_of_jobs_are_found_along_one_listing(installation: Installation) -> None:
    others = [key for number in range(5) for key in blob_keys(f"job-{number}k")]
    for key in others:
        await installation.backend.blobs.put(key, b"x")
    for number in range(5):
        await installation.create_job(f"job-{number}")
    jobs = [f"job-{number}" for number in range(5)]
    faulty = FaultyAws(installation.aws)
    many, few = installation.retention(faulty), installation.retention()

    await installation.remove(many, *jobs[:4])
    await many.remove_remains(now=START, limit=10)
    requests = faulty.count("list_objects_v2")
    await installation.remove(few, *jobs[4:])
    with patch.object(retention, "_KEYS_OF_A_PAGE", 2):
        await few.remove_remains(now=START, limit=10)

    assert requests == 3
    assert sorted(await installation.backend.blobs.list_keys("")) == sorted(others)


@retention_scenario
async def test_the_relay_publishes_nothing_of_a_tombstone(installation: Installation) -> None:
    await installation.create_job()
    await installation.remove(installation.retention())

    stream = DynamoChangeStream(None, installation.names)  # type: ignore[arg-type]
    for item in await installation.items(installation.names.ledger):
        assert stream.events_in({"dynamodb": {"NewImage": encode_item(item)}}) == []


@retention_scenario
async def test_what_comes_late_goes_with_the_tombstone(installation: Installation) -> None:
    """Events and output that were on their way when their job was removed."""
    await installation.create_job()
    late = await installation.backend.events.history(TENANT, f"TASK#{JOB_ID}_a")
    writer = DynamoOutputLog(installation.aws, installation.names, installation.clock)
    await writer.append(f"{JOB_ID}_a", [chunk(1)])
    sweeper = installation.retention()
    await installation.remove(sweeper)
    await sweeper.remove_remains(now=START, limit=10)
    log = DynamoEventLog(installation.aws, installation.names, installation.clock)
    await log.save(late)
    await writer.append(f"{JOB_ID}_a", [chunk(2)])

    before = await installation.left()
    await sweeper.remove_remains(now=UNTIL, limit=10)

    assert len(before) == len(late) + 1
    assert await installation.left() == []


@retention_scenario
async def test_the_auditor_takes_tombstones_for_removed_jobs(installation: Installation) -> None:
    names = installation.names
    tables = InstallationNames(names.ledger, names.events, names.output, names.bucket)

    async def subjects() -> set[str]:
        snapshot = await read_snapshot(installation.aws.call, tables, pauses=())
        return {violation.subject for violation in audit(snapshot)}

    await installation.create_job()
    dying = installation.retention(DyingAws(installation.aws, 1))
    with suppress(BackendUnavailable):
        await installation.remove(dying)
    # Its tasks have rows.
    while_it_is_removed = await subjects()
    await installation.retention().remove_remains(now=START, limit=10)
    afterwards = await subjects()
    await installation.aws.call(
        *("dynamodb", "put_item"),
        TableName=names.ledger,
        Item=encode_item({**key_of(f"{JOB_ID}_c"), "v": 1, "row": b"left over"}),
        alters=True,
    )

    assert while_it_is_removed == afterwards == set()
    assert f"{JOB_ID}_c" in "".join(await subjects())


@retention_scenario
async def test_a_resume_between_the_decision_and_the_tombstone_keeps_the_job(
    installation: Installation,
) -> None:
    await installation.create_job()
    row = await installation.backend.ledger.get_job(JOB_ID)
    assert row is not None
    command = job.ResumeJob(numbers=NumberSet([0]), keys=("a",), blocked=NumberSet(), by="ann")
    resume = apply_job_command(row, command)
    faulty = FaultyAws(installation.aws)
    faulty.inject("update_item", after_action(lambda: installation.backend.ledger.commit(resume)))

    assert await installation.remove(installation.retention(faulty)) == []
    assert await installation.backend.ledger.get_job(JOB_ID) == resume.row
