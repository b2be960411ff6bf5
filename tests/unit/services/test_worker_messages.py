"""How a worker deals with messages: never too many, with any content, however often they come."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.queues import QueueDepth, message_body
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import TaskState
from longshore.ports.task_queue import Message, OutgoingMessage
from longshore.ports.task_source import LeaseCommand, WorkerInstance
from longshore.testing.fake_runner import Script, succeeds
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    NO_WAIT,
    SECOND,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import record_calls
from tests.unit.services.samples import HANGS, MINUTE

EMPTY = QueueDepth(ready=0, hidden=0, dead_letters=0)


def takes(seconds: float, result: Any = None) -> Script:
    return Script(reports=[timedelta(seconds=seconds)], ending=succeeds(result))


class CountingQueue:
    """A queue that notes how many messages were asked for, how patiently, and how many came.

    Args:
        most: After more than these it delivers none: a worker that takes and gives back without
            end lets no time pass.
    """

    def __init__(self, queue: Any, *, most: int = 0) -> None:
        self._queue = queue
        self._most = most
        self.limits: list[int] = []
        self.waits: list[timedelta] = []
        self.delivered = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def receive(self, queues: Sequence[str], *, limit: int, **how: Any) -> list[Message]:
        self.limits.append(limit)
        self.waits.append(how["wait"])
        if self.delivered > self._most:
            await asyncio.Event().wait()
        messages = await self._queue.receive(queues, limit=limit, **how)
        self.delivered += len(messages)
        return messages


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_worker_with_nothing_to_do_asks_once_and_waits_twenty_seconds_for_an_answer(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queue = CountingQueue(backend.queue)
        harness = ServiceHarness(backend).with_ports(queue=queue)

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=59))
            waits = list(queue.waits)

        assert waits == [timedelta(seconds=20)] * 3


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_three_tasks_run_at_once_if_no_other_number_is_set(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        for key in "abcde":
            harness.runner.set_scripts(key, HANGS)
        await harness.submit(*(make_task(key) for key in "abcde"))

        async with harness.running_worker() as worker:
            await harness.advance(MINUTE)
            running = worker.running

        assert len(running) == len(harness.runner.specs) == 3


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_no_more_messages_are_taken_than_there_are_free_slots(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queue = CountingQueue(backend.queue, most=2)
        harness = ServiceHarness(backend).with_ports(queue=queue)
        for key in "abcde":
            harness.runner.set_scripts(key, HANGS)
        await harness.submit(*(make_task(key) for key in "abcde"))

        async with harness.running_worker(concurrency=2) as worker:
            await harness.advance(timedelta(minutes=4))
            running, options = worker.running, queue.delivered

        assert len(running) == options == 2
        assert max(queue.limits) == 2
        assert (await harness.source.depth("default")).ready == 5  # those two were given back


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_slot_is_filled_again_as_soon_as_it_is_free(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        for key, seconds in {"a": 3, "b": 100, "c": 4, "d": 1}.items():
            harness.runner.set_scripts(key, takes(seconds))
        await harness.submit(*(make_task(key) for key in "abcd"))

        async with harness.running_worker(concurrency=2):
            await harness.advance(timedelta(seconds=10))

        ended = {child.spec.key: child.ended_at for child in harness.runner.children}
        assert ended["a"] == timedelta(seconds=3)
        assert ended["c"] == timedelta(seconds=7)
        assert ended["d"] == timedelta(seconds=8)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_that_comes_while_the_worker_waits_is_taken_at_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        async with harness.running_worker():
            await harness.advance(timedelta(seconds=7))
            await harness.submit(make_task())
            await harness.advance(NO_WAIT)

            assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", WITH_QUEUE)
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("nonsense", "not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "requestId must match"),
        ('{"requestId":"../etc"}', "requestId must match"),
        ('{"requestId":7}', "requestId must match"),
        (message_body("x" * 257), "requestId must match"),
        (message_body("job-missing_a"), "there is no task 'job-missing_a'"),
    ],
)
@scenario
async def test_a_message_that_names_no_task_is_recorded_and_removed(
    kind: str, body: str, reason: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await backend.queue.send([OutgoingMessage(queue="default", body=body)])
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)
            depth = await harness.source.depth("default")

        page = await backend.events.query(TENANT, event_type="Message Rejected")
        (rejected,) = page.items
        assert reason in rejected.body.reason
        assert rejected.body.queue == "default"
        assert depth == EMPTY
        assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_of_a_task_that_is_not_to_be_run_is_dropped(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(
            make_task("done"), make_task("cancelled"), make_task("waiting", "cancelled")
        )
        await harness.complete(task_id("done"))
        await harness.transitions.apply_to_task(task_id("cancelled"), c.RequestCancel(by="ann"))
        await backend.queue.send(
            [
                OutgoingMessage(queue="default", body=message_body(task_id(key)))
                for key in ("done", "cancelled", "waiting")
            ]
        )

        async with harness.running_worker():
            await harness.advance(SECOND)

        assert harness.runner.specs == []
        assert await harness.source.depth("default") == EMPTY


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_task_that_another_worker_runs_is_delayed_and_taken_over_when_its_lease_ends(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        claimed = await harness.claim(task_id("a"), "worker-2")
        assert claimed.lease is not None
        over_in = LEASE.duration + LEASE.skew_margin

        async with harness.running_worker():
            await harness.advance(over_in - timedelta(milliseconds=1))
            before = await harness.task("a"), list(harness.runner.specs)
            await harness.advance(timedelta(milliseconds=1))

        row = await harness.task("a")
        assert before == (claimed, [])
        assert row.state is TaskState.COMPLETED
        assert row.attempt == 2
        assert harness.runner.specs[0].fence > claimed.fence
        assert await harness.event_types("a") == [
            "Task Pending",
            "Task Processing Started",
            "Task Processing Failed",
            "Task Processing Started",
            "Task Completed",
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_putting_a_message_off_again_and_again_never_makes_it_a_dead_letter(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        fence = (await harness.claim(task_id("a"), "worker-2")).fence

        async with harness.running_worker():
            for _ in range(60):
                await harness.advance(timedelta(seconds=30))
                renewal = c.Renew(fence=fence, lease_duration=LEASE.duration)
                await harness.transitions.apply_to_task(task_id("a"), renewal)
            done = c.Complete(fence=fence, result=None, duration=SECOND)
            row = await harness.transitions.apply_to_task(task_id("a"), done)
            await harness.advance(timedelta(minutes=2))

        assert harness.runner.specs == []
        assert (row.attempt, row.attempts_used) == (1, 0)
        assert await harness.source.depth("default") == EMPTY


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_of_two_workers_with_two_messages_of_one_task_one_runs_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", takes(30))
        await harness.submit(make_task())
        await backend.queue.send(
            [OutgoingMessage(queue="default", body=message_body(task_id("a")))]
        )

        async with harness.running_worker("worker-1"), harness.running_worker("worker-2"):
            await harness.advance(timedelta(minutes=2))

        assert len(harness.runner.specs) == 1
        assert (await harness.task("a")).attempt == 1
        assert await harness.source.depth("default") == EMPTY


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_that_comes_before_its_task_is_due_waits_for_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task(delay=60))
        await backend.queue.send(
            [OutgoingMessage(queue="default", body=message_body(task_id("a")))]
        )

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=59.9))
            early = len(harness.runner.specs)
            await harness.advance(timedelta(seconds=0.1))

        assert (early, len(harness.runner.specs)) == (0, 1)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_the_outcome_is_committed_before_the_message_is_deleted(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        watched, calls = record_calls(backend)
        harness = ServiceHarness(watched)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)

        writes = [call for call in calls if call in ("ledger.commit", "queue.delete")]
        assert writes[-2:] == ["ledger.commit", "queue.delete"]
        assert writes.count("queue.delete") == 1


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_that_outlives_the_outcome_is_dropped_when_it_comes_again(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queue = FlakyPort(backend.queue, "delete")
        harness = ServiceHarness(backend).with_ports(queue=queue)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)
            left = await harness.source.depth("default")
            await harness.advance(timedelta(minutes=1))

        assert queue.failures == 1
        assert left.hidden == 1
        assert len(harness.runner.specs) == 1
        assert await harness.source.depth("default") == EMPTY
        assert (await harness.event_types("a")).count("Task Completed") == 1


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_released_task_gets_no_place_that_it_had_before_another_attempt(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        instance = WorkerInstance(
            worker_id="worker-2",
            queues=("default",),
            process_id=1,
            lease_duration=LEASE.duration,
        )
        worker = await harness.source.join(instance)
        (message,) = await backend.queue.receive(
            ["default"], limit=1, wait=NO_WAIT, hidden_for=MINUTE
        )
        before = await harness.task("a")
        await harness.fail(task_id("a"), ErrorCategory.NETWORK)
        harness.clock.advance(MINUTE)

        claimed = await harness.source._try_claim(worker, before, message)
        released = c.Release(fence=claimed.fence, reason="stops", due_at=claimed.due_at)
        await harness.source.turn(
            worker, [LeaseCommand(task_id("a"), released, "change")], turn_id="2"
        )
        await harness.source.leave(worker)

        row = await harness.task("a")
        assert (row.attempt, row.due_at) == (2, harness.clock.now())
