"""A job that is to be cancelled: what it waits for, and what it ends as."""

import pytest

from longshore.core.events import types as e
from longshore.core.jobs.job import CancelJob
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks.changes import RefusalReason
from longshore.core.tasks.rows import CancelRequest, Intent, IntentKind, JobRow
from longshore.core.tasks.states import JobState
from tests.factories import SECOND, a_cancel_request, a_job
from tests.unit.core.job_commands import (
    CANCELLED,
    LATER,
    an_end,
    bodies,
    change_of,
    ends,
    refusal_of,
)


class TestCancel:
    COMMAND = CancelJob(by="bob", reason="too late")

    def test_a_cancellation_is_written_down_before_it_is_carried_out(self) -> None:
        row = a_job(4, completed=[3])

        change = change_of(row, CancelJob(by="bob", reason="too late", later=True))

        intent = Intent(
            id="new", kind=IntentKind.CANCEL, numbers=NumberSet.below(3), round=1, by="bob"
        )

        assert change.row.cancel == CancelRequest(by="bob", reason="too late", at=LATER)
        assert (change.row.intents, change.row.state) == ((intent,), JobState.RUNNING)
        assert change.events == ()

    def test_a_job_is_cancelled_when_all_its_tasks_have_ended(self) -> None:
        row = change_of(a_job(2), self.COMMAND).row

        first = change_of(row, ends(an_end(0, CANCELLED, blocks=[1])))
        second = change_of(first.row, ends(an_end(1, CANCELLED)))

        assert (first.row.state, first.events) == (JobState.RUNNING, ())
        assert (second.row.state, second.row.finished_at) == (JobState.CANCELLED, LATER)
        assert bodies(second) == [
            e.JobCancelled(job_id=row.id, by="bob", reason="too late", round=1)
        ]

    def test_a_job_whose_tasks_were_all_faster_has_completed(self) -> None:
        row = change_of(a_job(1), self.COMMAND).row

        change = change_of(row, ends(an_end(0)))

        assert change.row.state is JobState.COMPLETED
        assert [event.type for event in change.events] == ["Job Completed"]

    def test_a_job_that_is_cancelled_after_a_failure_ends_as_cancelled(self) -> None:
        row = change_of(a_job(3, failed=[0]), self.COMMAND).row

        change = change_of(row, ends(an_end(1), an_end(2, CANCELLED)))

        assert change.row.state is JobState.CANCELLED
        assert [event.type for event in change.events] == ["Job Cancelled"]

    def test_a_job_of_which_nothing_was_left_to_cancel_has_failed(self) -> None:
        row = change_of(a_job(2, failed=[0]), self.COMMAND).row

        change = change_of(row, ends(an_end(1)))

        assert (change.row.state, change.row.finished_at) == (JobState.FAILED, LATER)
        assert change.events == ()

    def test_what_waits_behind_a_failure_can_be_cancelled(self) -> None:
        row = a_job(2, failed=[0], blocked=[1])

        requested = change_of(row, self.COMMAND).row
        ended = change_of(requested, ends(an_end(1, CANCELLED)), now=LATER + SECOND)

        assert (requested.state, requested.finished_at) == (JobState.RUNNING, None)
        assert ended.row.state is JobState.CANCELLED
        assert ended.row.finished_at == LATER + SECOND
        assert [event.type for event in ended.events] == ["Job Cancelled"]

    @pytest.mark.parametrize(
        "row",
        [
            a_job(1, completed=[0]),
            a_job(2, completed=[0], failed=[1]),
            a_job(2, cancelled=[0], blocked=[1]),
        ],
        ids=["completed", "failed", "cancelled"],
    )
    def test_what_has_ended_cannot_be_cancelled(self, row: JobRow) -> None:
        refusal = refusal_of(row, self.COMMAND)

        assert (refusal.reason, refusal.detail) == (RefusalReason.ENDED, f"the job is {row.state}")

    def test_asking_twice_changes_nothing(self) -> None:
        row = a_job(2, cancel=a_cancel_request())

        assert refusal_of(row, self.COMMAND).reason is RefusalReason.NOTHING_TO_DO
