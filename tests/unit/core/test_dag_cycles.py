"""Tasks that wait for each other: each cycle is found, and drawn as it is."""

import re
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from longshore.core.jobs.submission import TaskRequest, problems_of
from longshore.errors import Problem
from tests.unit.core.nodes import LIMIT, a_task, problems, random_jobs


def cycle_in(message: str) -> list[str]:
    return message.removeprefix("each of these tasks depends on the next: ").split(" -> ")


def test_a_cycle_is_named_in_order_at_its_first_task() -> None:
    result = problems(a_task("x"), a_task("a", "x", "b"), a_task("b", "c"), a_task("c", "a"))

    assert result == {
        "tasks[1].dependsOn[1]": "each of these tasks depends on the next: a -> b -> c -> a"
    }


def test_tasks_that_only_wait_behind_a_cycle_are_not_part_of_it() -> None:
    result = problems(a_task("behind", "b"), a_task("a", "b"), a_task("b", "a"))

    assert list(result) == ["tasks[1].dependsOn[0]"]
    assert cycle_in(result["tasks[1].dependsOn[0]"]) == ["a", "b", "a"]


def test_each_separate_cycle_is_one_problem_also_when_one_waits_for_the_other() -> None:
    result = problems(a_task("c", "a", "d"), a_task("d", "c"), a_task("a", "b"), a_task("b", "a"))

    cycles = {tuple(cycle_in(message)) for message in result.values()}
    assert cycles == {("a", "b", "a"), ("c", "d", "c")}


def test_cycles_that_share_a_task_are_one_problem() -> None:
    result = problems(a_task("a", "b"), a_task("b", "a", "c"), a_task("c", "b"))

    assert len(result) == 1


def test_a_very_long_cycle_is_drawn_without_its_middle() -> None:
    cycle = [a_task(f"t{number}", f"t{(number + 1) % 30}") for number in range(30)]

    (problem,) = problems_of(cycle, limit=LIMIT)

    assert "t0 -> t1 -> t2" in problem.message
    assert "t9 -> … 10 more … -> t20" in problem.message
    assert problem.message.endswith("t29 -> t0")


def test_a_cycle_of_malformed_ids_is_drawn_escaped() -> None:
    result = problems(a_task("a\n", "b"), a_task("b", "a\n"))

    assert result["tasks[0].dependsOn[0]"].endswith(r"'a\n' -> b -> 'a\n'")


@given(random_jobs(), st.data())
def test_an_edge_that_closes_a_cycle_is_reported_as_a_real_cycle(
    nodes: list[TaskRequest], data: st.DataObject
) -> None:
    above = ancestors_by_brute_force(nodes)
    closing = [
        (upper, lower)
        for lower, node in enumerate(nodes)
        for upper in range(len(nodes))
        if nodes[upper].key in above[node.key]
    ]
    assume(closing)
    upper, lower = data.draw(st.sampled_from(closing))
    changed = a_task(nodes[upper].key, *nodes[upper].parents, nodes[lower].key)
    broken = [*nodes[:upper], changed, *nodes[upper + 1 :]]

    (problem,) = problems_of(broken, limit=LIMIT)

    assert_names_a_real_cycle(problem, broken)
    assert (nodes[upper].key, nodes[lower].key) in edges_in(problem)


@given(st.data())
def test_any_graph_is_either_accepted_or_shown_to_have_a_real_cycle(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 10))
    numbers = st.lists(st.integers(0, size - 1), unique=True, max_size=3)
    nodes = [
        a_task(f"t{number}", *(f"t{parent}" for parent in data.draw(numbers) if parent != number))
        for number in range(size)
    ]

    result = problems_of(nodes, limit=LIMIT)

    assert bool(result) == has_cycle_by_brute_force(nodes)
    named = [key for problem in result for key in cycle_in(problem.message)[1:]]
    assert len(named) == len(set(named)), "cycles that are reported share no task"
    for problem in result:
        assert_names_a_real_cycle(problem, nodes)


def edges_in(problem: Problem) -> set[tuple[str, str]]:
    cycle = cycle_in(problem.message)
    return set(pairwise(cycle))


def assert_names_a_real_cycle(problem: Problem, nodes: list[TaskRequest]) -> None:
    parents = {node.key: node.parents for node in nodes}
    cycle = cycle_in(problem.message)
    position = re.fullmatch(r"tasks\[(\d+)\]\.dependsOn\[(\d+)\]", problem.path)

    assert cycle[0] == cycle[-1]
    assert len(cycle) >= 3
    assert all(upper in parents[lower] for lower, upper in edges_in(problem))
    assert position is not None
    assert nodes[int(position[1])].key == cycle[0]
    assert nodes[int(position[1])].parents[int(position[2])] == cycle[1]


def has_cycle_by_brute_force(nodes: list[TaskRequest]) -> bool:
    return any(key in above for key, above in ancestors_by_brute_force(nodes).items())


def ancestors_by_brute_force(nodes: list[TaskRequest]) -> dict[str, set[str]]:
    ancestors = {node.key: set(node.parents) for node in nodes}
    for _ in nodes:
        for key, above in ancestors.items():
            ancestors[key] = above.union(*(ancestors[parent] for parent in above))
    return ancestors
