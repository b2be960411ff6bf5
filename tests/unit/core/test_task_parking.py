"""Tasks that rest because a budget is used up, and go on when more is allowed."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from longshore.core.budgets import Allowance, Budget, BudgetScope, BudgetUnit
from longshore.core.events import types as e
from longshore.core.events.event import EventContext
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Enqueue, RefusalReason
from longshore.core.tasks.rows import ParkRecord, TaskRow
from longshore.core.tasks.states import Priority, TaskState
from tests.factories import NOON, SECOND, a_parking, a_task
from tests.unit.core.attempt_commands import BEFORE, LATER, change_of, refusal_of, running

MIDNIGHT = NOON + timedelta(hours=12)
SPENT = e.Usage(turns=2, cost_usd=0.25, seconds=3.0)
PARK = c.Park(
    fence=3,
    scope=BudgetScope.TASK,
    unit=BudgetUnit.USD,
    reason="budget of the task: $1.00 of $1.00 is spent",
    duration=4 * SECOND,
    usage=SPENT,
    last_output=8,
)
ADD = c.AddBudget(amount=Budget(usd=1.0, tokens=5, minutes=2.0), by="ann", request_id="r1")
ALLOWED = Allowance(added=ADD.amount, requests=("r1",))
OPERATOR = EventContext(origin="operator", source="user")


def parked(scope: BudgetScope = BudgetScope.TASK, **fields: Any) -> TaskRow:
    return a_task(state=TaskState.PARKED, parked=a_parking(scope), **fields)


class TestPark:
    def test_a_parked_task_rests_with_its_session_and_no_attempt_is_used(self) -> None:
        row = replace(running(attempts_used=2), checkpoint="blobs/step-1")

        change = change_of(row, PARK)

        after = change.row
        assert (after.state, after.lease) == (TaskState.PARKED, None)
        assert after.parked == ParkRecord(
            scope=BudgetScope.TASK, unit=BudgetUnit.USD, reason=PARK.reason, at=LATER
        )
        assert (after.due_at, after.enqueued_at, after.finished_at) == (None, None, None)
        assert (after.attempts_used, after.checkpoint) == (2, "blobs/step-1")
        assert (after.usage, after.last_output, after.ran_for) == (BEFORE + SPENT, 8, 4 * SECOND)
        assert (change.effects, change.durable) == ((), True)

    def test_the_event_names_the_budget_and_the_usage_of_the_attempt(self) -> None:
        row = running()

        change = change_of(row, replace(PARK, scope=BudgetScope.DAY, until=MIDNIGHT))

        assert [event.body for event in change.events] == [
            e.TaskParked(
                task_id=row.id,
                job_id=row.spec.job_id,
                attempt_number=3,
                scope="day",
                reason=PARK.reason,
                due_at=MIDNIGHT,
                duration=4 * SECOND,
                last_output=8,
                usage=SPENT,
            )
        ]
        assert change.events[0].context == EventContext(origin="worker", worker_id="worker-1")
        assert change.row.due_at == MIDNIGHT

    def test_a_stale_holder_parks_nothing(self) -> None:
        assert refusal_of(running(), replace(PARK, fence=2)).reason is RefusalReason.LEASE_LOST
        assert refusal_of(a_task(), PARK).reason is RefusalReason.LEASE_LOST

    def test_what_was_to_be_cancelled_is_not_parked(self) -> None:
        row = change_of(running(cancel=True), PARK).row

        assert (row.state, row.parked, row.usage) == (TaskState.CANCELLED, None, BEFORE + SPENT)

    @pytest.mark.parametrize("scope", [BudgetScope.TASK, BudgetScope.STEP])
    def test_a_task_whose_budget_grew_before_it_could_be_parked_continues(
        self, scope: BudgetScope
    ) -> None:
        row = change_of(running(attempts_used=1), ADD).row

        change = change_of(row, replace(PARK, scope=scope))

        assert (change.row.state, change.row.parked) == (TaskState.PENDING, None)
        assert (change.row.attempts_used, change.row.usage) == (1, BEFORE + SPENT)
        assert change.row.last_output == 8
        assert [event.type for event in change.events] == ["Task Released"]
        assert change.effects == (Enqueue(row.id, "default", Priority.NORMAL, LATER),)

    @pytest.mark.parametrize("scope", [BudgetScope.TASK, BudgetScope.STEP])
    def test_what_the_holder_knew_was_allowed_and_is_used_up_rests(
        self, scope: BudgetScope
    ) -> None:
        row = change_of(running(), ADD).row

        change = change_of(row, replace(PARK, scope=scope, allowance=ALLOWED))

        assert change.row.state is TaskState.PARKED

    @pytest.mark.parametrize("scope", [BudgetScope.JOB, BudgetScope.DAY])
    def test_more_for_the_task_is_nothing_to_one_that_lacks_a_shared_budget(
        self, scope: BudgetScope
    ) -> None:
        row = change_of(running(), ADD).row

        assert change_of(row, replace(PARK, scope=scope)).row.state is TaskState.PARKED


class TestUnpark:
    @pytest.mark.parametrize("scope", BudgetScope)
    def test_a_task_that_rests_for_want_of_this_budget_is_pending_at_once(
        self, scope: BudgetScope
    ) -> None:
        row = parked(scope, attempts_used=1)

        change = change_of(row, c.Unpark(scope=scope, by="ann"))

        assert (change.row.state, change.row.parked) == (TaskState.PENDING, None)
        assert (change.row.due_at, change.row.enqueued_at) == (LATER, LATER)
        assert change.row.attempts_used == 1
        assert change.effects == (Enqueue(row.id, "default", Priority.NORMAL, LATER),)
        assert [event.body for event in change.events] == [
            e.TaskUnparked(task_id=row.id, job_id=row.spec.job_id, by="ann")
        ]
        assert change.events[0].context == OPERATOR

    def test_one_that_rests_for_want_of_another_stays(self) -> None:
        refusal = refusal_of(parked(BudgetScope.JOB), c.Unpark(scope=BudgetScope.DAY, by="ann"))

        assert refusal.reason is RefusalReason.NOTHING_TO_DO
        assert "its job's" in refusal.detail

    def test_a_task_with_a_resume_time_resumes_then_and_not_before(self) -> None:
        row = parked(BudgetScope.DAY, due_at=MIDNIGHT)
        due = c.Unpark(scope=BudgetScope.DAY, by="sweeper", due=True)
        tick = timedelta(milliseconds=1)

        early = refusal_of(row, due, now=MIDNIGHT - tick)

        assert (early.reason, early.until) == (RefusalReason.NOT_DUE, MIDNIGHT)
        assert change_of(row, due, now=MIDNIGHT).row.state is TaskState.PENDING

    def test_a_task_without_a_resume_time_never_resumes_by_itself(self) -> None:
        due = c.Unpark(scope=BudgetScope.JOB, by="sweeper", due=True)

        assert refusal_of(parked(BudgetScope.JOB), due).reason is RefusalReason.NOT_DUE

    @pytest.mark.parametrize("state", [s for s in TaskState if s is not TaskState.PARKED])
    def test_what_does_not_rest_is_not_moved(self, state: TaskState) -> None:
        expected = RefusalReason.ENDED if state.terminal else RefusalReason.WRONG_STATE

        refusal = refusal_of(a_task(state=state), c.Unpark(scope=BudgetScope.TASK, by="ann"))

        assert refusal.reason is expected

    def test_a_row_that_does_not_say_what_it_lacks_is_left_alone(self) -> None:
        row = a_task(state=TaskState.PARKED, parked=None)

        refusal = refusal_of(row, c.Unpark(scope=BudgetScope.TASK, by="ann"))

        assert refusal.reason is RefusalReason.WRONG_STATE


class TestAddBudget:
    @pytest.mark.parametrize("scope", [BudgetScope.TASK, BudgetScope.STEP])
    def test_a_task_parked_for_the_budget_resumes_in_the_same_change(
        self, scope: BudgetScope
    ) -> None:
        row = parked(scope)

        change = change_of(row, ADD)

        assert (change.row.state, change.row.parked) == (TaskState.PENDING, None)
        assert (change.row.due_at, change.row.enqueued_at) == (LATER, LATER)
        assert change.row.allowance == ALLOWED
        assert change.effects == (Enqueue(row.id, "default", Priority.NORMAL, LATER),)
        assert [event.body for event in change.events] == [
            e.TaskBudgetAdded(
                task_id=row.id,
                job_id=row.spec.job_id,
                by="ann",
                usd=1.0,
                tokens=5,
                minutes=2.0,
            ),
            e.TaskUnparked(task_id=row.id, job_id=row.spec.job_id, by="ann"),
        ]

    @pytest.mark.parametrize("scope", [BudgetScope.JOB, BudgetScope.DAY])
    def test_one_that_lacks_a_shared_budget_rests_on(self, scope: BudgetScope) -> None:
        row = parked(scope, due_at=MIDNIGHT)

        change = change_of(row, ADD)

        assert (change.row.state, change.row.parked) == (TaskState.PARKED, row.parked)
        assert (change.row.allowance, change.row.due_at) == (ALLOWED, MIDNIGHT)
        assert [event.type for event in change.events] == ["Task Budget Added"]
        assert change.effects == ()

    @pytest.mark.parametrize(
        "state",
        [TaskState.WAITING, TaskState.PENDING, TaskState.PROCESSING, TaskState.IN_REVIEW],
    )
    def test_a_task_that_does_not_rest_may_spend_more_later(self, state: TaskState) -> None:
        row = a_task(state=state)

        change = change_of(row, ADD)

        assert (change.row.state, change.row.allowance) == (state, ALLOWED)
        assert (change.row.due_at, change.row.lease) == (row.due_at, row.lease)
        assert [event.type for event in change.events] == ["Task Budget Added"]

    @pytest.mark.parametrize("state", [state for state in TaskState if state.terminal])
    def test_nothing_is_added_to_what_has_ended(self, state: TaskState) -> None:
        assert refusal_of(a_task(state=state), ADD).reason is RefusalReason.ENDED

    def test_the_same_request_adds_once_and_another_adds_to_it(self) -> None:
        row = change_of(a_task(), ADD).row

        assert refusal_of(row, ADD).reason is RefusalReason.NOTHING_TO_DO
        more = change_of(row, replace(ADD, request_id="r2")).row.allowance
        assert more is not None
        assert more.added == Budget(usd=2.0, tokens=10, minutes=4.0)


class TestOthers:
    def test_a_parked_task_can_be_cancelled_and_resumed(self) -> None:
        row = parked(BudgetScope.DAY, due_at=MIDNIGHT, allowance=ALLOWED)

        cancelled = change_of(row, c.RequestCancel(by="bob")).row

        assert (cancelled.state, cancelled.parked) == (TaskState.CANCELLED, None)
        assert (cancelled.due_at, cancelled.finished_at) == (None, LATER)
        again = change_of(cancelled, c.Resume(round=2, by="bob")).row
        assert (again.state, again.allowance) == (TaskState.PENDING, ALLOWED)

    @pytest.mark.parametrize(
        "command",
        [
            c.Claim(worker_id="worker-2", process_id=1, lease_duration=SECOND),
            c.Renew(fence=1, lease_duration=SECOND),
            c.EnqueueAgain(),
            c.Approve(by="rita"),
            c.Resume(round=2, by="ann"),
        ],
        ids=lambda command: type(command).__name__,
    )
    def test_other_commands_do_not_change_a_parked_task(self, command: c.Command) -> None:
        refusal_of(parked(due_at=NOON), command)
