"""Folding a task's events: the same view from any delivery, and terminal beats late."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.events import types as e
from longshore.core.events.codec import EVENT_TYPES
from longshore.core.events.event import Event
from longshore.core.events.types import EVENT_TO_STATE
from longshore.core.tasks.states import TaskState
from tests.event_folding import TaskView, fold

NOON = datetime(2026, 1, 3, 12, 0, tzinfo=UTC)
LASTS = timedelta(seconds=45)
IDS = {"task_id": "job-a_b", "job_id": "job-a"}


def at(sequence: int) -> datetime:
    return NOON + timedelta(seconds=sequence)


def emit(*bodies: e.EventBody, first: int = 1) -> list[Event]:
    """The bodies as events of one task, a second apart."""
    return [
        Event(
            entity_type=e.EntityType.TASK,
            entity_id="job-a_b",
            tenant="acme",
            app="shop",
            sequence=sequence,
            at=at(sequence),
            body=body,
        )
        for sequence, body in enumerate(bodies, start=first)
    ]


def pending(round_: int = 1) -> e.TaskPending:
    return e.TaskPending(**IDS, name="scrape", round=round_)


def waiting(round_: int = 1) -> e.TaskWaiting:
    return e.TaskWaiting(**IDS, round=round_)


def started(attempt: int = 1) -> e.TaskProcessingStarted:
    return e.TaskProcessingStarted(
        **IDS,
        started_at=NOON,
        effective_until=NOON + LASTS,
        worker_id=f"w-{attempt}",
        process_id=7,
        attempt_number=attempt,
        fence=attempt + 100,
    )


def heartbeat(attempt: int = 1, until: datetime = NOON + 2 * LASTS) -> e.TaskHeartbeat:
    return e.TaskHeartbeat(
        **IDS,
        effective_until=until,
        number=1,
        elapsed=LASTS,
        worker_id=f"w-{attempt}",
        process_id=7,
        attempt_number=attempt,
    )


def processing_failed(attempt: int = 1) -> e.TaskProcessingFailed:
    return e.TaskProcessingFailed(
        **IDS, attempt_number=attempt, error="reset", error_category="network", due_at=NOON
    )


def released(attempt: int = 1) -> e.TaskReleased:
    return e.TaskReleased(**IDS, reason="drain", attempt_number=attempt)


def parked(attempt: int = 1) -> e.TaskParked:
    return e.TaskParked(**IDS, attempt_number=attempt, scope="task", reason="all is spent")


def completed(attempt: int = 1) -> e.TaskCompleted:
    return e.TaskCompleted(**IDS, attempt_number=attempt, output=None, duration=LASTS)


def submitted(attempt: int = 1) -> e.TaskSubmittedForReview:
    return e.TaskSubmittedForReview(**IDS, attempt_number=attempt, output=None, duration=LASTS)


def failed() -> e.TaskFailed:
    return e.TaskFailed(
        **IDS, error="bad key", error_category="auth", retry_count=1, source="worker"
    )


def timed_out(attempt: int = 1) -> e.TaskTimeout:
    return e.TaskTimeout(
        **IDS,
        attempt_number=attempt,
        timeout=timedelta(seconds=200),
        elapsed=timedelta(seconds=201),
        signal="SIGTERM",
    )


def cancelled() -> e.TaskCancelled:
    return e.TaskCancelled(**IDS, by="ann")


ADDED = e.TaskBudgetAdded(**IDS, by="ann", usd=1.0)
UNPARKED = e.TaskUnparked(**IDS, by="ann")
REVISION = e.TaskRevisionRequested(**IDS, feedback="shorter", revision=1, by="ann")
APPROVED = e.TaskApproved(**IDS, by="ann")


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """What really happens to tasks: rounds of attempts, each with its heartbeats and its end."""
    bodies: list[e.EventBody] = []
    attempt = 0
    for round_ in range(1, draw(st.integers(1, 3)) + 1):
        bodies += [waiting(round_)] * draw(st.integers(0, round_ > 1)) + [pending(round_)]
        for _ in range(draw(st.integers(0, 2))):
            attempt += 1
            beats = [heartbeat(attempt)] * draw(st.integers(0, 2))
            again = draw(st.sampled_from([processing_failed, released, parked]))
            bodies += [started(attempt), *beats, again(attempt)]
            bodies += [UNPARKED] if again is parked else []
        ends = [[failed()], [cancelled()], [started(attempt + 1), timed_out(attempt + 1)]]
        bodies += draw(st.sampled_from(ends))
        attempt += isinstance(bodies[-1], e.TaskTimeout)
    if draw(st.booleans()):
        bodies += [pending(9), started(attempt + 1), submitted(attempt + 1), REVISION]
        bodies += [started(attempt + 2), submitted(attempt + 2), APPROVED, completed(attempt + 2)]
    return emit(*bodies[: draw(st.integers(0, len(bodies)))])


@given(histories(), st.data())
def test_any_duplication_and_reordering_gives_the_same_view(
    history: list[Event], data: st.DataObject
) -> None:
    again = data.draw(st.lists(st.sampled_from(history), max_size=6)) if history else []
    delivered = data.draw(st.permutations([*history, *again]))

    assert fold(delivered) == fold(history)


@given(histories())
def test_the_state_is_that_of_the_last_event(history: list[Event]) -> None:
    view = fold(history)

    expected = EVENT_TO_STATE[history[-1].type] if history else TaskState.WAITING
    assert view.state is expected
    assert (view.last_sequence, view.complete) == (len(history), True)


@given(histories(), st.data())
def test_a_history_with_a_hole_says_so(history: list[Event], data: st.DataObject) -> None:
    later = emit(heartbeat(), first=len(history) + 1)
    retained = data.draw(st.lists(st.sampled_from(history), unique_by=id)) if history else []

    view = fold([*retained, *later])

    assert view.last_sequence == len(history) + 1
    assert view.complete is (len(retained) == len(history))


TERMINAL_EVENTS = [completed(), failed(), timed_out(), cancelled()]
LATE = [
    *(
        make(2)
        for make in (
            *(pending, waiting, started, heartbeat, processing_failed, released, submitted),
            parked,
        )
    ),
    pending(),
    ADDED,
    UNPARKED,
    REVISION,
    APPROVED,
    *TERMINAL_EVENTS,
]


@given(st.sampled_from(TERMINAL_EVENTS), st.lists(st.sampled_from(LATE), min_size=1, max_size=5))
def test_nothing_but_a_greater_round_leaves_a_terminal_state(
    end: e.EventBody, late: list[e.EventBody]
) -> None:
    history = emit(pending(2), started(), end)

    view = fold([*history, *emit(*late, first=4)])

    assert view == replace(fold(history), last_sequence=3 + len(late))


def test_a_heartbeat_delivered_after_the_end_changes_nothing() -> None:
    history = emit(pending(), started(), heartbeat(), completed())

    late = fold([history[0], history[1], history[3], history[2]])

    assert late == fold(history)
    assert late.state is TaskState.COMPLETED


def test_a_task_without_events_is_waiting() -> None:
    assert fold([]) == TaskView(state=TaskState.WAITING, last_sequence=0, complete=True)


def test_a_started_task_shows_its_lease() -> None:
    view = fold(emit(pending(), started()))

    assert view == TaskView(
        state=TaskState.PROCESSING,
        attempt=1,
        fence=101,
        worker_id="w-1",
        effective_until=NOON + LASTS,
        started_at=NOON,
        updated_at=at(2),
        last_sequence=2,
    )


def test_a_heartbeat_moves_the_end_of_the_lease() -> None:
    view = fold(emit(pending(), started(), heartbeat(until=NOON + 5 * LASTS)))

    assert (view.effective_until, view.updated_at) == (NOON + 5 * LASTS, at(3))


def test_a_heartbeat_alone_gives_the_attempt_and_an_incomplete_history() -> None:
    view = fold(emit(heartbeat(attempt=3), first=9))

    assert (view.state, view.attempt, view.worker_id) == (TaskState.PROCESSING, 3, "w-3")
    assert view.complete is False


@pytest.mark.parametrize(
    "end",
    [
        *(processing_failed(), released(), parked(), submitted(), completed(), failed()),
        *(timed_out(), cancelled()),
    ],
    ids=lambda body: body.TYPE,
)
def test_an_ended_attempt_has_no_lease(end: e.EventBody) -> None:
    view = fold(emit(pending(), started(), end))

    assert (view.worker_id, view.effective_until) == (None, None)
    assert (view.attempt, view.fence, view.started_at) == (1, 101, NOON)


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        pytest.param(processing_failed(), ("reset", "network"), id="attempt"),
        pytest.param(failed(), ("bad key", "auth"), id="task"),
        pytest.param(timed_out(), ("timed out after 200 s", "timeout"), id="timeout"),
    ],
)
def test_a_failure_has_its_category(end: e.EventBody, failure: tuple[str, str]) -> None:
    view = fold(emit(pending(), started(), end))

    assert (view.error, view.error_category) == failure


def test_a_failure_is_remembered_while_the_task_is_tried_again() -> None:
    view = fold(emit(pending(), started(), processing_failed(), started(2)))

    assert (view.state, view.error, view.attempt) == (TaskState.PROCESSING, "reset", 2)


@pytest.mark.parametrize(
    "later",
    [
        [started(2), completed(2)],
        [started(2), submitted(2)],
        [failed(), pending(2)],
        [failed(), waiting(2)],
    ],
    ids=["completed", "in review", "resumed", "resumed into waiting"],
)
def test_a_failure_is_forgotten_with_a_result_or_a_new_round(later: list[e.EventBody]) -> None:
    view = fold(emit(pending(), started(), processing_failed(), *later))

    assert (view.error, view.error_category) == (None, None)


def test_a_resumed_task_is_pending_in_its_new_round_and_keeps_its_count_of_attempts() -> None:
    view = fold(emit(pending(), started(), failed(), pending(2)))

    assert (view.state, view.round, view.attempt) == (TaskState.PENDING, 2, 1)


def test_a_task_resumed_behind_its_parents_is_waiting_in_its_new_round() -> None:
    view = fold(emit(cancelled(), waiting(2)))

    assert (view.state, view.round, view.complete) == (TaskState.WAITING, 2, True)


def test_a_pending_of_the_same_round_keeps_the_failure() -> None:
    view = fold(emit(pending(), started(), processing_failed(), pending()))

    assert (view.state, view.error) == (TaskState.PENDING, "reset")


def test_an_approved_task_is_completed_by_the_event_that_follows() -> None:
    history = emit(pending(), started(), submitted(), APPROVED, completed())

    states = [fold(history[:length]).state for length in (3, 4, 5)]

    assert states == [TaskState.IN_REVIEW, TaskState.IN_REVIEW, TaskState.COMPLETED]


def test_a_task_sent_back_by_its_reviewer_is_pending() -> None:
    assert fold(emit(pending(), started(), submitted(), REVISION)).state is TaskState.PENDING


def test_a_task_rests_until_it_is_unparked() -> None:
    history = emit(pending(), started(), parked(), ADDED, UNPARKED)

    states = [fold(history[:length]).state for length in (3, 4, 5)]

    assert states == [TaskState.PARKED, TaskState.PARKED, TaskState.PENDING]


@pytest.mark.parametrize(
    "before",
    [[pending()], [pending(), started()], [pending(), started(), submitted()]],
    ids=["pending", "processing", "in review"],
)
def test_what_may_be_spent_is_no_state_of_a_task(before: list[e.EventBody]) -> None:
    view = fold(emit(*before))

    after = fold(emit(*before, ADDED))

    sequence = len(before) + 1
    assert after == replace(view, last_sequence=sequence, updated_at=at(sequence))


def test_every_task_event_and_no_other_has_a_state() -> None:
    of_tasks: set[Any] = {
        name for name, body in EVENT_TYPES.items() if body.ENTITY is e.EntityType.TASK
    }

    # What may be spent on a task changes nothing of what it does.
    assert set(EVENT_TO_STATE) == of_tasks - {e.TaskBudgetAdded.TYPE}
