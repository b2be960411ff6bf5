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

from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.names import Names
from longshore.core.states import Priority, TaskState
from longshore.ports.queue import Message, Outgoing
from longshore.settings import Settings, load_settings
from longshore.wiring import Services, presence_in, wired
from tests.aws.backends import provide
from tests.aws.standin import REGION, stand_in
from tests.aws.wiretap import Wiretap, wiretap
from tests.interfaces.doors import LONGSHORE

QUEUES = ("polling", "together-0", "together-1", "running", "starting")
POLL_S = 2
HIDES_S = 120
"""Long enough for a message that was not given back to be missed."""
SOON_S = 30
"""Beyond what a busy machine needs to give something back, and far from HIDES_S."""
PATIENCE_S = 180


class House:
    """An installation, and the workers that serve its queues."""

    def __init__(self, folder: Path, environment: dict[str, str], tap: Wiretap) -> None:
        self.folder = folder
        self._environment = environment
        self.tap = tap
        self.names = Names(stage=environment["LONGSHORE_ENVIRONMENT"], bucket="")
        self.services: Services

    def lane(self, queue: str) -> str:
        return self.names.queue(queue, Priority.NORMAL)

    @asynccontextmanager
    async def worker(self, queue: str, **more: str) -> AsyncIterator["Working"]:
        folder = self.folder / queue
        folder.mkdir()
        environment = {
            **self._environment,
            **more,
            "LONGSHORE_AWS_ENDPOINT_URL": self.tap.url,
            "LONGSHORE_WORKER_QUEUES": queue,
            "LONGSHORE_WORKER_POLL_WAIT": f"{POLL_S}s",
            "LONGSHORE_WORKER_EXTEND_BY": f"{HIDES_S}s",
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
            yield Working(process, settings)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def submit(self, queue: str, *argv: str) -> str:
        task = {"taskId": "a", "name": "command", "queue": queue, "input": {"argv": argv}}
        document = {"tasks": [{**task, "maxAttempts": 1}]}  # a release must not use it up
        accepted = await self.services.producer.submit("default", queue, document)
        return f"{accepted.job.id}_a"

    async def ring(self, queue: str) -> None:
        assert await self.services.backend.queue.send([Outgoing(queue=queue, body="{}")]) == []

    async def heard(self, queue: str) -> Message | None:
        """What another receiver gets at once, or as soon as it is given back."""
        ends = time.monotonic() + SOON_S
        while time.monotonic() < ends:
            # Not by a long poll: those would have to be waited for in the end.
            found = await self.services.backend.queue.receive(
                [queue], limit=1, hidden_for=timedelta(minutes=1), wait=timedelta(0)
            )
            if found:
                return found[0]
            await asyncio.sleep(0.1)
        return None

    async def state(self, task_id: str) -> TaskState:
        row = await self.services.backend.ledger.task(task_id)
        assert row is not None
        return row.state


class Working:
    """One worker."""

    def __init__(self, process: asyncio.subprocess.Process, settings: Settings) -> None:
        self.process = process
        self._settings = settings

    async def serves(self) -> None:
        assert self.process.stdout is not None
        assert (await self.process.stdout.readline()).startswith(b"worker ")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self._told_at = time.monotonic()

    async def has_given_up(self) -> None:
        """It has drained: whatever it asked of queues, it does not want any more."""
        presence = presence_in(self._settings)
        while presence.present():
            await asyncio.sleep(0.01)

    async def ended(self) -> float:
        """How long it took from the signal on; it must have ended well."""
        assert await self.process.wait() == 0
        return time.monotonic() - self._told_at


async def polling(house: House) -> None:
    """The long poll is out, brings a message, and nobody wants it any more."""
    lane = house.lane("polling")
    async with house.worker("polling") as worker:
        await worker.serves()
        house.tap.hold(lane)
        await house.tap.until_polled(lane)
        await house.ring("polling")
        await house.tap.until_taken(lane)  # SQS has handed it out, and the worker has not heard
        worker.terminate()
        await worker.has_given_up()
        asked = len(house.tap.receives)

        house.tap.release(lane)
        message = await house.heard("polling")

        assert message is not None, "it is hidden although nobody works on it"
        assert message.receives == 1
        assert await worker.ended() < POLL_S + SOON_S
        ours = house.names.queue("polling", Priority.HIGH).removesuffix("high")
        later = [one.queue for one in house.tap.receives[asked:] if one.queue.startswith(ours)]
        assert later == [], "a poll was begun by one that has given up"


async def together(house: House, number: int) -> None:
    """The signal comes when a task is being submitted, or when SQS has just handed it out."""
    queue = f"together-{number}"
    async with house.worker(queue) as worker:
        await worker.serves()
        await house.tap.until_polled(house.lane(queue))
        submitting = asyncio.ensure_future(house.submit(queue, "true"))
        if number:
            await house.tap.until_taken(house.lane(queue))
        worker.terminate()
        task_id = await submitting

        assert await worker.ended() < POLL_S + SOON_S
        if await house.state(task_id) is not TaskState.COMPLETED:
            message = await house.heard(queue)
            assert message is not None, "it was neither worked on nor given back"
            assert message.receives == 1


async def running(house: House) -> None:
    """An attempt runs and does not end in its grace."""
    begun = house.folder / "begun"
    async with house.worker("running", LONGSHORE_WORKER_DRAIN_GRACE="0s") as worker:
        await worker.serves()
        task_id = await house.submit("running", "sh", "-c", f"echo > {begun}; exec sleep 600")
        while not begun.exists():
            await asyncio.sleep(0.01)
        worker.terminate()
        message = await house.heard("running")

        assert message is not None, "what was released is not rung for"
        assert message.receives == 1
        assert await house.state(task_id) is TaskState.PENDING
        assert await worker.ended() < POLL_S + SOON_S


async def starting(house: House) -> None:
    """Something is there, and the signal comes before the first poll."""
    task_id = await house.submit("starting", "true")
    async with house.worker("starting") as worker:
        await worker.serves()
        worker.terminate()

        assert await worker.ended() < POLL_S + SOON_S
        if await house.state(task_id) is not TaskState.COMPLETED:
            message = await house.heard("starting")
            assert message is not None, "it was neither worked on nor given back"
            assert message.receives == 1


def test_a_worker_that_is_told_to_end_loses_no_message_and_delays_none(
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
    asyncio.run(_tell(tmp_path, environment))


async def _tell(folder: Path, environment: dict[str, str]) -> None:
    aws = Aws(stand_in().place)
    bucket, stage = (environment[f"LONGSHORE_{name}"] for name in ("AWS_BUCKET", "ENVIRONMENT"))
    await provide(aws, Names(stage=stage, bucket=bucket), QUEUES, ("dispatcher",))
    await aws.close()
    here = {**environment, "LONGSHORE_AWS_ENDPOINT_URL": stand_in().endpoint}
    settings = load_settings({"data_dir": folder / "here"}, environ=here)
    # All at once: most of the time is that of processes which start and polls which wait.
    async with asyncio.timeout(PATIENCE_S), wiretap() as tap, wired(settings) as services:
        house = House(folder, environment, tap)
        house.services = services
        async with asyncio.TaskGroup() as stories:
            stories.create_task(polling(house))
            stories.create_task(running(house))
            stories.create_task(starting(house))
            for number in range(2):
                stories.create_task(together(house, number))
