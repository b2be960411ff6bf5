"""Events that come twice, late, out of order or to several dispatchers at once do no harm."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from longshore.core.events.event import EventContext
from longshore.core.events.types import TaskCancelled
from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.services.dispatcher import CONSUMER, ENDING_EVENTS
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    APP,
    BACKENDS,
    IN_MEMORY,
    NO_WAIT,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import Crash, InterposedPort, crash_at
from tests.unit.services.samples import DIAMOND

WAITING, PENDING = TaskState.WAITING, TaskState.PENDING


def ids(*keys: str) -> list[str]:
    return [task_id(key) for key in keys]


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("seed", range(5))
@scenario
async def test_events_that_come_twice_late_and_out_of_order_change_nothing(
    kind: str, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    keys = [f"t{number}" for number in range(12)]
    tasks = [make_task(key, *chance.sample(keys[:n], min(n, 2))) for n, key in enumerate(keys)]
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*tasks)
        ended: list[str] = []
        while len(ended) < len(keys):
            states = await harness.states()
            ready = sorted(key for key, state in states.items() if state is PENDING)
            key = chance.choice(ready)
            await harness.complete(task_id(key))
            ended.append(key)
            again = chance.sample(ended, k=chance.randint(1, len(ended)))
            for _ in range(2):
                await harness.dispatcher.settle(ids(*again))
            await harness.dispatcher.settle(ids(key))

        assert (await harness.job()).state is JobState.COMPLETED
        assert await harness.job_event_types() == ["Job Created", "Job Completed"]
        for key in keys:
            assert (await harness.event_types(key)).count("Task Pending") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_row_outranks_an_event(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        before = await harness.job()

        await harness.dispatcher.settle(ids("a", "d"))

        assert await harness.job() == before
        assert (await harness.task("b")).state is WAITING
        await harness.finish()
        assert (await harness.job()).state is JobState.COMPLETED


class Lagging:
    """A ledger that reads many rows late: at first without one of them, then as it was."""

    def __init__(self, ledger: Any, task_id: str, old: TaskRow) -> None:
        self._ledger = ledger
        self._answers: list[list[TaskRow]] = [[], [old]]
        self._task_id = task_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        if self._task_id in task_ids and self._answers:
            return self._answers.pop(0)
        return await self._ledger.get_tasks(task_ids)


@pytest.mark.parametrize("kind", WITH_QUEUE[:1])
@scenario
async def test_an_event_that_comes_before_its_row_is_readable_is_not_forgotten(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        old = await harness.task("a")
        await harness.complete(task_id("a"))
        lagging = harness.with_ports(ledger=Lagging(backend.ledger, task_id("a"), old))

        await harness.advance_until_done(lagging.dispatch())

        assert (await harness.task("b")).state is PENDING
        assert len((await harness.job()).completed) == 1


@scenario
async def test_an_event_whose_row_never_comes_does_not_stop_everything(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        await backend.events.append(
            tenant=TENANT,
            app=APP,
            entity_id=task_id("missing"),
            body=TaskCancelled(task_id=task_id("missing"), job_id=job_id(), by="ann"),
            context=EventContext(origin="test"),
            now=harness.clock.now(),
        )
        await harness.complete(task_id("a"))

        await harness.advance_until_done(harness.dispatch())

        assert (await harness.task("b")).state is PENDING


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_an_event_of_an_unknown_job_does_not_block_the_others(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        await harness.complete(task_id("a"))

        await harness.dispatcher.settle(["job-missing_a", "strange", task_id("a")])

        assert (await harness.task("b")).state is PENDING


@pytest.mark.parametrize("kind", WITH_QUEUE[:1])
@scenario
async def test_an_event_that_was_not_acknowledged_is_delivered_again(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        await harness.complete(task_id("a"))
        bus = FlakyPort(backend.bus, "acknowledge", Crash(), times=1)

        with pytest.raises(Crash):
            await harness.with_ports(bus=bus).dispatcher.step(NO_WAIT)
        delivery = await backend.bus.receive(CONSUMER, types=ENDING_EVENTS, limit=10, wait=NO_WAIT)
        await harness.finish()

        assert delivery is not None
        assert [event.entity_id for event in delivery.events] == [task_id("a")]
        assert await harness.job_event_types() == ["Job Created", "Job Completed"]


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_a_dispatcher_that_dies_at_any_call_is_replaced_by_the_next(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    crashes = 0
    for at in range(1, 200):
        async with open_backend(kind, tmp_path) as backend:
            harness = ServiceHarness(backend)
            await harness.submit(*DIAMOND, make_task("e"))
            await harness.fail(task_id("e"))
            dying = ServiceHarness(crash_at(backend, at, after_call=after_the_call))
            for key in "abcd":
                await harness.complete(task_id(key))
                try:
                    await dying.dispatch()
                except Crash:
                    crashes += 1
                    await harness.dispatch()

            job = await harness.job()
            assert job.state is JobState.FAILED
            assert len(job.completed) == 4
            assert await harness.job_event_types() == ["Job Created", "Job Failure Detected"]
            for key in "abcd":
                assert (await harness.event_types(key)).count("Task Pending") == 1
        if not crashes:
            break
        crashes = 0
    assert at > 20


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("method", ["get_tasks", "get_job", "commit"])
@scenario
async def test_two_dispatchers_at_once_send_nothing_twice_and_forget_nothing(
    kind: str, method: str, tmp_path: Path
) -> None:
    for at in range(1, 50):
        async with open_backend(kind, tmp_path) as backend:
            harness, other = ServiceHarness(backend), ServiceHarness(backend)
            await harness.submit(*DIAMOND)
            ledger = InterposedPort(backend.ledger, method, before=other.dispatch, at=at)
            item = harness.with_ports(ledger=ledger)
            for key in "abcd":
                await harness.complete(task_id(key))
                await item.dispatch()

            assert await harness.job_event_types() == ["Job Created", "Job Completed"]
            for key in "abcd":
                assert await harness.event_types(key) == [
                    "Task Pending",
                    "Task Processing Started",
                    "Task Completed",
                ]
        if ledger.calls < at:
            break
    assert at > 4


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_dependent_that_changes_while_it_is_notified_does_not_affect_the_others(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*DIAMOND)
        await harness.complete(task_id("a"))

        async def operator_cancels() -> None:
            await harness.transitions.apply_to_task(task_id("c"), c.RequestCancel(by="ann"))

        ledger = InterposedPort(backend.ledger, "commit", before=operator_cancels)
        await harness.with_ports(ledger=ledger).dispatch()

        states = await harness.states()
        assert (states["b"], states["c"]) == (PENDING, TaskState.CANCELLED)


@scenario
async def test_dependents_are_notified_once_when_another_end_of_the_job_is_recorded_meanwhile(
    tmp_path: Path,
) -> None:
    async with open_backend("atomic memory", tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("x"), make_task("b", "a"))
        await harness.complete(task_id("a"))
        await harness.complete(task_id("x"))

        async def record_other_end() -> None:
            await other.dispatcher.settle(ids("x"))

        # The first commit makes the dependent ready, the second one records the end in the job.
        racing = InterposedPort(backend.ledger, "commit", before=record_other_end, at=2)
        reads = InterposedPort(racing, "get_task")
        await harness.with_ports(ledger=reads).dispatcher.settle(ids("a"))

        assert racing.calls == 3
        assert reads.calls == 1  # its dependent
        assert (await harness.states())["b"] is PENDING
        assert len((await harness.job()).completed) == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_many_dispatchers_racing_agree(kind: str, tmp_path: Path) -> None:
    keys = [f"t{number}" for number in range(40)]
    async with open_backend(kind, tmp_path) as backend:
        harnesses = [ServiceHarness(backend) for _ in range(4)]
        harness = harnesses[0]
        await harness.submit(*(make_task(key) for key in keys), make_task("end", *keys))
        for key in keys:
            await harness.complete(task_id(key))

        await asyncio.gather(
            *(item.dispatcher.settle(ids(key)) for key in keys for item in harnesses)
        )
        await harness.finish()

        assert await harness.event_types("end") == [
            "Task Pending",
            "Task Processing Started",
            "Task Completed",
        ]
        assert await harness.job_event_types() == ["Job Created", "Job Completed"]
