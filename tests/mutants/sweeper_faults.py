"""Faults that the sweeper's tests must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SWEEPER = "unit/services/test_sweeper.py"
_LEASES = "unit/services/test_sweeper_leases.py"
_ENDS = "unit/services/test_sweeper_ends.py"
_TURNS = "unit/services/test_sweeper_turns.py"
_INTENTS = "unit/services/test_sweeper_intents.py"

_fault = partial(Fault, part=Part.SWEEPER, file="services/sweeper.py")

SWEEPER_FAULTS = (
    _fault(
        name="tasks of the dead go on before their children are killed",
        old="            self._presence.clear(worker_id)\n",
        new="            pass\n",
        caught_by=f"{_SWEEPER}::"
        "test_the_leases_of_a_dead_worker_end_at_once_after_its_children_were_killed",
    ),
    _fault(
        name="whoever is not known here is dead",
        old="if task.worker_id in absent:",
        new="if task.worker_id not in self._presence.present():",
        caught_by=f"{_SWEEPER}::"
        "test_the_leases_of_a_dead_worker_end_at_once_after_its_children_were_killed",
    ),
    _fault(
        name="a dead worker is forgotten before its leases are ended",
        old="            self._presence.clear(worker_id)\n",
        new="            self._presence.clear(worker_id)\n"
        "            self._presence.leave(worker_id)\n",
        caught_by=f"{_SWEEPER}::"
        "test_a_dead_worker_is_kept_in_mind_until_its_leases_have_been_ended",
    ),
    _fault(
        name="of the tasks of the dead only the first are found",
        old="limit *= 2\n        return held",
        new="break\n        return held",
        caught_by=f"{_TURNS}::"
        "test_a_dead_worker_is_buried_with_all_its_tasks_however_many_there_are",
    ),
    _fault(
        name="a sweep ends what it finds at once and no more",
        old="mended = any([await self._end(task, holder_gone=False) for task in found])",
        new="mended = [await self._end(task, holder_gone=False) for task in found] == 0",
        caught_by=f"{_SWEEPER}::"
        "test_everything_that_is_left_behind_is_mended_in_one_sweep_however_much_it_is",
    ),
    _fault(
        name="a lease that was renewed meanwhile is ended",
        old="margin=self._policy.skew_margin, holder_gone=holder_gone\n",
        new="margin=self._policy.skew_margin, holder_gone=True\n",
        caught_by=f"{_LEASES}::test_a_lease_that_is_renewed_while_the_sweeper_looks_stays",
    ),
    _fault(
        name="whoever holds the lease by now loses it",
        old="fence=task.fence,",
        new="fence=(await self._backend.ledger.task(task.task_id)).fence,",
        caught_by=f"{_LEASES}::"
        "test_a_task_of_a_dead_worker_that_another_takes_while_the_sweeper_looks_is_the_other_s",
    ),
    _fault(
        name="of what was overlooked only the first are mended",
        old="        after = page[-1]",
        new="        return",
        caught_by=f"{_ENDS}::test_more_than_are_read_at_once_are_all_mended_in_one_sweep",
    ),
    _fault(
        name="of the intents only the first are carried out",
        old="        async for page in _pages(self._backend.ledger.open_intents):\n",
        new="        for page in [await self._backend.ledger.open_intents(limit=_AT_ONCE)]:\n",
        caught_by=f"{_INTENTS}::"
        "test_more_intents_than_are_read_at_once_are_all_finished_in_one_sweep",
    ),
    _fault(
        name="two sweepers ring for one task",
        old="        if row is None or (row.rung_at is not None and row.rung_at >= rung_before):\n",
        new="        if row is None:\n",
        caught_by=f"{_SWEEPER}::test_two_sweepers_at_once_ring_for_a_task_once",
    ),
    _fault(
        name="what was just rung for is rung for again",
        old="rung_before = now - self._policy.ring_again_after",
        new="rung_before = now",
        caught_by=f"{_SWEEPER}::test_a_task_that_was_due_and_not_taken_is_rung_again_after_a_while",
    ),
    _fault(
        name="the dispatcher gets no time",
        old="ended_by = clock.now() - self._policy.settle_after",
        new="ended_by = clock.now()",
        caught_by=f"{_ENDS}::test_an_end_is_left_to_the_dispatcher_for_a_while",
    ),
    _fault(
        name="a dispatcher that has just begun gets no time",
        old="if clock.elapsed() < self._settles_from:",
        new="if False:",
        caught_by=f"{_ENDS}::"
        "test_a_dispatcher_that_begins_with_the_sweeper_gets_the_time_to_catch_up",
    ),
    _fault(
        name="tasks that were not told of their parents wait for ever",
        old="self.repairs.sent_on += await self._dispatcher.send_on(page)",
        new="pass",
        caught_by=f"{_ENDS}::"
        "test_a_task_that_did_not_hear_of_its_parents_is_sent_on_by_what_its_job_knows",
    ),
    _fault(
        name="the end of a job is told by nobody",
        old="self.repairs.jobs_ended += await self._dispatcher.tell_end(job_id)",
        new="pass",
        caught_by=f"{_ENDS}::test_a_finished_job_without_its_event_tells_it",
    ),
    _fault(
        name="intents are carried out in any order",
        old="for intent in job.intents:",
        new="for intent in reversed(job.intents):",
        caught_by=f"{_INTENTS}::"
        "test_a_job_that_was_cancelled_while_it_was_created_is_created_first",
    ),
    _fault(
        name="an intent is counted by everybody who met it",
        old="+= await self._finishers[intent.kind](job, intent)",
        new="+= await self._finishers[intent.kind](job, intent) or 1",
        caught_by=f"{_INTENTS}::test_two_sweepers_that_finish_one_cancellation_count_it_once",
    ),
    _fault(
        name="everybody sweeps all the time",
        old="if not leads and self._presence.leads(ROLE):",
        new="if not leads:",
        caught_by=f"{_TURNS}::"
        "test_one_of_many_sweepers_sweeps_and_the_next_takes_over_at_once_when_it_ends",
    ),
    _fault(
        name="nobody stands in for a sweeper that stands still",
        old="leads, next_sweep = False, clock.elapsed() + _STANDS_IN * every",
        new="leads, next_sweep = False, clock.elapsed() + 1000 * every",
        caught_by=f"{_TURNS}::"
        "test_if_the_one_whose_turn_it_is_stands_still_the_others_sweep_all_the_same",
    ),
    _fault(
        name="whoever stands in does so once",
        old="(every if leads else _STANDS_IN * every)",
        new="(every if leads else 1000 * every)",
        caught_by=f"{_TURNS}::test_whoever_stands_in_does_so_again_and_again",
    ),
    _fault(
        name="the dead are found only in a sweep",
        old="                elif leads:\n",
        new="                elif False:\n",
        caught_by=f"{_SWEEPER}::"
        "test_a_dead_worker_is_noticed_at_once_and_a_silent_one_at_the_next_sweep",
    ),
    _fault(
        name="an outage ends the sweeper",
        old='                logger.warning("sweep.unavailable", extra={"error": str(error)})\n',
        new="                raise error\n",
        caught_by=f"{_SWEEPER}::test_a_sweeper_goes_on_after_the_store_was_out_of_reach",
    ),
    _fault(
        name="what was mended before an outage is not counted",
        old="done, self.repairs = self.repairs, before + self.repairs",
        new="done, self.repairs = self.repairs, before",
        caught_by=f"{_TURNS}::test_what_was_mended_before_the_store_was_out_of_reach_is_counted",
    ),
    _fault(
        name="worn-out messages have no effect",
        old="settled = await self._dead_letters.settle()",
        new="settled = type('Nothing', (), {'failed': 0, 'dropped': 0})",
        caught_by=f"{_TURNS}::test_a_message_that_was_worn_out_has_its_effect_in_a_sweep",
    ),
    _fault(
        name="events that are not published stay so",
        old="self.repairs.events_published += await self._publish()",
        new="pass",
        caught_by=f"{_TURNS}::test_a_bus_that_does_not_read_the_log_has_what_it_missed_published",
    ),
)
