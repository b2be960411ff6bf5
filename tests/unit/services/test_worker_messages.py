"""How a worker deals with messages: never too many, whatever they say, however often they come."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core import commands as c
from longshore.core.messages import body_for
from longshore.core.states import TaskState
from longshore.ports.queue import Depth, Message, Outgoing
from longshore.testing.flaky import Flaky
from longshore.testing.runner import Script, succeeds
from tests.unit.services.ports import recorded
from tests.unit.services.samples import HANGS, MINUTE
from tests.unit.services.stage import (
    BACKENDS,
    LEASE,
    NO_WAIT,
    SECOND,
    TENANT,
    Stage,
    a_task,
    opened,
    scenario,
    task_id,
)

EMPTY = Depth(ready=0, hidden=0, dead=0)


def takes(seconds: float, result: Any = None) -> Script:
    return Script(says=[timedelta(seconds=seconds)], ending=succeeds(result))


class Counted:
    """A queue that notes how many messages were asked for, how patiently, and how many came."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.asked: list[int] = []
        self.waits: list[timedelta] = []
        self.given = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def receive(self, queues: Sequence[str], *, limit: int, **how: Any) -> list[Message]:
        self.asked.append(limit)
        self.waits.append(how["wait"])
        messages = await self._queue.receive(queues, limit=limit, **how)
        self.given += len(messages)
        return messages


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_with_nothing_to_do_asks_once_and_waits_twenty_seconds_for_an_answer(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        queue = Counted(backend.queue)
        stage = Stage(backend).with_ports(queue=queue)

        async with stage.working():
            await stage.passes(timedelta(seconds=59))
            waits = list(queue.waits)

        assert waits == [timedelta(seconds=20)] * 3


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_three_tasks_run_at_once_if_no_other_number_is_set(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        for key in "abcde":
            stage.runner.plays(key, HANGS)
        await stage.submit(*(a_task(key) for key in "abcde"))

        async with stage.working() as worker:
            await stage.passes(MINUTE)
            running = worker.running

        assert len(running) == len(stage.runner.orders) == 3


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_no_more_messages_are_taken_than_there_are_free_slots(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        queue = Counted(backend.queue)
        stage = Stage(backend).with_ports(queue=queue)
        for key in "abcde":
            stage.runner.plays(key, HANGS)
        await stage.submit(*(a_task(key) for key in "abcde"))

        async with stage.working(concurrency=2) as worker:
            await stage.passes(timedelta(minutes=4))
            running, given = worker.running, queue.given

        assert len(running) == given == 2
        assert max(queue.asked) == 2
        assert (await backend.queue.depth("default")).ready == 5  # those two were given back


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_slot_is_filled_again_as_soon_as_it_is_free(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        for key, seconds in {"a": 3, "b": 100, "c": 4, "d": 1}.items():
            stage.runner.plays(key, takes(seconds))
        await stage.submit(*(a_task(key) for key in "abcd"))

        async with stage.working(concurrency=2):
            await stage.passes(timedelta(seconds=10))

        ended = {child.order.key: child.ended_at for child in stage.runner.children}
        assert ended["a"] == timedelta(seconds=3)
        assert ended["c"] == timedelta(seconds=7)
        assert ended["d"] == timedelta(seconds=8)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_that_comes_while_the_worker_waits_is_taken_at_once(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        async with stage.working():
            await stage.passes(timedelta(seconds=7))
            await stage.submit(a_task())
            await stage.passes(NO_WAIT)

            assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("nonsense", "not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "requestId must match"),
        ('{"requestId":"../etc"}', "requestId must match"),
        ('{"requestId":7}', "requestId must match"),
        (body_for("x" * 257), "requestId must match"),
        (body_for("job-nobody_a"), "there is no task 'job-nobody_a'"),
    ],
)
@scenario
async def test_a_message_that_names_no_task_is_recorded_and_removed(
    kind: str, body: str, reason: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await backend.queue.send([Outgoing(queue="default", body=body)])
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)
            depth = await backend.queue.depth("default")

        page = await backend.events.query(TENANT, event_type="Message Rejected")
        (rejected,) = page.items
        assert reason in rejected.body.reason
        assert rejected.body.queue == "default"
        assert depth == EMPTY
        assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_of_a_task_that_is_not_to_be_run_is_dropped(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task("done"), a_task("cancelled"), a_task("waiting", "cancelled"))
        await stage.complete(task_id("done"))
        await stage.transitions.task(task_id("cancelled"), c.RequestCancel(by="ann"))
        await backend.queue.send(
            [
                Outgoing(queue="default", body=body_for(task_id(key)))
                for key in ("done", "cancelled", "waiting")
            ]
        )

        async with stage.working():
            await stage.passes(SECOND)

        assert stage.runner.orders == []
        assert await backend.queue.depth("default") == EMPTY


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_somebody_else_runs_is_put_off_and_taken_over_when_its_lease_is_over(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        held = await stage.claim(task_id("a"), "somebody else")
        assert held.lease is not None
        over_in = LEASE.lasts + LEASE.skew_margin

        async with stage.working():
            await stage.passes(over_in - timedelta(milliseconds=1))
            before = await stage.task("a"), list(stage.runner.orders)
            await stage.passes(timedelta(milliseconds=1))

        row = await stage.task("a")
        assert before == (held, [])
        assert row.state is TaskState.COMPLETED
        assert row.attempt == 2
        assert stage.runner.orders[0].fence > held.fence
        assert await stage.told("a") == [
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
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        fence = (await stage.claim(task_id("a"), "somebody else")).fence

        async with stage.working():
            for _ in range(60):
                await stage.passes(timedelta(seconds=30))
                renewal = c.Renew(fence=fence, lasts=LEASE.lasts)
                await stage.transitions.task(task_id("a"), renewal)
            done = c.Complete(fence=fence, result=None, duration=SECOND)
            row = await stage.transitions.task(task_id("a"), done)
            await stage.passes(timedelta(minutes=2))

        assert stage.runner.orders == []
        assert (row.attempt, row.attempts_used) == (1, 0)
        assert await backend.queue.depth("default") == EMPTY


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_of_two_workers_with_two_messages_of_one_task_one_runs_it(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", takes(30))
        await stage.submit(a_task())
        await backend.queue.send([Outgoing(queue="default", body=body_for(task_id("a")))])

        async with stage.working("worker-1"), stage.working("worker-2"):
            await stage.passes(timedelta(minutes=2))

        assert len(stage.runner.orders) == 1
        assert (await stage.task("a")).attempt == 1
        assert await backend.queue.depth("default") == EMPTY


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_that_comes_before_its_task_is_due_waits_for_it(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task(delay=60))
        await backend.queue.send([Outgoing(queue="default", body=body_for(task_id("a")))])

        async with stage.working():
            await stage.passes(timedelta(seconds=59.9))
            early = len(stage.runner.orders)
            await stage.passes(timedelta(seconds=0.1))

        assert (early, len(stage.runner.orders)) == (0, 1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_outcome_is_committed_before_the_message_is_deleted(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        watched, calls = recorded(backend)
        stage = Stage(watched)
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)

        writes = [call for call in calls if call in ("ledger.commit", "queue.delete")]
        assert writes[-2:] == ["ledger.commit", "queue.delete"]
        assert writes.count("queue.delete") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_that_outlives_the_outcome_is_dropped_when_it_comes_again(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        queue = Flaky(backend.queue, "delete")
        stage = Stage(backend).with_ports(queue=queue)
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)
            left = await backend.queue.depth("default")
            await stage.passes(timedelta(minutes=1))

        assert queue.failures == 1
        assert left.hidden == 1
        assert len(stage.runner.orders) == 1
        assert await backend.queue.depth("default") == EMPTY
        assert (await stage.told("a")).count("Task Completed") == 1
