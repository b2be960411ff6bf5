"""The chain of tasks that a waiting task stands behind, down to the one on which it all depends.

Told from the job's row and its graph alone, so that of a chain of ten thousand tasks only the few
rows are read that a person will be shown.
"""

from __future__ import annotations

from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NumberSet
from longshore.core.records import value
from longshore.core.tasks.rows import JobRow

LINKS_SHOWN = 6
"""Of a longer chain: its first ones; its last one is always shown as well."""
PARENTS_SHOWN = 5


@value
class ChainLink:
    """A task of the chain, and for whom it waits."""

    number: int
    parents: tuple[int, ...] = ()  # the first of them is the next link; not all, if they are many
    awaited_count: int = 0  # how many in all


@value
class DependencyChain:
    """From the task that was asked about to the one that nothing stands before."""

    links: tuple[ChainLink, ...]
    omitted: int = 0  # before the last one

    @property
    def numbers(self) -> NumberSet:
        """All tasks of which it speaks."""
        return NumberSet(number for link in self.links for number in (link.number, *link.parents))


def dependency_chain(job: JobRow, graph: Graph, number: int, awaits: NumberSet) -> DependencyChain:
    """The chain that begins with a task which awaits these parents; alone if it awaits none."""
    links: list[ChainLink] = []
    awaited = sorted(awaits, key=lambda parent: _rank(job, parent))
    while awaited:
        links.append(
            ChainLink(
                number=number, parents=tuple(awaited[:PARENTS_SHOWN]), awaited_count=len(awaited)
            )
        )
        number = awaited[0]
        awaited = _awaited(job, graph, number)
    links.append(ChainLink(number=number))
    left_out = max(len(links) - 1 - LINKS_SHOWN, 0)
    return DependencyChain(links=(*links[: -1 - left_out], links[-1]), omitted=left_out)


def _awaited(job: JobRow, graph: Graph, number: int) -> list[int]:
    if number in job.ended:
        return []
    parents = [parent for parent in graph.parents[number] if parent not in job.completed]
    return sorted(parents, key=lambda parent: _rank(job, parent))


def _rank(job: JobRow, number: int) -> tuple[int, int]:
    """What keeps a task from running at all comes first, what it need not wait for comes last."""
    if number in job.failed or number in job.cancelled:
        return 0, number
    if number in job.blocked:
        return 1, number
    return (3 if number in job.completed else 2), number
