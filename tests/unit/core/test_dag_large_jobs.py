"""Jobs of ten thousand tasks are validated.

Quadratic work would take too long here, and recursion would fail.
"""

import pytest

from longshore.core.jobs.submission import PROBLEM_LIMIT, TaskRequest, problems_of
from tests.unit.core.nodes import LIMIT, a_task


def a_chain(length: int) -> list[TaskRequest]:
    rest = (a_task(f"t{number}", f"t{number - 1}") for number in range(1, length))
    return [a_task("t0"), *rest]


def test_a_chain_of_ten_thousand_tasks_has_no_problem() -> None:
    assert problems_of(a_chain(LIMIT)[::-1], limit=LIMIT) == []


def test_a_fan_out_and_in_of_ten_thousand_tasks_has_no_problem() -> None:
    middle = [f"m{number}" for number in range(LIMIT - 2)]
    nodes = [a_task("root"), *(a_task(key, "root") for key in middle), a_task("end", *middle)]

    assert problems_of(nodes, limit=LIMIT) == []


def layers(count: int, width: int, parents: int) -> list[TaskRequest]:
    def above(layer: int, index: int) -> list[str]:
        if layer == 0:
            return []
        return [f"{layer - 1}-{(index * 7 + step * 3) % width}" for step in range(parents)]

    return [
        a_task(f"{layer}-{index}", *above(layer, index))
        for layer in range(count)
        for index in range(width)
    ]


def test_a_dense_job_of_ten_thousand_tasks_has_no_problem() -> None:
    assert problems_of(layers(100, 100, 10), limit=LIMIT) == []


@pytest.mark.parametrize(
    "nodes",
    [
        [a_task("t0", f"t{LIMIT - 1}"), *a_chain(LIMIT)[1:]],
        [a_task("0-0", "99-0"), *layers(100, 100, 10)[1:]],
        [a_task("hub", *(f"s{n}" for n in range(LIMIT - 1)))]
        + [a_task(f"s{n}", "hub") for n in range(LIMIT - 1)],
    ],
    ids=["cycle", "layers that close", "hub"],
)
def test_a_cycle_in_ten_thousand_tasks_is_found(nodes: list[TaskRequest]) -> None:
    (problem,) = problems_of(nodes, limit=LIMIT)

    assert problem.path.startswith("tasks[0].dependsOn[")


def test_five_thousand_cycles_are_counted_in_one_pass() -> None:
    pairs = [a_task(f"t{number}", f"t{number ^ 1}") for number in range(LIMIT)]

    result = problems_of(pairs, limit=LIMIT)

    assert result[-1].message == f"{LIMIT // 2 - PROBLEM_LIMIT:,} more problems are not shown"
