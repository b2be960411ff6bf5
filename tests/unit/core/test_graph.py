"""The graph as a document, and what is behind a task."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from longshore.core.jobs.graph import Addition, Graph, graph_of_one_task, request_hash
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet


def a_graph(*parents: tuple[int, ...]) -> Graph:
    keys = tuple(f"t{number}" for number in range(len(parents)))
    return Graph(keys, ("command",) * len(parents), parents)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to twelve tasks, each behind any of those before it."""
    count = draw(st.integers(0, 12))
    parents = [
        tuple(sorted(draw(st.sets(st.integers(0, number - 1))))) if number else ()
        for number in range(count)
    ]
    return a_graph(*parents)


DIAMOND = a_graph((), (0,), (0,), (1, 2), ())


def test_everything_that_depends_on_a_task_is_behind_it_near_or_far() -> None:
    assert DIAMOND.descendants_of([0]) == NumberSet([1, 2, 3])
    assert DIAMOND.descendants_of([1]) == NumberSet([3])
    assert DIAMOND.descendants_of([1, 2]) == NumberSet([3])


def test_nothing_is_behind_the_last_task_or_behind_no_task() -> None:
    assert DIAMOND.descendants_of([3, 4]) == NO_NUMBERS
    assert DIAMOND.descendants_of([]) == NO_NUMBERS


def test_a_task_that_is_asked_for_is_listed_only_if_it_is_behind_another() -> None:
    assert DIAMOND.descendants_of([0, 1]) == NumberSet([1, 2, 3])


def test_a_long_chain_is_followed_to_its_end() -> None:
    chain = a_graph((), *((number,) for number in range(5_000)))

    assert len(chain.descendants_of([0])) == 5_000


@given(graphs(), st.data())
def test_a_task_is_behind_others_if_one_of_its_parents_is_one_of_them_or_behind_them(
    graph: Graph, data: st.DataObject
) -> None:
    numbers = data.draw(st.sets(st.integers(0, max(len(graph.keys) - 1, 0))))

    behind = graph.descendants_of(numbers)

    for child, parents in enumerate(graph.parents):
        assert (child in behind) == any(p in numbers or p in behind for p in parents)


@given(graphs())
def test_a_graph_comes_back_from_json_as_it_was(graph: Graph) -> None:
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph


def test_what_was_added_by_whom_is_kept_with_the_graph() -> None:
    first, second = (
        Addition(request_hash("one"), "body", 3, 1),
        Addition(request_hash("two"), "body", 4, 1),
    )
    grown = DIAMOND.with_addition(first).with_addition(second)

    again = Graph.from_json(json.loads(json.dumps(grown.to_json())))

    assert again == grown
    assert again.find_addition(request_hash("two")) == second
    assert again.find_addition(request_hash("three")) is None


def test_a_graph_is_known_as_it_was_before() -> None:
    first, second = Addition("one", "body", 3, 1), Addition("two", "body", 4, 1)
    grown = replace(DIAMOND, additions=(first, second))

    assert grown.truncated(4) == replace(a_graph((), (0,), (0,), (1, 2)), additions=(first,))


def test_the_graph_of_one_task_is_that_of_a_job_without_dependencies() -> None:
    document = graph_of_one_task("only", "command")

    assert Graph.from_json(json.loads(document.text or "")) == Graph(("only",), ("command",), ((),))
    assert document.size == len((document.text or "").encode())
