"""States of tasks and jobs, and the order of priorities."""

from longshore.core.tasks.states import JobState, Priority, TaskState


def test_three_states_end_a_task() -> None:
    ended = {state for state in TaskState if state.terminal}

    assert ended == {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED}


def test_every_state_of_a_job_but_running_is_terminal() -> None:
    assert [state for state in JobState if not state.terminal] == [JobState.RUNNING]


def test_high_sorts_before_normal_and_normal_before_low() -> None:
    assert sorted(Priority) == [Priority.HIGH, Priority.NORMAL, Priority.LOW]
