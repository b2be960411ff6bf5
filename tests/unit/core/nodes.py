"""Jobs as nodes, single or random, and their problems."""

from hypothesis import strategies as st

from longshore.core.jobs.submission import TaskRequest, problems_of

LIMIT = 10_000


def a_task(key: str, *parents: str) -> TaskRequest:
    return TaskRequest(key=key, definition="command", parents=parents)


def problems(
    *nodes: TaskRequest, limit: int = LIMIT, existing: tuple[str, ...] = ()
) -> dict[str, str]:
    return {p.path: p.message for p in problems_of(nodes, limit=limit, existing=existing)}


@st.composite
def random_jobs(draw: st.DrawFn) -> list[TaskRequest]:
    """A valid job: edges go from later to earlier in one order, tasks are given in another."""
    size = draw(st.integers(1, 14))
    nodes = [
        a_task(f"t{number}", *(f"t{parent}" for parent in draw(_some_below(number))))
        for number in range(size)
    ]
    return draw(st.permutations(nodes))


def _some_below(number: int) -> st.SearchStrategy[list[int]]:
    if number == 0:
        return st.just([])
    return st.lists(st.integers(0, number - 1), unique=True, max_size=4)
