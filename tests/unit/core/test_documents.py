"""Documents know whether they stand here, and states which of them end something."""

from longshore.core.documents import Document
from longshore.core.tasks.states import JobState, Priority, TaskState


def test_a_document_with_a_text_stands_here() -> None:
    assert Document(text="{}", size=2).inline
    assert Document(text="", size=0).inline


def test_a_document_with_a_key_stands_elsewhere() -> None:
    assert not Document(key="jobs/1/input", size=70_000).inline


def test_three_states_end_a_task() -> None:
    ended = {state for state in TaskState if state.terminal}

    assert ended == {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED}


def test_a_job_is_over_when_nothing_of_it_runs() -> None:
    assert [state for state in JobState if not state.terminal] == [JobState.RUNNING]


def test_high_goes_before_normal_and_normal_before_low() -> None:
    assert sorted(Priority) == [Priority.HIGH, Priority.NORMAL, Priority.LOW]
