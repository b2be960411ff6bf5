"""A message in the queue's own dead-letter store ends its task, or goes, or stays to be seen."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.queues import message_body
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import BackendUnavailable
from longshore.services.dead_letters import SettleCounts
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.dead_messages import exhaust_receives, send
from tests.unit.services.harness import (
    LEASE,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import Crash, InterposedPort, crash_at, record_calls

A = task_id("a")
OVER = LEASE.duration + LEASE.skew_margin
MINUTE = timedelta(minutes=1)


async def depth_of_dead(harness: ServiceHarness, queue: str = "default") -> int:
    return (await harness.source.depth(queue)).dead_letters


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_dead_message_makes_its_task_fail_and_goes(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task(queue="mail"))
        await exhaust_receives(harness, "mail")

        settled = await harness.dead_letters.settle_messages()

        last = (await harness.history("a"))[-1]
        assert settled == SettleCounts(failed=1)
        assert (await harness.task("a")).state is TaskState.FAILED
        assert (last.type, last.body.source) == ("Task Failed", "dlq")
        assert await depth_of_dead(harness, "mail") == 0
        await harness.dispatch()
        assert (await harness.job()).state is JobState.FAILED


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_until_it_is_settled_it_is_listed_with_what_will_come_of_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await exhaust_receives(harness)
        dead = harness.dead_letters

        (before,) = (await dead.list_page(TENANT)).items
        foreign = (await dead.list_page("another-tenant")).items
        await dead.settle_messages()
        (after,) = (await dead.list_page(TENANT)).items

        assert (before.id[:4], before.row.id) == ("msg-", A)
        assert "the sweeper will fail its task shortly" in before.reason
        assert foreign == ()
        assert after.id == A


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_the_task_is_failed_before_its_message_is_removed(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await exhaust_receives(harness)
        watched, calls = record_calls(backend)

        await ServiceHarness(watched).dead_letters.settle_messages()

        writing = [call for call in calls if call in ("ledger.commit", "queue.delete_dead_letter")]
        assert writing == ["ledger.commit", "queue.delete_dead_letter"]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_settling_that_dies_at_any_call_is_finished_by_the_next(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    for at in range(1, 100):
        async with open_backend(kind, tmp_path / str(at)) as backend:
            harness = ServiceHarness(backend)
            await harness.submit(make_task("a"), make_task("b"))
            await exhaust_receives(harness)
            died = False
            try:
                await ServiceHarness(
                    crash_at(backend, at, after_call=after_the_call)
                ).dead_letters.settle_messages()
            except Crash:
                died = True

            await harness.dead_letters.settle_messages()

            assert await depth_of_dead(harness) == 0
            for key in ("a", "b"):
                assert (await harness.event_types(key)).count("Task Failed") == 1
        if not died:
            break
    assert at > 4


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_task_that_is_finished_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await exhaust_receives(harness)
        await harness.complete(A)
        dead = harness.dead_letters

        listed = (await dead.list_page(TENANT)).items
        settled = await dead.settle_messages()

        assert listed == ()
        assert settled == SettleCounts(dropped=1)
        assert (await harness.task("a")).state is TaskState.COMPLETED
        assert await depth_of_dead(harness) == 0


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_task_in_a_living_workers_hands_is_left_to_it(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await exhaust_receives(harness)
        claimed = await harness.claim(A)

        settled = await harness.dead_letters.settle_messages()

        assert settled == SettleCounts(dropped=1)
        assert await harness.task("a") == claimed


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_task_of_a_silent_worker_fails(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await exhaust_receives(harness)
        await harness.claim(A)
        harness.clock.advance(OVER)

        assert await harness.dead_letters.settle_messages() == SettleCounts(failed=1)

        assert (await harness.task("a")).state is TaskState.FAILED


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_from_before_a_replay_does_not_end_the_new_round(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await exhaust_receives(harness)
        await harness.fail(A)
        harness.clock.advance(MINUTE)
        dead = harness.dead_letters
        await dead.replay(TENANT, [A], by="ann")

        settled = await dead.settle_messages()

        assert settled == SettleCounts(dropped=1)
        row = await harness.task("a")
        assert (row.state, row.round) == (TaskState.PENDING, 2)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_later_message_of_the_task_fails_it_too(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        harness.clock.advance(2 * MINUTE)
        await harness.dispatch()
        # With a ledger that cannot see messages the sweeper enqueues again, and the two become one.
        await harness.sweeper.sweep()
        await exhaust_receives(harness)

        assert await harness.dead_letters.settle_messages() == SettleCounts(failed=1)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_the_message_for_the_next_attempt_ends_the_task_too(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        harness.clock.advance(MINUTE)
        await harness.fail(A, ErrorCategory.NETWORK)
        harness.clock.advance(MINUTE)
        await exhaust_receives(harness)

        assert await harness.dead_letters.settle_messages() == SettleCounts(failed=1)

        assert [event.type for event in await harness.history("a")][-2:] == [
            "Task Processing Failed",
            "Task Failed",
        ]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_that_leads_nowhere_stays_listed_with_its_reason(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await send(harness, "no json", message_body("job-gone_a"))
        await exhaust_receives(harness)
        dead = harness.dead_letters

        settled = [await dead.settle_messages() for _ in range(2)]

        reasons = {letter.reason for letter in (await dead.list_page(TENANT)).items}
        assert settled == [SettleCounts(unresolved=2)] * 2
        assert reasons == {"not JSON", "there is no task 'job-gone_a'"}
        assert await depth_of_dead(harness) == 2


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_that_stays_is_logged_once(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        dead = harness.dead_letters
        notices = []
        for _ in range(2):
            await send(harness, "poison")
            await exhaust_receives(harness)
            for _ in range(2):
                with caplog.at_level(logging.ERROR):
                    caplog.clear()
                    await dead.settle_messages()
                notices.append(len(caplog.records))

        assert notices == [1, 0, 1, 0]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_many_that_stay_do_not_hide_one_that_can_be_settled(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await send(harness, *(f"poison {number}" for number in range(600)))
        await exhaust_receives(harness)
        await harness.submit(make_task())
        await exhaust_receives(harness)

        settled = await harness.dead_letters.settle_messages()

        assert settled == SettleCounts(failed=1, unresolved=600)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_two_who_settle_at_once_fail_the_task_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stages = [ServiceHarness(backend), ServiceHarness(backend)]
        await stages[0].submit(make_task("a"), make_task("b"), make_task("c"))
        await exhaust_receives(stages[0])

        await asyncio.gather(*(harness.dead_letters.settle_messages() for harness in stages))

        for key in ("a", "b", "c"):
            assert (await stages[0].event_types(key)).count("Task Failed") == 1
        assert await depth_of_dead(stages[0]) == 0


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_task_that_is_taken_at_the_last_moment_is_left_to_its_worker(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await exhaust_receives(harness)

        async def other_worker_claims() -> None:
            await harness.claim(A, "worker-2")

        ledger = InterposedPort(backend.ledger, "commit", before=other_worker_claims)
        settled = await harness.with_ports(ledger=ledger).dead_letters.settle_messages()

        assert settled == SettleCounts(dropped=1)
        assert (await harness.task("a")).lease.worker_id == "worker-2"


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_store_out_of_reach_leaves_the_message_where_it_is(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await exhaust_receives(harness)
        ledger = FlakyPort(backend.ledger, "commit", times=None)

        with pytest.raises(BackendUnavailable):
            await harness.advance_until_done(
                harness.with_ports(ledger=ledger).dead_letters.settle_messages()
            )

        assert await depth_of_dead(harness) == 1
        assert await harness.dead_letters.settle_messages() == SettleCounts(failed=1)
