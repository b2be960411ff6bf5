"""A message in the queue's own dead-letter store ends its task, or goes, or stays to be seen."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.failures import ErrorCategory
from longshore.core.messages import body_for
from longshore.core.states import JobState, TaskState
from longshore.errors import BackendUnavailable
from longshore.services.dead_letters import Settled
from longshore.testing.flaky import Flaky
from tests.unit.services.dead import send, wear_out
from tests.unit.services.ports import Crash, Interposed, crashing, recorded
from tests.unit.services.stage import (
    BACKENDS,
    LEASE,
    TENANT,
    Stage,
    a_task,
    opened,
    scenario,
    task_id,
)

A = task_id("a")
OVER = LEASE.lasts + LEASE.skew_margin
MINUTE = timedelta(minutes=1)


async def depth_of_dead(stage: Stage, queue: str = "default") -> int:
    return (await stage.backend.queue.depth(queue)).dead


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_dead_message_makes_its_task_fail_and_goes(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task(queue="mail"))
        await wear_out(stage, "mail")

        settled = await stage.dead_letters.settle()

        last = (await stage.history("a"))[-1]
        assert settled == Settled(failed=1)
        assert (await stage.task("a")).state is TaskState.FAILED
        assert (last.type, last.body.source) == ("Task Failed", "dlq")
        assert await depth_of_dead(stage, "mail") == 0
        await stage.dispatch()
        assert (await stage.job()).state is JobState.FAILED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_until_it_is_settled_it_is_listed_with_what_will_come_of_it(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        await wear_out(stage)
        dead = stage.dead_letters

        (before,) = (await dead.page(TENANT)).items
        foreign = (await dead.page("another-tenant")).items
        await dead.settle()
        (after,) = (await dead.page(TENANT)).items

        assert (before.id[:4], before.row.id) == ("msg-", A)
        assert "the next sweep" in before.reason
        assert foreign == ()
        assert after.id == A


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_task_is_failed_before_its_message_is_removed(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        await wear_out(stage)
        watched, calls = recorded(backend)

        await Stage(watched).dead_letters.settle()

        writing = [call for call in calls if call in ("ledger.commit", "queue.drop_dead_letter")]
        assert writing == ["ledger.commit", "queue.drop_dead_letter"]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_settling_that_dies_at_any_call_is_finished_by_the_next(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    for at in range(1, 100):
        async with opened(kind, tmp_path / str(at)) as backend:
            stage = Stage(backend)
            await stage.submit(a_task("a"), a_task("b"))
            await wear_out(stage)
            died = False
            try:
                await Stage(
                    crashing(backend, at, after_the_call=after_the_call)
                ).dead_letters.settle()
            except Crash:
                died = True

            await stage.dead_letters.settle()

            assert await depth_of_dead(stage) == 0
            for key in ("a", "b"):
                assert (await stage.told(key)).count("Task Failed") == 1
        if not died:
            break
    assert at > 4


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_is_finished_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        await wear_out(stage)
        await stage.complete(A)
        dead = stage.dead_letters

        listed = (await dead.page(TENANT)).items
        settled = await dead.settle()

        assert listed == ()
        assert settled == Settled(dropped=1)
        assert (await stage.task("a")).state is TaskState.COMPLETED
        assert await depth_of_dead(stage) == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_in_a_living_workers_hands_is_left_to_it(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        await wear_out(stage)
        held = await stage.claim(A)

        settled = await stage.dead_letters.settle()

        assert settled == Settled(dropped=1)
        assert await stage.task("a") == held


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_of_a_silent_worker_fails(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        await wear_out(stage)
        await stage.claim(A)
        stage.clock.advance(OVER)

        assert await stage.dead_letters.settle() == Settled(failed=1)

        assert (await stage.task("a")).state is TaskState.FAILED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_from_before_a_replay_does_not_end_the_new_round(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        await wear_out(stage)
        await stage.fail(A)
        stage.clock.advance(MINUTE)
        dead = stage.dead_letters
        await dead.replay(TENANT, [A], by="ann")

        settled = await dead.settle()

        assert settled == Settled(dropped=1)
        row = await stage.task("a")
        assert (row.state, row.round) == (TaskState.PENDING, 2)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_message_of_a_later_ring_ends_the_task_too(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        stage.clock.advance(2 * MINUTE)
        await stage.dispatch()
        # In a ledger that cannot see messages the sweeper rings again, and the two become one.
        await stage.sweeper.sweep()
        await wear_out(stage)

        assert await stage.dead_letters.settle() == Settled(failed=1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_message_for_the_next_attempt_ends_the_task_too(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        stage.clock.advance(MINUTE)
        await stage.fail(A, ErrorCategory.NETWORK)
        stage.clock.advance(MINUTE)
        await wear_out(stage)

        assert await stage.dead_letters.settle() == Settled(failed=1)

        assert [event.type for event in await stage.history("a")][-2:] == [
            "Task Processing Failed",
            "Task Failed",
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_that_leads_nowhere_stays_listed_with_its_reason(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await send(stage, "no json", body_for("job-gone_a"))
        await wear_out(stage)
        dead = stage.dead_letters

        settled = [await dead.settle() for _ in range(2)]

        reasons = {letter.reason for letter in (await dead.page(TENANT)).items}
        assert settled == [Settled(staying=2)] * 2
        assert not settled[0]
        assert reasons == {"not JSON", "there is no task 'job-gone_a'"}
        assert await depth_of_dead(stage) == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_that_stays_is_told_of_once(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        dead = stage.dead_letters
        told = []
        for _ in range(2):
            await send(stage, "poison")
            await wear_out(stage)
            for _ in range(2):
                with caplog.at_level(logging.ERROR):
                    caplog.clear()
                    await dead.settle()
                told.append(len(caplog.records))

        assert told == [1, 0, 1, 0]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_many_that_stay_do_not_hide_one_that_can_be_settled(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await send(stage, *(f"poison {number}" for number in range(600)))
        await wear_out(stage)
        await stage.submit(a_task())
        await wear_out(stage)

        settled = await stage.dead_letters.settle()

        assert settled == Settled(failed=1, staying=600)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_two_who_settle_at_once_fail_the_task_once(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stages = [Stage(backend), Stage(backend)]
        await stages[0].submit(a_task("a"), a_task("b"), a_task("c"))
        await wear_out(stages[0])

        await asyncio.gather(*(stage.dead_letters.settle() for stage in stages))

        for key in ("a", "b", "c"):
            assert (await stages[0].told(key)).count("Task Failed") == 1
        assert await depth_of_dead(stages[0]) == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_is_taken_at_the_last_moment_is_left_to_its_worker(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        await wear_out(stage)

        async def somebody_takes_it() -> None:
            await stage.claim(A, "worker-2")

        ledger = Interposed(backend.ledger, "commit", before=somebody_takes_it)
        settled = await stage.with_ports(ledger=ledger).dead_letters.settle()

        assert settled == Settled(dropped=1)
        assert (await stage.task("a")).lease.worker_id == "worker-2"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_store_out_of_reach_leaves_the_message_where_it_is(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        await wear_out(stage)
        ledger = Flaky(backend.ledger, "commit", times=None)

        with pytest.raises(BackendUnavailable):
            await stage.in_time(stage.with_ports(ledger=ledger).dead_letters.settle())

        assert await depth_of_dead(stage) == 1
        assert await stage.dead_letters.settle() == Settled(failed=1)
