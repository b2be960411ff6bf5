"""SIGTERM at a real worker on AWS: no message is lost, none is late, and the process ends in time.

Real processes in real time. A wiretap between them and the stand-in knows when a long poll is out,
and can hold its answer until the worker has given it up.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.names import Names
from longshore.core.tasks.states import Priority, TaskState
from longshore.ports.task_queue import Message, OutgoingMessage
from longshore.settings import Settings, load_settings
from longshore.wiring.services import Services, open_services, open_worker_registry
from tests.aws.backends import create_resources
from tests.aws.sqs_proxy import SqsProxy, sqs_proxy
from tests.aws.stand_in import REGION, stand_in
from tests.interfaces.command_line import LONGSHORE

QUEUES = ("polling", "together-0", "together-1", "running", "starting")
POLL_S = 2
VISIBILITY_S = 120
"""So long that a message that was not returned is missed."""
RETURN_TIMEOUT_S = 30
"""Longer than a busy machine needs to return a message, and far below VISIBILITY_S."""
TIMEOUT_S = 180


class WorkerInstallation:
    """An installation, and the workers that serve its queues."""

    def __init__(self, folder: Path, environment: dict[str, str], proxy: SqsProxy) -> None:
        self.folder = folder
        self._environment = environment
        self.proxy = proxy
        self.names = Names(stage=environment["LONGSHORE_ENVIRONMENT"], bucket="")
        self.services: Services

    def lane(self, queue: str) -> str:
        return self.names.queue(queue, Priority.NORMAL)

    @asynccontextmanager
    async def worker(self, queue: str, **more: str) -> AsyncIterator["WorkerProcess"]:
        folder = self.folder / queue
        folder.mkdir()
        environment = {
            **self._environment,
            **more,
            "LONGSHORE_AWS_ENDPOINT_URL": self.proxy.url,
            "LONGSHORE_WORKER_QUEUES": queue,
            "LONGSHORE_WORKER_POLL_WAIT": f"{POLL_S}s",
            "LONGSHORE_WORKER_EXTEND_BY": f"{VISIBILITY_S}s",
            "LONGSHORE_LOG_LEVEL": "error",
        }
        process = await asyncio.create_subprocess_exec(
            *LONGSHORE,
            "worker",
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8", **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            settings = load_settings({"data_dir": folder / ".longshore"}, environ=environment)
            yield WorkerProcess(process, settings)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def submit(self, queue: str, *argv: str) -> str:
        task = {"taskId": "a", "name": "command", "queue": queue, "input": {"argv": argv}}
        document = {"tasks": [{**task, "maxAttempts": 1}]}  # a release must not use it up
        accepted = await self.services.producer.submit("default", queue, document)
        return f"{accepted.job.id}_a"

    async def enqueue(self, queue: str) -> None:
        assert (
            await self.services.backend.queue.send([OutgoingMessage(queue=queue, body="{}")]) == []
        )

    async def wait_for_message(self, queue: str) -> Message | None:
        """What another receiver gets at once, or as soon as it is given back."""
        ends = time.monotonic() + RETURN_TIMEOUT_S
        while time.monotonic() < ends:
            # Not by a long poll: those would have to be waited for in the end.
            result = await self.services.backend.queue.receive(
                [queue], limit=1, hidden_for=timedelta(minutes=1), wait=timedelta(0)
            )
            if result:
                return result[0]
            await asyncio.sleep(0.1)
        return None

    async def state(self, task_id: str) -> TaskState:
        row = await self.services.backend.ledger.get_task(task_id)
        assert row is not None
        return row.state


class WorkerProcess:
    """One worker."""

    def __init__(self, process: asyncio.subprocess.Process, settings: Settings) -> None:
        self.process = process
        self._settings = settings

    async def wait_until_serving(self) -> None:
        assert self.process.stdout is not None
        assert (await self.process.stdout.readline()).startswith(b"worker ")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self._terminated_at = time.monotonic()

    async def wait_until_drained(self) -> None:
        """Wait until the worker has drained and takes no more messages."""
        presence = open_worker_registry(self._settings)
        while presence.live_workers():
            await asyncio.sleep(0.01)

    async def wait_until_exit(self) -> float:
        """How long it took from the signal on; it must have ended well."""
        assert await self.process.wait() == 0
        return time.monotonic() - self._terminated_at


async def stop_while_polling(installation: WorkerInstallation) -> None:
    """A long poll returns a message after the worker was stopped."""
    lane = installation.lane("polling")
    async with installation.worker("polling") as worker:
        await worker.wait_until_serving()
        installation.proxy.hold(lane)
        await installation.proxy.wait_for_long_poll(lane)
        await installation.enqueue("polling")
        await installation.proxy.wait_for_messages(
            lane
        )  # SQS has delivered it, and the worker has no response yet
        worker.terminate()
        await worker.wait_until_drained()
        receives = len(installation.proxy.receives)

        installation.proxy.release(lane)
        message = await installation.wait_for_message("polling")

        assert message is not None, "it is hidden although no worker has it"
        assert message.receive_count == 1
        assert await worker.wait_until_exit() < POLL_S + RETURN_TIMEOUT_S
        ours = installation.names.queue("polling", Priority.HIGH).removesuffix("high")
        later = [
            item.queue
            for item in installation.proxy.receives[receives:]
            if item.queue.startswith(ours)
        ]
        assert later == [], "the stopped worker began another poll"


async def stop_while_submitting(installation: WorkerInstallation, number: int) -> None:
    """The signal comes while a task is submitted, or when SQS has just delivered it."""
    queue = f"together-{number}"
    async with installation.worker(queue) as worker:
        await worker.wait_until_serving()
        await installation.proxy.wait_for_long_poll(installation.lane(queue))
        submitting = asyncio.ensure_future(installation.submit(queue, "true"))
        if number:
            await installation.proxy.wait_for_messages(installation.lane(queue))
        worker.terminate()
        task_id = await submitting

        assert await worker.wait_until_exit() < POLL_S + RETURN_TIMEOUT_S
        if await installation.state(task_id) is not TaskState.COMPLETED:
            message = await installation.wait_for_message(queue)
            assert message is not None, "it was neither processed nor returned"
            assert message.receive_count == 1


async def stop_while_running(installation: WorkerInstallation) -> None:
    """An attempt runs and does not end within the grace period."""
    begun = installation.folder / "begun"
    async with installation.worker("running", LONGSHORE_WORKER_DRAIN_GRACE="0s") as worker:
        await worker.wait_until_serving()
        task_id = await installation.submit(
            "running", "sh", "-c", f"echo > {begun}; exec sleep 600"
        )
        while not begun.exists():
            await asyncio.sleep(0.01)
        worker.terminate()
        message = await installation.wait_for_message("running")

        assert message is not None, "the released task has no message"
        assert message.receive_count == 1
        assert await installation.state(task_id) is TaskState.PENDING
        assert await worker.wait_until_exit() < POLL_S + RETURN_TIMEOUT_S


async def stop_while_starting(installation: WorkerInstallation) -> None:
    """A message is on the queue, and the signal comes before the first poll."""
    task_id = await installation.submit("starting", "true")
    async with installation.worker("starting") as worker:
        await worker.wait_until_serving()
        worker.terminate()

        assert await worker.wait_until_exit() < POLL_S + RETURN_TIMEOUT_S
        if await installation.state(task_id) is not TaskState.COMPLETED:
            message = await installation.wait_for_message("starting")
            assert message is not None, "it was neither processed nor returned"
            assert message.receive_count == 1


def test_a_worker_that_is_terminated_loses_no_message_and_delays_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stand_in().new_stage()
    environment = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": REGION,
        "LONGSHORE_BACKEND": "aws",
        "LONGSHORE_ENVIRONMENT": stage,
        "LONGSHORE_AWS_BUCKET": f"longshore-{stage}-blobs",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asyncio.run(_run_all(tmp_path, environment))


async def _run_all(folder: Path, environment: dict[str, str]) -> None:
    aws = AwsClient(stand_in().client_options)
    bucket, stage = (environment[f"LONGSHORE_{name}"] for name in ("AWS_BUCKET", "ENVIRONMENT"))
    await create_resources(aws, Names(stage=stage, bucket=bucket), QUEUES, ("dispatcher",))
    await aws.close()
    here = {**environment, "LONGSHORE_AWS_ENDPOINT_URL": stand_in().endpoint}
    settings = load_settings({"data_dir": folder / "here"}, environ=here)
    # All at once: most of the time is that of processes which start and polls which wait.
    async with asyncio.timeout(TIMEOUT_S), sqs_proxy() as tap, open_services(settings) as services:
        installation = WorkerInstallation(folder, environment, tap)
        installation.services = services
        async with asyncio.TaskGroup() as scenarios:
            scenarios.create_task(stop_while_polling(installation))
            scenarios.create_task(stop_while_running(installation))
            scenarios.create_task(stop_while_starting(installation))
            for number in range(2):
                scenarios.create_task(stop_while_submitting(installation, number))
