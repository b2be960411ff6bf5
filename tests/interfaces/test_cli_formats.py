"""Durations, times and sizes as text, and exit codes of tasks."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.states import TaskState
from longshore.interfaces.cli.render import formats
from longshore.services.documents import task_exit_code
from tests.factories import a_task

NOON = datetime(2030, 1, 7, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.84, "0.8 s"),
        (12.4, "12 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (3900, "1 h 5 min"),
        (7205, "2 h"),
        (2 * 86400 + 3 * 3600 + 59, "2 d 3 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert formats.duration_text(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "just now"),
        (3, "3 s ago"),
        (59.9, "59 s ago"),
        (300, "5 min ago"),
        (7200, "2 h ago"),
        (3 * 86400, "3 d ago"),
        (30 * 86400, "2029-12-08"),
        (-90, "in 1 min"),
    ],
)
def test_a_time_is_relative_to_now(seconds: float, text: str) -> None:
    assert formats.relative_time(NOON - timedelta(seconds=seconds), NOON) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (12_400, "12.4 kB"), (3 * 10**9, "3.0 GB")],
)
def test_a_size_has_its_unit(count: int, text: str) -> None:
    assert formats.size(count) == text


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Failure(category=ErrorCategory.EXIT_CODE, message="", exit_code=7), 7),
        (Failure(category=ErrorCategory.CRASH, message="", signal="SIGKILL"), 137),
        (Failure(category=ErrorCategory.CRASH, message="", signal="signal 40"), 1),
        (Failure(category=ErrorCategory.TIMEOUT, message="", signal="SIGTERM"), 124),
        (Failure(category=ErrorCategory.NETWORK, message=""), 1),
    ],
)
def test_a_failure_becomes_the_exit_code_that_a_shell_would_give(
    failure: Failure, code: int
) -> None:
    task = replace(a_task(state=TaskState.FAILED), failure=failure)

    assert task_exit_code(task) == code


def test_only_an_ended_task_has_an_exit_code() -> None:
    assert task_exit_code(a_task(state=TaskState.PENDING)) is None
    assert task_exit_code(replace(a_task(state=TaskState.COMPLETED), exit_code=0)) == 0
    assert task_exit_code(a_task(state=TaskState.CANCELLED)) == 1


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0.0, ""),
        (5.5e-17, ""),
        (-5.5e-17, ""),
        (0.0042, "$0.0042"),
        (0.01, "$0.01"),
        (0.424, "$0.42"),
        (1234.5, "$1,234.50"),
    ],
)
def test_small_amounts_have_more_digits(amount: float, text: str) -> None:
    assert formats.cost(amount) == text
