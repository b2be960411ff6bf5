"""Read, decide, commit: through conflicts, lost answers and outages."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.jobs import job as jobs
from longshore.core.tasks import commands as c
from longshore.core.tasks.states import TaskState
from longshore.errors import (
    BackendUnavailable,
    CommandRefused,
    LeaseHeld,
    LeaseLost,
    NotFound,
)
from longshore.ports.task_queue import OutgoingMessage
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    SECOND,
    WITH_QUEUE,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort

TRIES = 6


def a_claim(worker_id: str = "worker-1") -> c.Claim:
    return c.Claim(worker_id=worker_id, process_id=1, lease_duration=LEASE.duration)


def a_renewal(fence: int = 1) -> c.Renew:
    return c.Renew(fence=fence, lease_duration=LEASE.duration)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_row_that_changed_since_it_was_read_is_read_again(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        claimed = await harness.transitions.apply_to_task(task_id("a"), a_claim())
        await harness.transitions.apply_to_task(task_id("a"), a_renewal(claimed.fence), row=claimed)

        command = c.SaveCheckpoint(fence=claimed.fence, key="step-1")
        saved = await harness.transitions.apply_to_task(task_id("a"), command, row=claimed)

        assert saved == await harness.task("a")
        assert saved.version == claimed.version + 2
        assert saved.checkpoint == "step-1"
        assert saved.lease is not None
        assert saved.lease.heartbeats == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_refusal_from_a_row_of_yesterday_is_checked_against_the_row_of_today(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        lease = await harness.transitions.apply_to_task(task_id("a"), a_claim())
        await harness.transitions.apply_to_task(
            task_id("a"), c.Release(fence=lease.fence, reason="test")
        )

        claimed = await harness.transitions.apply_to_task(
            task_id("a"), a_claim("worker-2"), row=lease
        )

        assert claimed.lease is not None
        assert claimed.lease.worker_id == "worker-2"
        assert claimed.fence > lease.fence


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_refusal_of_the_row_as_it_is_comes_as_an_error_and_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        claimed = await harness.transitions.apply_to_task(task_id("a"), a_claim())

        with pytest.raises(LeaseHeld) as caught:
            await harness.transitions.apply_to_task(task_id("a"), a_claim("worker-2"))
        with pytest.raises(LeaseLost):
            await harness.transitions.apply_to_task(task_id("a"), a_renewal(claimed.fence + 1))
        with pytest.raises(CommandRefused):
            await harness.transitions.apply_to_task(task_id("a"), c.Approve(by="ann"))
        with pytest.raises(NotFound):
            await harness.transitions.apply_to_task(task_id("b"), a_claim())

        assert claimed.lease is not None
        assert caught.value.until == claimed.lease.expires_at
        assert await harness.task("a") == claimed


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_commit_whose_answer_was_lost_is_known_as_one_s_own(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        ledger = FlakyPort(backend.ledger, "commit", after_write=True)
        forgetful = harness.with_ports(ledger=ledger)

        claimed = await harness.advance_until_done(
            forgetful.transitions.apply_to_task(task_id("a"), a_claim())
        )

        assert ledger.failures == 1
        assert claimed == await harness.task("a")
        assert (await harness.event_types("a")).count("Task Processing Started") == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_claim_whose_answer_was_lost_is_known_also_when_the_row_changed_since(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())

        async def operator_cancels() -> None:
            await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        ledger = FlakyPort(
            InterposedPort(backend.ledger, "commit", after=operator_cancels),
            "commit",
            after_write=True,
        )
        forgetful = harness.with_ports(ledger=ledger)
        claimed = await harness.advance_until_done(
            forgetful.transitions.apply_to_task(task_id("a"), a_claim())
        )

        assert claimed == await harness.task("a")
        assert claimed.lease is not None
        assert claimed.lease.worker_id == "worker-1"
        assert claimed.cancel is not None
        assert claimed.attempt == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_claim_of_another_worker_is_not_mistaken_for_the_own_claim(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        pending = await harness.task("a")
        await harness.transitions.apply_to_task(task_id("a"), a_claim("worker-2"))

        with pytest.raises(LeaseHeld):
            await harness.transitions.apply_to_task(task_id("a"), a_claim("worker-1"), row=pending)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_outcome_with_a_lost_answer_is_emitted_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        claimed = await harness.transitions.apply_to_task(task_id("a"), a_claim())
        forgetful = harness.with_ports(
            ledger=FlakyPort(backend.ledger, "commit", times=3, after_write=True)
        )

        done = c.Complete(fence=claimed.fence, result=None, duration=SECOND)
        row = await harness.advance_until_done(
            forgetful.transitions.apply_to_task(task_id("a"), done, row=claimed)
        )

        assert row.state is TaskState.COMPLETED
        assert (await harness.event_types("a")).count("Task Completed") == 1


@pytest.mark.parametrize("method", ["commit", "get_task"])
@scenario
async def test_an_outage_that_ends_in_time_is_waited_out(method: str, tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        ledger = FlakyPort(backend.ledger, method, times=TRIES - 1)
        unlucky = harness.with_ports(ledger=ledger)

        claimed = await harness.advance_until_done(
            unlucky.transitions.apply_to_task(task_id("a"), a_claim())
        )

        assert ledger.failures == TRIES - 1
        assert claimed.attempt == 1


@pytest.mark.parametrize("method", ["commit", "get_task"])
@scenario
async def test_a_long_outage_is_reported_after_several_tries(method: str, tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        before = await harness.task("a")
        ledger = FlakyPort(backend.ledger, method, times=None)
        unlucky = harness.with_ports(ledger=ledger)
        began = harness.clock.elapsed()

        with pytest.raises(BackendUnavailable):
            await harness.advance_until_done(
                unlucky.transitions.apply_to_task(task_id("a"), a_claim())
            )

        assert ledger.calls == TRIES
        assert harness.clock.elapsed() - began >= SECOND
        assert await harness.task("a") == before


class FullQueue:
    """A queue that accepts nothing."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def send(self, messages: list[OutgoingMessage]) -> list[OutgoingMessage]:
        return messages


# Where the message is written together with the row there is no separate send that could be lost.
@pytest.mark.parametrize("kind", WITH_QUEUE[:1])
@pytest.mark.parametrize("failure", ["down", "full"])
@scenario
async def test_a_message_that_the_queue_refuses_is_left_to_the_sweeper(
    kind: str, failure: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        queue = FlakyPort(backend.queue, "send", times=None)
        silent = harness.with_ports(queue=queue if failure == "down" else FullQueue(backend.queue))

        accepted = await silent.submit(make_task())
        unsent = await harness.messages()
        await harness.advance(timedelta(minutes=2))
        repairs = await harness.sweeper.sweep()

        assert accepted.created
        assert unsent == []
        assert repairs["reenqueued"] == 1
        assert len(await harness.messages()) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_that_changed_meanwhile_is_decided_again_from_its_new_row(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        async def settle() -> None:
            await harness.dispatcher.settle([task_id("a")])

        ledger = InterposedPort(backend.ledger, "commit", before=settle)
        late = harness.with_ports(ledger=ledger)

        row = await late.transitions.apply_to_job(job_id(), jobs.CancelJob(by="bob"))

        assert ledger.calls == 2
        assert row == await harness.job()
        assert row.cancel is not None
        assert len(row.cancelled) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_s_refusal_comes_as_an_error(kind: str, tmp_path: Path) -> None:
    refused = jobs.IntentDone(intent_id="unknown")
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())

        with pytest.raises(CommandRefused, match="the intent is closed"):
            await harness.transitions.apply_to_job(job_id(), refused)
        with pytest.raises(NotFound):
            await harness.transitions.apply_to_job("job-missing", refused)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_s_change_whose_answer_was_lost_is_emitted_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))
        ledger = FlakyPort(backend.ledger, "commit", after_write=True)
        forgetful = harness.with_ports(ledger=ledger)

        await harness.advance_until_done(forgetful.dispatcher.settle([task_id("a")]))

        assert ledger.failures == 1
        assert (await harness.job_event_types()).count("Job Cancelled") == 1
