"""Faults that the supervisor's tests must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_CORE = "unit/core/test_supervision.py"
_RECYCLING = "unit/core/test_supervision_recycling.py"
_SERVICE = "unit/services/test_supervisor.py"

_fault = partial(Fault, part=Part.SUPERVISION)
_in_core = partial(_fault, file="core/supervision.py")
_in_service = partial(_fault, file="services/supervisor.py")

SUPERVISION_FAULTS = (
    _in_core(
        name="a worker that died is followed at once",
        old="self._policy.restart_delay if by_itself or (fault and short) else _ZERO",
        new="_ZERO",
        caught_by=f"{_CORE}::test_a_worker_that_ended_by_itself_is_followed_after_the_delay",
    ),
    _in_core(
        name="a recycled worker is followed after the delay",
        old="self._policy.restart_delay if by_itself or (fault and short) else _ZERO",
        new="self._policy.restart_delay",
        caught_by=f"{_RECYCLING}::"
        "test_a_recycled_worker_is_followed_at_once_however_short_it_lived",
    ),
    _in_core(
        name="workers that keep dying are never given up",
        old="place.short_lives += 1",
        new="pass",
        caught_by=f"{_CORE}::test_restarts_that_live_shortly_are_given_up_at_the_limit",
    ),
    _in_core(
        name="one restart too few is enough to give up",
        old="place.short_lives >= self._policy.restart_limit",
        new="place.short_lives >= self._policy.restart_limit - 1",
        caught_by=f"{_CORE}::test_one_less_than_the_limit_is_not_given_up",
    ),
    _in_core(
        name="a long life makes up for nothing",
        old="            place.short_lives = 0\n",
        new="            pass\n",
        caught_by=f"{_CORE}::test_a_life_just_long_enough_is_no_short_one",
    ),
    _in_core(
        name="a life just long enough is a short one",
        old="short = lived < self._policy.short_life",
        new="short = lived <= self._policy.short_life",
        caught_by=f"{_CORE}::test_a_life_just_long_enough_is_no_short_one",
    ),
    _in_core(
        name="two that are given up hurry the others",
        old="        worker.followed = True\n        if self.stopping:\n            return\n",
        new="        worker.followed = True\n",
        caught_by=f"{_CORE}::test_two_that_are_given_up_at_once_do_not_hurry_the_others",
    ),
    _in_core(
        name="a worker is killed again and again",
        old="worker.asked is not None and not worker.killed and overdue",
        new="worker.asked is not None and overdue",
        caught_by=f"{_CORE}::test_a_worker_that_does_not_drain_in_time_is_killed_once",
    ),
    _in_core(
        name="a worker that was not asked is killed",
        old="worker.asked is not None and not worker.killed and overdue",
        new="not worker.killed and overdue",
        caught_by=f"{_CORE}::test_each_place_gets_a_worker_at_once_and_only_one",
    ),
    _in_core(
        name="one that drains already is asked again",
        old="            if worker.asked is None:\n",
        new="            if True:\n",
        caught_by=f"{_CORE}::test_one_that_drains_already_is_not_asked_a_second_time_by_a_stop",
    ),
    _in_core(
        name="a second stop gives more time",
        old="return min(latest, worker.hurried_at + self._policy.hurry)",
        new="return worker.hurried_at + self._policy.hurry",
        caught_by=f"{_CORE}::test_a_second_stop_gives_nobody_more_time_than_the_first_did",
    ),
    _in_core(
        name="all are recycled at once",
        old="if at_rest and self._unwanted:",
        new="if self._unwanted:",
        caught_by=f"{_RECYCLING}::"
        "test_all_are_recycled_one_after_the_other_each_when_the_one_before_is_through",
    ),
    _in_core(
        name="the next is recycled before the new one takes work",
        old="worker.asked is None and self._steady(worker, now) for worker",
        new="worker.asked is None for worker",
        caught_by=f"{_RECYCLING}::test_the_next_is_not_recycled_before_the_new_one_takes_work",
    ),
    _in_core(
        name="memory is never too much",
        old="if 0 < self._policy.memory_ceiling_bytes < memory_bytes:",
        new="if False:",
        caught_by=f"{_RECYCLING}::test_more_memory_than_the_ceiling_recycles_by_draining",
    ),
    _in_core(
        name="no ceiling is a ceiling of nothing",
        old="if 0 < self._policy.memory_ceiling_bytes < memory_bytes:",
        new="if self._policy.memory_ceiling_bytes < memory_bytes:",
        caught_by=f"{_RECYCLING}::test_without_a_ceiling_no_memory_is_too_much",
    ),
    _in_core(
        name="a worker that is always too large is recycled without end",
        old="fault = by_itself or worker.asked is Reason.MEMORY",
        new="fault = by_itself",
        caught_by=f"{_RECYCLING}::"
        "test_a_worker_that_is_too_large_soon_after_each_start_counts_as_a_bad_start",
    ),
    _in_core(
        name="the time of day comes again and again",
        old="self._recycled_until = max(latest, self._recycled_until)",
        new="pass",
        caught_by=f"{_RECYCLING}::test_at_its_time_of_day_every_worker_is_recycled",
    ),
    _in_core(
        name="a burst never ends",
        old="if by_itself and code == 0 and self._policy.until_done:",
        new="if False:",
        caught_by=f"{_CORE}::test_a_worker_that_ends_well_in_a_burst_is_not_followed",
    ),
    _in_service(
        name="a supervisor that breaks kills its workers",
        old="            for waiting in self._waiting:\n",
        new="            for one in self._running.values():\n"
        "                one.process.kill()\n"
        "            for waiting in self._waiting:\n",
        caught_by=f"{_SERVICE}::test_a_supervisor_that_is_cancelled_kills_nobody",
    ),
    _in_service(
        name="what cannot be started ends the supervisor",
        old="            self._supervision.ended(serial, NOT_STARTED, now=self._clock.elapsed())\n",
        new="            raise\n",
        caught_by=f"{_SERVICE}::test_what_cannot_be_started_is_tried_again_and_given_up_in_the_end",
    ),
    _in_service(
        name="last words are heard after the end",
        old="        if serial not in self._running:\n            return",
        new="        if False:\n            return",
        caught_by=f"{_SERVICE}::test_last_words_that_come_after_the_end_are_not_heard",
    ),
    _in_service(
        name="memory is not looked at",
        old="self._supervision.measured(serial, running.process.memory_bytes())",
        new="pass",
        caught_by=f"{_SERVICE}::"
        "test_a_worker_that_has_grown_too_large_is_recycled_at_the_next_look",
    ),
)
