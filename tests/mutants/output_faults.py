"""Faults that the output log's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteOutputLog"
_FOUR = "contract/test_sqlite_processes.py::TestSqliteOutputLogInFour"
_MEMORY = "contract/test_memory.py::TestMemoryOutputLog"

_fault = partial(Fault, part=Part.OUTPUT)
_in_sqlite = partial(_fault, file="adapters/sqlite/output.py")
_in_memory = partial(_fault, file="adapters/memory/output.py")

OUTPUT_FAULTS = (
    _in_sqlite(
        name="an entry is written over",
        old="ON CONFLICT DO NOTHING",
        new="ON CONFLICT DO UPDATE SET data = excluded.data",
        caught_by=f"{_SQLITE}::test_an_entry_that_is_kept_already_changes_nothing",
    ),
    _in_sqlite(
        name="output comes by sequence alone",
        old="ORDER BY attempt, sequence LIMIT ?",
        new="ORDER BY sequence, attempt LIMIT ?",
        caught_by=f"{_SQLITE}::test_output_comes_by_attempt_and_then_by_sequence",
    ),
    _in_sqlite(
        name="reading begins with the entry already seen",
        old="(attempt, sequence) > (?, ?) ORDER",
        new="(attempt, sequence) >= (?, ?) ORDER",
        caught_by=f"{_SQLITE}::test_reading_goes_on_after_a_place",
    ),
    _in_sqlite(
        name="a place is compared part by part",
        old="(attempt, sequence) > (?, ?) ORDER",
        new="attempt >= ? AND sequence > ? ORDER",
        caught_by=f"{_SQLITE}::test_reading_goes_on_after_a_place",
    ),
    _in_sqlite(
        name="output of every task",
        old='last, data FROM output WHERE task_id = ?"',
        new='last, data FROM output WHERE ? IS NOT NULL"',
        caught_by=f"{_SQLITE}::test_output_of_another_task_is_not_seen",
    ),
    _in_sqlite(
        name="a marker's end is dropped",
        old="last=last,",
        new="last=None,",
        caught_by=f"{_SQLITE}::test_a_marker_stands_for_the_sequences_up_to_its_last",
    ),
    _in_sqlite(
        name="output rings no bell",
        old="topics=(Topic.OUTPUT,)",
        new="topics=()",
        caught_by=f"{_SQLITE}::test_a_wait_ends_as_soon_as_something_is_after_the_place",
    ),
    _in_sqlite(
        name="what was seen ends a wait",
        old="(attempt, sequence) > (?, ?) LIMIT 1",
        new="(attempt, sequence) >= (?, ?) LIMIT 1",
        caught_by=f"{_SQLITE}::test_nothing_new_after_the_place_ends_no_wait",
    ),
    _in_sqlite(
        name="an earlier attempt ends a wait",
        old="(attempt, sequence) > (?, ?) LIMIT 1",
        new="(attempt > ? OR sequence > ?) LIMIT 1",
        caught_by=f"{_SQLITE}::test_nothing_new_after_the_place_ends_no_wait",
    ),
    _fault(
        name="output between looking and waiting is missed",
        file="adapters/sqlite/database.py",
        old="        sleeping = asyncio.ensure_future(self.clock.sleep(duration))\n",
        new="        await asyncio.sleep(0.001)\n"
        "        heard.clear()\n"
        "        sleeping = asyncio.ensure_future(self.clock.sleep(duration))\n",
        caught_by=f"{_SQLITE}::test_no_wake_up_is_lost_between_looking_and_waiting",
    ),
    _fault(
        name="a wait never gives up",
        file="adapters/sqlite/database.py",
        old="if left <= timedelta(0):",
        new="if False:",
        caught_by=f"{_SQLITE}::test_a_wait_gives_up_after_its_time_and_not_before",
    ),
    _fault(
        name="a wait gives up too early",
        file="adapters/sqlite/database.py",
        old="deadline = self.clock.elapsed() + wait",
        new="deadline = self.clock.elapsed() + wait / 2",
        caught_by=f"{_SQLITE}::test_a_wait_gives_up_after_its_time_and_not_before",
    ),
    _fault(
        name="output wakes no other process",
        file="adapters/sqlite/bells.py",
        old="os.write(rope, message)",
        new="pass",
        caught_by=f"{_FOUR}::test_a_wait_ends_as_soon_as_something_is_after_the_place",
    ),
    _in_memory(
        name="an entry is written over in memory",
        old="            if place not in kept:\n                kept[place] = entry\n",
        new="            known = place in kept\n            kept[place] = entry\n"
        "            if not known:\n",
        caught_by=f"{_MEMORY}::test_an_entry_that_is_kept_already_changes_nothing",
    ),
    _in_memory(
        name="output in memory comes in the order of arrival",
        old="insort(places, place)",
        new="places.append(place)",
        caught_by=f"{_MEMORY}::test_output_comes_by_attempt_and_then_by_sequence",
    ),
    _in_memory(
        name="what was seen ends a wait in memory",
        old="places[-1] > after",
        new="places[-1] >= after",
        caught_by=f"{_MEMORY}::test_without_a_wait_the_answer_comes_at_once",
    ),
)
