"""A worker asks no paused queue for work; what runs goes on, and a resume is heard at once."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.states import TaskState
from longshore.errors import BackendUnavailable
from longshore.ports.backend import Backend
from longshore.ports.queue import Message
from longshore.ports.queues import PausedQueue
from longshore.services.crew import until_nothing_is_left
from longshore.testing.flaky import Flaky
from longshore.testing.runner import Script, fails
from tests.unit.services.samples import HANGS, MINUTE
from tests.unit.services.stage import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    TENANT,
    Stage,
    a_task,
    opened,
    scenario,
)

LONG = timedelta(minutes=6)
QUEUES = ("default", "other")


async def pause(backend: Backend, name: str = "default", *, by: str = "ann") -> PausedQueue:
    now = backend.clock.now()
    return await backend.queues.pause(name, by=by, reason="the service is down", now=now)


class Asked:
    """A queue that notes which queues were asked for work."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.asked: list[tuple[str, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def receive(self, queues: Sequence[str], **how: Any) -> list[Message]:
        self.asked.append(tuple(queues))
        messages: list[Message] = await self._queue.receive(queues, **how)
        return messages


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_queue_that_is_paused_while_a_worker_waits_is_not_asked_until_it_is_resumed(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        queue = Asked(backend.queue)
        stage = Stage(backend).with_ports(queue=queue)
        async with stage.working():
            await stage.passes(timedelta(seconds=7))
            await pause(backend)
            await stage.passes(NO_WAIT)
            asked = len(queue.asked)

            await stage.submit(a_task())
            await stage.passes(LONG)
            assert (await stage.task("a")).state is TaskState.PENDING
            assert len(queue.asked) == asked

            await backend.queues.resume("default")
            await stage.passes(NO_WAIT)
            assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_starts_while_its_queue_is_paused_asks_for_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        queue = Asked(backend.queue)
        stage = Stage(backend).with_ports(queue=queue)
        await stage.submit(a_task())
        await pause(backend)

        async with stage.working():
            await stage.passes(LONG)
            assert queue.asked == []

            await backend.queues.resume("default")
            await stage.passes(NO_WAIT)
            assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_runs_when_its_queue_is_paused_goes_on_to_its_end(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[3 * MINUTE]))
        await stage.submit(a_task("a"), a_task("b", "a"))

        async with stage.working():
            await stage.passes(SECOND)
            await pause(backend)
            await stage.passes(4 * MINUTE)
            await stage.dispatch()
            await stage.passes(MINUTE)

            done = await stage.task("a")
            assert (done.state, done.attempt) == (TaskState.COMPLETED, 1)
            assert (await stage.task("b")).state is TaskState.PENDING

            await backend.queues.resume("default")
            await stage.passes(NO_WAIT)
            assert (await stage.task("b")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_another_try_of_a_task_waits_for_the_end_of_the_pause(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[MINUTE], ending=fails()), Script())
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)
            await pause(backend)
            await stage.passes(LONG)
            waiting = await stage.task("a")
            assert (waiting.state, waiting.attempt) == (TaskState.PENDING, 1)

            await backend.queues.resume("default")
            await stage.passes(NO_WAIT)
            done = await stage.task("a")
            assert (done.state, done.attempt) == (TaskState.COMPLETED, 2)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_other_queues_of_a_worker_are_served_meanwhile(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        queue = Asked(backend.queue)
        stage = Stage(backend).with_ports(queue=queue)
        await pause(backend, "other")
        await stage.submit(a_task("a"), a_task("b", queue="other"))

        async with stage.working(queues=QUEUES):
            await stage.passes(MINUTE)
            states = await stage.states()
            assert states == {"a": TaskState.COMPLETED, "b": TaskState.PENDING}
            assert set(queue.asked) == {("default",)}

            await backend.queues.resume("other")
            await stage.passes(NO_WAIT)
            assert (await stage.task("b")).state is TaskState.COMPLETED
            assert queue.asked[-1] == QUEUES


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_pause_of_a_queue_that_is_not_its_own_does_not_disturb_a_worker(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        queue = Asked(backend.queue)
        stage = Stage(backend).with_ports(queue=queue)
        async with stage.working():
            await pause(backend, "other")
            await backend.queues.resume("other")
            await stage.passes(SECOND)

            assert queue.asked == [("default",)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_every_worker_hears_of_a_pause_and_of_its_end(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        first, second = Stage(backend), Stage(backend)
        for stage in (first, second):
            for key in "abcdef":
                stage.runner.plays(key, HANGS)
        async with first.working(), second.working("worker-2"):
            await pause(backend)
            await first.passes(NO_WAIT)
            await first.submit(*(a_task(key) for key in "abcdef"))
            await first.passes(MINUTE)
            assert first.runner.orders == second.runner.orders == []

            await backend.queues.resume("default")
            await first.passes(NO_WAIT)
            assert len(first.runner.orders) == len(second.runner.orders) == 3


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_two_who_pause_and_resume_at_once_leave_a_worker_that_does_what_holds(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        async with stage.working():
            for turn in range(10):
                calls = [pause(backend, by="ann"), backend.queues.resume("default")]
                await asyncio.gather(*(calls if turn % 2 else reversed(calls)))
                await stage.submit(a_task(), request_id=f"request-{turn}")
                await stage.passes(NO_WAIT)

                paused = bool(await backend.queues.paused())
                state = (await stage.task("a", f"request-{turn}")).state
                assert state is (TaskState.PENDING if paused else TaskState.COMPLETED)


class Deaf:
    """A queue that delivers although nobody waits for it any more."""

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
            if not await self._backend.queues.paused():
                waiting.cancel()
                raise
            messages = await waiting
        self.delivered += len(messages)
        return messages


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_is_delivered_just_when_a_worker_hears_of_the_pause_is_given_back(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        queue = Deaf(backend)
        stage = Stage(backend).with_ports(queue=queue)
        async with stage.working():
            await pause(backend)
            await stage.passes(NO_WAIT)
            await stage.submit(a_task())
            await stage.passes(SECOND)

            assert queue.delivered == 1
            assert (await stage.task("a")).attempt == 0
            (message,) = await backend.queue.receive(
                ["default"], limit=9, hidden_for=SECOND, wait=NO_WAIT
            )
            assert message.receives == 1  # this one alone
            await backend.queue.put_off(message.receipt, until=stage.clock.now())
            await backend.queues.resume("default")
            await stage.passes(NO_WAIT)
            assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_rings_for_tasks_of_a_paused_queue_wear_nothing_out(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await pause(backend)
        await stage.submit(a_task("a"), a_task("b", delay=30))

        async with stage.working():
            for _ in range(25):
                await stage.passes(4 * MINUTE)
                await stage.sweeper.sweep()
            depth = await backend.queue.depth("default")
            assert (depth.ready, depth.hidden, depth.dead) == (2, 0, 0)

            await backend.queues.resume("default")
            await stage.passes(SECOND)

        for key in "ab":
            done = await stage.task(key)
            assert (done.state, done.attempt) == (TaskState.COMPLETED, 1)
        assert await backend.queue.dead_letters(None, limit=9) == []
        assert len(stage.runner.orders) == 2


@pytest.mark.parametrize("error", [BackendUnavailable("down"), RuntimeError("a bug")], ids=repr)
@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_cannot_know_what_is_paused_begins_nothing(
    kind: str, tmp_path: Path, error: Exception
) -> None:
    async with opened(kind, tmp_path) as backend:
        queues = Flaky(backend.queues, "paused_of", error, times=None)
        stage = Stage(backend).with_ports(queues=queues)
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(MINUTE)
            assert (await stage.task("a")).state is TaskState.PENDING

            queues.mend()
            await stage.passes(SECOND)
            assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("error", [BackendUnavailable("down"), RuntimeError("a bug")], ids=repr)
@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_no_longer_hears_of_pauses_goes_on_with_what_it_knows(
    kind: str, tmp_path: Path, error: Exception
) -> None:
    async with opened(kind, tmp_path) as backend:
        queues = Flaky(backend.queues, "paused_of", error, times=30, skip=1)
        stage = Stage(backend).with_ports(queues=queues)
        async with stage.working():
            await stage.submit(a_task(), request_id="meanwhile")
            await stage.passes(SECOND)
            assert (await stage.task("a", "meanwhile")).state is TaskState.COMPLETED

            await pause(backend)
            await stage.passes(MINUTE)
            assert queues.failures == 30
            await stage.submit(a_task())
            await stage.passes(MINUTE)
            assert (await stage.task("a")).state is TaskState.PENDING


async def stops_at_once(stage: Stage) -> None:
    worker = stage.worker()
    running = asyncio.ensure_future(worker.run())
    await stage.passes(MINUTE)

    worker.stop()
    await stage.passes(NO_WAIT)

    assert running.done()
    await running


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_whose_queues_are_all_paused_stops_at_once(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        await pause(backend)
        await stops_at_once(Stage(backend))


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_waits_for_work_stops_at_once(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        await stops_at_once(Stage(backend))


def nothing_left(stage: Stage) -> Any:
    return until_nothing_is_left(
        stage.backend, stage.dispatcher, tenant=TENANT, queues=QUEUES, horizon=SECOND
    )


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_lies_on_a_paused_queue_is_not_waited_for_and_what_runs_is(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[MINUTE]))
        await stage.submit(a_task("a"))
        async with stage.working(queues=QUEUES):
            await pause(backend)
            await stage.submit(a_task("b"), a_task("c", queue="other"), request_id="later")
            began = stage.clock.elapsed()
            await stage.in_time(nothing_left(stage))

            assert stage.clock.elapsed() - began >= MINUTE
            assert (await stage.task("a")).state is TaskState.COMPLETED
            assert (await stage.task("c", "later")).state is TaskState.COMPLETED
            assert (await stage.task("b", "later")).state is TaskState.PENDING
