"""Which jobs are accepted, what is said about the others, and the order that the tasks are in."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.jobs.dag import PROBLEM_LIMIT, Dag, Node, Problem, problems_of
from longshore.errors import InvalidJob
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
    found = problems(a_task("fine"), a_task(key))

    assert list(found) == ["tasks[1].taskId"]
    assert "1 to 128 letters, digits, '-' and '_'" in found["tasks[1].taskId"]


def test_a_duplicate_id_is_named_with_both_places() -> None:
    found = problems(a_task("a"), a_task("b"), a_task("a"))

    assert found == {"tasks[2].taskId": "'a' is already the id of tasks[0]"}


def test_an_added_task_cannot_take_the_id_of_one_that_the_job_has() -> None:
    found = problems(a_task("a"), a_task("b"), existing=("a",))

    assert found == {"tasks[0].taskId": "'a' is already the id of a task of this job"}


def test_an_unknown_dependency_is_named_with_its_place() -> None:
    found = problems(a_task("a"), a_task("b", "a", "zebra"))

    assert found == {"tasks[1].dependsOn[1]": "there is no task 'zebra'"}


def test_a_mistyped_dependency_gets_a_suggestion() -> None:
    found = problems(a_task("fetch-pages"), a_task("parse", "fetch-page"))

    assert found["tasks[1].dependsOn[0]"].endswith("did you mean 'fetch-pages'?")


def test_a_suggestion_can_be_a_task_that_the_job_has_already() -> None:
    found = problems(a_task("parse", "fetch-page"), existing=("other", "fetch-pages"))

    assert found["tasks[0].dependsOn[0]"].endswith("did you mean 'fetch-pages'?")


def test_suggestions_end_when_they_have_cost_enough() -> None:
    tasks = [a_task(f"task-{number:05}", f"tusk-{number:05}") for number in range(2_000)]

    messages = [problem.message for problem in problems_of(tasks, limit=LIMIT)]

    assert "did you mean" in messages[0]
    assert "did you mean" not in messages[PROBLEM_LIMIT - 1]


def test_a_task_cannot_depend_on_itself() -> None:
    found = problems(a_task("a"), a_task("b", "a", "b"))

    assert found == {"tasks[1].dependsOn[1]": "'b' depends on itself"}


def test_the_same_dependency_twice_is_refused() -> None:
    found = problems(a_task("a"), a_task("b", "a", "a"))

    assert found == {"tasks[1].dependsOn[1]": "'a' is already named at dependsOn[0]"}


def test_every_problem_is_reported_together_in_order() -> None:
    nodes = [
        a_task("a", "b"),
        a_task("b", "a"),
        a_task("no good"),
        a_task("a"),
        a_task("self", "self", "nowhere", "no good", "no good"),
    ]

    found = problems_of(nodes, limit=3)

    assert [problem.path for problem in found] == [
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

    found = problems_of(wrong, limit=LIMIT)

    assert len(found) == PROBLEM_LIMIT + 1
    assert found[-1] == Problem(path="tasks", message="1,200 more problems are not shown")


def test_exactly_as_many_problems_as_are_shown_get_no_last_line() -> None:
    wrong = [a_task(f"t{number}", "nowhere") for number in range(PROBLEM_LIMIT)]

    found = problems_of(wrong, limit=LIMIT)

    assert {problem.message for problem in found} == {"there is no task 'nowhere'"}


def test_a_message_stays_short_however_long_the_wrong_name_is() -> None:
    found = problems(a_task("x" * 1_000_000), a_task("b", "y" * 1_000_000))

    assert all(len(message) < 300 for message in found.values())


def test_tasks_are_numbered_in_the_given_order() -> None:
    dag = Dag(DIAMOND)

    assert dag.keys == ("a", "b", "c", "d")
    assert [dag.number_of(key) for key in "abcd"] == [0, 1, 2, 3]
    assert len(dag) == 4


def test_edges_can_be_followed_both_ways() -> None:
    dag = Dag([a_task("d", "c", "b"), a_task("b", "a"), a_task("c", "a"), a_task("a")])

    assert dag.roots == (3,)
    assert dag.parents_of(0) == (2, 1)
    assert dag.dependents_of(3) == (1, 2)
    assert dag.dependents_of(0) == ()


def test_an_invalid_job_is_not_built_and_the_error_has_every_problem() -> None:
    nodes = [a_task("a", "a"), a_task("b", "nowhere")]

    with pytest.raises(InvalidJob) as caught:
        Dag(nodes, limit=1)

    assert list(caught.value.problems) == problems_of(nodes, limit=1)
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems  # noqa: S301


def test_a_job_that_was_accepted_once_is_built_without_a_limit() -> None:
    nodes = [a_task(f"t{number}") for number in range(LIMIT + 1)]

    assert len(Dag(nodes)) == LIMIT + 1
    with pytest.raises(InvalidJob):
        Dag(nodes, limit=LIMIT)


def test_what_waits_for_a_task_is_found_without_the_task_itself() -> None:
    dag = Dag([*DIAMOND, a_task("e"), a_task("f", "e")])

    assert dag.descendants_of([1]) == {3}
    assert dag.descendants_of([0]) == {1, 2, 3}
    assert dag.descendants_of([0, 1, 4]) == {1, 2, 3, 5}
    assert dag.descendants_of([]) == set()


def test_a_task_is_ready_once_all_its_parents_have_finished() -> None:
    dag = Dag(DIAMOND)

    assert dag.ready(set()) == [0]
    assert dag.ready({0}) == [1, 2]
    assert dag.ready({0, 1}) == [2]
    assert dag.ready({0, 1, 2}) == [3]
    assert dag.ready({0, 1, 2, 3}) == []


def test_added_tasks_get_the_next_numbers_and_may_depend_on_old_ones() -> None:
    before = Dag(DIAMOND)

    after = before.extended([a_task("f", "e", "a"), a_task("e")])

    assert after.keys == ("a", "b", "c", "d", "f", "e")
    assert after.parents_of(4) == (5, 0)
    assert after.dependents_of(0) == (1, 2, 4)
    assert after.roots == (0, 5)
    assert [after.parents_of(number) for number in range(4)] == [
        before.parents_of(number) for number in range(4)
    ]


def test_adding_tasks_leaves_the_job_as_it_was_alone() -> None:
    before = Dag(DIAMOND)

    before.extended([a_task("e", "a")])

    assert len(before) == 4
    assert before.dependents_of(0) == (1, 2)


def test_added_tasks_are_checked_and_their_paths_count_from_the_first_of_them() -> None:
    dag = Dag(DIAMOND)

    with pytest.raises(InvalidJob) as caught:
        dag.extended([a_task("e"), a_task("a", "nowhere")], limit=5)

    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["tasks", "tasks[1].taskId", "tasks[1].dependsOn[0]"]


@given(random_jobs())
def test_every_task_comes_once_and_after_its_parents(nodes: list[Node]) -> None:
    dag = Dag(nodes)

    order = dag.topological()

    place = {number: index for index, number in enumerate(order)}
    assert sorted(order) == list(range(len(nodes)))
    assert all(
        place[parent] < place[number] for number in order for parent in dag.parents_of(number)
    )


@given(random_jobs(), st.data())
def test_what_is_ready_is_what_the_names_say(nodes: list[Node], data: st.DataObject) -> None:
    dag = Dag(nodes)
    finished = data.draw(st.sets(st.integers(0, len(nodes) - 1)))

    ready = dag.ready(finished)

    finished_keys = {nodes[number].key for number in finished}
    assert [nodes[number].key for number in ready] == [
        node.key
        for node in nodes
        if node.key not in finished_keys and set(node.parents) <= finished_keys
    ]


@given(random_jobs())
def test_descendants_are_those_from_which_the_parents_lead_back(nodes: list[Node]) -> None:
    dag = Dag(nodes)
    ancestors: dict[int, set[int]] = {}
    for number in dag.topological():
        above = dag.parents_of(number)
        ancestors[number] = set(above).union(*(ancestors[parent] for parent in above))

    for number in range(len(nodes)):
        behind = {other for other, above in ancestors.items() if number in above}
        assert dag.descendants_of([number]) == behind


@given(random_jobs(), st.data())
def test_a_job_extended_is_the_job_built_at_once(nodes: list[Node], data: st.DataObject) -> None:
    in_order = [nodes[number] for number in Dag(nodes).topological()]
    cut = data.draw(st.integers(1, len(nodes)))
    first, rest = in_order[:cut], in_order[cut:]

    whole = Dag(in_order)
    extended = Dag(first).extended(rest) if rest else Dag(first)

    assert extended.keys == whole.keys
    assert extended.roots == whole.roots
    for number in range(len(whole)):
        assert extended.parents_of(number) == whole.parents_of(number)
        assert extended.dependents_of(number) == whole.dependents_of(number)
