"""After any commands, folding the events of a task gives its row."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from longshore.core.budgets import Budget, BudgetScope, BudgetUnit
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Change
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import TaskRow, TaskSpec
from longshore.core.tasks.task import apply, create
from tests.event_folding import TaskView, fold

NOON = datetime(2026, 1, 3, 12, 0, tzinfo=UTC)
LASTS = timedelta(seconds=45)

SPEC = TaskSpec(
    id="job-a_b",
    tenant="acme",
    app="shop",
    job_id="job-a",
    key="b",
    number=0,
    definition="scrape",
    definition_version=1,
    created_at=NOON,
)
NETWORK = Failure(category=ErrorCategory.NETWORK, message="reset")
AUTH = Failure(category=ErrorCategory.AUTH, message="bad key")
HOUR = timedelta(hours=1)


def commands_for(row: TaskRow) -> list[c.Command]:
    """Returns all commands; most are refused in most states."""
    fence = row.fence
    return [
        c.Claim(worker_id="w", process_id=7, lease_duration=LASTS),
        c.Renew(fence=fence, lease_duration=LASTS),
        c.Release(fence=fence, reason="drain"),
        c.AttemptFailed(fence=fence, failure=NETWORK, jitter=0.5, duration=LASTS),
        c.AttemptFailed(fence=fence, failure=AUTH, jitter=0.5, duration=LASTS),
        c.Complete(fence=fence, result=None, duration=LASTS),
        c.TimeOut(fence=fence, timeout=LASTS, elapsed=LASTS, signal="SIGTERM", jitter=0.5),
        c.LeaseEnded(fence=fence, margin=timedelta(), holder_dead=True),
        c.FailTask(failure=AUTH, source="dlq", margin=timedelta()),
        c.RequestCancel(by="ann"),
        c.ConfirmCancel(fence=fence),
        c.RequestRevision(feedback="shorter", by="ann"),
        c.Approve(by="ann"),
        c.Resume(round=row.round + 1, by="ann"),
        c.ParentsCompleted(numbers=NumberSet([1])),
        c.Park(
            fence=fence,
            scope=BudgetScope.TASK,
            unit=BudgetUnit.USD,
            reason="all is spent",
            duration=LASTS,
        ),
        c.Unpark(scope=BudgetScope.TASK, by="ann"),
        c.AddBudget(amount=Budget(usd=1.0), by="ann", request_id=f"r{row.version}"),
    ]


def view_of(row: TaskRow) -> TaskView:
    """What the row says, in the words of a view."""
    return TaskView(
        state=row.state,
        round=row.round,
        attempt=row.attempt,
        fence=row.fence,
        worker_id=row.lease.worker_id if row.lease else None,
        effective_until=row.lease.expires_at if row.lease else None,
        error=row.failure.message if row.failure else None,
        error_category=row.failure.category.value if row.failure else None,
        started_at=row.started_at,
        updated_at=row.last_event_at,
        last_sequence=row.last_sequence,
    )


@given(
    st.booleans(),
    st.booleans(),
    st.sampled_from([NO_NUMBERS, NumberSet([1])]),
    st.lists(st.tuples(st.integers(0, 17), st.sampled_from([timedelta(seconds=1), HOUR]))),
)
def test_folding_all_events_of_a_task_gives_its_row(
    review: bool, again: bool, awaits: NumberSet, steps: list[tuple[int, timedelta]]
) -> None:
    spec = replace(SPEC, requires_review=review, retry_on_timeout=again)
    change = create(spec, awaits, now=NOON, change_id="0")
    row, events, now = change.row, list(change.events), NOON

    for index, pause in steps:
        now += pause
        decision = apply(row, commands_for(row)[index], now=now, change_id="n")
        if isinstance(decision, Change):
            row = decision.row
            events += decision.events

    assert fold(events) == view_of(row)
