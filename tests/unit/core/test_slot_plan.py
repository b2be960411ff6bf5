"""Which slot gets which task, and how many tasks are claimed ahead."""

from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.core.definitions.definition import Isolation
from longshore.core.slot_plan import (
    AHEAD_NS,
    MAX_AHEAD,
    OFFER_EVERY_NS,
    STALLED_AFTER_NS,
    GiveTask,
    GiveUp,
    OpenSlot,
    ReplaceChild,
    SlotPlanner,
    SlotTaskPlan,
    TakeBack,
)

SHORT_NS = 30_000
LONG_NS = 1_000_000_000
_numbers = count(1)
_slots = count(100)


def make_task(
    tenant: str = "acme", name: str = "noop", isolation: Isolation = Isolation.POOL
) -> SlotTaskPlan:
    return SlotTaskPlan(next(_numbers), tenant, (tenant, name, 1), isolation)


def claim(planner: SlotPlanner, *tasks: SlotTaskPlan) -> None:
    for task in tasks:
        planner.claimed(task)


def carry_out(planner: SlotPlanner, now_ns: int = 0) -> dict[int, int]:
    """Does what the planner decides, until it decides nothing. Returns the slot of each task."""
    slots: dict[int, int] = {}
    for _ in range(1_000):
        actions = planner.decide(now_ns)
        if not actions:
            break
        for action in actions:
            match action:
                case OpenSlot(isolation=isolation):
                    planner.slot_opened(next(_slots), isolation)
                case GiveTask(slot=slot, number=number):
                    slots[number] = slot
                case _:
                    return slots
    return slots


def planner_with_slots(units: int = 2, *, duration_ns: int | None = SHORT_NS) -> SlotPlanner:
    """A planner whose pool slots have each run a task of this duration."""
    planner = SlotPlanner(units)
    tasks = [make_task() for _ in range(units)]
    claim(planner, *tasks)
    slots = carry_out(planner)
    for task in tasks:
        planner.finished(slots[task.number], task.number, duration_ns, 0)
    return planner


def held_by_slot(planner: SlotPlanner) -> list[int]:
    return sorted(len(planner.numbers_in(slot)) for slot in planner.busy_slots())


def numbers_in_slots(planner: SlotPlanner) -> list[int]:
    slots = planner.busy_slots()
    return [number for slot in slots for number in planner.numbers_in(slot)]


def test_the_first_tasks_of_a_definition_get_a_slot_each() -> None:
    planner = SlotPlanner(2)
    claim(planner, make_task(), make_task())

    assert planner.decide(0) == [OpenSlot(Isolation.POOL), OpenSlot(Isolation.POOL)]
    planner.slot_opened(1, Isolation.POOL)
    planner.slot_opened(2, Isolation.POOL)
    slots = [action.slot for action in planner.decide(0) if isinstance(action, GiveTask)]

    assert sorted(slots) == [1, 2]
    assert planner.busy == 2
    assert planner.ahead(0, 2) == {}


def test_slots_are_opened_once_and_no_more_than_there_are_units() -> None:
    planner = SlotPlanner(1)
    claim(planner, make_task(), make_task())

    assert planner.decide(0) == [OpenSlot(Isolation.POOL)]
    assert planner.decide(0) == []


def test_a_slot_that_cannot_be_opened_is_tried_again() -> None:
    planner = SlotPlanner(1)
    claim(planner, make_task())
    planner.decide(0)

    planner.slot_not_opened(Isolation.POOL)

    assert planner.decide(0) == [OpenSlot(Isolation.POOL)]
    assert not planner.has_slots(Isolation.POOL)


def test_short_tasks_are_claimed_ahead_within_the_limits() -> None:
    planner = planner_with_slots(2)

    assert planner.ahead(0, 2) == {("acme", "noop", 1): 2 * (MAX_AHEAD - 1)}
    assert planner.busy == 0


def test_tasks_that_take_long_are_not_claimed_ahead() -> None:
    planner = planner_with_slots(2, duration_ns=LONG_NS)

    assert planner.ahead(0, 2) == {}


def test_what_is_claimed_ahead_takes_no_longer_than_the_limit() -> None:
    planner = planner_with_slots(1, duration_ns=1_000_000)

    ahead = planner.ahead(0, 2)[("acme", "noop", 1)]

    assert 0 < ahead * 1_000_000 <= AHEAD_NS


def test_nothing_is_claimed_ahead_while_a_task_waits_for_a_slot() -> None:
    planner = planner_with_slots(1)
    claim(planner, make_task("other"))

    assert planner.ahead(0, 2) == {}


def test_a_unit_that_has_short_tasks_is_offered_to_any_task_from_time_to_time() -> None:
    planner = planner_with_slots(1)
    planner.ahead(0, 1)

    def ahead_of_a_task(now_ns: int) -> int:
        claim(planner, task := make_task())
        carry_out(planner, now_ns)
        ahead = planner.ahead(now_ns, 0)
        planner.finished(planner.busy_slots()[0], task.number, SHORT_NS, now_ns)
        return ahead.get(task.definition, 0)

    assert ahead_of_a_task(OFFER_EVERY_NS - 1) == MAX_AHEAD - 1
    assert ahead_of_a_task(OFFER_EVERY_NS) == 0
    assert planner.ahead(OFFER_EVERY_NS, 0) == {}  # it was not offered
    assert len(planner.ahead(OFFER_EVERY_NS, 1)) == 1
    assert ahead_of_a_task(OFFER_EVERY_NS) == MAX_AHEAD - 1


def test_a_task_waits_behind_those_that_a_slot_gets_now() -> None:
    planner = planner_with_slots(1)
    claim(planner, short := make_task(), make_task("other"))

    (give,) = planner.decide(STALLED_AFTER_NS)

    assert isinstance(give, GiveTask)
    assert give.number == short.number


def test_tasks_are_spread_over_the_slots() -> None:
    planner = planner_with_slots(2)
    claim(planner, *(make_task() for _ in range(10)))

    carry_out(planner)

    assert held_by_slot(planner) == [5, 5]


def test_no_short_task_waits_behind_a_long_one() -> None:
    planner = planner_with_slots(2)
    claim(planner, make_task(name="long"))
    carry_out(planner)

    claim(planner, *(make_task() for _ in range(6)))
    carry_out(planner)

    assert held_by_slot(planner) == [1, 6]


def test_a_slot_serves_one_tenant_until_its_child_is_replaced() -> None:
    planner = planner_with_slots(1)
    claim(planner, task := make_task("other"))

    (replace,) = planner.decide(0)
    assert isinstance(replace, ReplaceChild)
    assert planner.decide(0) == []
    assert planner.child_ended(replace.slot, closed=False) == []

    assert planner.decide(0) == [GiveTask(replace.slot, task.number)]


def test_a_child_with_tasks_is_not_replaced() -> None:
    planner = planner_with_slots(1)
    claim(planner, make_task())
    carry_out(planner)

    claim(planner, make_task("other"))

    assert planner.decide(0) == []


def test_two_tenants_never_share_a_slot_in_one_decision() -> None:
    planner = SlotPlanner(1)
    claim(planner, make_task("a"))
    planner.decide(0)
    planner.slot_opened(1, Isolation.POOL)
    claim(planner, make_task("b"))

    given_tasks = [action for action in planner.decide(0) if isinstance(action, GiveTask)]

    assert len(given_tasks) == 1


def test_a_fork_slot_has_one_task_at_a_time_and_no_tenant() -> None:
    planner = SlotPlanner(1)
    first, second = (
        make_task("a", isolation=Isolation.FORK),
        make_task("b", isolation=Isolation.FORK),
    )
    claim(planner, first, second)
    slots = carry_out(planner)
    assert list(slots) == [first.number]

    planner.finished(slots[first.number], first.number, SHORT_NS, 0)

    assert planner.decide(0) == [GiveTask(slots[first.number], second.number)]


def test_what_waits_behind_a_slow_task_is_taken_back() -> None:
    planner = planner_with_slots(1)
    claim(planner, *(tasks := [make_task() for _ in range(3)]))
    slots = carry_out(planner)
    slot = slots[tasks[0].number]

    assert planner.next_check_ns(0) == STALLED_AFTER_NS
    assert planner.decide(STALLED_AFTER_NS - 1) == []
    assert planner.decide(STALLED_AFTER_NS) == [TakeBack(slot)]
    returned = planner.taken_back(slot, [task.number for task in tasks[1:]])

    assert returned == tasks[1:]
    assert planner.next_check_ns(0) is None
    assert planner.first_in(slot) == tasks[0].number


def test_nothing_is_given_to_a_slot_whose_task_is_slow() -> None:
    planner = planner_with_slots(1)
    claim(planner, make_task())
    carry_out(planner)

    claim(planner, task := make_task())

    assert planner.ahead(STALLED_AFTER_NS, 2) == {}
    assert planner.decide(STALLED_AFTER_NS) == [GiveUp(task.number)]


def test_a_task_waits_for_a_unit_until_no_child_ends_soon() -> None:
    planner = SlotPlanner(2)
    claim(planner, first := make_task(isolation=Isolation.FORK))
    carry_out(planner)
    claim(planner, second := make_task(isolation=Isolation.FORK))
    carry_out(planner, 10)
    claim(planner, task := make_task())

    assert planner.decide(20) == []
    assert planner.next_check_ns(20) == STALLED_AFTER_NS - 20
    assert planner.decide(STALLED_AFTER_NS) == []
    assert planner.next_check_ns(STALLED_AFTER_NS) == 10
    assert planner.decide(STALLED_AFTER_NS + 10) == [GiveUp(task.number)]
    assert planner.next_check_ns(STALLED_AFTER_NS + 10) is None
    assert {first.number, second.number} == set(numbers_in_slots(planner))


def test_a_fork_that_is_killed_and_has_an_outcome_can_be_used_again() -> None:
    planner = SlotPlanner(1)
    claim(planner, task := make_task(isolation=Isolation.FORK))
    slot = carry_out(planner)[task.number]
    planner.child_ending(slot)
    planner.finished(slot, task.number, LONG_NS, LONG_NS)
    claim(planner, after := make_task(isolation=Isolation.FORK))

    assert planner.decide(LONG_NS) == [GiveTask(slot, after.number)]


def test_units_that_are_in_use_elsewhere_are_left_out() -> None:
    planner = planner_with_slots(2)
    claim(planner, first := make_task(), second := make_task(name="other"))

    (action,) = [item for item in planner.decide(0, taken=1) if isinstance(item, GiveTask)]
    assert action.number == first.number
    assert planner.decide(0, taken=1) == []
    (action,) = planner.decide(0, taken=0)
    assert isinstance(action, GiveTask)
    assert action.number == second.number


def test_tasks_of_idle_slots_are_claimed_ahead_only_with_a_free_unit() -> None:
    planner = planner_with_slots(2)

    assert planner.ahead(0, 0) == {}
    assert planner.ahead(0, 1) == {("acme", "noop", 1): MAX_AHEAD - 1}


def test_an_outcome_shows_that_a_child_has_not_stalled() -> None:
    planner = planner_with_slots(1)
    claim(planner, *(tasks := [make_task() for _ in range(3)]))
    slots = carry_out(planner)
    slot = slots[tasks[0].number]

    planner.finished(slot, tasks[0].number, SHORT_NS, STALLED_AFTER_NS - 1)

    assert planner.decide(STALLED_AFTER_NS) == []


def test_durations_are_smoothed() -> None:
    planner = planner_with_slots(1)
    claim(planner, task := make_task())
    slots = carry_out(planner)

    planner.finished(slots[task.number], task.number, LONG_NS, 0)

    assert planner.ahead(0, 2) == {}


def test_a_task_that_was_too_late_to_begin_has_no_duration() -> None:
    planner = planner_with_slots(1, duration_ns=None)

    assert planner.ahead(0, 2) == {}


def test_the_tasks_of_a_child_that_ended_are_returned() -> None:
    planner = planner_with_slots(1)
    claim(planner, *(tasks := [make_task() for _ in range(3)]))
    slots = carry_out(planner)

    assert planner.child_ended(slots[tasks[0].number], closed=True) == tasks
    assert planner.busy == 0
    assert not planner.has_slots(Isolation.POOL)


def test_a_slot_that_refuses_its_first_task_is_ending() -> None:
    planner = planner_with_slots(1)
    claim(planner, make_task())
    (give,) = planner.decide(0)
    assert isinstance(give, GiveTask)

    planner.not_given(give.slot, give.number)
    assert planner.decide(0) == []
    planner.child_ended(give.slot, closed=False)

    assert planner.decide(0) == [give]


def test_a_slot_that_is_full_takes_more_later() -> None:
    planner = planner_with_slots(1)
    claim(planner, make_task())
    carry_out(planner)
    claim(planner, make_task())
    (give,) = planner.decide(0)
    assert isinstance(give, GiveTask)

    planner.not_given(give.slot, give.number)

    assert planner.decide(0) == [give]


def test_a_task_that_is_released_waits_no_more() -> None:
    planner = SlotPlanner(1)
    claim(planner, task := make_task())

    planner.forget(task.number)

    assert planner.waiting == []
    assert planner.decide(0) == []


@pytest.mark.parametrize(("tasks", "enough"), [(0, False), (1, False), (20, False), (100, True)])
def test_outcomes_gather_only_while_every_busy_slot_has_enough(tasks: int, enough: bool) -> None:
    planner = planner_with_slots(1)
    claim(planner, *(make_task() for _ in range(tasks)))
    carry_out(planner)

    assert planner.has_enough() is enough


def test_outcomes_do_not_gather_while_a_fork_slot_is_busy() -> None:
    planner = SlotPlanner(1)
    claim(planner, make_task(isolation=Isolation.FORK))
    carry_out(planner)

    assert not planner.has_enough()
    assert [number for number, _ in planner.running()] == planner.numbers_in(
        planner.busy_slots()[0]
    )


_STEPS = st.lists(
    st.tuples(st.sampled_from(["claim", "give", "finish", "end", "take"]), st.integers(0, 5)),
    max_size=60,
)


@settings(deadline=None)
@given(st.integers(1, 3), _STEPS)
def test_every_task_is_in_exactly_one_place(units: int, steps: Iterable[tuple[str, int]]) -> None:
    planner = SlotPlanner(units)
    alive: set[int] = set()
    now = 0
    for step, choice in steps:
        now += 1_000_000
        if step == "claim":
            tenant = "ab"[choice % 2]
            isolation = (Isolation.POOL, Isolation.FORK)[choice // 2 % 2]
            claim(planner, task := make_task(tenant, f"task-{choice % 3}", isolation))
            alive.add(task.number)
        elif step == "give":
            carry_out(planner, now)
        elif busy := planner.busy_slots():
            slot = busy[choice % len(busy)]
            if step == "finish":
                number = planner.first_in(slot)
                planner.finished(slot, number, (choice + 1) * 10_000, now)
                alive.discard(number)
            elif step == "end":
                for task in planner.child_ended(slot, closed=choice == 0)[1:]:
                    planner.claimed(task)
                alive = {*planner.waiting} | {
                    number
                    for slot_number in planner.busy_slots()
                    for number in planner.numbers_in(slot_number)
                }
            else:
                for task in planner.taken_back(slot, planner.numbers_in(slot)[1:]):
                    planner.claimed(task)
        in_slots = [
            number
            for slot_number in planner.busy_slots()
            for number in planner.numbers_in(slot_number)
        ]
        places = in_slots + planner.waiting
        assert sorted(places) == sorted(alive)
        assert planner.busy <= max(units, len(planner.busy_slots()))
