"""Faults that the sweeper's tests must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Argument, Condition, Drop, Replace, Value

_SWEEPER = "unit/services/test_sweeper.py"
_LEASES = "unit/services/test_sweeper_leases.py"
_ENDS = "unit/services/test_sweeper_ends.py"
_TURNS = "unit/services/test_sweeper_turns.py"
_INTENTS = "unit/services/test_sweeper_intents.py"

_fault = partial(Fault, part=Part.SWEEPER)

SWEEPER_FAULTS = (
    _fault(
        name="repairs are only logged",
        at="services.sweeper:Sweeper.sweep",
        do=Condition("done", False, nth=2),
        caught_by=f"{_TURNS}::test_a_sweep_with_repairs_is_an_event_and_one_without_is_none",
    ),
    _fault(
        name="tasks of the dead go on before their children are killed",
        at="services.sweeper:Sweeper.reap_dead_workers",
        do=Drop("reap()"),
        caught_by=f"{_SWEEPER}::"
        "test_the_leases_of_a_dead_worker_end_at_once_after_its_children_were_killed",
    ),
    _fault(
        name="an unknown worker counts as dead",
        at="services.message_source:MessageTaskSource.end_worker",
        do=Condition("worker_id", False),
        caught_by=f"{_SWEEPER}::"
        "test_the_leases_of_a_dead_worker_end_at_once_after_its_children_were_killed",
    ),
    _fault(
        name="a dead worker is forgotten before its leases are ended",
        at="services.sweeper:Sweeper.reap_dead_workers",
        do=After("reap()", "self.worker_registry.deregister(worker_id)"),
        caught_by=f"{_SWEEPER}::"
        "test_a_dead_worker_is_kept_in_mind_until_its_leases_have_been_ended",
    ),
    _fault(
        name="what a dead worker had not begun uses an attempt",
        at="services.sweeper:Sweeper.reap_dead_workers",
        do=Argument("end_worker()", "unbegun", None),
        caught_by=f"{_SWEEPER}::test_what_a_dead_worker_had_not_begun_in_its_slots_uses_no_attempt",
    ),
    _fault(
        name="what a dead worker ran outside of its slots uses no attempt",
        at="services.sweeper:Sweeper._runs_in_slot",
        do=Replace("runs_in_slot()", "True"),
        caught_by=f"{_SWEEPER}::test_what_a_dead_worker_had_not_begun_in_its_slots_uses_no_attempt",
    ),
    _fault(
        name="what was begun in an earlier attempt counts as begun",
        at="services.sweeper:Sweeper._unbegun_tasks",
        do=Replace("not in", "slot_task_number(task_id) not in dict(begun)"),
        caught_by=f"{_SWEEPER}::test_what_a_dead_worker_had_not_begun_in_its_slots_uses_no_attempt",
    ),
    _fault(
        name="of the tasks of the dead only the first are found",
        at="services.reads:list_all",
        do=Replace("*=", "break"),
        caught_by=f"{_TURNS}::test_all_leases_of_a_dead_worker_are_ended_however_many_there_are",
    ),
    _fault(
        name="a sweep ends what it finds at once and no more",
        at="services.sweeper:Sweeper._end_silent_leases",
        do=Replace("any()", "$1 == 0"),
        caught_by=f"{_SWEEPER}::test_one_sweep_repairs_everything_however_much_it_is",
    ),
    _fault(
        name="a lease that was renewed meanwhile is ended",
        at="services.sweeper:Sweeper._end_lease",
        do=Argument("LeaseEnded()", "holder_dead", "True"),
        caught_by=f"{_LEASES}::test_a_lease_that_is_renewed_while_the_sweeper_looks_stays",
    ),
    _fault(
        name="the current holder of a lease loses it",
        at="services.message_source:MessageTaskSource.end_worker",
        do=Argument("LeaseEnded()", "fence", "(await self.backend.ledger.get_task(task_id)).fence"),
        caught_by=f"{_LEASES}::"
        "test_a_task_of_a_dead_worker_that_another_takes_while_the_sweeper_looks_is_the_other_s",
    ),
    _fault(
        name="only the first missed items are repaired",
        at="services.reads:iter_pages",
        do=Replace("= []", "return"),
        caught_by=f"{_ENDS}::test_one_sweep_repairs_more_than_one_page",
    ),
    _fault(
        name="of the intents only the first are carried out",
        at="services.sweeper:Sweeper._finish_intents",
        do=After("for", "break", nth=2),
        caught_by=f"{_INTENTS}::"
        "test_more_intents_than_are_read_at_once_are_all_finished_in_one_sweep",
    ),
    _fault(
        name="two sweepers send a message for one task",
        at="services.sweeper:Sweeper._enqueue",
        do=Drop("and enqueued_at"),
        caught_by=f"{_SWEEPER}::test_two_concurrent_sweepers_enqueue_a_task_once",
    ),
    _fault(
        name="a message that was not sent counts as sent",
        at="services.sweeper:Sweeper._enqueue",
        do=Replace("await enqueue", "($0 or True)"),
        caught_by=f"{_TURNS}::test_after_an_outage_of_the_queue_the_next_sweep_enqueues",
    ),
    _fault(
        name="a task that was just enqueued is enqueued again",
        at="services.sweeper:Sweeper._enqueue_again",
        do=Drop("reenqueue_after"),
        caught_by=f"{_SWEEPER}::test_a_due_task_that_was_not_claimed_is_enqueued_again_later",
    ),
    _fault(
        name="the dispatcher gets no time",
        at="services.sweeper:Sweeper._record_ends",
        do=Drop("settle_after"),
        caught_by=f"{_ENDS}::test_an_end_is_left_to_the_dispatcher_for_a_while",
    ),
    _fault(
        name="a dispatcher that has just begun gets no time",
        at="services.sweeper:Sweeper._record_ends",
        do=Condition("elapsed()", False),
        caught_by=f"{_ENDS}::"
        "test_a_dispatcher_that_begins_with_the_sweeper_gets_the_time_to_catch_up",
    ),
    _fault(
        name="dependents that were not notified wait for ever",
        at="services.sweeper:Sweeper._notify_waiting",
        do=Drop("+= notify_waiting()"),
        caught_by=f"{_ENDS}::"
        "test_a_waiting_task_that_missed_its_parents_is_notified_from_the_job_s_row",
    ),
    _fault(
        name="the end of a job is never reported",
        at="services.sweeper:Sweeper._emit_job_ends",
        do=Drop("+= emit_job_end()"),
        caught_by=f"{_ENDS}::test_the_missing_final_event_of_a_finished_job_is_emitted",
    ),
    _fault(
        name="intents are carried out in any order",
        at="services.sweeper:Sweeper._finish_intents",
        do=Replace("intents", "reversed($0)"),
        caught_by=f"{_INTENTS}::"
        "test_a_job_that_was_cancelled_while_it_was_created_is_created_first",
    ),
    _fault(
        name="an intent is counted by everybody who met it",
        at="services.sweeper:Sweeper._finish_intents",
        do=Value("+= finish_intent()", "$0 or 1"),
        caught_by=f"{_INTENTS}::test_two_sweepers_that_finish_one_cancellation_count_it_once",
    ),
    _fault(
        name="everybody sweeps all the time",
        at="services.sweeper:Sweeper.run",
        do=Drop("acquire_role()"),
        caught_by=f"{_TURNS}::"
        "test_one_of_many_sweepers_sweeps_and_the_next_takes_over_at_once_when_it_ends",
    ),
    _fault(
        name="no process replaces a stalled sweeper",
        at="services.sweeper:Sweeper.run",
        do=Replace("_STANDBY_FACTOR", "1000", nth=1),
        caught_by=f"{_TURNS}::test_if_the_process_with_the_role_hangs_the_others_sweep",
    ),
    _fault(
        name="a replacement sweeper sweeps once",
        at="services.sweeper:Sweeper.run",
        do=Replace("_STANDBY_FACTOR", "1000", nth=2),
        caught_by=f"{_TURNS}::test_a_standby_process_sweeps_again_and_again",
    ),
    _fault(
        name="only the process with the role ends leases between sweeps",
        at="services.sweeper:Sweeper.run",
        do=Condition("next_lease_end", "leads and $0"),
        caught_by=f"{_TURNS}::test_a_process_without_the_role_ends_a_lease_as_soon_as_it_is_over",
    ),
    _fault(
        name="the dead are found only in a sweep",
        at="services.sweeper:Sweeper.run",
        do=Condition("leads", False, nth=3),
        caught_by=f"{_SWEEPER}::"
        "test_a_dead_worker_is_noticed_at_once_and_a_silent_one_when_its_lease_is_over",
    ),
    _fault(
        name="an outage ends the sweeper",
        at="services.sweeper:Sweeper.run",
        do=Argument("log_and_continue()", "unavailable", None),
        caught_by=f"{_SWEEPER}::test_a_sweeper_continues_after_the_store_was_out_of_reach",
    ),
    _fault(
        name="repairs before an outage are not counted",
        at="services.sweeper:Sweeper.sweep",
        do=Replace("+ done", "$1"),
        caught_by=f"{_TURNS}::test_repairs_before_an_outage_are_counted",
    ),
    _fault(
        name="worn-out messages have no effect",
        at="services.sweeper:Sweeper._settle_and_enqueue",
        do=Value("= settle_messages()", "{'failed': 0, 'dropped': 0}"),
        caught_by=f"{_TURNS}::test_a_message_that_was_worn_out_has_its_effect_in_a_sweep",
    ),
    _fault(
        name="the sweeper removes no jobs",
        at="services.sweeper:Sweeper._repairs_in_order",
        do=Drop("remove_expired"),
        caught_by="unit/services/test_retention.py::"
        "test_the_sweeper_removes_a_job_when_it_was_kept_long_enough",
    ),
)
