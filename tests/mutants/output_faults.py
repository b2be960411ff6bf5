"""Faults that the output log's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Before, Condition, Drop, Operator, Replace, Text

_SQLITE = "contract/test_sqlite.py::TestSqliteOutputLog"
_FOUR = "contract/test_sqlite_processes.py::TestSqliteOutputLogInFour"
_MEMORY = "contract/test_memory.py::TestMemoryOutputLog"

_fault = partial(Fault, part=Part.OUTPUT)

OUTPUT_FAULTS = (
    _fault(
        name="an entry is written over",
        at="adapters.sqlite.output:_INSERT",
        do=Text("DO NOTHING", "DO UPDATE SET data = excluded.data"),
        caught_by=f"{_SQLITE}::test_an_entry_that_is_kept_already_changes_nothing",
    ),
    _fault(
        name="output comes by sequence alone",
        at="adapters.sqlite.output:SqliteOutputLog.read",
        do=Text("BY attempt, sequence", "BY sequence, attempt"),
        caught_by=f"{_SQLITE}::test_output_comes_by_attempt_and_then_by_sequence",
    ),
    _fault(
        name="reading begins with the entry already seen",
        at="adapters.sqlite.output:SqliteOutputLog.read",
        do=Text("sequence) >", "sequence) >="),
        caught_by=f"{_SQLITE}::test_reading_continues_after_a_position",
    ),
    _fault(
        name="a place is compared part by part",
        at="adapters.sqlite.output:SqliteOutputLog.read",
        do=Text("(attempt, sequence) > (?, ?)", "attempt >= ? AND sequence > ?"),
        caught_by=f"{_SQLITE}::test_reading_continues_after_a_position",
    ),
    _fault(
        name="output of every task",
        at="adapters.sqlite.output:SqliteOutputLog.read",
        do=Text("task = ?", "? IS NOT NULL"),
        caught_by=f"{_SQLITE}::test_output_of_another_task_is_not_seen",
    ),
    _fault(
        name="a marker's end is dropped",
        at="adapters.sqlite.output:SqliteOutputLog.read",
        do=Argument("OutputChunk()", "last", "None"),
        caught_by=f"{_SQLITE}::test_a_marker_covers_the_sequences_up_to_its_last",
    ),
    _fault(
        name="new output wakes no reader",
        at="adapters.sqlite.output:SqliteOutputLog.append",
        do=Argument("write()", "topics", "()"),
        caught_by=f"{_SQLITE}::test_a_wait_ends_as_soon_as_something_is_after_the_position",
    ),
    _fault(
        name="what was seen ends a wait",
        at="adapters.sqlite.output:SqliteOutputLog.wait_for_output.look",
        do=Text("sequence) >", "sequence) >="),
        caught_by=f"{_SQLITE}::test_nothing_new_after_the_position_ends_no_wait",
    ),
    _fault(
        name="an earlier attempt ends a wait",
        at="adapters.sqlite.output:SqliteOutputLog.wait_for_output.look",
        do=Text("(attempt, sequence) > (?,", "(attempt > ? OR sequence >"),
        caught_by=f"{_SQLITE}::test_nothing_new_after_the_position_ends_no_wait",
    ),
    _fault(
        name="output between looking and waiting is missed",
        at="adapters.shared.waiters:Waiters._wait_for_change",
        do=Before("= _waiting", "await asyncio.sleep(0.001)"),
        caught_by=f"{_SQLITE}::test_no_wake_up_is_lost_between_looking_and_waiting",
    ),
    _fault(
        name="a wait never gives up",
        at="adapters.shared.waiters:Waiters.wait_until",
        do=Condition("timedelta()", False),
        caught_by=f"{_SQLITE}::test_a_wait_gives_up_after_its_time_and_not_before",
    ),
    _fault(
        name="a wait gives up too early",
        at="adapters.shared.waiters:Waiters.wait_until",
        do=Replace("wait", "$0 / 2", nth=2),
        caught_by=f"{_SQLITE}::test_a_wait_gives_up_after_its_time_and_not_before",
    ),
    _fault(
        name="output wakes no other process",
        at="adapters.sqlite.notifier:Notifier.wake_others",
        do=Drop("write()"),
        caught_by=f"{_FOUR}::test_a_wait_ends_as_soon_as_something_is_after_the_position",
    ),
    _fault(
        name="an entry is written over in memory",
        at="testing.memory.logs:MemoryOutputLog.append",
        do=Replace("setdefault() chunk", "stored.__setitem__($1, $2)"),
        caught_by=f"{_MEMORY}::test_an_entry_that_is_kept_already_changes_nothing",
    ),
    _fault(
        name="output in memory comes in the order of arrival",
        at="testing.memory.logs:MemoryOutputLog.read",
        do=Replace("sorted()", "list($1)"),
        caught_by=f"{_MEMORY}::test_output_comes_by_attempt_and_then_by_sequence",
    ),
    _fault(
        name="what was seen ends a wait in memory",
        at="testing.memory.logs:MemoryOutputLog.wait_for_output.look",
        do=Operator("> after", ">="),
        caught_by=f"{_MEMORY}::test_without_a_wait_the_answer_comes_at_once",
    ),
)
