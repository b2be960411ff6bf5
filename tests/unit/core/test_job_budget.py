"""A job that may spend more: what is written down, and what its parked tasks wait for."""

from dataclasses import replace

import pytest

from longshore.core.budgets import Allowance, Budget
from longshore.core.events import types as e
from longshore.core.events.event import EventContext
from longshore.core.jobs.job import IntentDone
from longshore.core.tasks.changes import RefusalReason
from longshore.core.tasks.commands import AddBudget
from longshore.core.tasks.rows import IntentKind, JobRow
from tests.factories import a_cancel_request, a_job, an_intent
from tests.unit.core.job_commands import bodies, change_of, refusal_of

INTENT = an_intent(IntentKind.UNPARK, id="new", round=1)
ADD = AddBudget(amount=Budget(usd=1.0, tokens=5, minutes=2.0), by="ann", request_id="r1")


def test_what_is_added_is_written_down_with_what_is_left_to_do() -> None:
    row = a_job(3)

    change = change_of(row, ADD)

    assert change.row.allowance == Allowance(added=ADD.amount, requests=("r1",))
    assert (change.row.intents, change.row.state) == ((INTENT,), row.state)
    assert bodies(change) == [
        e.JobBudgetAdded(job_id=row.id, by="ann", usd=1.0, tokens=5, minutes=2.0)
    ]
    assert change.events[0].context == EventContext(origin="operator", source="user")
    assert change.durable


def test_the_same_request_adds_once_and_another_adds_to_it() -> None:
    row = change_of(a_job(3), ADD).row

    assert refusal_of(row, ADD).reason is RefusalReason.NOTHING_TO_DO
    after = change_of(row, replace(ADD, request_id="r2")).row
    assert after.allowance is not None
    assert after.allowance.added == Budget(usd=2.0, tokens=10, minutes=4.0)
    assert after.intents == (INTENT, INTENT)


def test_what_is_done_is_taken_off_the_list_and_the_budget_stays() -> None:
    row = change_of(a_job(3), ADD).row

    done = change_of(row, IntentDone(intent_id=INTENT.id)).row

    assert (done.intents, done.allowance) == ((), row.allowance)


@pytest.mark.parametrize(
    "row",
    [
        a_job(2, completed=[0, 1]),
        a_job(2, completed=[0], cancelled=[1], cancel=a_cancel_request()),
    ],
    ids=["completed", "cancelled"],
)
def test_nothing_is_added_to_a_job_of_which_nothing_is_left_to_do(row: JobRow) -> None:
    assert refusal_of(row, ADD).reason is RefusalReason.ENDED


@pytest.mark.parametrize(
    "row", [a_job(1, failed=[0]), a_job(3, failed=[0], blocked=[1, 2])], ids=["all", "some"]
)
def test_a_job_that_failed_may_spend_more_before_it_is_resumed(row: JobRow) -> None:
    assert change_of(row, ADD).row.allowance is not None
