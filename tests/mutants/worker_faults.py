"""Faults that the worker's tests must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Argument, Before, Condition, Drop, Replace, Value

_ATTEMPTS = "unit/services/test_worker_attempts.py"
_LEASES = "unit/services/test_worker_leases.py"
_DRAINING = "unit/services/test_worker_draining.py"
_MESSAGES = "unit/services/test_worker_messages.py"
_CANCELLATIONS = "unit/services/test_worker_cancellations.py"
_STARTS = "unit/services/test_worker_starts.py"
_STEPS = "unit/services/test_worker_steps.py"
_RUNNING = "unit/services/test_worker_running.py"
_SLOTS = "unit/services/test_slot_tasks.py"
_OUTPUT = "unit/services/test_worker_output.py"

_fault = partial(Fault, part=Part.WORKER)

WORKER_FAULTS = (
    _fault(
        name="a worker that can open no slot any more continues",
        at="services.worker.attempts:Attempts._open",
        do=Drop("if RunnerBroken"),
        caught_by=f"{_SLOTS}::test_a_worker_that_can_open_no_slot_any_more_ends_with_the_reason",
    ),
    _fault(
        name="a worker that can start no child any more continues",
        at="services.worker.attempts:Attempts._start_child",
        do=Drop("_on_broken()"),
        caught_by=f"{_STARTS}::test_a_worker_that_can_start_no_child_any_more_ends_with_the_reason",
    ),
    _fault(
        name="a lease is trusted for ever",
        at="services.worker.attempts:Attempts._wait_for_lease_end",
        do=Condition("_now_ns()", "(left_ns := 10**15)"),
        caught_by=f"{_LEASES}::"
        "test_a_worker_that_cannot_renew_kills_the_child_before_the_lease_ends",
    ),
    _fault(
        name="a lease is trusted up to its end",
        at="services.worker.attempts:Attempts._renewed",
        do=Replace("max()", "to_ns(sent_at + self._context.lease.duration)"),
        caught_by=f"{_LEASES}::"
        "test_a_worker_that_cannot_renew_kills_the_child_before_the_lease_ends",
    ),
    _fault(
        name="a renewal that succeeded is not believed",
        at="services.worker.attempts:Attempts._renewed",
        do=Replace("max()", "$1"),
        caught_by=f"{_LEASES}::test_a_running_attempt_renews_its_lease_and_keeps_its_message_hidden",
    ),
    _fault(
        name="a renewal does not move the deadline of the child",
        at="services.worker.attempts:Attempts._renewed",
        do=Drop("trust_until()"),
        caught_by=f"{_LEASES}::"
        "test_a_worker_that_cannot_renew_kills_the_child_before_the_lease_ends",
    ),
    _fault(
        name="one who no longer trusts its lease reports all the same",
        at="services.worker.attempts:Attempts._finish",
        do=Condition("FENCED", False),
        caught_by=f"{_LEASES}::"
        "test_a_worker_that_cannot_renew_kills_the_child_before_the_lease_ends",
    ),
    _fault(
        name="what is known of the row goes back",
        at="services.worker.output:AttemptReports.update_row",
        do=Condition("version", True),
        caught_by=f"{_LEASES}::test_what_is_known_of_the_row_never_goes_back",
    ),
    _fault(
        name="a renewal does not return the cancellation",
        at="services.worker.attempts:Attempts._renewed",
        do=Drop("if cancel"),
        caught_by=f"{_LEASES}::"
        "test_a_cancellation_is_noticed_by_the_next_renewal_without_a_wake_up",
    ),
    _fault(
        name="a row that is cancelled from the start is run",
        at="services.worker.attempts:Attempts._begin",
        do=Drop("if cancel"),
        caught_by=f"{_CANCELLATIONS}::"
        "test_an_attempt_that_is_cancelled_before_it_starts_ends_as_cancelled",
    ),
    _fault(
        name="the outcome is committed before the output is stored",
        at="services.worker.attempts:Attempts._store_output",
        do=Condition("store_output()", False),
        caught_by=f"{_OUTPUT}::"
        "test_a_log_that_is_down_for_a_while_holds_up_the_outcome_and_does_not_cost_it",
    ),
    _fault(
        name="an outage costs finished work",
        at="services.resilience:pauses_within",
        do=Condition("elapsed()", False),
        caught_by=f"{_ATTEMPTS}::test_finished_work_survives_an_outage_of_the_store",
    ),
    _fault(
        name="a child that cannot be recorded keeps running",
        at="services.worker.attempts:Attempts._close_child",
        do=Drop("stop()"),
        caught_by=f"{_ATTEMPTS}::test_a_child_that_cannot_be_noted_down_is_not_left_alive",
    ),
    _fault(
        name="a step is acknowledged before it is kept",
        at="services.worker.attempts:Attempts._store_checkpoint",
        do=Before("store_step()", "await attempt.child.confirm_step(step.name)"),
        caught_by=f"{_STEPS}::test_a_step_is_not_acknowledged_before_it_is_kept",
    ),
    _fault(
        name="a step forgets those before it",
        at="services.worker.output:store_step",
        do=Value("'previous':", "None"),
        caught_by=f"{_STEPS}::test_a_second_attempt_gets_the_steps_that_were_finished",
    ),
    _fault(
        name="no child to be had costs an attempt",
        at="services.worker.attempts:Attempts._start_child",
        do=Replace("_release_unstarted()", "self._fail(attempt, failed_before_start(error))"),
        caught_by=f"{_STARTS}::"
        "test_a_task_that_no_child_could_be_started_for_is_given_back_and_costs_no_attempt",
    ),
    _fault(
        name="a task that no child can be had for comes round and round",
        at="services.worker.attempts:Attempts._release_unstarted",
        do=Replace("pause_before_release()", "timedelta(0)"),
        caught_by=f"{_STARTS}::test_the_pause_before_it_is_given_back_doubles_up_to_a_limit",
    ),
    _fault(
        name="a released attempt counts for the pause that counted already",
        at="services.worker.context:pause_before_release",
        do=Replace("max()", "row.attempt - 1"),
        caught_by=f"{_STARTS}::test_what_counted_before_does_not_make_the_pause_longer",
    ),
    _fault(
        name="the message goes before the outcome is there",
        at="services.message_source:MessageTaskSource._try_claim",
        do=After("= _LeasedTask()", "await self._queue.delete([message.receipt])"),
        caught_by=f"{_MESSAGES}::test_the_outcome_is_committed_before_the_message_is_deleted",
    ),
    _fault(
        name="more messages are taken than there are slots",
        at="core.turns:TurnPlanner.free",
        do=Drop("_busy"),
        caught_by=f"{_MESSAGES}::test_no_more_messages_are_taken_than_there_are_free_slots",
    ),
    _fault(
        name="a task that has no unit is run beside the others",
        at="services.worker.attempts:Attempts._begin",
        do=Condition("_outside", False),
        caught_by=f"{_SLOTS}::test_a_task_without_a_slot_is_released_while_slots_use_every_unit",
    ),
    _fault(
        name="a free slot waits for the others",
        at="core.turns:TurnPlanner.free",
        do=Replace("max()", "0 if self._busy else $0"),
        caught_by=f"{_MESSAGES}::test_a_slot_is_filled_again_as_soon_as_it_is_free",
    ),
    _fault(
        name="a broken renewal ends the renewing",
        at="services.worker.attempts:Attempts.renew_one",
        do=Replace("exception()", "raise"),
        caught_by=f"{_SLOTS}::test_a_bug_in_a_renewal_of_slots_does_not_end_the_renewing",
    ),
    _fault(
        name="a failed renewal waits for its next turn",
        at="services.worker.worker:Worker._renew_leases",
        do=Condition("renewed", True),
        caught_by=f"{_LEASES}::test_a_short_outage_costs_nothing",
    ),
    _fault(
        name="a claim is trusted from when its answer came",
        at="services.worker.worker:Worker._on_claimed",
        do=Argument("add()", 1, "self._backend.clock.elapsed()"),
        caught_by=f"{_LEASES}::"
        "test_a_lease_is_trusted_from_when_it_was_asked_for_however_late_the_answer_comes",
    ),
    _fault(
        name="a renewal is trusted from when its answer came",
        at="services.worker.attempts:Attempts.renew_one",
        do=Argument("_renewed()", 1, "self._clock.elapsed()"),
        caught_by=f"{_LEASES}::"
        "test_a_lease_is_trusted_from_when_it_was_asked_for_however_late_the_answer_comes",
    ),
    _fault(
        name="one who lost its lease takes the message away",
        at="services.message_source:MessageTaskSource._carry_out",
        do=Condition(
            "Applied",
            "isinstance(answer, Refusal) or isinstance(command.command, c.AttemptCommand)",
        ),
        caught_by=f"{_LEASES}::"
        "test_a_worker_that_lost_its_lease_leaves_the_message_to_the_next_worker",
    ),
    _fault(
        name="one who could not renew takes the message away",
        at="services.message_source:MessageTaskSource._carry_out",
        do=Condition("Applied", "not isinstance(answer, Applied)"),
        caught_by=f"{_LEASES}::"
        "test_a_task_whose_worker_could_not_renew_comes_to_another_by_its_message",
    ),
    _fault(
        name="the message of what runs is seen again",
        at="services.message_source:MessageTaskSource._carry_out",
        do=Condition("renewed", False),
        caught_by=f"{_LEASES}::test_a_running_attempt_renews_its_lease_and_keeps_its_message_hidden",
    ),
    _fault(
        name="leases are not kept while a worker drains",
        at="services.worker.worker:Worker.run",
        do=Before("_drain()", "keeping[0].cancel()"),
        caught_by=f"{_DRAINING}::test_leases_are_kept_while_a_worker_drains",
    ),
    _fault(
        name="what outlasts the grace is waited for",
        at="services.worker.worker:Worker._drain",
        do=Drop("release_all()"),
        caught_by=f"{_DRAINING}::"
        "test_an_attempt_that_outlasts_the_grace_period_is_released_and_costs_no_attempt",
    ),
    _fault(
        name="what is being claimed at the end is run to its end",
        at="services.message_source:MessageTaskSource._claim_all",
        do=Drop("_undo()"),
        caught_by=f"{_DRAINING}::"
        "test_a_task_that_is_being_claimed_when_all_are_given_back_is_given_back_too",
    ),
    _fault(
        name="a stopping worker claims all the same",
        at="services.worker.worker:Worker.stop",
        do=Drop("forbid_claims()"),
        caught_by=f"{_DRAINING}::test_a_stopping_worker_lets_its_attempts_finish_within_the_grace",
    ),
    _fault(
        name="a wake-up during the claim is missed",
        at="services.worker.worker:Worker._on_claimed",
        do=Condition("_woken_at", False),
        caught_by=f"{_CANCELLATIONS}::test_a_cancellation_that_comes_with_the_claim_is_not_missed",
    ),
    _fault(
        name="a message of no task is dropped without a word",
        at="services.message_source:MessageTaskSource._reject",
        do=Drop("append()"),
        caught_by=f"{_MESSAGES}::test_a_message_that_names_no_task_is_recorded_and_removed",
    ),
    _fault(
        name="children outlive a worker that is cancelled",
        at="services.worker.worker:Worker.run",
        do=Drop("close()", nth=1),
        caught_by=f"{_ATTEMPTS}::test_a_worker_that_is_cancelled_kills_its_children",
    ),
    _fault(
        name="the memory of a child that died is not reported",
        at="services.worker.attempts:_with_peak",
        do=Drop("= replace()"),
        caught_by="unit/services/test_worker_reports.py::"
        "test_the_peak_memory_of_a_dead_child_is_recorded",
    ),
    _fault(
        name="what the log cannot store at once is left out",
        at="services.worker.output:OutputPump.settle",
        do=Condition("_waiting", False),
        caught_by=f"{_OUTPUT}::"
        "test_a_log_that_is_down_for_a_while_holds_up_the_outcome_and_does_not_cost_it",
    ),
    _fault(
        name="what a given back attempt has used is forgotten",
        at="services.worker.attempts:Attempts._outcome",
        do=Value("usage=", "NO_USAGE"),
        caught_by="unit/services/test_worker_reports.py::"
        "test_the_usage_of_an_attempt_that_was_given_back_is_recorded",
    ),
    _fault(
        name="of the steps only the last is given",
        at="services.worker.attempt_specs:_checkpoints",
        do=Value("= 'previous'", "None"),
        caught_by=f"{_STEPS}::test_a_second_attempt_gets_the_steps_that_were_finished",
    ),
    _fault(
        name="a worker that stops does not wait for the answer to an outcome of a slot",
        at="services.worker.attempts:Attempts._is_empty",
        do=Replace("_unanswered", "False"),
        caught_by=f"{_SLOTS}::test_a_worker_that_stops_reports_its_last_outcome_through_an_outage",
    ),
    _fault(
        name="a worker that stops and runs nothing does not wait for an answer",
        at="services.worker.worker:Worker._drain",
        do=Before("race()", "if not self.running:\n    return"),
        caught_by=f"{_SLOTS}::test_a_worker_that_stops_reports_its_last_outcome_through_an_outage",
    ),
    _fault(
        name="a timer of a slot is not set earlier",
        at="services.worker.attempts:Attempts._set_timer",
        do=Condition("_timer_ends_ns", True),
        caught_by=f"{_SLOTS}::test_a_short_timeout_is_noticed_while_a_task_with_a_long_one_runs",
    ),
    _fault(
        name="a task of a slot that has ended is stopped",
        at="services.worker.attempts:Attempts._stop",
        do=Condition("has_ended", False),
        caught_by=f"{_SLOTS}::test_a_worker_that_is_stopped_at_once_reports_a_task_that_has_ended",
    ),
    _fault(
        name="a step of a slot that cannot be stored is waited for",
        at="services.worker.attempts:Attempts._record_reports",
        do=Drop("_kill()"),
        caught_by=f"{_SLOTS}::test_a_step_that_cannot_be_stored_ends_the_attempt_and_costs_none",
    ),
    _fault(
        name="output of a slot is read without a limit",
        at="services.worker.attempts:Attempts._add_report",
        do=Drop("pause_output()"),
        caught_by=f"{_SLOTS}::test_output_is_not_read_faster_than_it_is_stored",
    ),
    _fault(
        name="what waits behind a slow child is forgotten",
        at="services.worker.attempts:Attempts._return",
        do=Drop("_wait_again()"),
        caught_by=f"{_SLOTS}::test_what_waits_behind_a_slow_task_is_given_back",
    ),
    _fault(
        name="two attempts of a task are in slots at once",
        at="services.worker.attempts:Attempts.add",
        do=Condition("earlier", "(earlier := None)"),
        caught_by=f"{_SLOTS}::"
        "test_the_next_attempt_begins_when_the_one_whose_lease_was_lost_has_ended",
    ),
    _fault(
        name="a backlog of short tasks keeps all others from beginning",
        at="core.slot_plan:SlotPlanner.ahead",
        do=Drop("< OFFER_EVERY_NS"),
        caught_by="unit/core/test_slot_plan.py::"
        "test_a_unit_that_has_short_tasks_is_offered_to_any_task_from_time_to_time",
    ),
    _fault(
        name="a task is given up while others begin",
        at="core.slot_plan:_SlotState.add",
        do=Condition("tasks", False),
        caught_by="unit/core/test_slot_plan.py::test_a_task_waits_behind_those_that_a_slot_gets_now",
    ),
    _fault(
        name="a task without all results of its parents in memory begins",
        at="services.worker.attempt_specs:results_at_hand",
        do=Replace("return None", "continue", nth=2),
        caught_by=f"{_SLOTS}::test_a_task_gets_the_results_of_its_parents_wherever_they_ran",
    ),
    _fault(
        name="a fork that was killed and has an outcome is not used again",
        at="core.slot_plan:SlotPlanner.finished",
        do=Drop("if FORK"),
        caught_by="unit/core/test_slot_plan.py::"
        "test_a_fork_that_is_killed_and_has_an_outcome_can_be_used_again",
    ),
    _fault(
        name="slots do not count what runs elsewhere",
        at="core.slot_plan:SlotPlanner.decide",
        do=Replace("taken", "0"),
        caught_by="unit/core/test_slot_plan.py::test_units_that_are_in_use_elsewhere_are_left_out",
    ),
    _fault(
        name="a task whose definition cannot be read is run by the runner",
        at="services.worker.attempts:Attempts._read_spec",
        do=Replace("_fail()", "self._release(attempt, STOPPING)"),
        caught_by=f"{_SLOTS}::test_a_task_whose_definition_cannot_be_read_is_not_run_elsewhere",
    ),
    _fault(
        name="a task gets back a place of an earlier attempt",
        at="services.message_source:MessageTaskSource._try_claim",
        do=Replace("==", "True"),
        caught_by=f"{_MESSAGES}::"
        "test_a_released_task_gets_no_place_that_it_had_before_another_attempt",
    ),
    _fault(
        name="a task that cannot be written for its slot is held for ever",
        at="services.worker.attempts:Attempts._give",
        do=Drop("_start()"),
        caught_by=f"{_SLOTS}::"
        "test_a_task_that_cannot_be_written_for_its_slot_is_released_and_runs_later",
    ),
    _fault(
        name="a heartbeat has the process id of the worker",
        at="services.worker.attempts:Attempts._renewal",
        do=Argument("Renew()", "process_id", "self._context.process_id"),
        caught_by="unit/services/test_worker_heartbeats.py::"
        "test_a_heartbeat_contains_its_number_time_worker_memory_and_activity",
    ),
    _fault(
        name="a heartbeat of a slot has no process id",
        at="services.worker.attempts:Attempts._renewal",
        do=Condition("slot", False),
        caught_by=f"{_SLOTS}::test_the_heartbeats_of_a_slots_task_have_the_process_id_of_its_child",
    ),
    _fault(
        name="the length of a result in its row cannot be set",
        at="wiring.services:Services.documents",
        do=Argument("DocumentStore()", 1, None),
        caught_by="unit/services/test_spill.py::"
        "test_how_long_a_document_in_a_row_may_be_is_a_setting",
    ),
    _fault(
        name="the app of a job is not in its events",
        at="services.submit",
        do=Replace("or app", "self.app"),
        caught_by="unit/services/test_submit.py::"
        "test_the_app_of_a_job_is_in_its_events_and_those_of_all_its_tasks",
    ),
)
