"""The ledger's clauses about what sweepers, dispatchers and workers look for."""

from __future__ import annotations

from datetime import datetime, timedelta

from longshore.core.jobs import job
from longshore.core.tasks import commands as c
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import (
    an_intent,
    apply_command,
    apply_job_command,
    commit,
    commit_job,
    drain,
    leased_task,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import (
    START,
    TICK,
    PortContract,
    clause,
    running,
    settle,
    without_time_passing,
)

MINUTE = timedelta(minutes=1)


class FindClauses(PortContract):
    """``find`` and ``task_states``."""

    @clause
    async def test_the_states_of_a_jobs_tasks_come_by_key(self, backend: Backend) -> None:
        await leased_task(backend, "a")
        await commit(backend, new_task("b", number=1, awaits=[0]))
        await commit(backend, new_task("c", job_id="job-two"))

        states = await backend.ledger.task_states("job-one")

        assert states == {"a": TaskState.PROCESSING, "b": TaskState.WAITING}

    @clause
    async def test_a_job_without_rows_has_no_states(self, backend: Backend) -> None:
        assert await backend.ledger.task_states("job-none") == {}

    @clause
    async def test_jobs_and_tasks_are_found_by_the_beginning_of_their_id_in_order(
        self, backend: Backend
    ) -> None:
        await commit_job(backend, new_job("job-abc"))
        await commit_job(backend, new_job("job-abd"))
        await commit_job(backend, new_job("job-b"))
        await commit(backend, new_task("z", job_id="job-abc"))
        await commit(backend, new_task("y", job_id="job-abc"))

        ids = await backend.ledger.find_ids("acme", "job-ab")

        assert ids == ["job-abc", "job-abc_y", "job-abc_z", "job-abd"]

    @clause
    async def test_a_whole_id_finds_itself(self, backend: Backend) -> None:
        row = await commit(backend, new_task())

        assert await backend.ledger.find_ids("acme", row.id) == [row.id]

    @clause
    async def test_a_prefix_has_no_wildcards(self, backend: Backend) -> None:
        await commit_job(backend, new_job("job-abc"))
        await commit(backend, new_task("x", job_id="job-a"))

        assert await backend.ledger.find_ids("acme", "job-a_") == ["job-a_x"]
        assert await backend.ledger.find_ids("acme", "JOB-A") == []
        for sign in ("%", "job-%", "ob-a", "*", "?ob", "job-[a]", "\\", "'"):
            assert await backend.ledger.find_ids("acme", sign) == []

    @clause
    async def test_no_more_ids_are_found_than_the_limit(self, backend: Backend) -> None:
        for number in range(5):
            await commit_job(backend, new_job(f"job-{number}"))
            await commit(backend, new_task("t", job_id=f"job-{number}"))

        ids = await backend.ledger.find_ids("acme", "job-", limit=3)

        assert ids == ["job-0", "job-0_t", "job-1"]

    @clause
    async def test_ids_of_another_tenant_are_not_found(self, backend: Backend) -> None:
        await commit_job(backend, new_job("job-theirs", tenant="evil"))
        await commit(backend, new_task("t", tenant="evil", job_id="job-theirs"))

        for prefix in ("job-", "job-theirs", "job-theirs_", "job-theirs_t"):
            assert await backend.ledger.find_ids("acme", prefix) == []


class UnqueuedClauses(PortContract):
    """``unqueued_tasks``, where there is a queue."""

    @clause
    async def test_a_task_is_unqueued_from_the_moment_it_is_due(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        row = await commit(backend, new_task(not_before=START + MINUTE))
        assert row.due_at is not None
        clock.advance(MINUTE)
        await drain(backend)

        assert await _unqueued(backend, due_by=row.due_at - TICK) == []
        assert await _unqueued(backend, due_by=row.due_at) == [row.id]

    @clause
    async def test_a_task_is_unqueued_only_if_it_was_enqueued_before(
        self, backend: Backend
    ) -> None:
        row = await commit(backend, new_task())
        assert row.enqueued_at is not None
        await drain(backend)

        assert await _unqueued(backend, enqueued_before=row.enqueued_at) == []
        assert await _unqueued(backend, enqueued_before=row.enqueued_at + TICK) == [row.id]

    @clause
    async def test_a_task_that_was_enqueued_again_is_not_unqueued(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        row = await commit(backend, new_task())
        clock.advance(MINUTE)
        enqueued = await commit(backend, apply_command(row, c.EnqueueAgain(), now=clock.now()))
        assert enqueued.enqueued_at is not None
        await drain(backend)
        later = START + 2 * MINUTE

        assert await _unqueued(backend, due_by=later, enqueued_before=enqueued.enqueued_at) == []
        assert await _unqueued(
            backend, due_by=later, enqueued_before=enqueued.enqueued_at + TICK
        ) == [row.id]

    @clause
    async def test_a_task_is_unqueued_when_it_was_last_enqueued_as_long_ago_as_it_had_been_due(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        due_at = START.replace(microsecond=0) + MINUTE
        row = await commit(backend, new_task(not_before=due_at))
        for minutes in (1, 2, 4):
            clock.set(due_at + minutes * MINUTE)
            row = await commit(backend, apply_command(row, c.EnqueueAgain(), now=clock.now()))
            await drain(backend)
            again = due_at + 2 * minutes * MINUTE

            assert await _unqueued(backend, due_by=again - TICK, enqueued_before=again) == []
            assert await _unqueued(backend, due_by=again, enqueued_before=again) == [row.id]

    @clause
    async def test_only_pending_tasks_are_unqueued(self, backend: Backend) -> None:
        await leased_task(backend, "held")
        await commit(backend, new_task("waiting", awaits=[0]))
        cancelled = await commit(backend, new_task("cancelled"))
        await commit(backend, apply_command(cancelled, c.RequestCancel(by="ann")))
        await drain(backend)

        assert await _unqueued(backend) == []

    @clause
    async def test_no_more_unqueued_tasks_come_than_the_limit(self, backend: Backend) -> None:
        for number in range(4):
            await commit(backend, new_task(f"t{number}", number=number))
        await drain(backend)

        assert len(await _unqueued(backend, limit=3)) == 3


class SweepClauses(PortContract):
    """``leased_tasks`` and ``open_intents``."""

    @clause
    async def test_leased_tasks_come_with_the_earliest_end_first(self, backend: Backend) -> None:
        rows = {
            minutes: await leased_task(
                backend, f"t{9 - minutes}", worker=f"w{minutes}", lasts=minutes * MINUTE
            )
            for minutes in (3, 1, 2)
        }

        leased = await backend.ledger.leased_tasks(limit=10)

        assert leased == [_leased(rows[1]), _leased(rows[2]), _leased(rows[3])]

    @clause
    async def test_a_lease_has_expired_at_its_end_and_not_before(self, backend: Backend) -> None:
        row = await leased_task(backend, lasts=MINUTE)
        await leased_task(backend, "later", lasts=2 * MINUTE)
        end = _leased(row)[1].expires_at

        assert await backend.ledger.leased_tasks(limit=10, expired_by=end - TICK) == []
        assert await backend.ledger.leased_tasks(limit=10, expired_by=end) == [_leased(row)]

    @clause
    async def test_a_renewed_lease_lasts_until_its_new_end(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        row = await leased_task(backend, lasts=MINUTE)
        clock.advance(MINUTE / 2)
        renewal = c.Renew(fence=row.fence, lease_duration=MINUTE)

        renewed = await commit(backend, apply_command(row, renewal, now=clock.now()))

        assert await backend.ledger.leased_tasks(limit=10) == [_leased(renewed)]
        assert await backend.ledger.leased_tasks(limit=10, expired_by=START + MINUTE) == []

    @clause
    async def test_a_released_task_is_not_leased(self, backend: Backend) -> None:
        row = await leased_task(backend)

        await commit(
            backend, apply_command(row, c.Release(fence=row.fence, reason="the worker stops"))
        )

        assert await backend.ledger.leased_tasks(limit=10) == []

    @clause
    async def test_no_more_leased_tasks_come_than_the_limit(self, backend: Backend) -> None:
        for number in range(1, 4):
            await leased_task(backend, f"t{number}", lasts=number * MINUTE)

        leased = await backend.ledger.leased_tasks(limit=2)

        assert [task_id for task_id, _ in leased] == ["job-one_t1", "job-one_t2"]

    @clause
    async def test_a_job_has_an_open_intent_until_it_is_carried_out(self, backend: Backend) -> None:
        await commit_job(backend, new_job("job-plain"))
        row = await commit_job(backend, new_job("job-open", intent=an_intent()))
        while_open = await backend.ledger.open_intents(limit=10)

        done = job.IntentDone(intent_id=an_intent().id)
        await commit_job(backend, apply_job_command(row, done))

        assert while_open == ["job-open"]
        assert await backend.ledger.open_intents(limit=10) == []

    @clause
    async def test_no_more_open_intents_come_than_the_limit(self, backend: Backend) -> None:
        for number in (2, 0, 1):
            await commit_job(backend, new_job(f"job-{number}", intent=an_intent()))

        assert await backend.ledger.open_intents(limit=2) == ["job-0", "job-1"]
        assert await backend.ledger.open_intents(limit=2, after="job-1") == ["job-2"]


class WakeClauses(PortContract):
    """``wait_for_wake``."""

    @clause
    async def test_a_worker_is_woken_when_its_task_is_to_be_cancelled(
        self, backend: Backend
    ) -> None:
        row = await leased_task(backend, worker="w1")

        async with running(backend.ledger.wait_for_wake("w1")) as waiting:
            assert not waiting.done()
            await commit(backend, apply_command(row, c.RequestCancel(by="ann")))
            await without_time_passing(waiting)

    @clause
    async def test_a_wake_is_not_left_to_the_caller(self, backend: Backend) -> None:
        row = await leased_task(backend)

        effects = await backend.ledger.commit(apply_command(row, c.RequestCancel(by="ann")))

        assert effects == ()

    @clause
    async def test_a_worker_is_not_woken_for_anothers_task(self, backend: Backend) -> None:
        row = await leased_task(backend, worker="w1")

        async with (
            running(backend.ledger.wait_for_wake("w2")) as other,
            running(backend.ledger.wait_for_wake("w1")) as holder,
        ):
            await commit(backend, apply_command(row, c.RequestCancel(by="ann")))
            await without_time_passing(holder)
            await settle()
            assert not other.done()

    @clause
    async def test_a_wake_between_two_waits_is_not_lost(self, backend: Backend) -> None:
        rows = [await leased_task(backend, f"t{number}") for number in range(self.rounds)]
        async with running(backend.ledger.wait_for_wake("w1")) as waiting:
            await commit(backend, apply_command(rows[0], c.RequestCancel(by="ann")))
            await without_time_passing(waiting)

        for row in rows[1:]:
            await commit(backend, apply_command(row, c.RequestCancel(by="ann")))

            await without_time_passing(backend.ledger.wait_for_wake("w1"))

    @clause
    async def test_a_wake_is_delivered_once(self, backend: Backend) -> None:
        row = await leased_task(backend, worker="w1")
        async with running(backend.ledger.wait_for_wake("w1")) as waiting:
            await commit(backend, apply_command(row, c.RequestCancel(by="ann")))
            await without_time_passing(waiting)

        async with running(backend.ledger.wait_for_wake("w1")) as waiting:
            assert not waiting.done()


def _leased(row: TaskRow) -> tuple[str, Lease]:
    assert row.lease is not None
    return row.id, row.lease


async def _unqueued(
    backend: Backend,
    *,
    due_by: datetime = START + MINUTE,
    enqueued_before: datetime = START + MINUTE,
    limit: int = 10,
) -> list[str]:
    return await backend.ledger.unqueued_tasks(
        due_by=due_by, enqueued_before=enqueued_before, limit=limit
    )
