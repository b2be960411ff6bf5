"""Temporal: a workflow with one activity. As a module it is a worker."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from benchmarks.peers import bodies

_QUEUE = "bench"
_TIMEOUT = timedelta(seconds=60)
_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=1))
_client: Client


@activity.defn
async def run_body(body: str, number: int) -> None:
    await bodies.ASYNC_BODIES[body](number)


@activity.defn
async def run_join() -> None:
    bodies.join()


@workflow.defn
class OneActivity:
    """The task of the other peers."""

    @workflow.run
    async def run(self, body: str, number: int) -> None:
        await workflow.execute_activity(
            run_body, args=[body, number], start_to_close_timeout=_TIMEOUT, retry_policy=_RETRY
        )


@workflow.defn
class Fan:
    """Many activities, then one."""

    @workflow.run
    async def run(self, count: int) -> None:
        calls = (
            workflow.execute_activity(run_body, args=["noop", i], start_to_close_timeout=_TIMEOUT)
            for i in range(count)
        )
        await asyncio.gather(*calls)
        await workflow.execute_activity(run_join, start_to_close_timeout=_TIMEOUT)


async def connect() -> None:
    global _client
    _client = await Client.connect(os.environ["BENCH_TEMPORAL_ADDRESS"])


async def submit(body: str, number: int) -> None:
    await _client.start_workflow(
        OneActivity.run, args=[body, number], id=uuid.uuid4().hex, task_queue=_QUEUE
    )


async def fan_out(count: int) -> None:
    await _client.start_workflow(Fan.run, count, id=uuid.uuid4().hex, task_queue=_QUEUE)


async def _work() -> None:
    await connect()
    worker = Worker(
        _client,
        task_queue=_QUEUE,
        workflows=[OneActivity, Fan],
        activities=[run_body, run_join],
        max_concurrent_activities=int(os.environ.get("BENCH_SLOTS", "100")),
    )
    await worker.run()


if __name__ == "__main__":
    # Workflows are found by the name of their module.
    sys.modules["benchmarks.peers.adapters.temporal"] = sys.modules["__main__"]
    asyncio.run(_work())
