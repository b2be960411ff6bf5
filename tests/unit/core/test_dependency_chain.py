"""The chain from a waiting task to the task on which it depends, short enough to be shown."""

from longshore.core.explain import (
    LINKS_SHOWN,
    PARENTS_SHOWN,
    ChainLink,
    DependencyChain,
    dependency_chain,
)
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from tests.factories import a_job


def a_graph(*parents: tuple[int, ...]) -> Graph:
    keys = tuple(f"t{number}" for number in range(len(parents)))
    return Graph(keys, keys, parents)


def numbers_of(chain: DependencyChain) -> list[int]:
    return [link.number for link in chain.links]


def test_a_task_that_awaits_no_parent_is_a_chain_of_one_link() -> None:
    chain = dependency_chain(a_job(3), Graph(), 2, NO_NUMBERS)

    assert chain == DependencyChain(links=(ChainLink(number=2),))


def test_the_chain_goes_to_the_first_task_that_has_not_completed() -> None:
    graph = a_graph((), (), (0, 1), (2,), ())

    chain = dependency_chain(a_job(5, completed=[0]), graph, 3, NumberSet([2]))

    assert chain.links == (
        ChainLink(number=3, parents=(2,), awaited_count=1),
        ChainLink(number=2, parents=(1,), awaited_count=1),
        ChainLink(number=1),
    )
    assert chain.omitted == 0
    assert chain.numbers == NumberSet([1, 2, 3])


def test_what_failed_is_followed_before_what_can_still_run() -> None:
    graph = a_graph((), (), (), (1,), (0, 2, 3))
    job = a_job(5, failed=[1], blocked=[3, 4], completed=[0])

    chain = dependency_chain(job, graph, 4, NumberSet([0, 2, 3]))

    assert numbers_of(chain) == [4, 3, 1]
    assert chain.links[0].parents == (3, 2, 0)


def test_a_cancelled_task_is_the_end_of_the_chain_though_it_waited_itself() -> None:
    graph = a_graph((), (0,), (1,), (2, 0))

    chain = dependency_chain(a_job(4, cancelled=[2], blocked=[3]), graph, 3, NumberSet([0, 2]))

    assert numbers_of(chain) == [3, 2]


def test_a_parent_that_has_completed_unheard_is_the_end_of_the_chain() -> None:
    chain = dependency_chain(a_job(2, completed=[0]), a_graph((), (0,)), 1, NumberSet([0]))

    assert numbers_of(chain) == [1, 0]


def test_of_many_parents_the_first_are_named() -> None:
    many = 3 * PARENTS_SHOWN
    graph = a_graph(*[()] * many, tuple(range(many)))

    chain = dependency_chain(a_job(many + 1), graph, many, NumberSet.below(many))

    assert chain.links[0].parents == tuple(range(PARENTS_SHOWN))
    assert chain.links[0].awaited_count == many


def test_a_chain_of_ten_thousand_has_its_first_links_and_its_last() -> None:
    total = 10_000
    graph = a_graph((), *((number,) for number in range(total - 1)))

    chain = dependency_chain(a_job(total), graph, total - 1, NumberSet([total - 2]))

    first = [total - 1 - index for index in range(LINKS_SHOWN)]
    assert numbers_of(chain) == [*first, 0]
    assert chain.omitted == total - 1 - LINKS_SHOWN


def test_a_chain_of_the_longest_shown_length_is_whole() -> None:
    total = LINKS_SHOWN + 1
    graph = a_graph((), *((number,) for number in range(total - 1)))

    chain = dependency_chain(a_job(total), graph, total - 1, NumberSet([total - 2]))

    assert numbers_of(chain) == list(reversed(range(total)))
    assert chain.omitted == 0
