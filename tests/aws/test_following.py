"""Following output on AWS, where each poll costs money."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.services import followers
from longshore.testing.clock import FakeClock
from tests.aws.full_backend import full_aws_backend
from tests.aws.stand_in import stand_in
from tests.aws.units import CountingAws
from tests.unit.services.harness import ServiceHarness, job_id, make_task, scenario

MINUTE = timedelta(minutes=1)
READS = ("dynamodb.get_item", "dynamodb.query", "dynamodb.batch_get_item")


async def _followed(chunks: AsyncIterator[Any]) -> None:
    async for _ in chunks:
        pass


@scenario
async def test_an_idle_minute_of_following_costs_few_reads_however_many_follow(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    aws = CountingAws(stand_in().client_options, clock)
    async with full_aws_backend(tmp_path, clock, aws) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        task_id = f"{job_id()}_a"

        def reads() -> int:
            return sum(aws.requests[name] for name in READS)

        readers = [
            asyncio.ensure_future(_followed(followers.follow_task(backend, task_id)))
            for _ in range(5)
        ]
        await stage.advance(timedelta(seconds=4))  # until it is known that nothing comes
        before = reads()
        await stage.advance(MINUTE)
        for_a_task = reads() - before
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)

        pieces = followers.read_job_output(backend, job_id(), follow=True, attempt=None)
        reader = asyncio.ensure_future(_followed(pieces))
        await stage.advance(timedelta(seconds=4))
        before = reads()
        await stage.advance(MINUTE)
        for_a_job = reads() - before

        reader.cancel()
        await asyncio.wait([reader])

    # A row every two seconds, and a look of the output log each half second; with a look at the
    # row every 100 ms it was 720.
    assert 30 <= for_a_task <= 170
    # The job and its tasks every two seconds.
    assert 30 <= for_a_job <= 70
