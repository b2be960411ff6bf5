"""Faults that the contract of the task source must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace

_DIRECT = "contract/test_memory.py::TestMemoryTaskSource"
_MESSAGES = "contract/test_memory.py::TestMemoryMessageSource"
_SOURCE = "testing.memory.task_source:MemoryTaskSource"

_fault = partial(Fault, part=Part.QUEUE)

SOURCE_FAULTS = (
    _fault(
        name="a claim takes tasks of a paused queue",
        at=f"{_SOURCE}._claim",
        do=Replace("paused_now()", "frozenset()"),
        caught_by=f"{_DIRECT}::test_a_paused_queue_is_not_served_until_it_is_resumed",
    ),
    _fault(
        name="a claim takes a task that is not due",
        at="testing.memory.ledger:ReadyTasks.due",
        do=Condition("due_at", True),
        caught_by=f"{_DIRECT}::test_a_candidate_that_is_not_due_takes_no_slot",
    ),
    _fault(
        name="a claim takes tasks of every queue",
        at="testing.memory.ledger:ReadyTasks.due",
        do=Condition("queue", True),
        caught_by=f"{_DIRECT}::test_only_queues_of_the_worker_are_served",
    ),
    _fault(
        name="a claim that is repeated takes more",
        at=f"{_SOURCE}.claim",
        do=Condition("<=", False),
        caught_by=f"{_DIRECT}::test_the_same_claim_again_gives_the_same_tasks",
    ),
    _fault(
        name="a turn that is repeated claims more",
        at=f"{_SOURCE}.turn",
        do=(Condition("==", False), Condition("<", False)),
        caught_by=f"{_DIRECT}::test_the_same_turn_again_claims_the_same_tasks",
    ),
    _fault(
        name="a turn that is late is carried out",
        at=f"{_SOURCE}.turn",
        do=Condition("<", False),
        caught_by=f"{_DIRECT}::test_a_turn_that_arrives_after_a_later_one_is_not_carried_out",
    ),
    _fault(
        name="an earlier instance of a worker may still claim",
        at=f"{_SOURCE}._instance",
        do=Condition("number", "instance is None"),
        caught_by=f"{_DIRECT}::test_a_later_instance_replaces_an_earlier_one",
    ),
    _fault(
        name="an expired lease does not end its worker",
        at="testing.memory.ledger:MemoryStore._put_task",
        do=Condition("by_holder", False),
        caught_by=f"{_DIRECT}::"
        "test_an_expired_lease_ends_the_worker_and_its_other_outcomes_still_count",
    ),
    _fault(
        name="a command that cannot be decided fails the whole turn",
        at=f"{_SOURCE}._answer",
        do=Replace("exception()", "raise"),
        caught_by=f"{_DIRECT}::test_a_command_that_cannot_be_decided_does_not_affect_the_others",
    ),
    _fault(
        name="a command that is repeated counts as stale",
        at=f"{_SOURCE}._answer",
        do=Condition("change_id", False),
        caught_by=f"{_DIRECT}::test_the_same_command_again_is_success_and_written_once",
    ),
    _fault(
        name="tasks that had not begun use up an attempt",
        at=f"{_SOURCE}.end_worker",
        do=Argument("LeaseEnded()", "begun", "True"),
        caught_by=f"{_DIRECT}::test_the_leases_of_a_worker_that_is_gone_are_ended",
    ),
    _fault(
        name="a task that had not begun goes to the end of its queue",
        at="core.tasks.task:release",
        do=Replace("min()", "step.now"),
        caught_by=f"{_DIRECT}::"
        "test_a_task_released_before_it_has_begun_keeps_its_position_and_its_attempts",
    ),
    _fault(
        name="one tenant gets the whole batch",
        at="core.claims:_Turns.__init__",
        do=Replace("max()", "batch"),
        caught_by=f"{_DIRECT}::test_tenants_get_equal_parts_of_a_batch",
    ),
    _fault(
        name="only urgent tasks are claimed",
        at="core.claims:choose",
        do=Argument("lane_order()", 0, "0"),
        caught_by=f"{_DIRECT}::test_urgent_lanes_come_first_and_none_is_left_out",
    ),
    _fault(
        name="no task is claimed ahead of a free slot",
        at="core.claims:Room.total",
        do=Drop("sum()"),
        caught_by=f"{_DIRECT}::test_known_short_tasks_are_claimed_ahead_of_free_slots",
    ),
    _fault(
        name="a repeated claim receives more messages",
        at="services.message_source:MessageTaskSource.claim",
        do=Condition("last_id", False),
        caught_by=f"{_MESSAGES}::test_the_same_claim_again_gives_the_same_tasks",
    ),
    _fault(
        name="the end of a worker ends the leases of all",
        at="services.message_source:MessageTaskSource.end_worker",
        do=Condition("worker_id", False),
        caught_by=f"{_MESSAGES}::test_without_a_list_all_tasks_of_a_worker_that_is_gone_had_begun",
    ),
    _fault(
        name="a tenant waits for the backlog of others",
        at="core.claims:_Turns.__init__",
        do=Replace("max()", "10**6"),
        caught_by="contract/test_sqlite.py::TestSqliteTaskSource::"
        "test_a_tenant_does_not_wait_for_the_backlog_of_others",
    ),
)
