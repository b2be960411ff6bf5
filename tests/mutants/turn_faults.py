"""Faults of the task source in SQLite that its tests must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace, Text, Value

_SOURCE = "adapters.sqlite.task_source:SqliteTaskSource"
_TURN = "adapters.sqlite.task_source:TurnWork"
_CONTRACT = "contract/test_sqlite.py::TestSqliteTaskSource"
_SQLITE = "adapters/sqlite/test_task_source.py"
_AS_CORE = "adapters/sqlite/test_turns.py::test_a_turn_decides_as_core_does"

_fault = partial(Fault, part=Part.QUEUE)

TURN_FAULTS = (
    _fault(
        name="a usual claim does not count its attempt",
        at=f"{_TURN}._lease",
        do=Drop("+= _ATTEMPT"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a usual completion does not compare the fence",
        at=f"{_TURN}._is_usual_completion",
        do=Drop("== fence"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a usual completion needs no review",
        at=f"{_TURN}._is_usual_completion",
        do=Replace("not requires_review", "$0 or True"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a usual completion forgets the last output",
        at=f"{_TURN}._complete",
        do=Value("= _LAST_OUTPUT", "None"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a job that is not usual ends as the usual job",
        at="adapters.sqlite.task_source:_JOBS_OF_ONE_TASK",
        do=Text(" AND rest IS NULL", ""),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a command after an outcome in the same turn sees the task running",
        at=f"{_TURN}._carry_out",
        do=Drop("_write_completions()"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="an outcome is decided from a row in memory that has changed since",
        at=f"{_TURN}._drop_changed_rows",
        do=Condition("get()", False),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a usual claim lasts for no time",
        at=f"{_TURN}._lease",
        do=Value("= _LEASE lease_duration", "now_ms"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a usual claim ignores the epoch of the store",
        at=f"{_TURN}._lease",
        do=Argument("next_fence()", 1, "0"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a claim by another machine counts as one of this machine",
        at=f"{_TURN}._lease",
        do=Drop("not local"),
        caught_by=f"{_SQLITE}::test_leases_of_other_machines_are_promised",
    ),
    _fault(
        name="a job of several tasks ends with the first of them",
        at="adapters.sqlite.task_source:_JOBS_OF_ONE_TASK",
        do=Text(" AND total = 1", ""),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="the end of a job does not clear the mark of its task",
        at=f"{_TURN}._complete_jobs_of_one_task",
        do=Drop("= _UNSETTLED"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a completed job has no final event in the feed",
        at=f"{_TURN}._complete_jobs_of_one_task",
        do=Drop("_record()"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="an end that is not settled is not marked",
        at=f"{_TURN}._complete",
        do=Value("= _UNSETTLED", "0"),
        caught_by=f"{_CONTRACT}::test_an_end_that_a_turn_cannot_settle_is_left_to_the_dispatcher",
    ),
    _fault(
        name="a turn settles no job",
        at=f"{_TURN}.__call__",
        do=Drop("_settle()"),
        caught_by=f"{_CONTRACT}::test_a_turn_makes_a_dependent_ready_after_its_last_parent_and_ends_the_job",
    ),
    _fault(
        name="a turn makes any number of dependents ready",
        at="core.jobs.settle:settle",
        do=Condition("MAX_DEPENDENTS", False),
        caught_by=f"{_SQLITE}::test_a_turn_leaves_more_dependents_than_its_limit_to_the_dispatcher",
    ),
    _fault(
        name="an error in settling a job undoes the turn",
        at=f"{_TURN}._settle",
        do=Replace("exception()", "raise"),
        caught_by=f"{_SQLITE}::test_an_outcome_stays_if_its_job_cannot_be_settled",
    ),
    _fault(
        name="a turn in SQLite that is repeated claims more",
        at=f"{_TURN}.__call__",
        do=Value("= repeated ==", "False"),
        caught_by=f"{_CONTRACT}::test_the_same_turn_again_claims_the_same_tasks",
    ),
    _fault(
        name="a turn in SQLite that is late is carried out",
        at=f"{_TURN}.__call__",
        do=Condition("_turn_id <", False),
        caught_by=f"{_CONTRACT}::test_a_turn_that_arrives_after_a_later_one_is_not_carried_out",
    ),
    _fault(
        name="a claim in SQLite that is late takes tasks",
        at=f"{_TURN}.__call__",
        do=Condition("_turn_id <", False),
        caught_by=f"{_CONTRACT}::test_a_claim_that_arrives_after_a_later_one_takes_nothing",
    ),
    _fault(
        name="a late claim is tried for ever",
        at=f"{_TURN}.__call__",
        do=Drop("= repeated True"),
        caught_by=f"{_SQLITE}::test_a_claim_that_arrives_after_a_later_one_is_tried_once",
    ),
    _fault(
        name="a turn in SQLite is not remembered",
        at=f"{_TURN}.__call__",
        do=Condition("claimed", False),
        caught_by=f"{_CONTRACT}::test_the_same_turn_again_claims_the_same_tasks",
    ),
    _fault(
        name="a repeated claim in SQLite returns the tasks of other claims",
        at="adapters.sqlite.task_source:_CLAIMED_IN",
        do=Text("t.change_id = ?", "? IS NOT NULL"),
        caught_by=f"{_CONTRACT}::test_the_same_turn_again_claims_the_same_tasks",
    ),
    _fault(
        name="a repeated command in SQLite counts as stale",
        at=f"{_TURN}._carry_out",
        do=Condition("pack_change_id", False),
        caught_by=f"{_CONTRACT}::test_the_same_command_again_is_success_and_written_once",
    ),
    _fault(
        name="a command in SQLite that cannot be decided fails the whole turn",
        at=f"{_TURN}._answer",
        do=Replace("exception()", "raise"),
        caught_by=f"{_CONTRACT}::test_a_command_that_cannot_be_decided_does_not_affect_the_others",
    ),
    _fault(
        name="a row that cannot be read stops every claim",
        at=f"{_TURN}._try_lease",
        do=Replace("exception()", "raise"),
        caught_by=f"{_SQLITE}::"
        "test_a_row_that_cannot_be_read_keeps_no_other_task_from_being_claimed",
    ),
    _fault(
        name="events that were undone stay in the feed",
        at="adapters.sqlite.transaction:StoreTransaction.undoable",
        do=Replace("[] _recorded", "pass"),
        caught_by=f"{_SQLITE}::test_what_a_failed_settlement_had_written_is_not_in_the_feed",
    ),
    _fault(
        name="an earlier instance in SQLite may still claim",
        at=f"{_TURN}._last_turn",
        do=Condition("matches number", "matches"),
        caught_by=f"{_CONTRACT}::test_a_later_instance_replaces_an_earlier_one",
    ),
    _fault(
        name="a worker whose leases were ended may still renew",
        at=f"{_TURN}._last_turn",
        do=Drop("not all()"),
        caught_by=f"{_CONTRACT}::test_a_worker_whose_leases_were_ended_must_join_again",
    ),
    _fault(
        name="outcomes of an ended worker in SQLite are refused",
        at=f"{_TURN}._last_turn",
        do=Condition("_room", True),
        caught_by=f"{_CONTRACT}::test_an_expired_lease_ends_the_worker_and_its_other_outcomes_still_count",
    ),
    _fault(
        name="a waiting claim does not notice that its worker has ended",
        at=f"{_SOURCE}._anything_ready",
        do=Condition("_is_gone()", False),
        caught_by=f"{_CONTRACT}::test_a_waiting_claim_of_an_ended_worker_fails",
    ),
    _fault(
        name="a new instance in SQLite keeps the turns of the last",
        at="adapters.sqlite.task_source:_JOIN",
        do=Text("turn = '', claim = '', ", ""),
        caught_by=f"{_CONTRACT}::test_the_turns_of_a_new_instance_are_counted_anew",
    ),
    _fault(
        name="a worker that has left may still claim",
        at=f"{_SOURCE}.leave",
        do=Text("ended = 1", "ended = 0"),
        caught_by=f"{_CONTRACT}::test_a_worker_that_has_left_claims_nothing",
    ),
    _fault(
        name="a claim in SQLite takes a task that is not due",
        at="adapters.sqlite.task_source:_READY",
        do=Text("t.due_us < ?", "? > 0"),
        caught_by=f"{_CONTRACT}::test_a_task_that_is_not_due_is_not_claimed_with_one_that_is",
    ),
    _fault(
        name="a turn in SQLite claims tasks of a paused queue",
        at="adapters.sqlite.task_source:_lines",
        do=Replace("active_pauses()", "{}"),
        caught_by=f"{_CONTRACT}::test_a_turn_claims_nothing_of_a_paused_queue",
    ),
    _fault(
        name="one tenant gets the whole batch in SQLite",
        at="adapters.sqlite.task_source:_lines",
        do=Argument("_OpenLine()", 2, "''"),
        caught_by=f"{_CONTRACT}::test_tenants_get_equal_parts_of_a_batch",
    ),
    _fault(
        name="a task that is not known to be short is claimed ahead in SQLite",
        at=f"{_TURN}._choose_from_line",
        do=Condition("ahead get()", True),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="every claim begins with the most urgent lane",
        at=f"{_SOURCE}.claim",
        do=Drop("= _position position"),
        caught_by=f"{_CONTRACT}::test_urgent_lanes_come_first_and_none_is_left_out",
    ),
    _fault(
        name="a cancelled claim keeps what it took",
        at=f"{_SOURCE}.claim",
        do=Drop("add_done_callback()"),
        caught_by=f"{_SQLITE}::test_a_claim_that_is_cancelled_midway_gives_back_what_it_took",
    ),
    _fault(
        name="tasks of a cancelled claim lose their place",
        at=f"{_SOURCE}._give_back",
        do=Argument("Release()", "due_at", None),
        caught_by=f"{_SQLITE}::test_a_claim_that_is_cancelled_midway_gives_back_what_it_took",
    ),
    _fault(
        name="a turn wakes no other worker",
        at=f"{_TURN}._write_task",
        do=Drop("add()"),
        caught_by=f"{_CONTRACT}::test_a_task_that_is_released_wakes_a_claim",
    ),
    _fault(
        name="the end of a worker in SQLite wakes no other worker",
        at=f"{_SOURCE}.end_worker",
        do=Argument("write()", "topics", "()"),
        caught_by=f"{_CONTRACT}::test_the_end_of_a_worker_wakes_a_claim",
    ),
    _fault(
        name="an outcome may be lost in a power loss",
        at=f"{_TURN}.__init__",
        do=Value("= durable", "not worker.local"),
        caught_by=f"{_SQLITE}::test_outcomes_are_promised_and_leases_of_this_machine_are_not",
    ),
    _fault(
        name="reported usage may be lost in a power loss",
        at=f"{_TURN}.__init__",
        do=Drop("!= NO_USAGE"),
        caught_by=f"{_SQLITE}::test_outcomes_are_promised_and_leases_of_this_machine_are_not",
    ),
    _fault(
        name="the claim of another machine may be lost in a power loss",
        at=f"{_SOURCE}.claim",
        do=Argument("write()", "durable", "False"),
        caught_by=f"{_SQLITE}::test_leases_of_other_machines_are_promised",
    ),
    _fault(
        name="a claim in SQLite does not wait for due tasks",
        at=f"{_SOURCE}._next_change",
        do=Replace("_lines()", "()"),
        caught_by=f"{_CONTRACT}::test_a_claim_waits_until_a_task_is_due",
    ),
    _fault(
        name="a claim in SQLite does not wait for the end of a hold",
        at=f"{_SOURCE}._next_change",
        do=Value("= times", "[]"),
        caught_by=f"{_CONTRACT}::test_a_claim_waits_until_a_hold_ends",
    ),
    _fault(
        name="tasks of SQLite that had not begun use up an attempt",
        at=f"{_SOURCE}.end_worker",
        do=Argument("LeaseEnded()", "begun", "True"),
        caught_by=f"{_CONTRACT}::test_the_leases_of_a_worker_that_is_gone_are_ended",
    ),
    _fault(
        name="the end of a worker in SQLite ends the leases of all",
        at="adapters.sqlite.task_source:_LEASED_TO",
        do=Text("t.worker = ?", "? > 0"),
        caught_by=f"{_CONTRACT}::test_without_a_list_all_tasks_of_a_worker_that_is_gone_had_begun",
    ),
    _fault(
        name="the depth of a queue does not count leased tasks",
        at=f"{_SOURCE}.depth",
        do=Argument("QueueDepth()", "hidden", "later"),
        caught_by=f"{_CONTRACT}::test_the_depth_of_a_queue_counts_its_tasks",
    ),
)
