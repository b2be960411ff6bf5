"""Faults that the supervisor's tests must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Condition, Drop, Operator, Replace

_CORE = "unit/core/test_supervision.py"
_RECYCLING = "unit/core/test_supervision_recycling.py"
_SERVICE = "unit/services/test_supervisor.py"

_fault = partial(Fault, part=Part.SUPERVISION)

SUPERVISION_FAULTS = (
    _fault(
        name="a worker that died is followed at once",
        at="core.supervision:Supervision._decide_succession",
        do=Replace("ternary restart_delay", "_ZERO"),
        caught_by=f"{_CORE}::test_a_worker_that_ended_by_itself_is_followed_after_the_delay",
    ),
    _fault(
        name="a recycled worker is followed after the delay",
        at="core.supervision:Supervision._decide_succession",
        do=Replace("ternary restart_delay", "$1"),
        caught_by=f"{_RECYCLING}::"
        "test_a_recycled_worker_is_followed_at_once_however_short_it_lived",
    ),
    _fault(
        name="workers that keep dying are never given up",
        at="core.supervision:Supervision._decide_succession",
        do=Drop("+= short_runs"),
        caught_by=f"{_CORE}::test_restarts_that_live_shortly_are_given_up_at_the_limit",
    ),
    _fault(
        name="one restart too few is enough to give up",
        at="core.supervision:Supervision._decide_succession",
        do=Replace("restart_limit", "$0 - 1"),
        caught_by=f"{_CORE}::test_one_less_than_the_limit_is_not_given_up",
    ),
    _fault(
        name="a long life makes up for nothing",
        at="core.supervision:Supervision._decide_succession",
        do=Drop("= short_runs 0"),
        caught_by=f"{_CORE}::test_a_life_just_long_enough_is_no_short_one",
    ),
    _fault(
        name="a life just long enough is a short one",
        at="core.supervision:Supervision._decide_succession",
        do=Operator("< short_life", "<="),
        caught_by=f"{_CORE}::test_a_life_just_long_enough_is_no_short_one",
    ),
    _fault(
        name="two that are given up hurry the others",
        at="core.supervision:Supervision._decide_succession",
        do=Condition("_stops_requested", "$2"),
        caught_by=f"{_CORE}::test_two_that_are_given_up_at_once_do_not_hurry_the_others",
    ),
    _fault(
        name="a worker is killed again and again",
        at="core.supervision:Supervision._next_step",
        do=Replace("STOP_NOW", "WorkerStep.STOP_NOW | WorkerStep.KILL", nth=1),
        caught_by=f"{_CORE}::test_a_worker_that_does_not_drain_in_time_is_killed_once",
    ),
    _fault(
        name="a worker that was not asked is killed",
        at="core.supervision:Supervision._next_step",
        do=Replace("STOP_NOW", "WorkerStep.STOP_NOW | WorkerStep.START", nth=1),
        caught_by=f"{_CORE}::test_each_place_gets_a_worker_at_once_and_only_one",
    ),
    _fault(
        name="one that drains already is asked again",
        at="core.supervision:Supervision._next_step",
        do=Replace("START", "WorkerStep.START | WorkerStep.DRAIN", nth=2),
        caught_by=f"{_CORE}::test_one_that_drains_already_is_not_asked_a_second_time_by_a_stop",
    ),
    _fault(
        name="a second stop gives more time",
        at="core.supervision:Supervision._next_step",
        do=Replace("min()", "$2"),
        caught_by=f"{_CORE}::test_a_second_stop_gives_no_worker_more_time",
    ),
    _fault(
        name="all are recycled at once",
        at="core.supervision:Supervision.decide",
        do=Replace("is recycled", "$1.recycle_reason is not None"),
        caught_by=f"{_RECYCLING}::"
        "test_all_are_recycled_one_after_the_other_each_when_the_one_before_is_through",
    ),
    _fault(
        name="the next is recycled before the new one takes work",
        at="core.supervision:Supervision._next_to_recycle",
        do=Condition("is not START", "$1"),
        caught_by=f"{_RECYCLING}::test_the_next_is_not_recycled_before_the_new_one_takes_work",
    ),
    _fault(
        name="memory is never too much",
        at="core.supervision:Supervision._observe",
        do=Condition("memory_ceiling_bytes", False),
        caught_by=f"{_RECYCLING}::test_more_memory_than_the_ceiling_recycles_by_draining",
    ),
    _fault(
        name="no ceiling is a ceiling of nothing",
        at="core.supervision:Supervision._observe",
        do=Condition("memory_ceiling_bytes", "$2 < $3"),
        caught_by=f"{_RECYCLING}::test_without_a_ceiling_no_memory_is_too_much",
    ),
    _fault(
        name="a worker that is always too large is recycled without end",
        at="core.supervision:Supervision._decide_succession",
        do=Drop("is MEMORY"),
        caught_by=f"{_RECYCLING}::"
        "test_a_worker_that_is_too_large_soon_after_each_start_counts_as_a_bad_start",
    ),
    _fault(
        name="the time of day comes again and again",
        at="core.supervision:Supervision._daily_due",
        do=Drop("= max()"),
        caught_by=f"{_RECYCLING}::test_at_its_time_of_day_every_worker_is_recycled",
    ),
    _fault(
        name="a burst never ends",
        at="core.supervision:Supervision._decide_succession",
        do=Replace("until_done", "False"),
        caught_by=f"{_CORE}::test_a_worker_that_ends_well_in_a_burst_is_not_followed",
    ),
    _fault(
        name="a supervisor that breaks kills its workers",
        at="services.worker.supervisor:Supervisor.run",
        do=Replace(
            "with",
            "try:\n    $0\nexcept asyncio.CancelledError:\n"
            "    for one in self._processes.values():\n        one.kill()\n    raise",
        ),
        caught_by=f"{_SERVICE}::test_a_cancelled_supervisor_kills_no_worker",
    ),
    _fault(
        name="what cannot be started ends the supervisor",
        at="services.worker.supervisor:Supervisor._start_worker",
        do=Replace("= exit_code", "raise"),
        caught_by=f"{_SERVICE}::test_what_cannot_be_started_is_tried_again_and_given_up_in_the_end",
    ),
    _fault(
        name="a status after the worker's end starts another successor",
        at="core.supervision:Supervision.decide",
        do=Drop("= _workers"),
        caught_by=f"{_SERVICE}::test_a_status_that_arrives_after_the_end_is_ignored",
    ),
    _fault(
        name="memory is not looked at",
        at="services.worker.supervisor:Supervisor._check",
        do=Drop("= memory_bytes"),
        caught_by=f"{_SERVICE}::"
        "test_a_worker_that_has_grown_too_large_is_recycled_at_the_next_look",
    ),
)
