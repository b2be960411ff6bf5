"""Faults that the queue's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Argument, Before, Drop, Operator, Replace, Text, Value

_SQLITE = "contract/test_sqlite.py::TestSqliteTaskQueue"
_FOUR = "contract/test_sqlite_processes.py::TestSqliteTaskQueueInFour"
_MEMORY = "contract/test_memory.py::TestMemoryTaskQueue"

_fault = partial(Fault, part=Part.QUEUE)

QUEUE_FAULTS = (
    _fault(
        name="an old receipt deletes",
        at="adapters.sqlite.task_queue:_CURRENT",
        do=Text("receipt = ?", "receipt >= ?"),
        caught_by=f"{_SQLITE}::test_an_old_receipt_deletes_nothing",
    ),
    _fault(
        name="an old receipt extends",
        at="adapters.sqlite.task_queue:SqliteTaskQueue.extend",
        do=Text("{_CURRENT}", "WHERE id = ? AND receipt >= ?"),
        caught_by=f"{_SQLITE}::test_an_old_receipt_extends_nothing",
    ),
    _fault(
        name="a delivery keeps the receipt of the one before",
        at="adapters.sqlite.task_queue:_TAKE",
        do=Text("1, receipt = receipt + 1", "1"),
        caught_by=f"{_SQLITE}::test_a_received_message_is_hidden_for_its_time_and_not_longer",
    ),
    _fault(
        name="a message is seen one tick too late",
        at="adapters.sqlite.task_queue:_VISIBLE",
        do=Text("<= ? ORDER", "< ? ORDER"),
        caught_by=f"{_SQLITE}::test_a_message_is_seen_from_its_moment_on",
    ),
    _fault(
        name="a hidden message is delivered",
        at="adapters.sqlite.task_queue:_VISIBLE",
        do=Text("visible_us <= ?", "? IS NOT NULL"),
        caught_by=f"{_SQLITE}::test_a_received_message_is_hidden_for_its_time_and_not_longer",
    ),
    _fault(
        name="newer messages come first",
        at="adapters.sqlite.task_queue:_VISIBLE",
        do=Text("visible_us, id", "visible_us DESC, id DESC"),
        caught_by=f"{_SQLITE}::test_older_messages_come_first",
    ),
    _fault(
        name="a message sent during the work is deleted with the old one",
        at="adapters.sqlite.task_queue:UPSERT_MESSAGE",
        do=Text("receipt = receipt + 1, visible_us", "visible_us"),
        caught_by=f"{_SQLITE}::test_a_message_sent_during_the_work_is_not_lost_with_the_old_one",
    ),
    _fault(
        name="a message sent during the work stays hidden",
        at="adapters.sqlite.task_queue:UPSERT_MESSAGE",
        do=Text("AND visible_us > excluded.sent_us THEN excluded.visible_us", "THEN visible_us"),
        caught_by=f"{_SQLITE}::test_a_message_sent_during_the_work_is_not_lost_with_the_old_one",
    ),
    _fault(
        name="two merged messages are visible at the later time",
        at="adapters.sqlite.task_queue:UPSERT_MESSAGE",
        do=Text("min(visible_us", "max(visible_us"),
        caught_by=f"{_SQLITE}::test_messages_of_one_key_are_seen_at_the_earlier_moment",
    ),
    _fault(
        name="a delayed delivery counts as a receive",
        at="adapters.sqlite.task_queue:_DELAY",
        do=Text("max(receives - 1, 0)", "receives"),
        caught_by=f"{_SQLITE}::test_a_delivery_that_was_put_off_does_not_count",
    ),
    _fault(
        name="one delivery too many before a dead letter",
        at="adapters.sqlite.task_queue:SqliteTaskQueue._take.work",
        do=Operator(">= RECEIVE_LIMIT", ">"),
        caught_by=f"{_SQLITE}::test_a_message_is_delivered_up_to_the_limit_and_then_a_dead_letter",
    ),
    _fault(
        name="a dead letter stays on its queue",
        at="adapters.sqlite.task_queue:_move_to_dead_letters",
        do=Drop("execute()", nth=2),
        caught_by=f"{_SQLITE}::test_dead_letters_are_counted_apart",
    ),
    _fault(
        name="lower priorities starve",
        at="adapters.sqlite.task_queue:SqliteTaskQueue._take",
        do=Argument("lane_order()", 0, "0"),
        caught_by=f"{_SQLITE}::test_no_priority_starves_behind_the_others",
    ),
    _fault(
        name="the second queue starves",
        at="adapters.sqlite.task_queue:SqliteTaskQueue._take",
        do=Replace("list queues", "[*queues]"),
        caught_by=f"{_SQLITE}::test_no_queue_starves_behind_another",
    ),
    _fault(
        name="one more message than the limit",
        at="adapters.sqlite.task_queue:SqliteTaskQueue._take.work",
        do=Drop("len()"),
        caught_by=f"{_SQLITE}::test_the_limit_holds_over_all_queues_and_priorities",
    ),
    _fault(
        name="what a cancelled receiver took stays hidden",
        at="adapters.sqlite.task_queue:SqliteTaskQueue._take",
        do=Drop("add_done_callback()"),
        caught_by="adapters/sqlite/test_queue.py::"
        "test_what_was_taken_for_a_receiver_that_was_given_up_is_seen_again_at_once",
    ),
    _fault(
        name="a send wakes no receiver",
        at="adapters.sqlite.task_queue:SqliteTaskQueue.send",
        do=Argument("write()", "topics", None),
        caught_by=f"{_SQLITE}::test_a_waiting_receive_ends_as_soon_as_a_message_is_sent",
    ),
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
        caught_by=f"{_FOUR}::test_a_waiting_receive_ends_as_soon_as_a_message_is_sent",
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
