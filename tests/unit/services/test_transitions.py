"""Read, decide, commit: through conflicts, lost answers and outages."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core import commands as c
from longshore.core import job as jobs
from longshore.core.changes import Reason, Refusal
from longshore.core.rows import JobRow
from longshore.core.states import TaskState
from longshore.errors import (
    BackendUnavailable,
    CommandRefused,
    LeaseHeld,
    LeaseLost,
    NotFound,
)
from longshore.ports.queue import Outgoing
from longshore.testing.flaky import Flaky
from tests.unit.services.ports import Interposed
from tests.unit.services.stage import (
    BACKENDS,
    IN_MEMORY,
    LEASE,
    SECOND,
    Stage,
    a_task,
    job_id,
    opened,
    scenario,
    task_id,
)

TRIES = 6


def a_claim(worker_id: str = "worker-1") -> c.Claim:
    return c.Claim(worker_id=worker_id, process_id=1, lasts=LEASE.lasts)


def a_renewal(fence: int = 1) -> c.Renew:
    return c.Renew(fence=fence, lasts=LEASE.lasts)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_row_that_changed_since_it_was_read_is_read_again(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        claimed = await stage.transitions.task(task_id("a"), a_claim())
        await stage.transitions.task(task_id("a"), a_renewal(claimed.fence), row=claimed)

        command = c.SaveCheckpoint(fence=claimed.fence, key="step-1")
        saved = await stage.transitions.task(task_id("a"), command, row=claimed)

        assert saved == await stage.task("a")
        assert saved.version == claimed.version + 2
        assert saved.checkpoint == "step-1"
        assert saved.lease is not None
        assert saved.lease.heartbeats == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_refusal_from_a_row_of_yesterday_is_checked_against_the_row_of_today(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        held = await stage.transitions.task(task_id("a"), a_claim())
        await stage.transitions.task(task_id("a"), c.Release(fence=held.fence, reason="test"))

        claimed = await stage.transitions.task(task_id("a"), a_claim("worker-2"), row=held)

        assert claimed.lease is not None
        assert claimed.lease.worker_id == "worker-2"
        assert claimed.fence > held.fence


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_refusal_of_the_row_as_it_is_comes_as_an_error_and_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        held = await stage.transitions.task(task_id("a"), a_claim())

        with pytest.raises(LeaseHeld) as caught:
            await stage.transitions.task(task_id("a"), a_claim("worker-2"))
        with pytest.raises(LeaseLost):
            await stage.transitions.task(task_id("a"), a_renewal(held.fence + 1))
        with pytest.raises(CommandRefused):
            await stage.transitions.task(task_id("a"), c.Approve(by="ann"))
        with pytest.raises(NotFound):
            await stage.transitions.task(task_id("b"), a_claim())

        assert held.lease is not None
        assert caught.value.until == held.lease.expires_at
        assert await stage.task("a") == held


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_commit_whose_answer_was_lost_is_known_as_one_s_own(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        ledger = Flaky(backend.ledger, "commit", after_the_write=True)
        forgetful = stage.with_ports(ledger=ledger)

        claimed = await stage.in_time(forgetful.transitions.task(task_id("a"), a_claim()))

        assert ledger.failures == 1
        assert claimed == await stage.task("a")
        assert (await stage.told("a")).count("Task Processing Started") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_claim_whose_answer_was_lost_is_known_also_when_the_row_changed_since(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())

        async def somebody_cancels() -> None:
            await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann"))

        ledger = Flaky(
            Interposed(backend.ledger, "commit", after=somebody_cancels),
            "commit",
            after_the_write=True,
        )
        forgetful = stage.with_ports(ledger=ledger)
        claimed = await stage.in_time(forgetful.transitions.task(task_id("a"), a_claim()))

        assert claimed == await stage.task("a")
        assert claimed.lease is not None
        assert claimed.lease.worker_id == "worker-1"
        assert claimed.cancel is not None
        assert claimed.attempt == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_claim_that_somebody_else_won_is_not_taken_for_one_s_own(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        pending = await stage.task("a")
        await stage.transitions.task(task_id("a"), a_claim("worker-2"))

        with pytest.raises(LeaseHeld):
            await stage.transitions.task(task_id("a"), a_claim("worker-1"), row=pending)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_outcome_whose_answer_was_lost_is_told_once(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        claimed = await stage.transitions.task(task_id("a"), a_claim())
        forgetful = stage.with_ports(
            ledger=Flaky(backend.ledger, "commit", times=3, after_the_write=True)
        )

        done = c.Complete(fence=claimed.fence, result=None, duration=SECOND)
        row = await stage.in_time(forgetful.transitions.task(task_id("a"), done, row=claimed))

        assert row.state is TaskState.COMPLETED
        assert (await stage.told("a")).count("Task Completed") == 1


@pytest.mark.parametrize("method", ["commit", "task"])
@scenario
async def test_an_outage_that_ends_in_time_is_waited_out(method: str, tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        ledger = Flaky(backend.ledger, method, times=TRIES - 1)
        unlucky = stage.with_ports(ledger=ledger)

        claimed = await stage.in_time(unlucky.transitions.task(task_id("a"), a_claim()))

        assert ledger.failures == TRIES - 1
        assert claimed.attempt == 1


@pytest.mark.parametrize("method", ["commit", "task"])
@scenario
async def test_an_outage_that_lasts_is_told_after_several_tries(
    method: str, tmp_path: Path
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        before = await stage.task("a")
        ledger = Flaky(backend.ledger, method, times=None)
        unlucky = stage.with_ports(ledger=ledger)
        began = stage.clock.elapsed()

        with pytest.raises(BackendUnavailable):
            await stage.in_time(unlucky.transitions.task(task_id("a"), a_claim()))

        assert ledger.calls == TRIES
        assert stage.clock.elapsed() - began >= SECOND
        assert await stage.task("a") == before


class Full:
    """A queue that accepts nothing."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def send(self, messages: list[Outgoing]) -> list[Outgoing]:
        return messages


# Where the message is written together with the row there is no ring that could be lost.
@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("trouble", ["down", "full"])
@scenario
async def test_a_ring_that_the_queue_does_not_take_is_left_to_the_sweeper(
    kind: str, trouble: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        queue = Flaky(backend.queue, "send", times=None)
        silent = stage.with_ports(queue=queue if trouble == "down" else Full(backend.queue))

        accepted = await silent.submit(a_task())
        unrung = await stage.messages()
        await stage.passes(timedelta(minutes=2))
        repairs = await stage.sweeper.sweep()

        assert accepted.created
        assert unrung == []
        assert repairs.rung_again == 1
        assert len(await stage.messages()) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_that_changed_meanwhile_is_decided_again_from_its_new_row(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task("a"), a_task("b"))
        await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann"))
        seen: list[int] = []

        async def decide(row: JobRow, now: datetime, change_id: str) -> jobs.JobDecision:
            seen.append(len(row.cancelled))
            if len(seen) == 1:
                await stage.dispatcher.settle([task_id("a")])
            return jobs.apply(row, jobs.CancelJob(by="bob"), now=now, change_id=change_id)

        row = await stage.transitions.job(job_id(), decide)

        assert seen == [0, 1]
        assert row == await stage.job()
        assert row.cancel is not None
        assert len(row.cancelled) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_s_refusal_comes_as_an_error(kind: str, tmp_path: Path) -> None:
    async def refuse(row: JobRow, now: datetime, change_id: str) -> jobs.JobDecision:
        return Refusal(reason=Reason.ENDED, detail="no")

    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())

        with pytest.raises(CommandRefused, match="no"):
            await stage.transitions.job(job_id(), refuse)
        with pytest.raises(NotFound):
            await stage.transitions.job("job-nobody", refuse)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_s_change_whose_answer_was_lost_is_told_once(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann"))
        ledger = Flaky(backend.ledger, "commit", after_the_write=True)
        forgetful = stage.with_ports(ledger=ledger)

        await stage.in_time(forgetful.dispatcher.settle([task_id("a")]))

        assert ledger.failures == 1
        assert (await stage.job_told()).count("Job Cancelled") == 1
