"""Which of the ready tasks a worker gets."""

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from longshore.core import claims
from longshore.core.claims import ClaimPosition, DefinitionVersion, Room
from longshore.core.tasks.states import Priority

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW
SHORT, LONG = ("acme", "short", 1), ("acme", "long", 1)
START = ClaimPosition()


class Candidate(NamedTuple):
    number: int
    queue: str
    lane: Priority
    line: str
    definition: DefinitionVersion


def a_candidate(
    number: int = 0,
    *,
    queue: str = "default",
    lane: Priority = NORMAL,
    line: str = "acme",
    definition: tuple[str, str, int] = LONG,
) -> Candidate:
    return Candidate(number, queue, lane, line, definition)


def several(count: int, **fields: object) -> list[Candidate]:
    return [a_candidate(number, **fields) for number in range(count)]  # type: ignore[arg-type]


def choose(
    candidates: Iterable[Candidate], room: Room, position: ClaimPosition
) -> tuple[list[Candidate], ClaimPosition]:
    lines: dict[tuple[Priority, str, str], list[Candidate]] = {}
    for item in candidates:
        lines.setdefault((item.lane, item.queue, item.line), []).append(item)
    return claims.choose(lines, room, position, attrgetter("definition"))


def chosen(candidates: Iterable[Candidate], slots: int) -> list[Candidate]:
    return choose(candidates, Room(slots=slots), START)[0]


def test_no_more_are_chosen_than_fit_and_those_of_a_line_in_their_order() -> None:
    tasks = several(5)

    assert chosen(tasks, 3) == tasks[:3]
    assert chosen(tasks, 9) == tasks
    assert chosen(tasks, 0) == []


def test_of_a_batch_of_eight_six_are_urgent_and_one_is_of_each_other_lane() -> None:
    tasks = [*several(8, lane=LOW), *several(8, lane=NORMAL), *several(8, lane=HIGH)]

    lanes = Counter(task.lane for task in chosen(tasks, 8))

    assert lanes == {HIGH: 6, NORMAL: 1, LOW: 1}


def test_a_lane_that_is_empty_leaves_its_share_to_the_others() -> None:
    tasks = [*several(8, lane=LOW), *several(2, lane=HIGH)]

    lanes = Counter(task.lane for task in chosen(tasks, 8))

    assert lanes == {HIGH: 2, LOW: 6}


def test_lanes_keep_their_shares_over_small_batches() -> None:
    position, lanes = START, Counter[Priority]()
    for _ in range(16):
        tasks = [*several(1, lane=LOW), *several(1, lane=NORMAL), *several(1, lane=HIGH)]
        taken, position = choose(tasks, Room(slots=1), position)
        lanes.update(task.lane for task in taken)

    assert lanes == {HIGH: 12, NORMAL: 2, LOW: 2}


def test_tenants_get_equal_parts_of_a_batch() -> None:
    tasks = [*several(100, line="many"), *several(4, line="few")]

    assert Counter(task.line for task in chosen(tasks, 8)) == {"many": 4, "few": 4}
    assert Counter(task.line for task in chosen(tasks, 16)) == {"many": 12, "few": 4}


def test_tenants_take_turns_over_small_batches() -> None:
    position, lines = START, []
    for _ in range(4):
        tasks = [*several(9, line="a"), *several(9, line="b")]
        (task,), position = choose(tasks, Room(slots=1), position)
        lines.append(task.line)

    assert lines == ["a", "b", "a", "b"]


def test_no_queue_is_always_first() -> None:
    position, queues = START, []
    for _ in range(4):
        tasks = [*several(9, queue="a"), *several(9, queue="b")]
        (task,), position = choose(tasks, Room(slots=1), position)
        queues.append(task.queue)

    assert queues == ["a", "b", "a", "b"]


def test_only_known_short_tasks_are_taken_ahead_of_a_free_slot() -> None:
    tasks = [
        a_candidate(0),
        a_candidate(1),
        a_candidate(2, definition=SHORT),
        a_candidate(3, definition=SHORT),
        a_candidate(4, definition=SHORT),
    ]

    taken, _ = choose(tasks, Room(slots=1, ahead={SHORT: 2}), START)

    assert taken == [tasks[0], tasks[2], tasks[3]]


def test_short_tasks_of_every_line_are_taken_ahead() -> None:
    tasks = [
        a_candidate(0, line="a"),
        a_candidate(1, line="b", definition=SHORT),
        a_candidate(2, line="b", definition=SHORT),
    ]

    taken, _ = choose(tasks, Room(slots=0, ahead={SHORT: 5}), START)

    assert taken == tasks[1:]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(Priority), st.sampled_from("xyz")),
        max_size=40,
    ),
    st.integers(0, 12),
    st.integers(0, 20),
)
def test_a_claim_is_full_or_leaves_nothing(
    drawn: list[tuple[str, Priority, str]], slots: int, taken: int
) -> None:
    tasks = [
        a_candidate(number, queue=queue, lane=lane, line=line)
        for number, (queue, lane, line) in enumerate(drawn)
    ]

    result, position = choose(tasks, Room(slots=slots), ClaimPosition(taken))

    assert len(result) == min(slots, len(tasks))
    assert len(set(result)) == len(result)
    assert position.taken == taken + len(result)
