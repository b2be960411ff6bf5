"""A worker asks no paused queue for work; attempts continue, and a resume takes effect at once."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.queues import QueuePause
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendUnavailable
from longshore.ports.backend import Backend
from longshore.ports.task_queue import Message
from longshore.services.worker.group import wait_until_idle
from longshore.testing.fake_runner import Script, fails
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.samples import HANGS, MINUTE

LONG = timedelta(minutes=6)
QUEUES = ("default", "other")


async def pause(backend: Backend, name: str = "default", *, by: str = "ann") -> QueuePause:
    now = backend.clock.now()
    return await backend.queue_controls.pause(name, by=by, reason="the service is down", now=now)


class RecordingQueue:
    """A queue that notes which queues were asked for work."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.received_from: list[tuple[str, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def receive(self, queues: Sequence[str], **how: Any) -> list[Message]:
        self.received_from.append(tuple(queues))
        messages: list[Message] = await self._queue.receive(queues, **how)
        return messages


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_queue_that_is_paused_while_a_worker_waits_is_not_asked_until_it_is_resumed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queue = RecordingQueue(backend.queue)
        harness = ServiceHarness(backend).with_ports(queue=queue)
        async with harness.running_worker():
            await harness.advance(timedelta(seconds=7))
            await pause(backend)
            await harness.advance(NO_WAIT)
            request = len(queue.received_from)

            await harness.submit(make_task())
            await harness.advance(LONG)
            assert (await harness.task("a")).state is TaskState.PENDING
            assert len(queue.received_from) == request

            await backend.queue_controls.resume("default")
            await harness.advance(NO_WAIT)
            assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_starts_while_its_queue_is_paused_asks_for_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queue = RecordingQueue(backend.queue)
        harness = ServiceHarness(backend).with_ports(queue=queue)
        await harness.submit(make_task())
        await pause(backend)

        async with harness.running_worker():
            await harness.advance(LONG)
            assert queue.received_from == []

            await backend.queue_controls.resume("default")
            await harness.advance(NO_WAIT)
            assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_attempt_whose_queue_is_paused_runs_to_its_end(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[3 * MINUTE]))
        await harness.submit(make_task("a"), make_task("b", "a"))

        async with harness.running_worker():
            await harness.advance(SECOND)
            await pause(backend)
            await harness.advance(4 * MINUTE)
            await harness.dispatch()
            await harness.advance(MINUTE)

            done = await harness.task("a")
            assert (done.state, done.attempt) == (TaskState.COMPLETED, 1)
            assert (await harness.task("b")).state is TaskState.PENDING

            await backend.queue_controls.resume("default")
            await harness.advance(NO_WAIT)
            assert (await harness.task("b")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_another_try_of_a_task_waits_for_the_end_of_the_pause(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[MINUTE], ending=fails()), Script())
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)
            await pause(backend)
            await harness.advance(LONG)
            waiting = await harness.task("a")
            assert (waiting.state, waiting.attempt) == (TaskState.PENDING, 1)

            await backend.queue_controls.resume("default")
            await harness.advance(NO_WAIT)
            done = await harness.task("a")
            assert (done.state, done.attempt) == (TaskState.COMPLETED, 2)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_other_queues_of_a_worker_are_served_meanwhile(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queue = RecordingQueue(backend.queue)
        harness = ServiceHarness(backend).with_ports(queue=queue)
        await pause(backend, "other")
        await harness.submit(make_task("a"), make_task("b", queue="other"))

        async with harness.running_worker(queues=QUEUES):
            await harness.advance(MINUTE)
            states = await harness.states()
            assert states == {"a": TaskState.COMPLETED, "b": TaskState.PENDING}
            assert set(queue.received_from) == {("default",)}

            await backend.queue_controls.resume("other")
            await harness.advance(NO_WAIT)
            assert (await harness.task("b")).state is TaskState.COMPLETED
            assert queue.received_from[-1] == QUEUES


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_pause_of_a_queue_that_is_not_its_own_does_not_disturb_a_worker(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queue = RecordingQueue(backend.queue)
        harness = ServiceHarness(backend).with_ports(queue=queue)
        async with harness.running_worker():
            await pause(backend, "other")
            await backend.queue_controls.resume("other")
            await harness.advance(SECOND)

            assert queue.received_from == [("default",)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_every_worker_notices_a_pause_and_its_end(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        first, second = ServiceHarness(backend), ServiceHarness(backend)
        for harness in (first, second):
            for key in "abcdef":
                harness.runner.set_scripts(key, HANGS)
        async with first.running_worker(), second.running_worker("worker-2"):
            await pause(backend)
            await first.advance(NO_WAIT)
            await first.submit(*(make_task(key) for key in "abcdef"))
            await first.advance(MINUTE)
            assert first.runner.specs == second.runner.specs == []

            await backend.queue_controls.resume("default")
            await first.advance(NO_WAIT)
            assert len(first.runner.specs) == len(second.runner.specs) == 3


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_two_who_pause_and_resume_at_once_leave_a_worker_that_does_what_holds(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        async with harness.running_worker():
            for turn in range(10):
                calls = [pause(backend, by="ann"), backend.queue_controls.resume("default")]
                await asyncio.gather(*(calls if turn % 2 else reversed(calls)))
                await harness.submit(make_task(), request_id=f"request-{turn}")
                await harness.advance(NO_WAIT)

                paused = bool(await backend.queue_controls.list_pauses())
                state = (await harness.task("a", f"request-{turn}")).state
                assert state is (TaskState.PENDING if paused else TaskState.COMPLETED)


class UnresponsiveQueue:
    """A queue that delivers although no receiver waits for it any more."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.delivered = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend.queue, name)

    async def receive(self, *arguments: Any, **how: Any) -> list[Message]:
        waiting = asyncio.ensure_future(self._backend.queue.receive(*arguments, **how))
        try:
            messages: list[Message] = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not await self._backend.queue_controls.list_pauses():
                waiting.cancel()
                raise
            messages = await waiting
        self.delivered += len(messages)
        return messages


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_that_is_delivered_at_the_moment_of_the_pause_is_returned(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queue = UnresponsiveQueue(backend)
        harness = ServiceHarness(backend).with_ports(queue=queue)
        async with harness.running_worker():
            await pause(backend)
            await harness.advance(NO_WAIT)
            await harness.submit(make_task())
            await harness.advance(SECOND)

            assert queue.delivered == 1
            assert (await harness.task("a")).attempt == 0
            (message,) = await backend.queue.receive(
                ["default"], limit=9, hidden_for=SECOND, wait=NO_WAIT
            )
            assert message.receive_count == 1  # this one alone
            await backend.queue.delay(message.receipt, until=harness.clock.now())
            await backend.queue_controls.resume("default")
            await harness.advance(NO_WAIT)
            assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_messages_for_tasks_of_a_paused_queue_use_up_no_receives(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await pause(backend)
        await harness.submit(make_task("a"), make_task("b", delay=30))

        async with harness.running_worker():
            for _ in range(25):
                await harness.advance(4 * MINUTE)
                await harness.sweeper.sweep()
            depth = await harness.source.depth("default")
            assert (depth.ready, depth.hidden, depth.dead_letters) == (2, 0, 0)

            await backend.queue_controls.resume("default")
            await harness.advance(SECOND)

        for key in "ab":
            done = await harness.task(key)
            assert (done.state, done.attempt) == (TaskState.COMPLETED, 1)
        assert await backend.queue.dead_letters(None, limit=9) == []
        assert len(harness.runner.specs) == 2


@pytest.mark.parametrize("error", [BackendUnavailable("down"), RuntimeError("a bug")], ids=repr)
@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_worker_that_cannot_know_what_is_paused_begins_nothing(
    kind: str, tmp_path: Path, error: Exception
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queues = FlakyPort(backend.queue_controls, "paused_queues", error, times=None)
        harness = ServiceHarness(backend).with_ports(queue_controls=queues)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(MINUTE)
            assert (await harness.task("a")).state is TaskState.PENDING

            queues.recover()
            await harness.advance(SECOND)
            assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("error", [BackendUnavailable("down"), RuntimeError("a bug")], ids=repr)
@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_worker_that_cannot_read_pauses_continues_with_the_last_state(
    kind: str, tmp_path: Path, error: Exception
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queues = FlakyPort(backend.queue_controls, "paused_queues", error, times=30, skip=1)
        harness = ServiceHarness(backend).with_ports(queue_controls=queues)
        async with harness.running_worker():
            await harness.submit(make_task(), request_id="meanwhile")
            await harness.advance(SECOND)
            assert (await harness.task("a", "meanwhile")).state is TaskState.COMPLETED

            await pause(backend)
            await harness.advance(MINUTE)
            assert queues.failures == 30
            await harness.submit(make_task())
            await harness.advance(MINUTE)
            assert (await harness.task("a")).state is TaskState.PENDING


async def stop_idle_worker(harness: ServiceHarness) -> None:
    worker = harness.worker()
    running = asyncio.ensure_future(worker.run())
    await harness.advance(MINUTE)

    worker.stop()
    await harness.advance(NO_WAIT)

    assert running.done()
    await running


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_whose_queues_are_all_paused_stops_at_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        await pause(backend)
        await stop_idle_worker(ServiceHarness(backend))


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_waits_for_work_stops_at_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        await stop_idle_worker(ServiceHarness(backend))


def wait_until_idle_with(harness: ServiceHarness) -> Any:
    return wait_until_idle(
        harness.backend,
        harness.source,
        harness.dispatcher,
        tenant=TENANT,
        queues=QUEUES,
        horizon=SECOND,
    )


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_lies_on_a_paused_queue_is_not_waited_for_and_what_runs_is(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[MINUTE]))
        await harness.submit(make_task("a"))
        async with harness.running_worker(queues=QUEUES):
            await pause(backend)
            await harness.submit(make_task("b"), make_task("c", queue="other"), request_id="later")
            began = harness.clock.elapsed()
            await harness.advance_until_done(wait_until_idle_with(harness))

            assert harness.clock.elapsed() - began >= MINUTE
            assert (await harness.task("a")).state is TaskState.COMPLETED
            assert (await harness.task("c", "later")).state is TaskState.COMPLETED
            assert (await harness.task("b", "later")).state is TaskState.PENDING
