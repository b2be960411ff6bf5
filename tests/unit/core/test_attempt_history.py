"""Attempts of a task derived from its events."""

from datetime import timedelta

from longshore.core.documents import Document
from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.tasks.attempt_history import PastAttempt, attempts_from_events
from tests.factories import APP, JOB_ID, NOON, SECOND, TENANT

TASK = {"task_id": f"{JOB_ID}_a", "job_id": JOB_ID}


def history(*bodies: e.EventBody) -> list[Event]:
    """These events, a second apart."""
    return [
        Event(
            entity_type=body.ENTITY,
            entity_id=TASK["task_id"],
            tenant=TENANT,
            app=APP,
            sequence=number,
            at=NOON + number * SECOND,
            body=body,
        )
        for number, body in enumerate(bodies, start=1)
    ]


def pending(round: int = 1) -> e.TaskPending:
    return e.TaskPending(**TASK, name="command", round=round)


def started(number: int) -> e.TaskProcessingStarted:
    return e.TaskProcessingStarted(
        **TASK,
        started_at=NOON,
        effective_until=NOON,
        worker_id=f"worker-{number}",
        process_id=1,
        attempt_number=number,
        fence=number,
    )


def again(number: int) -> e.TaskProcessingFailed:
    return e.TaskProcessingFailed(
        **TASK,
        attempt_number=number,
        error="connection reset",
        error_category="network",
        due_at=NOON,
        duration=3 * SECOND,
        exit_code=7,
    )


def failed(source: str = "worker", duration: timedelta | None = SECOND) -> e.TaskFailed:
    return e.TaskFailed(
        **TASK,
        error="no such file",
        error_category="not-found",
        retry_count=2,
        source=source,
        duration=duration,
    )


def test_a_task_that_never_ran_has_no_attempts() -> None:
    assert attempts_from_events(history(pending(), failed("dlq", None))) == []


def test_each_attempt_has_its_worker_its_times_and_its_error() -> None:
    first, second = attempts_from_events(
        history(pending(), started(1), again(1), started(2), failed())
    )

    assert first == PastAttempt(
        number=1,
        round=1,
        worker_id="worker-1",
        started_at=NOON,
        outcome="failed",
        ended_at=NOON + 3 * SECOND,
        duration=3 * SECOND,
        error="connection reset",
        category="network",
        exit_code=7,
    )
    assert (second.number, second.error, second.category) == (2, "no such file", "not-found")
    assert (second.outcome, second.duration) == ("failed", SECOND)


def test_attempts_after_a_resume_are_of_the_next_round() -> None:
    events = history(pending(), started(1), failed(), pending(2), started(2), failed())

    assert [(attempt.number, attempt.round) for attempt in attempts_from_events(events)] == [
        (1, 1),
        (2, 2),
    ]


def test_an_attempt_without_a_reported_end_has_no_outcome() -> None:
    beat = e.TaskHeartbeat(
        **TASK,
        effective_until=NOON,
        number=1,
        elapsed=SECOND,
        worker_id="worker-1",
        process_id=1,
        attempt_number=1,
    )

    (attempt,) = attempts_from_events(history(pending(), started(1), beat))

    assert (attempt.outcome, attempt.ended_at, attempt.duration, attempt.error) == (None,) * 4


def test_an_end_from_outside_leaves_the_last_attempts_own_end() -> None:
    (attempt,) = attempts_from_events(history(pending(), started(1), again(1), failed("dlq", None)))

    assert attempt.error == "connection reset"


def test_an_end_from_outside_is_that_of_an_attempt_that_has_none() -> None:
    (attempt,) = attempts_from_events(history(pending(), started(1), failed("dlq", None)))

    assert attempt.error == "no such file"
    # Not measured: the time between its events.
    assert attempt.duration == 3 * SECOND


def test_every_kind_of_end_has_its_word() -> None:
    timeout = e.TaskTimeout(
        **TASK, attempt_number=1, timeout=SECOND, elapsed=2 * SECOND, signal="SIGKILL"
    )
    released = e.TaskReleased(**TASK, reason="the worker stops", attempt_number=1)
    parked = e.TaskParked(
        **TASK, attempt_number=1, scope="task", reason="all is spent", duration=2 * SECOND
    )
    result = Document(text="1", size=1)
    completed = e.TaskCompleted(**TASK, attempt_number=1, output=result, duration=SECOND)
    reviewed = e.TaskSubmittedForReview(**TASK, attempt_number=1, output=result, duration=SECOND)
    cancelled = e.TaskCancelled(**TASK, by="ann", attempt_number=1)

    ends = [
        attempts_from_events(history(pending(), started(1), end))[0]
        for end in (timeout, released, completed, reviewed, cancelled, parked)
    ]

    assert [(attempt.outcome, attempt.error) for attempt in ends] == [
        ("timed out", "it timed out and was ended by SIGKILL"),
        ("released", "the worker stops"),
        ("completed", None),
        ("completed", None),
        ("cancelled", None),
        ("parked", "all is spent"),
    ]
    assert [attempt.duration for attempt in ends] == [
        *(2 * SECOND, 3 * SECOND, SECOND, SECOND, 3 * SECOND, 2 * SECOND),
    ]
    assert (ends[0].category, ends[2].exit_code) == ("timeout", 0)
