"""Invariants of every task after any sequence of faults, checked on the stored rows and events."""

from collections.abc import Sequence

from longshore.core.events.event import Event
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from tests.event_folding import fold

STARTED = "Task Processing Started"
COMPLETED = "Task Completed"
# What an attempt ends with; a claim, and nothing else, begins the next.
_ENDS = frozenset(
    {
        *(COMPLETED, "Task Processing Failed", "Task Failed", "Task Timeout"),
        *("Task Released", "Task Parked", "Task Cancelled"),
    }
)


async def read_checked_history(backend: Backend, task_id: str) -> tuple[TaskRow, list[Event]]:
    """The task's row and history, after both were held against each other."""
    row = await backend.ledger.get_task(task_id)
    assert row is not None, task_id
    history = await backend.events.history(row.spec.tenant, f"TASK#{task_id}")
    assert [event.sequence for event in history] == list(range(1, row.last_sequence + 1))
    _check_fold(row, history)
    _check_fences(row, history)
    _check_attempt_order(history)
    notices = [event.type for event in history]
    assert notices.count(COMPLETED) == (row.state is TaskState.COMPLETED)
    return row, history


def starts(history: Sequence[Event]) -> list[Event]:
    """The events that record the start of an attempt."""
    return [event for event in history if event.type == STARTED]


def _check_fold(row: TaskRow, history: Sequence[Event]) -> None:
    view = fold(history)
    assert view.complete
    assert view.last_sequence == row.last_sequence
    assert view.state is row.state
    assert (view.round, view.attempt, view.fence) == (row.round, row.attempt, row.fence)
    assert view.worker_id == (row.lease.worker_id if row.lease else None)
    assert view.effective_until == (row.lease.expires_at if row.lease else None)
    assert view.error == (row.failure.message if row.failure else None)


def _check_fences(row: TaskRow, history: Sequence[Event]) -> None:
    begun = [event.body for event in starts(history)]
    fences = [body.fence for body in begun]
    assert fences == sorted(set(fences))
    assert [body.attempt_number for body in begun] == list(range(1, row.attempt + 1))


def _check_attempt_order(history: Sequence[Event]) -> None:
    """No event of an attempt precedes its start, follows its end, or occurs while another runs."""
    current: int | None = None
    for event in history:
        number = getattr(event.body, "attempt_number", None)
        if event.type == STARTED:
            assert current is None, f"attempt {number} began while {current} ran"
            current = number
        elif number is not None:
            assert number == current, f"{event.type} of {number} while {current} ran"
        if event.type in _ENDS:
            current = None
