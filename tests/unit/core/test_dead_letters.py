"""What becomes of a message that was received too often, and which dead letters a filter means."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.core.dead_letters import (
    DeadLetter,
    DeadLetterFilter,
    Disposition,
    KeepMessage,
    dead_letter_of_message,
    dead_letter_of_task,
    disposition_of,
    message_id_of,
)
from longshore.core.events import types as e
from longshore.core.queues import QueueMessage, message_body
from longshore.core.tasks.changes import Change
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from tests.factories import (
    JOB_ID,
    LASTS,
    MARGIN,
    NOON,
    SECOND,
    a_cancel_request,
    a_failure,
    a_spec,
    a_task,
    changed,
)

LATER = NOON + 60 * SECOND
OVER = NOON + LASTS + MARGIN
TICK = timedelta(milliseconds=1)


def a_message(body: str = message_body("job-a_b"), **fields: Any) -> QueueMessage:
    expected = {"id": "7", "queue": "default", "receive_count": 20, "sent_at": NOON, **fields}
    return QueueMessage(body=body, **expected)


def disposition(
    row: TaskRow | None, message: QueueMessage | None = None, **moment: Any
) -> Disposition:
    now = moment.get("now", LATER)
    return disposition_of(message or a_message(), row, now=now, margin=MARGIN, change_id="new")


class TestDisposition:
    def test_a_message_that_cannot_be_read_stays_with_the_reason(self) -> None:
        assert disposition(None, a_message("no json")) == KeepMessage("not JSON")

    def test_a_message_that_names_no_task_stays_with_the_reason(self) -> None:
        assert disposition(None) == KeepMessage("there is no task 'job-a_b'")

    def test_a_task_without_a_lease_fails_with_the_source_of_the_failure(self) -> None:
        change = changed(disposition(a_task(enqueued_at=NOON)))

        (event,) = change.events
        assert change.row.state is TaskState.FAILED
        assert isinstance(event.body, e.TaskFailed)
        assert (event.body.source, event.body.error_category) == ("dlq", "crash")
        assert "received 20 times" in event.body.error
        assert change.row.change_id == "new"

    @pytest.mark.parametrize(
        "state",
        [
            TaskState.COMPLETED,
            TaskState.FAILED,
            TaskState.CANCELLED,
            TaskState.WAITING,
            TaskState.IN_REVIEW,
        ],
    )
    def test_a_message_for_a_task_that_is_not_to_be_run_goes(self, state: TaskState) -> None:
        assert disposition(a_task(state=state)) is None

    def test_a_task_in_a_living_workers_hands_is_left_alone(self) -> None:
        row = a_task(state=TaskState.PROCESSING)

        assert disposition(row, now=OVER - TICK) is None
        assert isinstance(disposition(row, now=OVER), Change)

    def test_a_task_in_a_dead_workers_hands_that_was_to_be_cancelled_is_cancelled(self) -> None:
        row = a_task(state=TaskState.PROCESSING, cancel=a_cancel_request())

        assert changed(disposition(row, now=OVER)).row.state is TaskState.CANCELLED

    def test_a_message_is_dropped_if_its_task_was_enqueued_later(self) -> None:
        assert isinstance(disposition(a_task(enqueued_at=NOON + MARGIN)), Change)
        assert disposition(a_task(enqueued_at=NOON + MARGIN + TICK)) is None


class TestLetters:
    def test_a_task_that_failed_is_a_dead_letter(self) -> None:
        row = a_task(state=TaskState.FAILED, failure=a_failure(), finished_at=LATER)

        letter = dead_letter_of_task(row)

        assert letter == DeadLetter(
            id=row.id,
            at=LATER,
            queue="default",
            reason="broke by network",
            category=ErrorCategory.NETWORK,
            row=row,
        )
        assert letter.replayable

    def test_a_task_that_failed_without_a_word_is_one_too(self) -> None:
        row = a_task(state=TaskState.FAILED, failure=None, finished_at=None)

        letter = dead_letter_of_task(row)

        assert letter is not None
        assert (letter.at, letter.reason, letter.category) == (NOON, "failed", None)

    @pytest.mark.parametrize("state", [s for s in TaskState if s is not TaskState.FAILED])
    def test_any_other_task_is_none(self, state: TaskState) -> None:
        assert dead_letter_of_task(a_task(state=state)) is None

    def test_a_message_that_stays_is_a_dead_letter_with_its_reason(self) -> None:
        message = a_message("[]")

        letter = dead_letter_of_message(message, None, now=LATER, margin=MARGIN)

        assert letter == DeadLetter(
            id="msg-7", at=NOON, queue="default", reason="not a JSON object", message=message
        )
        assert not letter.replayable

    def test_a_message_that_will_end_its_task_says_so_until_then(self) -> None:
        row = a_task()

        letter = dead_letter_of_message(a_message(), row, now=LATER, margin=MARGIN)

        assert letter is not None
        assert letter.row is row
        assert "the sweeper will fail" in letter.reason

    def test_a_leftover_is_no_dead_letter(self) -> None:
        row = a_task(state=TaskState.COMPLETED)

        assert dead_letter_of_message(a_message(), row, now=LATER, margin=MARGIN) is None

    def test_ids_of_messages_and_tasks_differ(self) -> None:
        assert message_id_of("msg-7") == "7"
        assert message_id_of("job-a_msg-7") is None


TASK = dead_letter_of_task(
    a_task(
        state=TaskState.FAILED,
        spec=a_spec(queue="mail", definition="send"),
        failure=a_failure(ErrorCategory.AUTH),
        finished_at=LATER,
    )
)
MESSAGE = dead_letter_of_message(a_message("x", queue="mail"), None, now=LATER, margin=MARGIN)


class TestFilter:
    @pytest.mark.parametrize("letter", [TASK, MESSAGE], ids=["task", "message"])
    def test_a_filter_without_conditions_matches_everything(self, letter: DeadLetter) -> None:
        assert DeadLetterFilter().matches(letter)

    @pytest.mark.parametrize(
        ("conditions", "other"),
        [
            ({"queue": "mail"}, {"queue": "other"}),
            ({"definition": "send"}, {"definition": "receive"}),
            ({"category": ErrorCategory.AUTH}, {"category": ErrorCategory.CRASH}),
            ({"job_id": JOB_ID}, {"job_id": "job-other"}),
            ({"since": LATER}, {"since": LATER + TICK}),
        ],
        ids=["queue", "definition", "category", "job", "since"],
    )
    def test_each_condition_selects(
        self, conditions: dict[str, Any], other: dict[str, Any]
    ) -> None:
        assert TASK is not None
        assert DeadLetterFilter(**conditions).matches(TASK)
        assert not DeadLetterFilter(**other).matches(TASK)

    def test_every_condition_must_match(self) -> None:
        assert TASK is not None
        assert not DeadLetterFilter(queue="mail", definition="receive").matches(TASK)

    @pytest.mark.parametrize(
        "conditions",
        [{"definition": "send"}, {"category": ErrorCategory.AUTH}, {"job_id": JOB_ID}],
        ids=["definition", "category", "job"],
    )
    def test_a_message_without_a_task_is_not_meant_by_what_only_tasks_have(
        self, conditions: dict[str, Any]
    ) -> None:
        assert MESSAGE is not None
        assert not DeadLetterFilter(**conditions).matches(MESSAGE)

    def test_a_message_is_meant_by_its_queue_and_its_age(self) -> None:
        assert MESSAGE is not None
        assert DeadLetterFilter(queue="mail", since=NOON).matches(MESSAGE)
        assert not DeadLetterFilter(since=NOON + TICK).matches(MESSAGE)

    def test_who_sees_only_their_own_does_not_see_what_is_nobodys(self) -> None:
        assert TASK is not None
        assert MESSAGE is not None
        assert DeadLetterFilter(include_orphans=False).matches(TASK)
        assert not DeadLetterFilter(include_orphans=False).matches(MESSAGE)
