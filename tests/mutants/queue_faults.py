"""Faults that the queue's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteTaskQueue"
_FOUR = "contract/test_sqlite_processes.py::TestSqliteTaskQueueInFour"
_MEMORY = "contract/test_memory.py::TestMemoryTaskQueue"

_fault = partial(Fault, part=Part.QUEUE)
_in_sqlite = partial(_fault, file="adapters/sqlite/queue.py")
_in_memory = partial(_fault, file="adapters/memory/queue.py")

QUEUE_FAULTS = (
    _in_sqlite(
        name="an old receipt deletes",
        old='_CURRENT = "WHERE id = ? AND receipt = ?"',
        new='_CURRENT = "WHERE id = ? AND receipt >= ?"',
        caught_by=f"{_SQLITE}::test_an_old_receipt_deletes_nothing",
    ),
    _in_sqlite(
        name="an old receipt extends",
        old='f"UPDATE messages SET visible_us = ? {_CURRENT}"',
        new='"UPDATE messages SET visible_us = ? WHERE id = ? AND receipt >= ?"',
        caught_by=f"{_SQLITE}::test_an_old_receipt_extends_nothing",
    ),
    _in_sqlite(
        name="a delivery keeps the receipt of the one before",
        old='receives = receives + 1, taken = 1,"\n    " receipt = receipt + 1"',
        new='receives = receives + 1, taken = 1"',
        caught_by=f"{_SQLITE}::test_a_received_message_is_hidden_for_its_time_and_not_longer",
    ),
    _in_sqlite(
        name="a message is seen one tick too late",
        old='AND visible_us <= ?"\n    " ORDER BY',
        new='AND visible_us < ?"\n    " ORDER BY',
        caught_by=f"{_SQLITE}::test_a_message_is_seen_from_its_moment_on",
    ),
    _in_sqlite(
        name="a hidden message is delivered",
        old='AND visible_us <= ?"\n    " ORDER BY',
        new='AND ? IS NOT NULL"\n    " ORDER BY',
        caught_by=f"{_SQLITE}::test_a_received_message_is_hidden_for_its_time_and_not_longer",
    ),
    _in_sqlite(
        name="newer messages come first",
        old="ORDER BY visible_us, id LIMIT ?",
        new="ORDER BY visible_us DESC, id DESC LIMIT ?",
        caught_by=f"{_SQLITE}::test_older_messages_come_first",
    ),
    _in_sqlite(
        name="a ring during the work is deleted with the old message",
        old="receives = 0, receipt = receipt + 1,",
        new="receives = 0,",
        caught_by=f"{_SQLITE}::test_a_ring_during_the_work_is_not_lost_with_the_old_message",
    ),
    _in_sqlite(
        name="a ring during the work stays hidden",
        old="CASE WHEN taken AND visible_us > excluded.sent_us THEN excluded.visible_us",
        new="CASE WHEN taken THEN visible_us",
        caught_by=f"{_SQLITE}::test_a_ring_during_the_work_is_not_lost_with_the_old_message",
    ),
    _in_sqlite(
        name="two rings are heard at the later moment",
        old="ELSE min(visible_us, excluded.visible_us)",
        new="ELSE max(visible_us, excluded.visible_us)",
        caught_by=f"{_SQLITE}::test_messages_of_one_key_are_seen_at_the_earlier_moment",
    ),
    _in_sqlite(
        name="a delivery that was put off counts",
        old="receives = max(receives - 1, 0),",
        new="receives = receives,",
        caught_by=f"{_SQLITE}::test_a_delivery_that_was_put_off_does_not_count",
    ),
    _in_sqlite(
        name="one delivery too many before a dead letter",
        old="if receives >= RECEIVE_LIMIT:",
        new="if receives > RECEIVE_LIMIT:",
        caught_by=f"{_SQLITE}::test_a_message_is_delivered_up_to_the_limit_and_then_a_dead_letter",
    ),
    _in_sqlite(
        name="a dead letter stays on its queue",
        old='    connection.execute("DELETE FROM messages WHERE id = ?", (message_id,))\n',
        new="",
        caught_by=f"{_SQLITE}::test_dead_letters_are_counted_apart",
    ),
    _in_sqlite(
        name="lower priorities starve",
        old="lanes = lanes_for(self._receives)",
        new="lanes = lanes_for(0)",
        caught_by=f"{_SQLITE}::test_no_priority_starves_behind_the_others",
    ),
    _in_sqlite(
        name="the second queue starves",
        old="order = [*queues[first:], *queues[:first]]",
        new="order = [*queues]",
        caught_by=f"{_SQLITE}::test_no_queue_starves_behind_another",
    ),
    _in_sqlite(
        name="one more message than the limit",
        old="moment, limit - len(taken))",
        new="moment, limit)",
        caught_by=f"{_SQLITE}::test_the_limit_holds_over_all_queues_and_priorities",
    ),
    _in_sqlite(
        name="what a cancelled receiver took stays hidden",
        old="taking.add_done_callback(self._give_back)",
        new="pass",
        caught_by="adapters/sqlite/test_queue.py::"
        "test_what_was_taken_for_a_receiver_that_was_given_up_is_seen_again_at_once",
    ),
    _in_sqlite(
        name="a send rings no bell",
        old="await self._database.write(work, topics=(Topic.QUEUE,))",
        new="await self._database.write(work)",
        caught_by=f"{_SQLITE}::test_a_waiting_receive_ends_as_soon_as_a_message_is_sent",
    ),
    _fault(
        name="moments are kept in whole milliseconds",
        file="adapters/shared/codec.py",
        old='1970."""\n    return (moment - _EPOCH) // _MICROSECOND',
        new='1970."""\n    return (moment - _EPOCH) // _MICROSECOND // 1000 * 1000',
        caught_by=f"{_SQLITE}::test_a_message_is_seen_from_its_moment_on",
    ),
    _fault(
        name="a wake-up between looking and waiting is lost",
        file="adapters/sqlite/database.py",
        old="        sleeping = asyncio.ensure_future(self.clock.sleep(duration))\n",
        new="        await asyncio.sleep(0.001)\n"
        "        heard.clear()\n"
        "        sleeping = asyncio.ensure_future(self.clock.sleep(duration))\n",
        caught_by=f"{_SQLITE}::test_no_wake_up_is_lost_between_looking_and_waiting",
    ),
    _fault(
        name="a send wakes no other process",
        file="adapters/sqlite/bells.py",
        old="os.write(rope, message)",
        new="pass",
        caught_by=f"{_FOUR}::test_a_waiting_receive_ends_as_soon_as_a_message_is_sent",
    ),
    _in_memory(
        name="a ring during the work is deleted with the old message in memory",
        old="        self._leave_key(kept)\n        kept.receives += 1\n",
        new="        kept.receives += 1\n",
        caught_by=f"{_MEMORY}::test_a_ring_during_the_work_is_not_lost_with_the_old_message",
    ),
    _in_memory(
        name="two rings are heard at the later moment in memory",
        old="earlier.visible_at = min(earlier.visible_at, visible_at)",
        new="earlier.visible_at = max(earlier.visible_at, visible_at)",
        caught_by=f"{_MEMORY}::test_messages_of_one_key_are_seen_at_the_earlier_moment",
    ),
    _in_memory(
        name="an old receipt stays good in memory",
        old="        self._forget_receipt(kept)\n        self._leave_key(kept)\n"
        "        kept.receives += 1\n",
        new="        self._leave_key(kept)\n        kept.receives += 1\n",
        caught_by=f"{_MEMORY}::test_an_old_receipt_deletes_nothing",
    ),
    _in_memory(
        name="a dead letter takes another's place in memory",
        old="left -= kept.receives < RECEIVE_LIMIT",
        new="left -= 1",
        caught_by=f"{_MEMORY}::test_a_dead_letter_does_not_take_anothers_place",
    ),
    _in_memory(
        name="putting off wakes nobody in memory",
        old="        kept.visible_at = until\n        self._waiters.wake()\n\n    async def depth",
        new="        kept.visible_at = until\n\n    async def depth",
        caught_by=f"{_MEMORY}::test_a_waiting_receive_sees_a_message_that_is_given_back",
    ),
)
