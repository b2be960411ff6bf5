"""Faults that the queue's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Before, Drop, Replace, Value

_SQLITE = "contract/test_sqlite.py::TestSqliteTaskQueue"
_MEMORY = "contract/test_memory.py::TestMemoryTaskQueue"

_fault = partial(Fault, part=Part.QUEUE)

QUEUE_FAULTS = (
    _fault(
        name="moments are kept in whole milliseconds",
        at="adapters.shared.codec:to_us",
        do=Value("return _EPOCH", "$0 // 1000 * 1000"),
        caught_by=f"{_SQLITE}::test_a_message_is_seen_from_its_moment_on",
    ),
    _fault(
        name="a wake-up between looking and waiting is lost",
        at="adapters.shared.waiters:Waiters._wait_for_change",
        do=Before("= _waiting", "await asyncio.sleep(0.001)"),
        caught_by=f"{_SQLITE}::test_no_wake_up_is_lost_between_looking_and_waiting",
    ),
    _fault(
        name="a send wakes no other process",
        at="adapters.sqlite.notifier:Notifier.wake_others",
        do=Drop("write()"),
        caught_by="adapters/sqlite/test_processes.py::"
        "test_a_claim_is_woken_by_a_new_task_of_another_process",
    ),
    _fault(
        name="a message sent during the work is deleted with the old one in memory",
        at="adapters.memory.queues:MemoryTaskQueue._release",
        do=Replace("is", "False"),
        caught_by=f"{_MEMORY}::test_a_message_sent_during_the_work_is_not_lost_with_the_old_one",
    ),
    _fault(
        name="two merged messages are visible at the later time in memory",
        at="adapters.memory.queues:MemoryTaskQueue._put",
        do=Replace("min", "max"),
        caught_by=f"{_MEMORY}::test_messages_of_one_key_are_seen_at_the_earlier_moment",
    ),
    _fault(
        name="an old receipt stays good in memory",
        at="adapters.memory.queues:MemoryTaskQueue._release",
        do=Replace("is not None", "False"),
        caught_by=f"{_MEMORY}::test_an_old_receipt_deletes_nothing",
    ),
    _fault(
        name="a dead letter takes another's place in memory",
        at="adapters.memory.queues:MemoryTaskQueue._take",
        do=After("append() dead", "if len(dead) == limit:\n    break"),
        caught_by=f"{_MEMORY}::test_a_dead_letter_does_not_block_another_message",
    ),
    _fault(
        name="a delay wakes no receiver in memory",
        at="adapters.memory.queues:MemoryTaskQueue.delay",
        do=Drop("wake()"),
        caught_by=f"{_MEMORY}::test_a_waiting_receive_sees_a_message_that_is_given_back",
    ),
)
