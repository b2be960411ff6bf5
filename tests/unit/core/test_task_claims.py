"""How a worker comes by a task, keeps it, and gives it back: claims, renewals, releases."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from longshore.core.events import types as e
from longshore.core.events.event import EventContext
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Enqueue, Refusal, RefusalReason
from longshore.core.tasks.lease import EPOCH_BITS
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import Priority, TaskState
from longshore.core.tasks.task import TaskChange, apply
from tests.factories import (
    LASTS,
    NOON,
    SECOND,
    a_cancel_request,
    a_document,
    a_failure,
    a_lease,
    a_spec,
    a_task,
    changed,
    refused,
)

LATER = NOON + 10 * SECOND


def a_claim(worker_id: str = "worker-2", *, epoch: int = 0, local: bool = True) -> c.Claim:
    return c.Claim(
        worker_id=worker_id, process_id=4711, lease_duration=LASTS, epoch=epoch, local=local
    )


def change_of(row: TaskRow, command: c.Command, *, now: datetime = LATER) -> TaskChange:
    return changed(apply(row, command, now=now, change_id="new"))


def refusal_of(row: TaskRow, command: c.Command, *, now: datetime = LATER) -> Refusal:
    return refused(apply(row, command, now=now, change_id="new"))


def test_a_claim_gives_the_worker_a_lease_under_a_new_fence_and_attempt() -> None:
    row = a_task(attempt=2)

    claimed = change_of(row, a_claim()).row

    assert claimed.state is TaskState.PROCESSING
    assert (claimed.attempt, claimed.fence) == (3, 3)
    assert claimed.started_at == LATER
    assert claimed.lease is not None
    assert (claimed.lease.worker_id, claimed.lease.fence) == ("worker-2", 3)
    assert (claimed.lease.acquired_at, claimed.lease.expires_at) == (LATER, LATER + LASTS)
    assert claimed.lease.heartbeats == 0


def test_the_event_of_a_claim_describes_the_lease() -> None:
    row = a_task()

    (event,) = change_of(row, a_claim()).events

    assert event.body == e.TaskProcessingStarted(
        task_id=row.id,
        job_id=row.spec.job_id,
        started_at=LATER,
        effective_until=LATER + LASTS,
        worker_id="worker-2",
        process_id=4711,
        attempt_number=1,
        fence=1,
    )
    assert event.context == EventContext(origin="worker", source="system", worker_id="worker-2")
    assert (event.entity, event.tenant, event.app) == (f"TASK#{row.id}", "acme", "shop")


def test_a_worker_whose_answer_was_lost_knows_its_claim_by_the_change() -> None:
    claimed = change_of(a_task(), a_claim()).row

    assert claimed.lease is not None
    assert claimed.lease.claim_id == claimed.change_id == "new"


def test_a_change_is_decided_from_one_version_and_makes_the_next() -> None:
    row = a_task()

    change = change_of(row, a_claim())

    assert (change.expected_version, change.row.version) == (row.version, row.version + 1)
    assert change.row.updated_at == LATER
    assert change.row.last_sequence == change.events[-1].sequence == row.last_sequence + 1
    assert change.row.last_event_at == change.events[-1].at == LATER


def test_a_claim_takes_away_what_belonged_to_the_attempt_before() -> None:
    row = a_task(attempt=1, exit_code=2, ran_for=SECOND, last_output=9, failure=a_failure())

    claimed = change_of(row, a_claim()).row

    assert (claimed.due_at, claimed.enqueued_at) == (None, None)
    assert (claimed.exit_code, claimed.ran_for, claimed.last_output) == (None, None, None)
    assert claimed.failure == row.failure


def test_after_a_power_loss_a_claim_has_a_fence_from_a_higher_range() -> None:
    claimed = change_of(a_task(attempt=5), a_claim(epoch=3)).row

    assert claimed.fence == (3 << EPOCH_BITS) + 1
    assert claimed.attempt == 6


@pytest.mark.parametrize("local", [True, False])
def test_a_claim_must_be_on_disk_before_it_leaves_the_machine(local: bool) -> None:
    change = change_of(a_task(), a_claim(local=local))

    assert change.durable is not local
    assert change.row.lease is not None
    assert change.row.lease.local is local


def test_a_task_that_is_held_cannot_be_claimed_not_even_after_its_lease_ran_out() -> None:
    row = a_task(state=TaskState.PROCESSING)
    lease = row.lease
    assert lease is not None

    refusal = refusal_of(row, a_claim(), now=lease.expires_at + LASTS)

    assert (refusal.reason, refusal.until) == (RefusalReason.LEASE_HELD, lease.expires_at)


@pytest.mark.parametrize("state", [TaskState.WAITING, TaskState.IN_REVIEW])
def test_a_task_that_is_not_pending_cannot_be_claimed(state: TaskState) -> None:
    assert refusal_of(a_task(state=state), a_claim()).reason is RefusalReason.WRONG_STATE


@pytest.mark.parametrize("state", [state for state in TaskState if state.terminal])
def test_a_task_that_has_ended_cannot_be_claimed(state: TaskState) -> None:
    assert refusal_of(a_task(state=state), a_claim()).reason is RefusalReason.ENDED


def test_a_task_can_be_claimed_at_the_moment_it_is_due_and_not_before() -> None:
    row = a_task(due_at=LATER)

    early = refusal_of(row, a_claim(), now=LATER - timedelta(microseconds=1))
    in_time = change_of(row, a_claim(), now=LATER)

    assert (early.reason, early.until) == (RefusalReason.NOT_DUE, LATER)
    assert in_time.row.state is TaskState.PROCESSING


def test_a_task_can_be_claimed_at_the_moment_it_is_due() -> None:
    due_at = LATER + timedelta(microseconds=1_700)

    assert change_of(a_task(due_at=due_at), a_claim(), now=due_at).row.attempt == 1


def test_a_lease_ends_at_a_whole_millisecond() -> None:
    lasts = timedelta(microseconds=1_234_567)
    ends = LATER + timedelta(milliseconds=1_234)

    claimed = change_of(a_task(), replace(a_claim(), lease_duration=lasts)).row
    renewed = change_of(claimed, c.Renew(fence=1, lease_duration=lasts)).row

    assert claimed.lease is not None
    assert renewed.lease is not None
    assert (claimed.lease.expires_at, renewed.lease.expires_at) == (ends, ends)


def test_a_pending_task_without_a_due_time_is_due() -> None:
    assert change_of(a_task(due_at=None), a_claim()).row.state is TaskState.PROCESSING


def test_a_renewal_moves_the_end_of_the_lease_and_counts() -> None:
    row = a_task(state=TaskState.PROCESSING)

    first = change_of(row, c.Renew(fence=1, lease_duration=LASTS)).row
    second = change_of(first, c.Renew(fence=1, lease_duration=LASTS), now=LATER + SECOND).row

    assert second.lease is not None
    assert second.lease.expires_at == LATER + SECOND + LASTS
    assert second.lease.heartbeats == 2
    assert (second.lease.acquired_at, second.fence, second.attempt) == (NOON, 1, 1)


def test_a_renewal_emits_a_heartbeat() -> None:
    row = a_task(state=TaskState.PROCESSING)
    activity = e.Activity(type="step_running", step_name="parse", timestamp=NOON)
    renewal = c.Renew(
        fence=1, lease_duration=LASTS, process_id=99, rss_bytes=1 << 20, activity=activity
    )

    (event,) = change_of(row, renewal).events

    assert event.body == e.TaskHeartbeat(
        task_id=row.id,
        job_id=row.spec.job_id,
        effective_until=LATER + LASTS,
        number=1,
        elapsed=10 * SECOND,
        worker_id="worker-1",
        process_id=99,
        attempt_number=1,
        rss_bytes=1 << 20,
        last_activity=activity,
    )
    assert event.context == EventContext(origin="worker", worker_id="worker-1")


def test_a_heartbeat_never_says_that_less_than_no_time_has_passed() -> None:
    row = a_task(state=TaskState.PROCESSING)

    (event,) = change_of(row, c.Renew(fence=1, lease_duration=LASTS), now=NOON - SECOND).events

    assert isinstance(event.body, e.TaskHeartbeat)
    assert event.body.elapsed == timedelta()


def test_a_lease_can_be_renewed_before_its_end_but_not_at_it() -> None:
    row = a_task(state=TaskState.PROCESSING)
    renewal = c.Renew(fence=1, lease_duration=LASTS)
    end = NOON + LASTS

    in_time = change_of(row, renewal, now=end - timedelta(microseconds=1))
    late = refusal_of(row, renewal, now=end)

    assert in_time.row.lease is not None
    assert in_time.row.lease.is_live(end)
    assert late.reason is RefusalReason.LEASE_LOST


@pytest.mark.parametrize("local", [True, False])
def test_a_renewal_must_be_on_disk_before_it_leaves_the_machine(local: bool) -> None:
    row = a_task(state=TaskState.PROCESSING, lease=a_lease(local=local))

    assert change_of(row, c.Renew(fence=1, lease_duration=LASTS)).durable is not local


def test_a_renewal_reports_usage_and_keeps_the_highest() -> None:
    row = a_task(state=TaskState.PROCESSING)
    paid = e.Usage(turns=1, cost_usd=0.25)
    renewal = c.Renew(fence=1, lease_duration=LASTS, usage=paid)

    first = change_of(row, renewal)
    second = change_of(first.row, renewal)

    assert (first.durable, second.durable) == (True, False)
    for change in (first, second):
        assert change.row.lease is not None
        assert change.row.lease.usage == paid
        assert isinstance(change.events[0].body, e.TaskHeartbeat)
        assert change.events[0].body.usage == paid
    assert second.row.usage == row.usage


def test_a_renewal_that_comes_late_takes_nothing_back_of_what_was_spent() -> None:
    row = a_task(state=TaskState.PROCESSING)
    later, earlier = e.Usage(turns=2, cost_usd=2.0), e.Usage(turns=1, cost_usd=1.0)
    first = change_of(row, c.Renew(fence=1, lease_duration=LASTS, usage=later))

    second = change_of(first.row, c.Renew(fence=1, lease_duration=LASTS, usage=earlier))

    assert second.row.lease is not None
    assert second.row.lease.usage == later


def test_a_renewal_keeps_the_requested_cancellation() -> None:
    row = a_task(state=TaskState.PROCESSING, cancel=a_cancel_request())

    assert change_of(row, c.Renew(fence=1, lease_duration=LASTS)).row.cancel == a_cancel_request()


def test_a_checkpoint_is_durable_and_emits_no_event() -> None:
    row = a_task(state=TaskState.PROCESSING)

    change = change_of(row, c.SaveCheckpoint(fence=1, key="blobs/step-1"))

    assert change.row.checkpoint == "blobs/step-1"
    assert change.events == ()
    assert change.durable
    assert change.row.last_sequence == row.last_sequence


def test_the_next_attempt_finds_the_checkpoint_of_the_one_before() -> None:
    row = a_task(checkpoint="blobs/step-1")

    assert change_of(row, a_claim()).row.checkpoint == "blobs/step-1"


def test_a_released_task_can_be_taken_at_once_and_has_used_no_attempt() -> None:
    row = a_task(state=TaskState.PROCESSING, attempt=2, attempts_used=1)

    change = change_of(row, c.Release(fence=2, reason="shutdown", last_output=7))

    assert (change.row.state, change.row.lease) == (TaskState.PENDING, None)
    assert (change.row.due_at, change.row.enqueued_at) == (LATER, LATER)
    assert (change.row.attempt, change.row.attempts_used) == (2, 1)
    assert change.row.last_output == 7
    assert change.effects == (Enqueue(row.id, "default", Priority.NORMAL, LATER),)
    assert change_of(change.row, a_claim()).row.attempt == 3


def test_a_task_that_is_released_before_it_has_begun_keeps_its_place() -> None:
    row = a_task(state=TaskState.PROCESSING)

    change = change_of(row, c.Release(fence=1, reason="shutdown", due_at=NOON))

    assert change.row.due_at == NOON
    assert change.effects == (Enqueue(row.id, "default", Priority.NORMAL, NOON),)
    (event,) = change.events
    assert isinstance(event.body, e.TaskReleased)
    assert event.body.due_at == NOON


def test_the_place_of_a_released_task_is_never_in_the_future() -> None:
    row = a_task(state=TaskState.PROCESSING)

    change = change_of(row, c.Release(fence=1, reason="shutdown", due_at=LATER + SECOND))

    assert change.row.due_at == LATER
    (event,) = change.events
    assert isinstance(event.body, e.TaskReleased)
    assert event.body.due_at is None


def test_the_event_of_a_release_has_its_reason() -> None:
    row = a_task(state=TaskState.PROCESSING)

    spent = e.Usage(turns=2, cost_usd=0.25)
    release = c.Release(fence=1, reason="shutdown", last_output=7, usage=spent)

    (event,) = change_of(row, release).events

    assert event.body == e.TaskReleased(
        task_id=row.id,
        job_id=row.spec.job_id,
        reason="shutdown",
        attempt_number=1,
        last_output=7,
        usage=spent,
    )
    assert event.context == EventContext(origin="worker", worker_id="worker-1")


def test_what_a_released_attempt_spent_is_counted() -> None:
    row = a_task(state=TaskState.PROCESSING, usage=e.Usage(turns=1))

    change = change_of(row, c.Release(fence=1, reason="shutdown", usage=e.Usage(turns=2)))

    assert change.row.usage == e.Usage(turns=3)


def test_a_task_that_was_to_be_cancelled_ends_when_it_is_released() -> None:
    row = a_task(state=TaskState.PROCESSING, cancel=a_cancel_request())
    spent = e.Usage(turns=2)

    change = change_of(row, c.Release(fence=1, reason="shutdown", last_output=7, usage=spent))

    assert (change.row.state, change.row.last_output) == (TaskState.CANCELLED, 7)
    assert change.row.usage == change.events[0].body.usage == spent
    assert change.effects == ()


def test_a_task_is_enqueued_in_its_queue_and_lane() -> None:
    spec = a_spec(queue="slow", priority=Priority.LOW)
    row = a_task(state=TaskState.PROCESSING, spec=spec)

    change = change_of(row, c.Release(fence=1, reason="shutdown"))

    assert change.effects == (Enqueue(row.id, "slow", Priority.LOW, LATER),)


STALE: list[c.Command] = [
    c.Renew(fence=1, lease_duration=LASTS),
    c.SaveCheckpoint(fence=1, key="blobs/old"),
    c.Release(fence=1, reason="shutdown"),
    c.AttemptFailed(fence=1, failure=a_failure(), jitter=0.5, duration=SECOND),
    c.Complete(fence=1, result=a_document("1"), duration=SECOND),
    c.TimeOut(fence=1, timeout=SECOND, elapsed=SECOND, signal="SIGTERM", jitter=0.5),
    c.ConfirmCancel(fence=1),
    c.LeaseEnded(fence=1, margin=timedelta(), holder_dead=True),
]


@pytest.mark.parametrize("command", STALE, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize("state", list(TaskState))
def test_a_report_under_an_old_fence_changes_nothing(state: TaskState, command: c.Command) -> None:
    row = a_task(state=state, attempt=2, cancel=a_cancel_request())

    refusal = refusal_of(row, command, now=NOON + 10 * LASTS)

    assert refusal.reason is RefusalReason.LEASE_LOST
    assert "fence 1 is not current" in refusal.detail


@pytest.mark.parametrize("command", STALE, ids=lambda command: type(command).__name__)
def test_a_report_after_the_lease_was_given_back_changes_nothing(command: c.Command) -> None:
    row = a_task(state=TaskState.PENDING, attempt=1)

    assert refusal_of(row, command).reason is RefusalReason.LEASE_LOST
