"""Faults that the queue's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Drop, Replace

_MEMORY = "contract/test_memory.py::TestMemoryTaskQueue"

_fault = partial(Fault, part=Part.QUEUE)

QUEUE_FAULTS = (
    _fault(
        name="a message sent during the work is deleted with the old one in memory",
        at="testing.memory.queues:MemoryTaskQueue._release",
        do=Replace("is", "False"),
        caught_by=f"{_MEMORY}::test_a_message_sent_during_the_work_is_not_lost_with_the_old_one",
    ),
    _fault(
        name="two merged messages are visible at the later time in memory",
        at="testing.memory.queues:MemoryTaskQueue._put",
        do=Replace("min", "max"),
        caught_by=f"{_MEMORY}::test_messages_of_one_key_are_seen_at_the_earlier_moment",
    ),
    _fault(
        name="an old receipt stays good in memory",
        at="testing.memory.queues:MemoryTaskQueue._release",
        do=Replace("is not None", "False"),
        caught_by=f"{_MEMORY}::test_an_old_receipt_deletes_nothing",
    ),
    _fault(
        name="a dead letter takes another's place in memory",
        at="testing.memory.queues:MemoryTaskQueue._take",
        do=After("append() dead", "if len(dead) == limit:\n    break"),
        caught_by=f"{_MEMORY}::test_a_dead_letter_does_not_block_another_message",
    ),
    _fault(
        name="a delay wakes no receiver in memory",
        at="testing.memory.queues:MemoryTaskQueue.delay",
        do=Drop("wake()"),
        caught_by=f"{_MEMORY}::test_a_waiting_receive_sees_a_message_that_is_given_back",
    ),
)
