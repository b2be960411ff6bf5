"""Which jobs are valid, and the problems of the others."""

import pickle

import pytest
from hypothesis import given

from longshore.core.jobs.submission import PROBLEM_LIMIT, TaskRequest, problems_of
from longshore.errors import InvalidJob, Problem
from tests.unit.core.nodes import LIMIT, a_task, problems, random_jobs

DIAMOND = (a_task("a"), a_task("b", "a"), a_task("c", "a"), a_task("d", "b", "c"))


def test_a_valid_job_has_no_problems() -> None:
    assert problems_of(DIAMOND, limit=4) == []


def test_a_task_may_be_listed_before_the_task_it_depends_on() -> None:
    assert problems(a_task("late", "early"), a_task("early")) == {}


@pytest.mark.parametrize("key", ["a", "A-b_9", "-", "_", "0", "x" * 128])
def test_a_well_formed_task_id_is_accepted(key: str) -> None:
    assert problems(a_task(key)) == {}


def test_a_job_without_tasks_is_refused() -> None:
    assert problems() == {"tasks": "there must be at least one task"}


def test_as_many_tasks_as_the_limit_are_accepted_and_one_more_is_not() -> None:
    tasks = [a_task(f"t{number}") for number in range(4)]

    assert problems(*tasks, limit=4) == {}
    assert problems(*tasks, limit=3) == {"tasks": "4 tasks are more than the 3 that a job may have"}


def test_tasks_that_the_job_has_already_count_towards_the_limit() -> None:
    assert problems(a_task("c"), limit=3, existing=("a", "b")) == {}
    assert list(problems(a_task("c"), limit=2, existing=("a", "b"))) == ["tasks"]


@pytest.mark.parametrize(
    "key", ["", "x" * 129, "a b", "a.b", "a/b", "é", "٣", "a\n"], ids=lambda key: ascii(key)[:12]
)
def test_a_malformed_task_id_is_refused_with_what_is_allowed(key: str) -> None:
    result = problems(a_task("fine"), a_task(key))

    assert list(result) == ["tasks[1].taskId"]
    assert "1 to 128 letters, digits, '-' and '_'" in result["tasks[1].taskId"]


def test_a_duplicate_id_is_named_with_both_places() -> None:
    result = problems(a_task("a"), a_task("b"), a_task("a"))

    assert result == {"tasks[2].taskId": "'a' is already the id of tasks[0]"}


def test_an_added_task_cannot_take_the_id_of_one_that_the_job_has() -> None:
    result = problems(a_task("a"), a_task("b"), existing=("a",))

    assert result == {"tasks[0].taskId": "'a' is already the id of a task of this job"}


def test_an_unknown_dependency_is_named_with_its_place() -> None:
    result = problems(a_task("a"), a_task("b", "a", "zebra"))

    assert result == {"tasks[1].dependsOn[1]": "there is no task 'zebra'"}


def test_a_mistyped_dependency_gets_a_suggestion() -> None:
    result = problems(a_task("fetch-pages"), a_task("parse", "fetch-page"))

    assert result["tasks[1].dependsOn[0]"].endswith("did you mean 'fetch-pages'?")


def test_a_suggestion_can_be_a_task_that_the_job_has_already() -> None:
    result = problems(a_task("parse", "fetch-page"), existing=("other", "fetch-pages"))

    assert result["tasks[0].dependsOn[0]"].endswith("did you mean 'fetch-pages'?")


def test_suggestions_end_when_they_have_cost_enough() -> None:
    tasks = [a_task(f"task-{number:05}", f"tusk-{number:05}") for number in range(2_000)]

    messages = [problem.message for problem in problems_of(tasks, limit=LIMIT)]

    assert "did you mean" in messages[0]
    assert "did you mean" not in messages[PROBLEM_LIMIT - 1]


def test_a_task_cannot_depend_on_itself() -> None:
    result = problems(a_task("a"), a_task("b", "a", "b"))

    assert result == {"tasks[1].dependsOn[1]": "'b' depends on itself"}


def test_the_same_dependency_twice_is_refused() -> None:
    result = problems(a_task("a"), a_task("b", "a", "a"))

    assert result == {"tasks[1].dependsOn[1]": "'a' is already named at dependsOn[0]"}


def test_every_problem_is_reported_together_in_order() -> None:
    nodes = [
        a_task("a", "b"),
        a_task("b", "a"),
        a_task("no good"),
        a_task("a"),
        a_task("self", "self", "nowhere", "no good", "no good"),
    ]

    result = problems_of(nodes, limit=3)

    assert [problem.path for problem in result] == [
        "tasks",
        "tasks[2].taskId",
        "tasks[3].taskId",
        "tasks[4].dependsOn[0]",
        "tasks[4].dependsOn[1]",
        "tasks[4].dependsOn[3]",
        "tasks[0].dependsOn[0]",
    ]


def test_problems_past_the_limit_are_counted_and_not_shown() -> None:
    wrong = [a_task(f"t{number}", "nowhere") for number in range(PROBLEM_LIMIT + 1_200)]

    result = problems_of(wrong, limit=LIMIT)

    assert len(result) == PROBLEM_LIMIT + 1
    assert result[-1] == Problem(path="tasks", message="1,200 more problems are not shown")


def test_exactly_as_many_problems_as_are_shown_get_no_last_line() -> None:
    wrong = [a_task(f"t{number}", "nowhere") for number in range(PROBLEM_LIMIT)]

    result = problems_of(wrong, limit=LIMIT)

    assert {problem.message for problem in result} == {"there is no task 'nowhere'"}


def test_a_message_stays_short_however_long_the_wrong_name_is() -> None:
    result = problems(a_task("x" * 1_000_000), a_task("b", "y" * 1_000_000))

    assert all(len(message) < 300 for message in result.values())


def test_the_error_of_an_invalid_job_keeps_its_problems_when_it_is_pickled() -> None:
    error = InvalidJob(problems_of([a_task("a", "a"), a_task("b", "nowhere")], limit=1))

    assert pickle.loads(pickle.dumps(error)).problems == error.problems  # noqa: S301


def test_the_paths_of_added_tasks_count_from_the_first_added_task() -> None:
    added = [a_task("e"), a_task("a", "nowhere")]

    paths = [problem.path for problem in problems_of(added, limit=5, existing=("a", "b", "c", "d"))]

    assert paths == ["tasks", "tasks[1].taskId", "tasks[1].dependsOn[0]"]


@given(random_jobs())
def test_tasks_in_any_order_without_a_cycle_have_no_problem(nodes: list[TaskRequest]) -> None:
    assert problems_of(nodes, limit=LIMIT) == []
